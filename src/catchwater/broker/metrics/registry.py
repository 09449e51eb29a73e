"""What the broker counts, as Prometheus shows it at `/metrics`; base units, bounded labels.

Labels are bounded: APIs are labelled by Kafka's names, refusals by our own short reasons, and of
what clients name themselves only groups, and topics that exist. `MAX_GROUPS` of them are shown.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from catchwater.broker.metrics import meters
from catchwater.objects.retry import RequestCounts

MAX_GROUPS = 1_000


class Metrics:
    """One broker's registry; several brokers may live in one process (tests, simulations)."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.request_seconds = meters.Histogram(
            "catchwater_request_seconds",
            "From the start of a request's handler to its reply.",
            "api",
        )
        queued = meters.Histogram(
            "catchwater_request_queue_seconds",
            "From a request's last byte to the start of its handler.",
        )
        self.request_queue_seconds = queued.of()
        self.bytes_in = meters.Total("catchwater_bytes_in", "Request bytes received.")
        self.bytes_out = meters.Total("catchwater_bytes_out", "Reply bytes sent.")
        for each in (self.request_seconds, queued, self.bytes_in, self.bytes_out):
            self._registry.register(each)
        self.connections = self._gauge("connections", "Open Kafka connections.")
        self.connections_closed = self._counter(
            "connections_closed", "Connections that the broker closed on its own.", "reason"
        )
        self.batches_refused = self._counter(
            "batches_refused", "Record batches not appended, by Kafka's error name.", "error"
        )
        self.group_members = self._gauge("group_members", "Members of a consumer group.", "group")
        self.consumer_lag_records = self._gauge(
            "consumer_lag_records",
            "Offsets from a group's committed position to the high watermark.",
            *("group", "topic", "partition"),
        )
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
            "replay_throttled_seconds", "How long tasks of replays were told to wait, in sum."
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
            f"catchwater_{name}", text, labels, buckets=meters.SECONDS, registry=self._registry
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
