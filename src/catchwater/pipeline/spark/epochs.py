"""What the driver does inside an epoch: commit it to the sinks, write the ledger.

`EpochWriter` is Spark's `foreachBatch`, before Spark commits: sinks first, then the ledger, so that
an entry stands for an epoch whose outputs are visible. The entry commits the state: it names where
every shard stands. Either may be killed between any two steps; the epoch runs again and does them
again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.process.poison import PoisonLimitReached
from catchwater.pipeline.rows import Manifest
from catchwater.recovery import handover
from catchwater.recovery.ledger import EpochEntry, Ledger, SinkEpoch, read_offset
from catchwater.sinks.base import Sink


class EpochTorn(CatchwaterError):
    """Spark's batch, our offsets and the shards' answers do not belong to one epoch."""

    exit_code = 5


class EpochWriter:
    """One pipeline's `foreachBatch`."""

    def __init__(
        self,
        ledger: Ledger,
        sinks: Mapping[str, Sink],
        manifests: int,
        clock: Clock,
        *,
        poison_limit: int | None = None,
    ) -> None:
        """`manifests`: how many an epoch has, one for each shard of each stage.

        `poison_limit`: with more poisoned records, over all epochs, no epoch is committed.
        """
        self._poison_limit = poison_limit
        self._ledger = ledger
        self._sinks = sinks
        self._manifests = manifests
        self._clock = clock
        self.failure: CatchwaterError | None = None
        """What made an epoch fail here; Spark itself only keeps its text."""

    def __call__(self, rows: Any, epoch: int) -> None:
        """Run the epoch and write it, once."""
        began_s = self._clock.monotonic_s()
        found = [msgspec.msgpack.decode(row.blob, type=Manifest) for row in rows.collect()]
        run_ms = (self._clock.monotonic_s() - began_s) * 1000
        found.sort(key=lambda each: (each.shard.stage, each.shard.shard))
        try:
            self._write(epoch, found, round(run_ms, 1))
        except CatchwaterError as error:
            self.failure = error
            raise

    def _commit(
        self, epoch: int, manifests: Sequence[Manifest], took_ms: dict[str, float]
    ) -> dict[str, SinkEpoch]:
        """Write the outputs, and how long each sink took; of an epoch that another driver leads,
        only keep them to compare.
        """
        staged = {
            name: [each.staged[name] for each in manifests if name in each.staged]
            for name in self._sinks
        }
        if handover.is_shadow(self._ledger.checkpoint, epoch):
            for name, sink in self._sinks.items():
                sink.truth.record(epoch, staged[name], self._clock.now_ms())
            led = handover.leaders_entry(self._ledger.checkpoint, epoch)
            return led.sinks if led else {}
        written = {}
        for name, sink in self._sinks.items():
            began_s = self._clock.monotonic_s()
            written[name] = sink.commit(epoch, staged[name])
            took_ms[name] = round((self._clock.monotonic_s() - began_s) * 1000, 1)
        return written

    def _write(self, epoch: int, manifests: Sequence[Manifest], run_ms: float) -> None:
        end = read_offset(self._ledger.checkpoint / "offsets" / str(epoch))
        if end.epoch != epoch or len(manifests) != self._manifests:
            raise EpochTorn(
                f"Spark ran batch {epoch}; its offsets end epoch {end.epoch}, and "
                f"{len(manifests)} of {self._manifests} shards answered. Nothing was committed.",
                hint="Restore a checkpoint: catchwater recovery restore FILE --checkpoint N.",
            )
        base = self._ledger.base(epoch)
        shards = [manifest.shard for manifest in manifests]
        poisoned = (base.poisoned if base else 0) + sum(each.poisoned for each in shards)
        if self._poison_limit is not None and poisoned > self._poison_limit:
            raise PoisonLimitReached(
                f"The pipeline has met {poisoned} records it cannot handle, {self._poison_limit} "
                f"are allowed; epoch {epoch} was not committed.",
                hint="Correct the function or its event class, or raise poison_limit.",
            )
        sink_ms: dict[str, float] = {}
        written = self._commit(epoch, manifests, sink_ms)
        seen = dict(base.seen) if base else {}
        for shard in shards:
            for origin, at in shard.max_event_times.items() if shard.stage == 0 else ():
                seen[origin] = max(at, seen.get(origin, at))
        self._ledger.write(
            EpochEntry(
                epoch=epoch,
                start=base.end if base else self._ledger.start_of(epoch),
                end=end,
                shards=shards,
                sinks=written,
                finished_ms=self._clock.now_ms(),
                seen=seen,
                poisoned=poisoned,
                run_ms=run_ms,
                sink_ms=sink_ms,
            )
        )
