"""What the broker counts, as Prometheus shows it at `/metrics`; base units, bounded labels.

No label takes a value that a client makes up: APIs are labelled by Kafka's names, refusals by our
own short reasons.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """One broker's registry; several brokers may live in one process (tests, simulations)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "catchwater_requests", "Requests answered.", ["api"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "catchwater_request_seconds",
            "From a request's last byte to its reply's first.",
            ["api"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.request_queue_seconds = Histogram(
            "catchwater_request_queue_seconds",
            "From a request's last byte to the start of its handler.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.bytes_in = Counter(
            "catchwater_bytes_in", "Request bytes received.", registry=self.registry
        )
        self.bytes_out = Counter(
            "catchwater_bytes_out", "Reply bytes sent.", registry=self.registry
        )
        self.connections = Gauge(
            "catchwater_connections", "Open Kafka connections.", registry=self.registry
        )
        self.connections_closed = Counter(
            "catchwater_connections_closed",
            "Kafka connections that the broker closed on its own.",
            ["reason"],
            registry=self.registry,
        )
        self.batches_refused = Counter(
            "catchwater_batches_refused",
            "Record batches not appended, by Kafka's error name.",
            ["error"],
            registry=self.registry,
        )
        self.group_members = Gauge(
            "catchwater_group_members", "Members of all consumer groups.", registry=self.registry
        )
        self.loop_lag_seconds = Histogram(
            "catchwater_loop_lag_seconds",
            "How late the event loop wakes a task that slept for a second.",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)
