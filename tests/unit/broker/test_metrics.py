"""The page that Prometheus reads."""

from types import SimpleNamespace
from typing import Any, cast

from catchwater.broker.control.app import Health
from catchwater.broker.metrics import MAX_LAGS, Metrics
from catchwater.objects.retry import RequestCounts


def test_the_object_stores_requests_are_shown_by_operation_and_outcome() -> None:
    metrics, counts = Metrics(), RequestCounts()
    metrics.show_store(counts)
    counts.add("put", "ok")
    counts.add("put", "ok")
    counts.add("get_range", "retried")
    page = metrics.page().decode()
    assert 'catchwater_object_store_requests_total{op="put",outcome="ok"} 2.0' in page
    assert 'catchwater_object_store_requests_total{op="get_range",outcome="retried"} 1.0' in page


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

    def __init__(self, partitions: int) -> None:
        key = SimpleNamespace(high_watermark=9)
        commits = {("t", index): SimpleNamespace(offset=2) for index in range(partitions)}

        async def groups() -> list[str]:
            return ["g"]

        async def committed(group: str) -> Any:
            return commits

        async def pins() -> list[Any]:
            return []

        self.turns = 0
        self.metrics, self.clock, self.brokers = Metrics(), self, [1]
        self.groups = SimpleNamespace(groups={})
        self.log = SimpleNamespace(
            groups=groups, committed=committed, pins=pins, unflushed_bytes=0,
            txns=SimpleNamespace(open_count=0), state=lambda _: key,
            topics={"t": SimpleNamespace(id=b"t")},
        )  # fmt: skip

    async def sleep(self, seconds: float) -> None:
        self.turns += 1


async def test_lags_are_shown_up_to_a_bound_and_others_have_their_turn_meanwhile() -> None:
    broker = Lagging(MAX_LAGS + 5)
    page = (await Health(cast(Any, broker)).metrics(cast(Any, None), cast(Any, None))).body.decode()
    assert 'catchwater_consumer_lag_records{group="g",partition="3",topic="t"} 7.0' in page
    assert page.count("catchwater_consumer_lag_records{") == MAX_LAGS
    assert "catchwater_consumer_lags_left_out 5.0" in page
    assert broker.turns >= MAX_LAGS // 1_000
