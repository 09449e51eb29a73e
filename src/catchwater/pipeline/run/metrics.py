"""What a running pipeline tells Prometheus, where `[pipeline] metrics` says; base units.

Fed with the ledger's entries behind Spark's commits, so that nothing is counted that did not
happen; after a restart counters begin anew, as Prometheus expects. Labels: pipeline, function.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from catchwater.config import ConfigError
from catchwater.recovery.ledger import EpochEntry
from catchwater.recovery.measure import operator_ms

_LABELS = ("pipeline", "function")
_COUNTED = {
    "events": "Events read, with the late, duplicate and poisoned ones",
    "outputs": "Outputs",
    "late": "Events that came after the watermark",
    "duplicates": "Events that were known already",
    "poisoned": "Records that could not be handled",
    "timers": "Timers fired",
}
_SUMS = {
    "keys": "Keys with a record",
    "state_bytes": "What a restore reads of the state",
}


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
        self._watermark = Gauge(
            "catchwater_watermark_delay_seconds",
            "How far the watermark is behind the clock",
            ("pipeline",),
            registry=self.registry,
        )

    def serve(self, address: str) -> None:
        """Answer at `host:port`, for the life of the process. Raises `ConfigError`."""
        host, _, port = address.rpartition(":")
        try:
            start_http_server(int(port), host or "127.0.0.1", self.registry)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"metrics = {address!r} cannot be listened at: {error}.",
                hint="Name a free port, such as 127.0.0.1:9400.",
            ) from error

    def take(self, entry: EpochEntry) -> None:
        """An epoch that was committed."""
        for stage, function in enumerate(self._functions):
            self._take_stage(entry, stage, function)
        end = entry.end
        self._epoch.labels(self._pipeline).set(entry.epoch)
        self._took.labels(self._pipeline).set((entry.finished_ms - end.clock_ms) / 1000)
        self._watermark.labels(self._pipeline).set((end.clock_ms - end.watermark_ms) / 1000)

    def _take_stage(self, entry: EpochEntry, stage: int, function: str) -> None:
        labels = (self._pipeline, function)
        shards = [shard for shard in entry.shards if shard.stage == stage]
        for name, counter in self._counters.items():
            counter.labels(*labels).inc(sum(getattr(shard, name) for shard in shards))
        for name, gauge in self._sums.items():
            gauge.labels(*labels).set(sum(getattr(shard, name) for shard in shards))
        self._written.labels(*labels).inc(sum(shard.written_bytes for shard in shards))
        self._deltas.labels(*labels).inc(sum(shard.delta_bytes for shard in shards))
        self._restore.labels(*labels).set(max(shard.restore_s for shard in shards))
        for share, spent_ms in zip((0.5, 0.99), operator_ms(shards, 0.5, 0.99), strict=True):
            self._operator.labels(*labels, share).set(spent_ms / 1000)

    def _gauge(self, name: str, text: str, *more: str) -> Gauge:
        return Gauge(f"catchwater_{name}", text, (*_LABELS, *more), registry=self.registry)
