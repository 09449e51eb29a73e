"""What a running pipeline tells Prometheus, where `[pipeline] metrics` says; base units.

Counters and histograms are fed with the ledger's entries behind Spark's commits, so that nothing is
counted that did not happen; after a restart they begin anew, as Prometheus expects. What is so at
the moment (`observe`) is set from the pipeline's status every few seconds, also while nothing
commits. Labels are names in the pipeline's file, or few. docs/monitoring.md lists all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, nan

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from catchwater import retries
from catchwater.config import ConfigError
from catchwater.recovery.contract import Contract, budgets
from catchwater.recovery.ledger import CallEpoch, EpochEntry, operator_ms, parts_ms
from catchwater.verdicts import STATES, VERDICTS, PipelineStatus

_LABELS = ("pipeline", "function")
_COUNTED = {
    "events": "Events read, with the late, duplicate and poisoned ones",
    "outputs": "Outputs",
    "late": "Events that came after the watermark",
    "duplicates": "Events that were known already",
    "poisoned": "Records that could not be handled",
    "timers": "Timers fired",
}
_CALLED = {
    "attempts": "Attempts to get an answer from an endpoint",
    "failed_attempts": "Those that failed or were cut",
    "failures": "Questions that stayed without an answer",
}
_CONTRACT = {
    "replay_records": "Records from the newest checkpoint to the end of the log",
    "replay_bytes": "Bytes from the newest checkpoint to the end of the log",
    "recovery_point_seconds": "How far back the input begins that a restore reads again, at worst",
    "input_records_per_second": "How fast input comes",
    "capacity_records_per_second": "How fast input can be processed",
    "missing_records_per_second": "Headroom that is missing where a restore never catches up",
}
_BUCKETS = (
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0,
    300.0,
)  # fmt: skip
"""Seconds; 30 is what an epoch may take by the usual objective."""
_NOW: Mapping[str, tuple[str, Callable[[PipelineStatus], float | None]]] = {
    "pipeline_lag_records": (
        "Records behind what was processed", lambda status: status.lag.records
    ),
    "pipeline_lag_seconds": (
        "Age of the oldest record that was not processed", lambda status: status.lag.seconds
    ),
    "pipeline_max_staleness_seconds": (
        "What that may be by the pipeline's promise",
        lambda status: status.freshness.max_staleness_s,
    ),
    "checkpoint_age_seconds": (
        "Since the newest checkpoint", lambda status: status.freshness.checkpoint_age_s
    ),
    "epoch_duration_seconds": (
        "How long the last epoch took", lambda status: status.freshness.epoch_s
    ),
    "epoch_interval_seconds": (
        "The trigger's interval that an epoch should fit into; NaN without one",
        lambda status: status.freshness.trigger_s,
    ),
    "epoch_under_way_seconds": (
        "For how long an epoch has been planned and not committed; 0: there is none",
        lambda status: status.freshness.under_way_s or 0.0,
    ),
    "restore_progress_ratio": (
        "How much of its input a restore has read again; 1: there is none under way",
        lambda status: status.catching_up["percent"] / 100 if status.catching_up else 1.0,
    ),
    "contract_history_margin_seconds": (
        "How much earlier than a restore needs it the log begins, by the input's rate",
        lambda status: status.history_margin_s,
    ),
}  # fmt: skip
"""Gauges of the moment; what is not known is NaN."""
_DIFFERENCES = {
    "sink_missing": ("Rows that a sink lacks", "missing"),
    "sink_duplicate": ("Rows that a sink has more than once", "doubled"),
    "sink_altered": ("Rows that were changed in a sink", "altered"),
    "sink_foreign": ("Rows of ours in a sink that were never put out", "foreign"),
}
_SUMS = {
    "keys": "Keys with a record",
    "state_bytes": "What a restore reads of the state",
}


def _or_never(seconds: float | None) -> float:
    return inf if seconds is None else seconds


class PipelineMetrics:
    """The metrics of one pipeline."""

    def __init__(self, pipeline: str, functions: Sequence[str]) -> None:
        self.registry = CollectorRegistry()
        self._pipeline = pipeline
        self._functions = functions
        self._counters = {
            name: Counter(f"catchwater_{name}", text, _LABELS, registry=self.registry)
            for name, text in _COUNTED.items()
        }
        self._sums = {name: self._gauge(name, text) for name, text in _SUMS.items()}
        self._written = Counter(
            "catchwater_state_written_bytes",
            "Objects of the state logs that were written",
            _LABELS,
            registry=self.registry,
        )
        self._deltas = Counter(
            "catchwater_state_delta_bytes", "Changes of state", _LABELS, registry=self.registry
        )
        self._called = {
            name: Counter(
                f"catchwater_call_{name}", text, (*_LABELS, "call"), registry=self.registry
            )
            for name, text in _CALLED.items()
        }
        self._call_p99 = self._gauge(
            "call_p99_seconds", "Slowest shard's p99 of the last epoch's answers", "call"
        )
        self._breakers = self._gauge("call_breakers_open", "Shards that met one not closed", "call")
        self._restore = self._gauge("state_restore_seconds", "Rebuilding state, in the last epoch")
        self._operator = self._gauge(
            "operator_seconds",
            "Time that events of the last epoch were in the operator",
            "quantile",
        )
        self._epoch = Gauge(
            "catchwater_epoch", "The last committed epoch", ("pipeline",), registry=self.registry
        )
        self._took = self._times(
            "checkpoint_duration_seconds", "From an epoch's plan to its commit"
        )
        self._committed = self._times(
            "commit_latency_seconds", "From an epoch's outputs, staged, to its entry in the ledger"
        )
        self._rebuilt = Counter(
            "catchwater_restore_bytes",
            "State that was read to rebuild shards",
            _LABELS,
            registry=self.registry,
        )
        self._now = {name: self._of_pipeline(name, text) for name, (text, _) in _NOW.items()}
        self._verdicts = self._of_pipeline(
            "pipeline_verdict", "0 ok, 1 warn, 2 fail, 3 unknown", "verdict"
        )
        self._differences = {
            name: self._of_pipeline(name, f"{text}, of those compared", "sink")
            for name, (text, _) in _DIFFERENCES.items()
        }
        self._compared_age = self._of_pipeline(
            "sink_compared_age_seconds", "Since a sink was compared with what was put out", "sink"
        )
        self._drilled = self._of_pipeline(
            "drill_measured_restore_seconds", "What a restore took in the newest drill", "drill"
        )
        self._drill_passed = self._of_pipeline(
            "drill_last_success_timestamp_seconds", "When a drill last passed", "drill"
        )
        self.registry.register(Retries())
        self._parts = Gauge(
            "catchwater_epoch_part_seconds",
            "Where the last epoch's time went",
            ("pipeline", "part"),
            registry=self.registry,
        )
        self._watermark = Gauge(
            "catchwater_watermark_delay_seconds",
            "How far the watermark is behind the clock",
            ("pipeline",),
            registry=self.registry,
        )

        self._contract = {
            name: self._of_pipeline(f"contract_{name}", text) for name, text in _CONTRACT.items()
        }
        self._estimate = self._of_pipeline(
            "contract_restore_estimate_seconds",
            "From a failure until caught up, with its error bar; +Inf: never",
            "bound",
        )
        self._timelines = self._of_pipeline(
            "contract_restore_part_seconds",
            "The estimate's two timelines: infrastructure and application",
            "part",
        )
        self._budgets = self._of_pipeline(
            "contract_budget_seconds", "Budgets that are declared", "budget"
        )
        self._breached = self._of_pipeline(
            "contract_budget_breached", "0 kept, 1 may be breached, 2 is breached", "budget"
        )

    @contextmanager
    def served(self, address: str) -> Iterator[None]:
        """Answer at `host:port` meanwhile. Raises `ConfigError`."""
        host, _, port = address.rpartition(":")
        try:
            server, thread = start_http_server(int(port), host or "127.0.0.1", self.registry)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"metrics = {address!r} cannot be listened at: {error}.",
                hint="Name a free port, such as 127.0.0.1:9400.",
            ) from error
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def take_all(self, entries: Sequence[EpochEntry], newest: Contract | None) -> None:
        """Epochs that were committed, and the newest contract."""
        for entry in entries:
            self.take(entry)
        if newest is not None:
            self.take_contract(newest)

    def observe(self, status: PipelineStatus) -> None:
        """What was found out just now, also while no epoch ends."""
        for name, (_, read) in _NOW.items():
            value = read(status)
            self._now[name].labels(self._pipeline).set(nan if value is None else value)
        for name in VERDICTS:
            state = getattr(status, name).state
            self._verdicts.labels(self._pipeline, name).set(STATES.index(state))
        for each in status.compared:
            for name, (_, field) in _DIFFERENCES.items():
                count = getattr(each, field) if each.problem is None else nan
                self._differences[name].labels(self._pipeline, each.sink).set(count)
            age_s = (status.reported_ms - each.checked_ms) / 1000
            self._compared_age.labels(self._pipeline, each.sink).set(age_s)
        for drill in status.drills:
            if drill.restore_s is not None:
                self._drilled.labels(self._pipeline, drill.name).set(drill.restore_s)
            if drill.passed_ms is not None:
                self._drill_passed.labels(self._pipeline, drill.name).set(drill.passed_ms / 1000)

    def take(self, entry: EpochEntry) -> None:
        """An epoch that was committed."""
        for stage, function in enumerate(self._functions):
            self._take_stage(entry, stage, function)
        end = entry.end
        self._epoch.labels(self._pipeline).set(entry.epoch)
        for part, spent_ms in parts_ms(entry).items():
            self._parts.labels(self._pipeline, part).set(spent_ms / 1000)
        self._took.labels(self._pipeline).observe((entry.finished_ms - end.clock_ms) / 1000)
        self._committed.labels(self._pipeline).observe(sum(entry.sink_ms.values()) / 1000)
        self._watermark.labels(self._pipeline).set((end.clock_ms - end.watermark_ms) / 1000)

    def take_contract(self, newest: Contract) -> None:
        """The newest checkpoint's contract."""
        restore = newest.restore
        values = {
            "replay_records": newest.replay_records,
            "replay_bytes": newest.replay_bytes,
            "recovery_point_seconds": newest.recovery_point_s,
            "input_records_per_second": restore.input_per_s,
            "capacity_records_per_second": restore.capacity_per_s,
            "missing_records_per_second": restore.missing_per_s,
        }
        for name, value in values.items():
            self._contract[name].labels(self._pipeline).set(value)
        bounds = {"low": restore.low_s, "estimate": restore.seconds, "high": restore.high_s}
        for bound, seconds in bounds.items():
            self._estimate.labels(self._pipeline, bound).set(_or_never(seconds))
        for part, timeline in (
            ("infrastructure", restore.infrastructure),
            ("application", restore.application),
        ):
            if timeline is not None:
                self._timelines.labels(self._pipeline, part).set(_or_never(timeline.seconds))
        declared = {"restore": newest.max_restore_s, "recovery point": newest.max_replay_s}
        for found in budgets(newest):
            budget_s = declared[found.subject]
            if budget_s is not None:
                self._budgets.labels(self._pipeline, found.subject).set(budget_s)
                breached = ("pass", "warn", "fail").index(found.verdict)
                self._breached.labels(self._pipeline, found.subject).set(breached)

    def _take_stage(self, entry: EpochEntry, stage: int, function: str) -> None:
        labels = (self._pipeline, function)
        shards = [shard for shard in entry.shards if shard.stage == stage]
        for name, counter in self._counters.items():
            counter.labels(*labels).inc(sum(getattr(shard, name) for shard in shards))
        for name, gauge in self._sums.items():
            gauge.labels(*labels).set(sum(getattr(shard, name) for shard in shards))
        self._written.labels(*labels).inc(sum(shard.written_bytes for shard in shards))
        self._deltas.labels(*labels).inc(sum(shard.delta_bytes for shard in shards))
        self._rebuilt.labels(*labels).inc(sum(shard.rebuilt_bytes for shard in shards))
        for name in {name for shard in shards for name in shard.calls}:
            self._take_calls(labels, name, [s.calls[name] for s in shards if name in s.calls])
        self._restore.labels(*labels).set(max(shard.restore_s for shard in shards))
        for share, spent_ms in zip((0.5, 0.99), operator_ms(shards, 0.5, 0.99), strict=True):
            self._operator.labels(*labels, share).set(spent_ms / 1000)

    def _take_calls(self, labels: tuple[str, str], call: str, found: Sequence[CallEpoch]) -> None:
        for name, counter in self._called.items():
            counter.labels(*labels, call).inc(sum(getattr(each, name) for each in found))
        self._call_p99.labels(*labels, call).set(max(each.p99_ms for each in found) / 1000)
        open_now = sum(each.breaker != "closed" for each in found)
        self._breakers.labels(*labels, call).set(open_now)

    def _times(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"catchwater_{name}", text, ("pipeline",), buckets=_BUCKETS, registry=self.registry
        )

    def _of_pipeline(self, name: str, text: str, *more: str) -> Gauge:
        return Gauge(f"catchwater_{name}", text, ("pipeline", *more), registry=self.registry)

    def _gauge(self, name: str, text: str, *more: str) -> Gauge:
        return Gauge(f"catchwater_{name}", text, (*_LABELS, *more), registry=self.registry)


class Retries(Collector):
    """What this process has tried again, as brokers count it as well."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What Prometheus asks for."""
        family = CounterMetricFamily(
            "catchwater_retries",
            "What failed for the moment and was tried again",
            labels=["component"],
        )
        for component, count in retries.counts().items():
            family.add_metric([component], count)
        yield family
