"""What the broker measures of itself, and how Prometheus is shown it at `/metrics`.

What is counted at every request is counted by `Total`, `Times` and `TimesByLabel`, so cheaply that
it is not felt: the client library takes a lock and a few calls for each observation. These are
written by the event loop's thread alone, and a reader may see a sum that is one observation ahead.

Units are base units. Labels are bounded: APIs are labelled by Kafka's names, refusals by our own
short reasons, and of what clients name themselves only groups, and topics that exist. `MAX_GROUPS`
of them are shown, and `MAX_LAGS` of their partitions.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from catchwater.objects.retry import RequestCounts

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets of every histogram of times."""
_BOUNDS = [*map(str, SECONDS), "+Inf"]


class Total(Collector):
    """A counter: add to `total`."""

    def __init__(self, name: str, text: str) -> None:
        self.total = 0
        self._name = name
        self._text = text

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What Prometheus asks for."""
        yield CounterMetricFamily(self._name, self._text, value=self.total)


class Times:
    """How often something took how long."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum_s += seconds


class TimesByLabel(Collector):
    """Times by one label, or the only ones if it has none."""

    def __init__(self, name: str, text: str, label: str | None = None) -> None:
        self._name = name
        self._text = text
        self._labels = [] if label is None else [label]
        self._times: dict[str, Times] = {}

    def of(self, value: str = "") -> Times:
        """The times of this value of the label."""
        return self._times.setdefault(value, Times())

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What Prometheus asks for."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for value, times in self._times.items():
            buckets = list(zip(_BOUNDS, accumulate(times.counts), strict=True))
            family.add_metric([value] if self._labels else [], buckets, times.sum_s)
        yield family


MAX_GROUPS = 1_000
MAX_LAGS = 20_000
"""Pairs of a group and a partition."""


class Groups(Collector):
    """Members and lags of consumer groups, set as a whole when metrics are asked for."""

    def __init__(self) -> None:
        self.members: dict[str, int] = {}
        self.lags: list[tuple[str, str, int, int]] = []
        """Group, topic, partition, and the offsets between its position and the end."""
        self.left_out = 0
        """Lags beyond `MAX_LAGS`."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What Prometheus asks for."""
        members = GaugeMetricFamily(
            "catchwater_group_members", "Members of a consumer group.", labels=["group"]
        )
        for group, count in self.members.items():
            members.add_metric([group], count)
        lags = GaugeMetricFamily(
            "catchwater_consumer_lag_records",
            "Offsets from a group's committed position to the high watermark.",
            labels=["group", "topic", "partition"],
        )
        for group, topic, partition, lag in self.lags:
            lags.add_metric([group, topic, str(partition)], lag)
        yield from (members, lags)
        about = f"Lags that are not shown, for there are more than {MAX_LAGS}."
        yield GaugeMetricFamily("catchwater_consumer_lags_left_out", about, self.left_out)


class Metrics:
    """One broker's registry; several brokers may live in one process (tests, simulations)."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.request_seconds = TimesByLabel(
            "catchwater_request_seconds",
            "From the start of a request's handler to its reply.",
            "api",
        )
        queued = TimesByLabel(
            "catchwater_request_queue_seconds",
            "From a request's last byte to the start of its handler.",
        )
        self.request_queue_seconds = queued.of()
        self.bytes_in = Total("catchwater_bytes_in", "Request bytes received.")
        self.bytes_out = Total("catchwater_bytes_out", "Reply bytes sent.")
        for each in (self.request_seconds, queued, self.bytes_in, self.bytes_out):
            self._registry.register(each)
        self.connections = self._gauge("connections", "Open Kafka connections.")
        self.connections_closed = self._counter(
            "connections_closed", "Connections that the broker closed on its own.", "reason"
        )
        self.audited = self._counter(
            "audited", "Refusals, failed logins and actions noted for the audit trail.", "kind"
        )
        self.batches_refused = self._counter(
            "batches_refused", "Record batches not appended, by Kafka's error name.", "error"
        )
        self.groups = Groups()
        self._registry.register(self.groups)
        self.wal_unflushed_bytes = self._gauge(
            "wal_unflushed_bytes", "Record bytes submitted and not yet durable."
        )
        self.pins = self._gauge(
            "pins", "Pins by state: reserved, extended, unreserved, lost.", "state"
        )
        self.txn_open = self._gauge("txn_open", "Transactions that are open or being ended.")
        self.txn_errors = self._counter(
            "txn_errors", "Transaction requests refused, by Kafka's error name.", "error"
        )
        self.wal_fsync_seconds = self._histogram(
            "wal_fsync_seconds", "How long an append to the write-ahead log took to be durable."
        )
        self.replay_granted_bytes = self._counter(
            "replay_granted_bytes", "Bytes of storage that replays under a quota may have read."
        )
        self.replay_throttled_seconds = self._counter(
            "replay_throttled_seconds", "How long tasks of replays had to wait, in sum."
        )
        self.brokers = self._gauge("brokers", "Live brokers, as this one knows them.")
        self.loop_lag_seconds = self._histogram(
            "loop_lag_seconds", "How late the event loop wakes a task that slept for a second."
        )

    def show_store(self, counts: RequestCounts) -> None:
        """Show what became of the requests to the object store."""
        self._registry.register(_StoreRequests(counts))

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"catchwater_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"catchwater_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            f"catchwater_{name}", text, labels, buckets=SECONDS, registry=self._registry
        )


class _StoreRequests(Collector):
    """Counts that are kept where the requests are made."""

    def __init__(self, counts: RequestCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What Prometheus asks for."""
        family = CounterMetricFamily(
            "catchwater_object_store_requests",
            "Requests to the object store; a retried one counts once for every attempt.",
            labels=("op", "outcome"),
        )
        for labels, count in sorted(self._counts.snapshot().items()):
            family.add_metric(labels, count)
        yield family
