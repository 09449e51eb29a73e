"""Rows go through Arrow as they are, and come back by shard and in order."""

import msgspec

from catchwater.pipeline.rows import (
    EVENTS,
    HEAD,
    TABLES,
    Head,
    Row,
    by_shard,
    from_arrow,
    head_of,
    to_arrow,
)
from catchwater.state.roll import Position


def test_rows_survive_arrow() -> None:
    rows = [Row(5, 0, 1, HEAD, b"\x00head"), Row(5, 1, 2, EVENTS + 2**40, b"")]
    assert from_arrow(to_arrow(rows)) == rows


def test_a_shards_rows_are_its_head_then_tables_then_events() -> None:
    head = Head(3, 100, 200, Position(3, "abc"), keys=7)
    rows = [
        Row(5, 0, 1, EVENTS + 1, b"second"),
        Row(4, 0, 0, HEAD, b"other"),
        Row(5, 0, 1, EVENTS, b"first"),
        Row(5, 0, 1, TABLES, b"table"),
        Row(5, 0, 1, HEAD, msgspec.msgpack.encode(head)),
    ]
    shards = by_shard(rows)
    assert list(shards) == [0, 1]
    assert [row.blob for row in shards[1][1:]] == [b"table", b"first", b"second"]
    assert head_of(shards[1]) == head
