"""The page that Prometheus reads."""

import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from catchwater.broker.control.app import Health
from catchwater.broker.lags import GroupLags
from catchwater.broker.metrics import Metrics
from catchwater.broker_config import BrokerConfig
from catchwater.catalog.rows import Position, ReportRow
from catchwater.clock import ManualClock
from catchwater.log.read.reader import ReadCounts
from catchwater.log.tables.settings import Counts as TableCounts
from catchwater.log.write.writer import Written
from catchwater.objects.base import StoreUnavailable
from catchwater.objects.memory import MemoryStore
from catchwater.objects.retry import RequestCounts, RetryingStore, RetryPolicy
from catchwater.verdicts import Verdict
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import marker, patched


def test_the_object_stores_requests_are_shown_by_operation_and_outcome() -> None:
    metrics, counts = Metrics(), RequestCounts()
    metrics.show(counts, ReadCounts(), Written())
    counts.add("put", "ok")
    counts.add("put", "ok")
    counts.add("get_range", "retried")
    page = metrics.page().decode()
    assert 'catchwater_object_store_requests_total{op="put",outcome="ok"} 2.0' in page
    assert 'catchwater_object_store_requests_total{op="get_range",outcome="retried"} 1.0' in page


def test_what_became_of_tables_is_shown_by_topic_and_a_waiting_one_stands_out() -> None:
    metrics, tables = Metrics(), {"cards": TableCounts(commits=3, records=90, malformed=1)}
    metrics.show_tables(lambda: tables)
    page = metrics.page().decode()
    assert 'catchwater_table_commits_total{topic="cards"} 3.0' in page
    assert 'catchwater_table_records_total{topic="cards"} 90.0' in page
    assert 'catchwater_table_malformed_total{topic="cards"} 1.0' in page
    assert 'catchwater_table_waits{topic="cards"} 0.0' in page
    tables["cards"] = TableCounts(conflicts=2, failures=1, error="The catalog does not answer.")
    page = metrics.page().decode()
    assert 'catchwater_table_conflicts_total{topic="cards"} 2.0' in page
    assert 'catchwater_table_failures_total{topic="cards"} 1.0' in page
    assert 'catchwater_table_waits{topic="cards"} 1.0' in page


def test_what_is_counted_at_every_request_is_shown_as_prometheus_shows_it() -> None:
    metrics = Metrics()
    metrics.bytes_in.total += 7
    fetches = metrics.request_seconds.of("Fetch")
    for seconds in (0.0005, 0.0007, 9.0):
        fetches.observe(seconds)
    assert metrics.request_seconds.of("Fetch") is fetches
    page = metrics.page().decode()
    assert "catchwater_bytes_in_total 7.0" in page
    assert "catchwater_bytes_out_total 0.0" in page
    shown = {
        line.split(" ")[0]: float(line.split(" ")[1])
        for line in page.splitlines()
        if line.startswith("catchwater_request_seconds")
    }
    name = "catchwater_request_seconds"
    assert shown[name + '_bucket{api="Fetch",le="0.0005"}'] == 1
    assert shown[name + '_bucket{api="Fetch",le="0.001"}'] == 2
    assert shown[name + '_bucket{api="Fetch",le="5.0"}'] == 2
    assert shown[name + '_bucket{api="Fetch",le="+Inf"}'] == 3
    assert shown[name + '_count{api="Fetch"}'] == 3
    assert abs(shown[name + '_sum{api="Fetch"}'] - 9.0012) < 1e-9
    assert "catchwater_request_queue_seconds_count 0.0" in page


class Lagging:
    """The parts of a broker that the page is made of: one group that is behind everywhere."""

    def __init__(self, partitions: int, **settings: Any) -> None:
        self.config = BrokerConfig(**settings)
        state = SimpleNamespace(high_watermark=9)
        rows = [Position("g", "t", index, 2) for index in range(partitions)]
        self.batches: dict[int, bytes] = {}
        """Offset → the batch there; otherwise it is a record of 2.5 s ago."""
        record = encode_batch([(b"k", b"v", NOW_MS - 2500, ())])
        self.asked: list[tuple[Any, int]] = []

        async def positions(most: int) -> tuple[list[Position], int]:
            return rows[:most], max(0, len(rows) - most)

        async def pins() -> list[Any]:
            return []

        async def reports() -> list[ReportRow]:
            return [ReportRow("cards", NOW_MS - 1000, REPORT)]

        def read_now(key: Any, offset: int, most: int, **_: Any) -> Any:
            self.asked.append((key, offset))
            return SimpleNamespace(parts=[self.batches.get(offset, record)])

        self.turns, self.now_s = 0, 100.0
        self.metrics, self.clock, self.brokers = Metrics(), self, [1]
        members = {"g": SimpleNamespace(id="g", members=[1, 2])}
        self.groups = SimpleNamespace(groups=members, consumer_groups={})
        topics = [SimpleNamespace(id=b"t", name="t", partitions=partitions)]
        self.log = SimpleNamespace(
            positions=positions, pins=pins, reports=reports, unflushed_bytes=0, topics=topics,
            txns=SimpleNamespace(open_count=0), state_if_there=lambda _: state, read_now=read_now,
        )  # fmt: skip
        self.log.keeping = SimpleNamespace(wal_age_s=self.wal_age_s)
        self.lags = GroupLags(cast(Any, self))

    async def page(self) -> str:
        reply = await Health(cast(Any, self)).metrics(cast(Any, None), cast(Any, None))
        return bytes(reply.body).decode()

    async def wal_age_s(self) -> float:
        return 7.5

    async def sleep(self, seconds: float) -> None:
        self.turns += 1

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic_s(self) -> float:
        return self.now_s


NOW_MS = 1_700_000_000_000
OK = Verdict("ok", "Fine.", "next")
REPORT = msgspec.json.encode(
    {"name": "cards", "correct": OK, "recoverable": OK, "fresh": Verdict("fail", "Old.", "next")}
).decode()


async def test_lags_are_shown_up_to_a_bound_and_others_have_their_turn_meanwhile() -> None:
    broker = Lagging(1_005, catchwater_metrics_max_lags=1_000)
    page = await broker.page()
    assert 'catchwater_consumer_lag_records{group="g",partition="3",topic="t"} 7.0' in page
    assert 'catchwater_consumer_lag_seconds{group="g",partition="3",topic="t"} 2.5' in page
    assert page.count("catchwater_consumer_lag_records{") == 1_000
    assert "catchwater_consumer_lags_left_out 5.0" in page
    assert 'catchwater_group_lag_records{group="g"} 7000.0' in page
    assert 'catchwater_group_lag_seconds{group="g"} 2.5' in page
    assert 'catchwater_group_members{group="g"} 2.0' in page
    assert "catchwater_wal_age_seconds 7.5" in page
    assert broker.turns > 10


def test_a_store_that_fails_flips_its_own_metrics_and_one_that_is_slow_the_others() -> None:
    """What was written is counted by what it was written for."""
    metrics, clock = Metrics(), ManualClock()
    broken = MemoryStore()
    store = RetryingStore(broken, clock, RetryPolicy(tries=3))
    metrics.show(store.requests, ReadCounts(3, 1), Written(900, 1000))

    def values() -> dict[str, float]:
        page = metrics.page().decode().splitlines()
        lines = [line.rpartition(" ") for line in page if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines if "_created" not in name}

    store.put("segments/a", [b"12345"])
    before = values()
    assert before['catchwater_written_bytes_total{kind="segments"}'] == 5
    assert before['catchwater_written_bytes_total{kind="wal"}'] == 1000
    assert before["catchwater_appended_bytes_total"] == 900
    assert before['catchwater_tail_reads_total{from="storage"}'] == 1

    def fail(key: str) -> bytes:
        clock.advance(2_000)
        raise StoreUnavailable("Down.")

    broken.get = fail  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        store.get("segments/a")
    after = values()
    requests, name = 'catchwater_object_store_requests_total{op="get",outcome=', "catchwater_"
    assert after[requests + '"retried"}'] == 2
    assert after[requests + '"failed"}'] == 1
    retries = 'catchwater_retries_total{component="object_store"}'
    assert after[retries] - before[retries] == 2
    slow = 'catchwater_object_store_request_seconds_bucket{le="5.0",op="get"}'
    assert (after[slow], after[slow.replace("5.0", "+Inf")]) == (0, 1)
    changed = {each.partition("{")[0] for each in after if after[each] != before.get(each)}
    assert {each.removeprefix(name) for each in changed} <= {
        "object_store_requests_total", "object_store_request_seconds_bucket",
        "object_store_request_seconds_count", "object_store_request_seconds_sum",
        "retries_total", "process_cpu_seconds_total", "process_resident_memory_bytes",
        "process_virtual_memory_bytes", "process_open_fds",
    }  # fmt: skip


async def test_what_is_not_durable_yet_and_who_is_alive_is_asked_when_somebody_looks() -> None:
    broker = Lagging(1)
    broker.log.unflushed_bytes, broker.brokers = 70, [1, 2]
    page = await broker.page()
    assert "catchwater_wal_unflushed_bytes 70.0" in page
    assert "catchwater_brokers 2.0" in page


async def test_what_was_promised_to_a_group_stands_beside_its_lag() -> None:
    broker = Lagging(1, catchwater_group_max_staleness="other=1h, *=30s")
    assert 'catchwater_group_max_staleness_seconds{group="g"} 30.0' in await broker.page()
    assert "max_staleness_seconds{" not in await Lagging(1).page()


async def test_a_place_is_read_once_and_a_look_serves_all_who_ask_at_the_time() -> None:
    broker = Lagging(10)
    first = await broker.lags.look()
    assert await broker.lags.look() is first
    broker.lags._until_s = 0.0
    assert await broker.lags.look() is not first
    assert len(broker.asked) == 10


async def test_a_look_at_many_positions_serves_for_longer_and_its_text_is_made_once() -> None:
    few, many = Lagging(10), Lagging(10_000)
    for broker in (few, many):
        broker.now_s = 100.0
        await broker.page()
        broker.now_s += 9.9
    found = many.metrics.groups.found
    assert 'catchwater_consumer_lag_seconds{group="g",partition="3",topic="t"} 2.5' in (
        await many.page()
    )
    assert many.metrics.groups.found is found
    made = many.metrics.groups._made
    many.groups.groups["g"].members.append(3)
    assert 'catchwater_group_members{group="g"} 3.0' in await many.page()
    assert many.metrics.groups._made is made
    before = few.metrics.groups.found
    await few.page()
    assert few.metrics.groups.found is not before
    many.now_s += 0.2
    many.log.state_if_there = lambda _: SimpleNamespace(high_watermark=3)
    assert 'catchwater_consumer_lag_records{group="g",partition="3",topic="t"} 1.0' in (
        await many.page()
    )


async def test_a_group_that_has_only_a_marker_before_it_is_not_behind() -> None:
    broker = Lagging(1)
    _, end = marker(7, 0, committed=True, timestamp_ms=NOW_MS)
    broker.batches = {2: b"".join(patched(memoryview(end), 2))}
    (lag,) = (await broker.lags.look()).lags
    assert (lag.records, lag.seconds) == (6, 2.5)
    broker.log.state_if_there = lambda _: SimpleNamespace(high_watermark=3)
    broker.lags._until_s = 0.0
    (lag,) = (await broker.lags.look()).lags
    assert (lag.records, lag.seconds) == (0, 0.0)


async def test_pipelines_that_report_are_shown_with_their_verdicts_and_age() -> None:
    page = await Lagging(1).page()
    assert 'catchwater_pipeline_report_age_seconds{pipeline="cards"} 1.0' in page
    assert 'catchwater_pipeline_verdict{pipeline="cards",verdict="correct"} 0.0' in page
    assert 'catchwater_pipeline_verdict{pipeline="cards",verdict="fresh"} 2.0' in page


async def test_a_page_of_ten_thousand_partitions_is_made_at_once() -> None:
    """Far more than the 50 ms of process time that it is to take would be a slip."""
    broker = Lagging(10_000)
    await broker.page()
    took_s = []
    for _ in range(3):  # a collection of all that other tests left may fall into one of them
        began_s = time.process_time()
        page = await broker.page()
        took_s.append(time.process_time() - began_s)
    assert min(took_s) < 0.5
    assert page.count("catchwater_consumer_lag_records{") == 10_000


async def test_names_that_clients_choose_cannot_break_the_page() -> None:
    broker = Lagging(1)
    broker.groups.groups = {"x": SimpleNamespace(id='a"b\\c\nd', members=[])}
    assert r'catchwater_group_members{group="a\"b\\c\nd"} 0.0' in await broker.page()
    list(text_string_to_metric_families(await broker.page()))
