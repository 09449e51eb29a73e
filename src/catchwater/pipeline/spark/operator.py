"""One shard inside Spark's stateful operator: catch up, process, log the change, stage the output.

Spark's state group is a shard. It holds three states: `meta` (which version is committed), a map
version → delta, and a map chunk → snapshot. Spark commits them with its offsets, atomically; the
local store (`shard`) is brought to what they say at the beginning of every epoch, never ahead of
them. One version is one epoch, so a state that does not fit the offsets is noticed at once.

Rows in are (shard, sequence, epoch, watermark, clock, blob), one of them at least for every shard
in every epoch; one row out, the manifest. The outputs themselves are staged by the task.

Relies on Spark to hand a group all its rows of a batch in one call. Promises that a failed,
retried or repeated attempt changes nothing outside that another attempt could see.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.pack import decode_events, unpack
from catchwater.pipeline.process.epoch import Batch, Processed, process
from catchwater.pipeline.run.artefact import FunctionCode
from catchwater.recovery.ledger import ShardEpoch
from catchwater.sinks.base import OutputRecord, Staged, Stager
from catchwater.state.delta import ShardDamaged
from catchwater.state.keys import HASH_BYTES
from catchwater.state.store import Logged, ShardStore

INPUT_SCHEMA = "shard int, sequence long, epoch long, watermark long, clock long, blob binary"
OUTPUT_SCHEMA = "manifest string"

LEAST_SNAPSHOT_BYTES = 4 * 2**20
"""Deltas below this are never worth a snapshot."""

_META = "version long, token string, snapshot long, chunks long, snapshot_bytes long, deltas long"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Manifest(msgspec.Struct, frozen=True):
    """What one shard did in an epoch, and what it staged for each sink."""

    shard: ShardEpoch
    staged: dict[str, Staged]


class _Meta(NamedTuple):
    """The committed version of a shard, and what a rebuild of it reads."""

    version: int = 0
    token: str = ""
    snapshot: int = 0
    """The version of the snapshot; deltas after it are kept."""
    chunks: int = 0
    snapshot_bytes: int = 0
    delta_bytes: int = 0


@dataclass
class ShardOperator(StatefulProcessor):  # type: ignore[misc]
    """Spark's processor for all shards of a task; pickles as what it was built from."""

    code: FunctionCode
    pipeline: str
    local: str
    """Where this machine keeps its copies of shards."""
    stagers: Mapping[str, Stager]

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the three states; called once a task."""
        self._meta = handle.getValueState("meta", _META)
        self._deltas = handle.getMapState("deltas", "version long", "blob binary")
        self._snapshot = handle.getMapState("snapshot", "chunk long", "blob binary")
        self._spec = self.code.load()
        self._boot_id = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Run one epoch of one shard."""
        manifest = self._epoch(int(key[0]), sorted(rows, key=lambda row: row.sequence))
        yield Row(manifest=msgspec.json.encode(manifest).decode())

    def close(self) -> None:
        """Nothing stays open between epochs."""

    def _epoch(self, label: int, rows: Sequence[Row], clock: Clock = SYSTEM) -> Manifest:
        meta = _Meta(*self._meta.get()) if self._meta.exists() else _Meta()
        head = rows[0]
        if meta.version != head.epoch:
            raise ShardDamaged(
                f"Shard {label} is at version {meta.version}, but epoch {head.epoch} comes next: "
                "state and offsets do not belong together.",
                hint="Restore a checkpoint: catchwater recovery restore --checkpoint N.",
            )
        rebuild = _Rebuild(self._deltas, self._snapshot, meta)
        began_s = clock.monotonic_s()
        directory = Path(self.local) / str(label)
        with closing(ShardStore.open(directory, self.pipeline, str(label), self._boot_id)) as store:
            state = store.begin(meta.version, meta.token, rebuild)
            restore_s = clock.monotonic_s() - began_s
            batches = _batches(self._spec, rows)
            done = process(self._spec, state, batches, head.watermark, head.clock)
            token = clock.token()
            delta = store.finish(token)
            meta = self._log(meta, token, delta, store.snapshot)
        outputs = _records(self._spec, done, head.clock)
        staged = {name: stager.stage(label, outputs) for name, stager in self.stagers.items()}
        shard = ShardEpoch(
            label=label,
            events=done.events,
            outputs=len(done.outputs),
            late=done.late,
            duplicates=done.duplicates,
            timers=done.timers,
            max_event_time_ms=done.max_event_time_ms,
            next_due_ms=done.next_due_ms,
            version=meta.version,
            token=token,
            state_bytes=meta.snapshot_bytes + meta.delta_bytes,
            delta_bytes=len(delta),
            rebuilt_bytes=rebuild.read_bytes,
            restore_s=round(restore_s, 4),
        )
        return Manifest(shard, staged)

    def _log(
        self, meta: _Meta, token: str, delta: bytes, snapshot: Callable[[], Iterable[bytes]]
    ) -> _Meta:
        """Put the epoch's delta into Spark's state, and a new snapshot when deltas outgrow it."""
        if meta.delta_bytes > max(LEAST_SNAPSHOT_BYTES, meta.snapshot_bytes):
            chunks = size = 0
            for chunk in snapshot():
                self._snapshot.updateValue((chunks,), (chunk,))
                chunks, size = chunks + 1, size + len(chunk)
            for stale in range(chunks, meta.chunks):
                self._snapshot.removeKey((stale,))
            for version in range(meta.snapshot + 1, meta.version + 1):
                self._deltas.removeKey((version,))
            meta = meta._replace(
                snapshot=meta.version, chunks=chunks, snapshot_bytes=size, delta_bytes=0
            )
        self._deltas.updateValue((meta.version + 1,), (delta,))
        meta = meta._replace(
            version=meta.version + 1, token=token, delta_bytes=meta.delta_bytes + len(delta)
        )
        self._meta.update(tuple(meta))
        return meta


class _Rebuild:
    """Reads a shard out of Spark's state when the local store asks, and counts the bytes."""

    def __init__(self, deltas: Any, snapshot: Any, meta: _Meta) -> None:
        self._deltas = deltas
        self._snapshot = snapshot
        self._meta = meta
        self.read_bytes = 0

    def __call__(self) -> Logged:
        meta = self._meta
        versions = range(meta.snapshot + 1, meta.version + 1)
        return Logged(
            self._read(self._snapshot, range(meta.chunks)), self._read(self._deltas, versions)
        )

    def _read(self, state: Any, numbers: Iterable[int]) -> Iterator[bytes]:
        for number in numbers:
            value = state.getValue((number,))
            if value is None:
                raise ShardDamaged(f"Spark's state holds no entry {number} of this shard.")
            self.read_bytes += len(value[0])
            yield bytes(value[0])


def _batches(spec: FunctionSpec, rows: Iterable[Row]) -> Iterator[Batch]:
    for row in rows:
        if row.blob:
            unpacked = unpack(bytes(row.blob))
            yield unpacked.keys, decode_events(spec, unpacked)


def _records(spec: FunctionSpec, done: Processed, clock_ms: int) -> list[OutputRecord]:
    """The outputs under the key they came from, stamped with the epoch's clock."""
    return [
        OutputRecord(key[HASH_BYTES:], spec.encode_output(output), clock_ms)
        for key, output in zip(done.output_keys, done.outputs, strict=True)
    ]
