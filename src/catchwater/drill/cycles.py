"""Cycles in a graph of transactions.

Pure. Tarjan's strongly connected components with a stack of its own, for histories are long.
"""

from collections.abc import Iterator, Mapping, Set

Graph = Mapping[int, Set[int]]


def cycles(graph: Graph) -> list[list[int]]:
    """The groups of two or more nodes that all reach each other, each sorted, in order."""
    return sorted(sorted(group) for group in _components(graph) if len(group) > 1)


def _components(graph: Graph) -> Iterator[list[int]]:
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for root in graph:
        if root in index:
            continue
        work: list[tuple[int, Iterator[int]]] = []
        _enter(root, graph, index, low, path, on_path, work)
        while work:
            node, successors = work[-1]
            following = next(successors, None)
            if following is None:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    group = [path.pop()]
                    while group[-1] != node:
                        group.append(path.pop())
                    on_path.difference_update(group)
                    yield group
            elif following not in index:
                _enter(following, graph, index, low, path, on_path, work)
            elif following in on_path:
                low[node] = min(low[node], index[following])


def _enter(
    node: int,
    graph: Graph,
    index: dict[int, int],
    low: dict[int, int],
    path: list[int],
    on_path: set[int],
    work: list[tuple[int, Iterator[int]]],
) -> None:
    index[node] = low[node] = len(index)
    path.append(node)
    on_path.add(node)
    work.append((node, iter(sorted(graph.get(node, ())))))
