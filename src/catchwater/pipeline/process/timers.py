"""Where timers lie: in the key's record by name, and in a table of the shard by due time."""

from collections.abc import Mapping
from typing import Any

from catchwater.state.entries import ShardState, Table, pack_time, unpack_time
from catchwater.state.records import Record

TIMER_TABLES = (Table.TIMER, Table.CLOCK_TIMER)


def timers_of(record: Record[Any], table: Table) -> dict[str, int]:
    """The record's timers that lie in this table: due time by name."""
    return record.timers if table is Table.TIMER else record.clock_timers or {}


def timer_entry(at: int, key: bytes, name: str) -> bytes:
    """The key of a timer's entry: entries lie in the order (time, key hash, name)."""
    return pack_time(at) + key + name.encode() + len(key).to_bytes(2, "big")


def timer_of(entry: bytes) -> tuple[int, bytes, str]:
    """(time, stored key, name) of an entry of a timer table."""
    end = 8 + int.from_bytes(entry[-2:], "big")
    return unpack_time(entry), entry[8:end], entry[end:-2].decode()


def store_timers(
    state: ShardState, table: Table, key: bytes, before: Mapping[str, int], now: Mapping[str, int]
) -> None:
    """Bring the table to what the record's timers have become."""
    for name, at in before.items():
        if now.get(name) != at:
            state.delete(table, timer_entry(at, key, name))
    for name, at in now.items():
        if before.get(name) != at:
            state.put(table, timer_entry(at, key, name), b"")
