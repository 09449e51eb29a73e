"""What a running pipeline tells Prometheus, where `[pipeline] metrics` says; base units.

Fed with the ledger's entries behind Spark's commits, so that nothing is counted that did not
happen; after a restart counters begin anew, as Prometheus expects. Labels: pipeline, function.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from catchwater.config import ConfigError
from catchwater.recovery.contract import Contract, budgets
from catchwater.recovery.ledger import CallEpoch, EpochEntry, operator_ms, parts_ms
from catchwater.verdicts import PipelineStatus

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
        self._took = Gauge(
            "catchwater_checkpoint_duration_seconds",
            "From the last epoch's plan to its commit",
            ("pipeline",),
            registry=self.registry,
        )
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

    def take(self, entry: EpochEntry) -> None:
        """An epoch that was committed."""
        for stage, function in enumerate(self._functions):
            self._take_stage(entry, stage, function)
        end = entry.end
        self._epoch.labels(self._pipeline).set(entry.epoch)
        for part, spent_ms in parts_ms(entry).items():
            self._parts.labels(self._pipeline, part).set(spent_ms / 1000)
        self._took.labels(self._pipeline).set((entry.finished_ms - end.clock_ms) / 1000)
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

    def _of_pipeline(self, name: str, text: str, *more: str) -> Gauge:
        return Gauge(f"catchwater_{name}", text, ("pipeline", *more), registry=self.registry)

    def _gauge(self, name: str, text: str, *more: str) -> Gauge:
        return Gauge(f"catchwater_{name}", text, (*_LABELS, *more), registry=self.registry)
