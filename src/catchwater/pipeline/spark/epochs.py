"""What the driver does with an epoch: commit it to the sinks, write the ledger, tell the log.

`EpochWriter` runs inside Spark's `foreachBatch`, before Spark commits: sinks first, then the
ledger, so that an entry stands for an epoch whose outputs are visible. `Upkeep` runs after Spark
has committed: pins, then the contract that promises them, then what has become too old.

Both may be killed between any two steps; the epoch, or the next one, does them again.
"""

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.spark.operator import Manifest
from catchwater.recovery import checkpoint, contract, pins, restore
from catchwater.recovery.contract import Contract, Terms
from catchwater.recovery.ledger import EpochEntry, Ledger, LedgerDamaged, read_offset
from catchwater.recovery.measure import RestoreWatch, add_sample, load_samples
from catchwater.replay.control import Control
from catchwater.sinks.base import Sink


class EpochTorn(CatchwaterError):
    """Spark's batch, our offsets and the shards' answers do not belong to one epoch."""

    exit_code = 5


class EpochWriter:
    """One pipeline's `foreachBatch`."""

    def __init__(
        self, ledger: Ledger, sinks: Mapping[str, Sink], shards: int, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._sinks = sinks
        self._shards = shards
        self._clock = clock
        self.failure: CatchwaterError | None = None
        """What made an epoch fail here; Spark itself only keeps its text."""

    def __call__(self, rows: Any, epoch: int) -> None:
        """Run the epoch and write it, once."""
        manifests = [msgspec.json.decode(row.manifest, type=Manifest) for row in rows.collect()]
        try:
            self._write(epoch, sorted(manifests, key=lambda each: each.shard.label))
        except CatchwaterError as error:
            self.failure = error
            raise

    def _write(self, epoch: int, manifests: Sequence[Manifest]) -> None:
        end = read_offset(self._ledger.checkpoint / "offsets" / str(epoch))
        if end.epoch != epoch or len(manifests) != self._shards:
            raise EpochTorn(
                f"Spark ran batch {epoch}; its offsets end epoch {end.epoch}, and "
                f"{len(manifests)} of {self._shards} shards answered. Nothing was committed.",
                hint="Restore a checkpoint: catchwater recovery restore --checkpoint N.",
            )
        written = {
            name: sink.commit(epoch, [manifest.staged[name] for manifest in manifests])
            for name, sink in self._sinks.items()
        }
        self._ledger.write(
            EpochEntry(
                epoch=epoch,
                start=self._ledger.start_of(epoch),
                end=end,
                shards=[manifest.shard for manifest in manifests],
                sinks=written,
                finished_ms=self._clock.now_ms(),
            )
        )


class Upkeep:
    """Pins, contracts and forgetting, one step behind Spark's commits."""

    def __init__(
        self,
        folder: Path,
        control: Control,
        terms: Terms,
        *,
        retain: int,
        watch: RestoreWatch | None,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._ledger = Ledger(folder)
        self._control = control
        self._terms = terms
        self._retain = retain
        self._watch = watch
        self._clock = clock
        self._done = checkpoint.last_commit(folder)

    def look(self) -> list[EpochEntry]:
        """Do what is due for epochs that Spark has committed since; they are returned."""
        newest = checkpoint.last_commit(self._folder)
        if newest <= self._done:
            return []
        entries = [self._entry(epoch) for epoch in range(self._done + 1, newest + 1)]
        for entry in entries:
            self._measure(entry)
        self._bind(entries)
        self._done = newest
        return entries

    def _entry(self, epoch: int) -> EpochEntry:
        entry = self._ledger.read(epoch)
        if entry is None:
            raise LedgerDamaged(f"Spark committed epoch {epoch}, and the ledger has no entry.")
        return entry

    def _measure(self, entry: EpochEntry) -> None:
        if self._watch is None:
            return
        sample = self._watch.epoch_done(entry, self._clock.monotonic_s())
        if sample is not None:
            add_sample(self._folder, sample)
            self._watch = None

    def _bind(self, entries: Sequence[EpochEntry]) -> None:
        newest = checkpoint.read(self._folder).retained(self._retain)
        retained = pins.hold(self._control, self._terms.pipeline, newest)
        for entry in entries:
            restore.write_contract(self._folder, self._contract(entry, retained[0].end.clock_ms))
        oldest = retained[0].epoch
        restore.forget_contracts_before(self._folder, oldest)
        self._ledger.forget_before(oldest)

    def _contract(self, entry: EpochEntry, oldest_clock_ms: int) -> Contract:
        return contract.compute(
            entry,
            pins.read_tails(self._control, entry.end.offsets),
            self._terms,
            load_samples(self._folder),
            oldest_clock_ms=oldest_clock_ms,
            now_ms=self._clock.now_ms(),
        )


def versions() -> dict[str, str]:
    """What a restore would have to run with."""
    return {
        "catchwater": version("catchwater"),
        "pyspark": version("pyspark"),
        "python": platform.python_version(),
    }
