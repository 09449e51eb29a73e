"""Restores a savepoint: makes a checkpoint from which Spark continues at the savepoint's epoch.

Spark's part of a checkpoint only says which batches are done and where their input ended, because
its query has no state: `offsets/E` and `commits/E` are written in Spark's text format, so that
epoch numbers, and with them the marks in the sinks, continue. State is copied unchanged, or
rewritten by ranges of the key's hash for another number of shards. The savepoint is not changed.

A marker is written first and deleted last; a checkpoint with the marker cannot be run, and the same
restore begins again. The checksum of every object is verified during the copy.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectStore, StoreError
from catchwater.objects.open import open_store, place
from catchwater.recovery.checkpoint import name_query, write_commit, write_offset
from catchwater.recovery.folder import claim_home, lock
from catchwater.recovery.handover import Restore, begin_restore, end_restore, restore_under_way
from catchwater.recovery.ledger import (
    FOLDER,
    EpochEntry,
    Ledger,
    ShardEpoch,
    numbered,
    shown,
    write_whole,
)
from catchwater.recovery.savepoint.create import COPIERS, Progress, state_log
from catchwater.recovery.savepoint.format import Savepoint, SavepointDamaged
from catchwater.recovery.savepoint.verify import read_whole
from catchwater.state.rescale import rewrite
from catchwater.state.roll import Position

_COUNTED = (
    "events", "outputs", "late", "duplicates", "timers", "poisoned", "keys", "state_bytes",
)  # fmt: skip


class CheckpointTaken(CatchwaterError):
    """The folder has a checkpoint already, which would be lost."""

    exit_code = 5


def refuse_taken(into: Path) -> None:
    """Raise `CheckpointTaken` unless the folder is free, or a restore into it was interrupted."""
    taken = any(True for log in ("offsets", "commits") for _ in numbered(into / log))
    begun = restore_under_way(into)
    if taken and (begun is None or begun.reset):
        raise CheckpointTaken(
            f"{shown(into)} holds a checkpoint already; restoring over it would lose what is "
            "there.",
            hint="Name another folder with --into, or move this one away.",
        )


def restore(
    store: ObjectStore,
    savepoint: Savepoint,
    into: Path,
    work: Restore,
    *,
    identity: Mapping[str, Any] | None = None,
    shards: int | None = None,
    state: str | None = None,
    before_it_may_run: Callable[[], None] | None = None,
    clock: Clock = SYSTEM,
    progress: Progress | None = None,
) -> EpochEntry:
    """Make a checkpoint of a savepoint, in a folder without one; its epoch's entry.

    `identity` is what it is bound to, None: what the savepoint was; `state` the store that the
    pipeline's file names for state, None: the checkpoint itself; `before_it_may_run` is called when
    all is there and the marker still stands. The caller has seen that the log still reaches back.

    Raises `CheckpointTaken`, `CheckpointInUse`, `SavepointDamaged`, `ShardDamaged`, `StoreError`;
    but for the first two the marker then stands.
    """
    refuse_taken(into)
    with lock(into, clock, wait_s=0):
        begin_restore(into, work)
        home = open_store(claim_home(into, state, savepoint.pipeline, clock), clock)
        shards = shards or savepoint.shards
        entry = bring_state(store, savepoint, home, shards, progress)
        bind(store, savepoint, into, {**(identity or savepoint.identity), "shards": shards})
        write_epoch(into, entry, clock)
        if before_it_may_run:
            before_it_may_run()
        end_restore(into)
    return entry


def bring_state(
    store: ObjectStore,
    savepoint: Savepoint,
    home: ObjectStore,
    shards: int,
    progress: Progress | None = None,
) -> EpochEntry:
    """Copy the state objects into a checkpoint's store; the ledger entry with their positions.

    Raises `SavepointDamaged` naming the object, `ShardDamaged`, `StoreError`.
    """
    if shards == savepoint.shards:
        _copy(store, savepoint, home, progress)
        return savepoint.entry
    _check(store, savepoint, progress)
    fresh: list[ShardEpoch] = []
    for stage, function in enumerate(savepoint.functions):
        positions = savepoint.entry.positions(stage)
        sources = [
            (state_log(store, savepoint.name, function, shard), at)
            for shard, at in sorted(positions.items())
        ]
        targets = [state_log(home, "", function, shard) for shard in range(shards)]
        before = [each for each in savepoint.entry.shards if each.stage == stage]
        fresh += _resharded(before, rewrite(sources, targets))
    return msgspec.structs.replace(savepoint.entry, shards=fresh)


def bind(store: ObjectStore, savepoint: Savepoint, into: Path, identity: Mapping[str, Any]) -> None:
    """Write what the checkpoint belongs to, what ran on it before, and the code of that."""
    folder = into / FOLDER
    for number, stored in enumerate(savepoint.objects):
        if stored.key.startswith("code/"):
            write_whole(folder / stored.key, _read(store, savepoint, number))
    write_whole(folder / "versions.json", msgspec.json.encode(savepoint.versions))
    if savepoint.beginning is not None:
        write_whole(folder / "beginning.json", msgspec.json.encode(savepoint.beginning))
    write_whole(folder / "pipeline.json", msgspec.json.format(msgspec.json.encode(identity)))


def write_epoch(into: Path, entry: EpochEntry, clock: Clock) -> None:
    """Make this epoch the last one that Spark has done there; its commit comes last."""
    Ledger(into).write(entry)
    name_query(into, clock)
    for log in ("sources", "offsets", "commits"):
        (into / log).mkdir(exist_ok=True)
    # Spark does not start from a batch without the offsets of the one before.
    for end in (entry.start, entry.end)[entry.epoch == 0 :]:
        write_offset(into, end)
    write_commit(into, entry.epoch, entry.finished_ms)


def _copy(
    store: ObjectStore, savepoint: Savepoint, home: ObjectStore, progress: Progress | None
) -> None:
    def copy(number: int) -> None:
        home.put(savepoint.objects[number].key, [_read(store, savepoint, number)])

    _for_state(savepoint, copy, progress)


def _check(store: ObjectStore, savepoint: Savepoint, progress: Progress | None) -> None:
    _for_state(savepoint, lambda number: _read(store, savepoint, number), progress)


def _for_state(
    savepoint: Savepoint, work: Callable[[int], object], progress: Progress | None
) -> None:
    numbers = [n for n, each in enumerate(savepoint.objects) if each.key.startswith("state/")]
    with ThreadPoolExecutor(COPIERS) as pool:
        for done_objects, _ in enumerate(pool.map(work, numbers), 1):
            if progress:
                progress(done_objects, len(numbers))


def _read(store: ObjectStore, savepoint: Savepoint, number: int) -> bytes:
    stored = savepoint.objects[number]
    try:
        return read_whole(store, savepoint.name, stored)
    except (StoreError, ValueError) as error:
        raise SavepointDamaged(
            f"{place(store, f'{savepoint.name}/{stored.key}')} cannot be restored: "
            f"{str(error).rstrip('.')}.",
            hint="catchwater savepoint verify tells everything that is damaged.",
        ) from error


def _resharded(before: Sequence[ShardEpoch], positions: Sequence[Position]) -> list[ShardEpoch]:
    """The counts of a stage's shards divided among other shards, with the same sums.

    Each takes the earliest time at which any shard had something due: looking too early is free.
    """
    due = [each.next_due_ms for each in before if each.next_due_ms is not None]
    clock_due = [each.next_due_clock_ms for each in before if each.next_due_clock_ms is not None]
    made = []
    for shard, at in enumerate(positions):
        sums = {name: sum(getattr(each, name) for each in before) for name in _COUNTED}
        made.append(
            ShardEpoch(
                shard=shard,
                stage=before[0].stage,
                version=at.version,
                token=at.token,
                next_due_ms=min(due, default=None),
                next_due_clock_ms=min(clock_due, default=None),
                **(sums if shard == 0 else {}),
            )
        )
    return made
