"""A function's shards at one position, written anew as any number of shards.

Every shard is an equal range of the keys' hash, so its entries are copied by ranges; pages of the
expiry journal are split by the keys they name, and the rows that every shard holds whole go to
every one. Nothing is decoded but those pages.

Each source is rebuilt in a temporary directory, which takes the state's size on disk for a while;
in memory lie a few chunks at a time. The sources are left as they are. A run that breaks off leaves
objects under a position that nothing refers to.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.state import roll as rolling
from catchwater.state.entries import Changes, Entries, Table, no_changes
from catchwater.state.expiry import PAGE_KEYS, page_of
from catchwater.state.keys import shard_of
from catchwater.state.log import StateLog
from catchwater.state.roll import EMPTY, END, Place, Position
from catchwater.state.store import ShardStore

_BY_HASH = (Table.RECORD, Table.SEEN, Table.ENTRY, Table.JOINED)
_BY_TIME = (Table.TIMER, Table.CLOCK_TIMER)
_HASH_AT = 8
"""Where the key's hash begins in an entry that begins with a time."""

Source = tuple[StateLog, Position]


class ShardsApart(CatchwaterError):
    """Shards of different versions are not one state."""


def rewrite(
    sources: Sequence[Source], targets: Sequence[StateLog], clock: Clock = SYSTEM
) -> list[Position]:
    """Write the state of all sources into the targets; gives where each of these stands.

    `sources` are all shards of a function in order, `targets` the new ones. Raises ShardsApart
    if the sources are of different versions, ShardDamaged, ShardStoreFailed, StoreError.
    """
    assert [log.shard for log, _ in sources] == list(range(len(sources))), "all, in order"
    versions = {at.version for _, at in sources}
    if len(versions) != 1:
        raise ShardsApart(
            f"The shards stand at versions {sorted(versions)}; only shards of one version are a "
            "state of their function."
        )
    (version,) = versions
    if version == EMPTY.version:
        return [EMPTY] * len(targets)
    weight = sum(chunk.weight for log, at in sources for chunk in log.roll_of(at).chunks)
    size = rolling.unit_of(weight // len(targets))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="catchwater-")))
        rebuilt = []
        for log, at in sources:
            store = ShardStore.open(folder / f"{log.shard}", log.function, log.shard, "")
            stack.callback(store.close)
            rebuilt.append(store.begin(at, log).committed)
        positions = [Position(version, clock.token()) for _ in targets]
        for shard, (target, at) in enumerate(zip(targets, positions, strict=True)):
            entries = _entries(rebuilt, shard, len(targets), version)
            target.write_whole(at, _parts(entries, size))
    return positions


def _entries(
    sources: Sequence[Entries], shard: int, shards: int, version: int
) -> Iterator[tuple[Table, bytes, bytes]]:
    """All entries of one of so many shards, by table and key."""
    start, until = _hash_range(shard, shards)
    count = len(sources)
    overlapping = sources[shard * count // shards : -(-(shard + 1) * count // shards)]
    found: Iterator[tuple[bytes, bytes]]
    for table in Table:
        if table in _BY_HASH:
            found = merge(*(source.scan(table, start, until) for source in overlapping))
        elif table in _BY_TIME:
            belongs = partial(_belongs, shard, shards)
            found = filter(belongs, merge(*(source.scan(table) for source in overlapping)))
        elif table is Table.EXPIRY:
            found = _pages(overlapping, shard, shards, version)
        else:
            found = sources[0].scan(table)
        yield from ((table, key, value) for key, value in found)


def _hash_range(shard: int, shards: int) -> tuple[bytes, bytes | None]:
    """The first four bytes of hashes between which `shard_of` gives this shard."""
    start, until = (-(-(each << 32) // shards) for each in (shard, shard + 1))
    return start.to_bytes(4, "big"), until.to_bytes(4, "big") if until >> 32 == 0 else None


def _belongs(shard: int, shards: int, item: tuple[bytes, bytes]) -> bool:
    return shard_of(item[0][_HASH_AT:], shards) == shard


def _pages(
    sources: Sequence[Entries], shard: int, shards: int, version: int
) -> Iterator[tuple[bytes, bytes]]:
    """The journal's pages with this shard's keys alone, numbered anew."""
    pages = merge(*(source.scan(Table.EXPIRY) for source in sources), key=itemgetter(0))
    for due_and_table, group in groupby(pages, lambda item: item[0][:9]):
        number, keys = 0, list[bytes]()
        for _, page in group:
            named = msgspec.msgpack.decode(page, type=list[bytes])
            keys += (key for key in named if shard_of(key, shards) == shard)
            while len(keys) >= PAGE_KEYS:
                yield page_of(due_and_table, version, number, keys[:PAGE_KEYS])
                number, keys = number + 1, keys[PAGE_KEYS:]
        if keys:
            yield page_of(due_and_table, version, number, keys)


def _parts(
    entries: Iterator[tuple[Table, bytes, bytes]], size: int
) -> Iterator[tuple[Changes, Place]]:
    """Entries in parts of about so many bytes, each with the place where it ends."""
    part, weight = no_changes(), 0
    for table, key, value in entries:
        if weight >= size:
            yield part, (table, key)
            part, weight = no_changes(), 0
        part[table][key] = value
        weight += len(key) + len(value)
    yield part, END
