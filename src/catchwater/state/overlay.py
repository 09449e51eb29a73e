"""Changes merged into the entries they change, so that a rebuild mostly appends.

An ordered store takes entries in order many times faster than changes all over it. The oldest
changes, as many as may lie in memory, therefore go into the chunks as these pass by. Pure.
"""

from bisect import bisect_right
from collections.abc import Iterator

from catchwater.state.entries import Changes, Table, no_changes


def merged(chunks: Iterator[Changes], changes: Iterator[Changes], limit: int) -> Iterator[Changes]:
    """What the chunks and then the changes say, the first `limit` or so changes in the chunks.

    The chunks' entries come in order within each table, and still do.
    """
    held = no_changes()
    for block in changes:
        for table in Table:
            held[table].update(block[table])
        if sum(map(len, held)) >= limit:
            break
    waiting = [sorted(table) for table in held]
    begun = [0] * len(waiting)
    for block in chunks:
        for table in Table:
            if block[table] and waiting[table]:
                last = next(reversed(block[table]))
                end = bisect_right(waiting[table], last, begun[table])
                _change(block[table], held[table], waiting[table][begun[table] : end])
                begun[table] = end
        yield block
    rest = no_changes()
    for table in Table:
        _change(rest[table], held[table], waiting[table][begun[table] :])
    yield rest
    yield from changes


def _change(
    entries: dict[bytes, bytes | None], held: dict[bytes, bytes | None], keys: list[bytes]
) -> None:
    for key in keys:
        value = held[key]
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value
