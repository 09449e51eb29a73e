"""What the pages of topics and brokers say."""

from typing import Any

import pytest

from catchwater.catalog.rows import BrokerRow
from catchwater.clock import ManualClock
from catchwater.wal.base import WalDescription
from catchwater.web import of_log
from catchwater.web.facts import (
    _LONGEST_FRESH_S,
    FRESH_S,
    BrokerFact,
    TableFact,
    Times,
    TopicFact,
    _Cached,
)
from catchwater.web.view import Line, PageQuery, View

NOW_MS = 1_790_000_000_000
TOPIC = TopicFact("orders", 2, 10, 20, 1_000, NOW_MS - 1_000, {}, 0.0)
NOTHING = Times([], [])


def lines(view: View, panel: str) -> dict[str, Line]:
    (found,) = [each for each in view.panels if each.id == panel]
    return {line.label: line for line in found.lines}


def test_how_long_a_topic_is_kept_is_said_with_where_it_comes_from() -> None:
    day_ms = 86_400_000
    for settings, default_ms, said in (
        ({}, 7 * day_ms, "7 d (default)"),
        ({}, -1, "for ever (default)"),
        ({"retention.ms": str(day_ms)}, -1, "24 h"),
        ({"retention.ms": "-1"}, day_ms, "for ever"),
        ({"cleanup.policy": "compact"}, day_ms, "compacted"),
    ):
        found = [TOPIC._replace(settings=settings)]
        table = of_log.topics(found, PageQuery(), NOW_MS, default_ms).panels[0].table
        assert table is not None
        assert table.rows[0][-1].text == said


def test_a_topic_that_is_a_table_says_what_the_table_lacks() -> None:
    def shown(table: TableFact | None) -> View:
        return of_log.topic(of_log.TopicPage(TOPIC, [], [], [], table), PageQuery(), NOW_MS)

    assert "table" not in {panel.id for panel in shown(None).panels}
    there = TableFact("lake.orders", True, 90, 3, 4096, NOW_MS - 20_000, 10, 0)
    found = lines(shown(there), "table")
    assert (found["rows"].text, found["behind the log"].text) == ("90", "10 records")
    assert (found["table"].mark, found["ranges that it lacks"].mark) == ("", "ok")
    found = lines(shown(there._replace(gaps=2, problem="The catalog is away.")), "table")
    assert (found["table"].mark, found["table"].note) == ("warn", "The catalog is away.")
    assert found["ranges that it lacks"].mark == "warn"
    found = lines(shown(TableFact("unknown", False, problem="It cannot be asked.")), "table")
    assert {line.mark for line in found.values()} == {"warn", "unknown"}, "nothing is green"


@pytest.mark.parametrize(("takes_ms", "good_ms"), [(1, 2_000), (10, 4_000), (500, 10_000)])
async def test_a_look_that_takes_long_is_good_for_longer(takes_ms: int, good_ms: int) -> None:
    clock, looks = ManualClock(), list[int]()

    async def look(before: int | None) -> int:
        clock.advance(takes_ms)
        looks.append(takes_ms)
        return len(looks)

    seen = _Cached[int](clock, FRESH_S, _LONGEST_FRESH_S)
    assert await seen.get(look) == 1
    clock.advance(good_ms - 1)
    assert await seen.get(look) == 1
    clock.advance(1)
    assert await seen.get(look) == 2


def broker(**changes: Any) -> of_log.BrokersPage:
    now = BrokerFact(
        1.0, 0, 0, 0.0, 0.0, 1, 0, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, {}, {}, 0, 0.0,
        NOTHING, 0, 0, 0, {"WAL": 0, "segments": 0},
    )._replace(**changes)  # fmt: skip
    wal = WalDescription("file", "fast", "a disk", "this broker only", is_shared=False)
    row = BrokerRow(1, 1, "", "h", 1, "http://h:2", "file", False, "live", 0)
    return of_log.BrokersPage(1, [row], now, None, 0.0, wal, "file:///o", [])


def test_what_reads_and_writes_cost_is_unknown_until_there_were_some() -> None:
    found = lines(of_log.brokers(broker(), NOW_MS), "cost")
    assert {line.text for line in found.values()} == {"nothing yet"}
    busy = broker(
        tail_reads=3, storage_reads=1, appended_bytes=100,
        written_bytes={"WAL": 110, "segments": 90, "parquet": 0},
    )  # fmt: skip
    found = lines(of_log.brokers(busy, NOW_MS), "cost")
    assert found["read from memory"].text == "75 % of reads"
    assert found["written for each byte"].text == "2.00×"
    assert found["written for each byte"].note == "WAL 1.10, segments 0.90; since the start"


def test_slow_puts_of_objects_stand_beside_those_that_failed() -> None:
    store = {("put", "ok"): 100}
    puts = Times([0.01, 0.05, float("inf")], [50, 100, 100])
    found = lines(of_log.brokers(broker(store=store, puts=puts), NOW_MS), "objects")
    assert found["an object is put within"].text == "10 ms / 50 ms"
    line = of_log.store_line(broker(store=store | {("get", "retried"): 2}, puts=puts))
    assert (line.text, line.mark) == ("100", "warn")
    assert line.note == "2 tried again, 0 failed; put within 10 ms / 50 ms"


def test_bytes_that_wait_long_to_be_packed_warn_and_unknown_is_said() -> None:
    for age_s, text, mark in (
        (None, "unknown", "unknown"), (0.0, "none do", ""), (20.0, "20 s", ""),
        (7200.0, "2 h", "warn"),
    ):  # fmt: skip
        seen = broker()._replace(wal_age_s=age_s)
        found = lines(of_log.brokers(seen, NOW_MS), "wal")["oldest bytes wait for"]
        assert (found.text, found.mark) == (text, mark)
