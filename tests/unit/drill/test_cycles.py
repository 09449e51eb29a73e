"""Cycles are found in graphs of any depth."""

from catchwater.drill.cycles import cycles


def test_a_graph_without_a_circle_has_none() -> None:
    assert cycles({1: {2, 3}, 2: {4}, 3: {4}}) == []


def test_each_group_that_reaches_itself_is_found_once() -> None:
    assert cycles({1: {2}, 2: {3}, 3: {1, 4}, 4: {5}, 5: {4}, 6: {6}}) == [[1, 2, 3], [4, 5]]


def test_a_long_chain_needs_no_deep_stack() -> None:
    chain = {node: {node + 1} for node in range(50_000)}
    assert cycles(chain) == []
    assert len(cycles(chain | {50_000: {0}})[0]) == 50_001
