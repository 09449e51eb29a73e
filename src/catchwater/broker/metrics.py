"""What the broker measures of itself, and how Prometheus is shown it at `/metrics`.

What is counted at every request is counted by `Total`, `Times` and `TimesByLabel`, so cheaply that
it is not felt: the client library takes a lock and a few calls for each observation. These are
written by the event loop's thread alone, and a reader may see a sum that is one observation ahead.

Units are base units. Labels are bounded: APIs are labelled by Kafka's names, refusals by our own
short reasons, and of what clients name themselves only groups, and topics that exist:
`catchwater.metrics.max.groups` of them are shown, and `catchwater.metrics.max.lags` of their
partitions. Those, which may be thousands, are written as text here: the client library takes ten
times as long. docs/monitoring.md lists all metrics.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from catchwater import retries
from catchwater.broker.lags import Lags
from catchwater.log.read.reader import ReadCounts
from catchwater.log.tables.settings import Counts
from catchwater.log.write.writer import Written
from catchwater.objects.retry import BUCKETS_S, RequestCounts
from catchwater.verdicts import STATES, State

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

    def cumulated(self) -> tuple[list[tuple[str, int]], float]:
        """Upper bound and count of each bucket with those before it, and the sum."""
        return list(zip(_BOUNDS, accumulate(self.counts), strict=True)), self.sum_s


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

    def known(self, value: str) -> Times:
        """The times of this value so far; none, where it was never met."""
        return self._times.get(value) or Times()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What Prometheus asks for."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for value, times in list(self._times.items()):  # the event loop may meet another one
            family.add_metric([value] if self._labels else [], *times.cumulated())
        yield family


class Groups:
    """Members and lags of consumer groups, set as a whole when metrics are asked for."""

    def __init__(self) -> None:
        self.members: Mapping[str, int] = {}
        self.found = Lags()
        self.promises: Mapping[str, float] = {}
        self._series: dict[tuple[str, str, int], tuple[str, str]] = {}
        """Place → the names of its two series with their labels."""
        self._made_of: Lags | None = None
        self._made = ""

    def text(self) -> str:
        """What Prometheus reads; for any thread, one at a time.

        Of lags that were shown already it is made once.
        """
        if self._made_of is not self.found:
            self._made, self._made_of = self._of_lags(), self.found
        return _gauges("group_members", "Members of a consumer group.", self.members) + self._made

    def _of_lags(self) -> str:
        before, series = self._series, dict[tuple[str, str, int], tuple[str, str]]()
        in_records, in_seconds = list[str](), list[str]()
        records, seconds = dict[str, int](), dict[str, float]()
        for group, topic, partition, _, count, late_s in self.found.lags:
            place = group, topic, partition
            named = series[place] = before.get(place) or _named(*place)
            in_records.append(f"{named[0]}{count}.0\n")
            records[group] = records.get(group, 0) + count
            if late_s is not None:
                in_seconds.append(f"{named[1]}{late_s}\n")
                seconds[group] = max(late_s, seconds.get(group, 0.0))
        self._series = series
        promised = {name: self.promises.get(name, self.promises.get("*")) for name in records}
        return "".join(
            (
                _family("consumer_lag_records", "Records from a group's position to the end."),
                *in_records,
                _family("consumer_lag_seconds", "Age of the oldest record a group has not read."),
                *in_seconds,
                _gauges("group_lag_records", "The sum of a group's lags.", records),
                _gauges("group_lag_seconds", "The largest of a group's lags.", seconds),
                _gauges(
                    "group_max_staleness_seconds", "What that may be by what was promised.",
                    {name: each for name, each in promised.items() if each is not None},
                ),
                _family("consumer_lags_left_out", "Lags beyond catchwater.metrics.max.lags."),
                f"catchwater_consumer_lags_left_out {self.found.left_out}.0\n",
            )
        )  # fmt: skip


def _family(name: str, text: str) -> str:
    return f"# HELP catchwater_{name} {text}\n# TYPE catchwater_{name} gauge\n"


def _gauges(name: str, text: str, by_group: Mapping[str, float]) -> str:
    lines = (
        f'catchwater_{name}{{group="{_escaped(group)}"}} {float(value)}\n'
        for group, value in by_group.items()
    )
    return _family(name, text) + "".join(lines)


def _named(group: str, topic: str, partition: int) -> tuple[str, str]:
    of = f'{{group="{_escaped(group)}",partition="{partition}",topic="{_escaped(topic)}"}} '
    return f"catchwater_consumer_lag_records{of}", f"catchwater_consumer_lag_seconds{of}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Reports(Collector):
    """The verdicts of the pipelines that report to the log, and how old these reports are."""

    def __init__(self) -> None:
        self.verdicts: Mapping[str, Mapping[str, State]] = {}
        self.ages_s: Mapping[str, float] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What Prometheus asks for."""
        verdicts = GaugeMetricFamily(
            "catchwater_pipeline_verdict",
            "Of the pipeline's last report: 0 ok, 1 warn, 2 fail, 3 unknown.",
            labels=["pipeline", "verdict"],
        )
        ages = GaugeMetricFamily(
            "catchwater_pipeline_report_age_seconds",
            "Since the pipeline's last report.",
            labels=["pipeline"],
        )
        for pipeline, states in self.verdicts.items():
            ages.add_metric([pipeline], self.ages_s[pipeline])
            for verdict, state in states.items():
                verdicts.add_metric([pipeline, verdict], STATES.index(state))
        yield from (verdicts, ages)


class _Counts(Collector):
    """A counter by one label, kept elsewhere."""

    def __init__(self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]]):
        self._names, self._label, self._read = (name, text), label, read

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What Prometheus asks for."""
        family = CounterMetricFamily(*self._names, labels=[self._label])
        for value, count in self._read().items():
            family.add_metric([value], count)
        yield family


class _Commits(Collector):
    """How long commits took: what the times of three APIs say, under the name one looks for."""

    def __init__(self, times: "TimesByLabel") -> None:
        self._times = times

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What Prometheus asks for."""
        family = HistogramMetricFamily(
            "catchwater_commit_latency_seconds",
            "How long a commit took in the broker: of positions, or of a transaction.",
            labels=["kind"],
        )
        for kind, api in _COMMITS.items():
            family.add_metric([kind], *self._times.known(api).cumulated())
        yield family


_COMMITS = {"offsets": "OffsetCommit", "txn_offsets": "TxnOffsetCommit", "txn": "EndTxn"}


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
        self.certificate_ends = self._gauge(
            "certificate_end_timestamp_seconds",
            "When the certificate of a listener, or of the control API, ends.",
            "listener",
        )
        self.throttled_seconds = self._counter(
            "throttled_seconds", "For how long clients were not read from, by their quota.", "quota"
        )
        self.lagging_bytes = self._counter(
            "lagging_bytes", "Bytes that consumers which lag behind had read from storage."
        )
        self.audited = self._counter(
            "audited", "Refusals, failed logins and actions noted for the audit trail.", "kind"
        )
        self.batches_refused = self._counter(
            "batches_refused", "Record batches not appended, by Kafka's error name.", "error"
        )
        self.groups = Groups()
        self.reports = Reports()
        self._registry.register(self.reports)
        self._registry.register(_Commits(self.request_seconds))
        self._registry.register(
            _Counts(
                "catchwater_retries",
                "What failed for the moment and was tried again.",
                "component",
                retries.counts,
            )
        )
        ProcessCollector("catchwater", registry=self._registry)
        self.wal_unflushed_bytes = self._gauge(
            "wal_unflushed_bytes", "Record bytes submitted and not yet durable."
        )
        self.wal_age_seconds = self._gauge(
            "wal_age_seconds", "For how long the oldest bytes wait to be packed; 0: none do."
        )
        self.pins = self._gauge(
            "pins", "Pins by state: reserved, extended, unreserved, lost.", "state"
        )
        self.txn_open = self._gauge("txn_open", "Transactions that are open or being ended.")
        self.partitions = self._gauge("partitions", "Partitions of all topics.")
        self.txn_errors = self._counter(
            "txn_errors", "Transaction requests refused, by Kafka's error name.", "error"
        )
        self.wal_fsync_seconds = self._histogram(
            "wal_fsync_seconds", "How long an append to the write-ahead log took to be durable."
        )
        self.replay_granted_bytes = self._counter(
            "replay_granted_bytes", "Bytes of storage that replays under a quota may have read."
        )
        self.planned_bytes = self._counter(
            "planned_bytes", "Bytes of storage that plans named: read past the brokers, by Spark."
        )
        self.replay_throttled_seconds = self._counter(
            "replay_throttled_seconds", "How long tasks of replays had to wait, in sum."
        )
        self.brokers = self._gauge("brokers", "Live brokers, as this one knows them.")
        self.loop_lag_seconds = self._histogram(
            "loop_lag_seconds", "How late the event loop wakes a task that slept for a second."
        )

    def show(self, requests: RequestCounts, reads: ReadCounts, written: Written) -> None:
        """Show what became of the requests to the object store, and what reads and writes took."""
        for each in (_StoreRequests(requests), _StoreTimes(requests), _Appended(written)):
            self._registry.register(each)

        def amplified() -> dict[str, float]:
            kinds = ("segments", "parquet", "staged")
            return {"wal": written.wal, **{kind: requests.stored[kind] for kind in kinds}}

        for name, text, label, read in (
            ("tail_reads", "Reads of clients, by where the bytes came from.", "from",
             lambda: {"memory": reads.tail, "storage": reads.storage}),
            ("written_bytes", "Bytes written for batches: write-ahead log and objects, by kind.",
             "kind", amplified),
        ):  # fmt: skip
            self._registry.register(_Counts(f"catchwater_{name}", text, label, read))

    def show_tables(self, read: Callable[[], Mapping[str, Counts]]) -> None:
        """Show what became of topics' tables."""
        self._registry.register(_Tables(read))

    def throttled(self, key: str, seconds: float) -> None:
        """A client waits so long for this quota."""
        self.throttled_seconds.labels(key).inc(seconds)

    def lagging(self, size_bytes: int) -> None:
        """Count bytes read from storage for a consumer that lags behind."""
        self.lagging_bytes.inc(size_bytes)

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry) + self.groups.text().encode()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"catchwater_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"catchwater_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            f"catchwater_{name}", text, labels, buckets=SECONDS, registry=self._registry
        )


class _Tables(Collector):
    """What became of topics' tables here, by topic."""

    def __init__(self, read: Callable[[], Mapping[str, Counts]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """What Prometheus asks for."""
        found = dict(self._read())
        for name, text, value in _OF_TABLES:
            counter = CounterMetricFamily(f"catchwater_table_{name}", text, labels=["topic"])
            for topic, counts in found.items():
                counter.add_metric([topic], value(counts))
            yield counter
        waits = GaugeMetricFamily(
            "catchwater_table_waits", "1 where a topic's table waits for something.",
            labels=["topic"],
        )  # fmt: skip
        for topic, counts in found.items():
            waits.add_metric([topic], float(bool(counts.error)))
        yield waits


_OF_TABLES: Sequence[tuple[str, str, Callable[[Counts], float]]] = (
    ("records", "Records committed to topics' tables.", lambda counts: counts.records),
    ("commits", "Commits to topics' tables.", lambda counts: counts.commits),
    ("malformed", "Records of tables whose value is not as declared.",
     lambda counts: counts.malformed),
    ("conflicts", "Commits to tables that had to be tried again.",
     lambda counts: counts.conflicts),
    ("failures", "Turns of tables that failed.", lambda counts: counts.failures),
)  # fmt: skip


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


class _StoreTimes(Collector):
    """How long requests took, kept where they are made."""

    def __init__(self, counts: RequestCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What Prometheus asks for."""
        family = HistogramMetricFamily(
            "catchwater_object_store_request_seconds",
            "How long requests to the object store took, with their retries.",
            labels=["op"],
        )
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        for op, (counts, sum_s) in sorted(self._counts.times().items()):
            family.add_metric([op], list(zip(bounds, accumulate(counts), strict=True)), sum_s)
        yield family


class _Appended(Collector):
    def __init__(self, written: Written) -> None:
        self._written = written

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What Prometheus asks for."""
        yield CounterMetricFamily(
            "catchwater_appended_bytes",
            "Bytes of the batches that were appended.",
            value=self._written.batches,
        )
