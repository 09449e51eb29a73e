"""Takes a savepoint of a running or stopped pipeline, without Spark.

The objects of a state log never change, so they only have to be copied. The epoch is held
meanwhile, so that the pipeline does not sweep them; the log is pinned before the first copy, so
that it keeps what a restore replays; `savepoint.json` is written last, so that no reader sees a
part.

A process killed at any point leaves the checkpoint as it was, and perhaps a pin and some invisible
objects: create the savepoint again under the same name, or delete it.
"""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectExists, ObjectMissing, ObjectStore
from catchwater.objects.open import given_keys, open_store
from catchwater.recovery import checkpoint as checkpoints
from catchwater.recovery.checkpoint import NoSuchCheckpoint
from catchwater.recovery.folder import hold, home_of, state_folder
from catchwater.recovery.ledger import (
    FOLDER,
    EpochEntry,
    Ledger,
    LedgerDamaged,
    SourceOffset,
    read_json,
    shown,
)
from catchwater.recovery.savepoint.format import FILE, Savepoint, StoredObject, check_name, encode
from catchwater.recovery.savepoint.store import Shelf
from catchwater.state.log import StateLog
from catchwater.state.parts import ShardDamaged

COPIERS = 4
"""How many objects are copied in parallel."""

_ATTEMPTS = 3

Progress = Callable[[int, int], None]
"""Called with the number of objects done, and of all."""

Pinning = Callable[[str, SourceOffset], str]
"""Pins the log for a savepoint of this name; the pin's id, or nothing if the log has no pins."""


class SavepointExists(CatchwaterError):
    """There is a savepoint of this name already."""

    exit_code = 2


class NothingToSave(CatchwaterError):
    """The checkpoint has no committed epoch yet."""


@dataclass(frozen=True)
class Source:
    """A checkpoint, as it is read for a savepoint."""

    checkpoint: Path
    store: ObjectStore
    pipeline: str
    functions: list[str]
    shards: int

    @classmethod
    def at(cls, checkpoint: Path, clock: Clock = SYSTEM) -> "Source":
        """The checkpoint in this folder. Raises `NothingToSave`, `LedgerDamaged`."""
        bound = read_json(checkpoint / FOLDER / "pipeline.json", _Bound)
        if bound is None:
            raise NothingToSave(
                f"{shown(checkpoint)} is no pipeline's checkpoint: no pipeline has run there yet.",
                hint="Run it first (catchwater pipeline run FILE), or restore a savepoint.",
            )
        store = open_store(home_of(checkpoint), clock)
        return cls(checkpoint, store, bound.pipeline, bound.functions, bound.shards)

    def entry(self, epoch: int | None) -> EpochEntry:
        """A committed epoch; the last one by default.

        Raises `NothingToSave`, `NoSuchCheckpoint`.
        """
        ledger = Ledger(self.checkpoint)
        kept = set(ledger.epochs())
        there = [epoch for epoch in checkpoints.committed_epochs(self.checkpoint) if epoch in kept]
        if not there:
            raise NothingToSave(
                f"{shown(self.checkpoint)} has no committed epoch yet.",
                hint="Try again when the pipeline has done one: catchwater pipeline status FILE.",
            )
        chosen = there[-1] if epoch is None else epoch
        found = ledger.read(chosen) if chosen in there else None
        if found is None:
            raise NoSuchCheckpoint(
                f"{shown(self.checkpoint)} has no checkpoint {chosen}; there are: "
                f"{', '.join(map(str, there))}."
            )
        return found

    def versions(self) -> dict[str, Any]:
        """The version ledger, as its file has it; empty if there is none."""
        return _json(self.checkpoint / FOLDER / "versions.json") or {}

    def log(self, stage: int, shard: int) -> StateLog:
        """The state log of one shard of one function."""
        return state_log(self.store, "", self.functions[stage], shard)


class _Bound(msgspec.Struct, frozen=True):
    """The fields of `pipeline.json` that a savepoint needs."""

    pipeline: str
    functions: list[str]
    shards: int


def state_log(store: ObjectStore, below: str, function: str, shard: int) -> StateLog:
    """The state log of a shard in a checkpoint's store (`below` empty) or in a savepoint."""
    folder = state_folder(function)
    return StateLog(store, f"{below}/{folder}" if below else folder, function, shard)


def create(
    source: Source,
    shelf: Shelf,
    name: str,
    *,
    epoch: int | None = None,
    pin: Pinning | None = None,
    unpin: Callable[[str], None] | None = None,
    clock: Clock = SYSTEM,
    progress: Progress | None = None,
) -> Savepoint:
    """Take a savepoint of the last committed epoch, or of another one that is kept.

    What fails takes its pin with it (`unpin`). Raises `SavepointExists`, `NothingToSave`,
    `NoSuchCheckpoint`, `ShardDamaged`, `StoreError`.
    """
    if shelf.exists(check_name(name)):
        raise SavepointExists(
            f"There is a savepoint {name!r} at {shelf.store.url()} already.",
            hint="Give another name, or delete that one first.",
        )
    for left in reversed(range(_ATTEMPTS)):
        entry = source.entry(epoch)
        with hold(source.checkpoint, entry.epoch, clock), ExitStack() as undone:
            try:
                made = _describe(source, name, source.entry(entry.epoch), clock)
                pinned = pin(name, entry.end) if pin else ""
                if pinned and unpin:
                    undone.callback(_unpin, shelf, name, partial(unpin, pinned))
                objects = _copy(source, shelf, name, entry, progress)
            except (ShardDamaged, ObjectMissing, NoSuchCheckpoint):
                # It was swept before it was held: a newer one is there by now, if any may do.
                if epoch is not None or not left or source.entry(None).epoch == entry.epoch:
                    raise
                continue
            made = msgspec.structs.replace(made, objects=objects, pin=pinned)
            try:
                shelf.store.put_if_absent(f"{name}/{FILE}", [encode(made, given_keys())])
            except ObjectExists as error:
                if pin:  # ours has taken the place of its own, which may reach further back
                    pin(name, shelf.read(name).entry.end)
                raise SavepointExists(
                    f"Another savepoint {name!r} was made meanwhile.", hint="Give another name."
                ) from error
            undone.pop_all()
            return made
    raise AssertionError("the last attempt returns or raises")


def _unpin(shelf: Shelf, name: str, release: Callable[[], None]) -> None:
    """Release the pin of a savepoint that was not made, while a first error is on its way."""
    with suppress(CatchwaterError):
        if not shelf.exists(name):
            release()


def _describe(source: Source, name: str, entry: EpochEntry, clock: Clock) -> Savepoint:
    folder = source.checkpoint / FOLDER
    return Savepoint(
        name=name,
        pipeline=source.pipeline,
        created_ms=clock.now_ms(),
        catchwater=version("catchwater"),
        functions=source.functions,
        shards=source.shards,
        entry=entry,
        beginning=Ledger(source.checkpoint).beginning(),
        identity=_json(folder / "pipeline.json") or {},
        versions=source.versions(),
        contract=_json(folder / "contracts" / f"{entry.epoch}.json"),
        objects=[],
    )


def _json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise LedgerDamaged(
            f"{path} is damaged: {error}.", hint="Put a copy of the file back."
        ) from error


def _copy(
    source: Source, shelf: Shelf, name: str, entry: EpochEntry, progress: Progress | None
) -> list[StoredObject]:
    keys = dict.fromkeys(state_keys(source, entry))
    codes = sorted((source.checkpoint / FOLDER / "code").glob("*.py"))
    total, copied = len(keys) + len(codes), []

    def state(key: str) -> StoredObject:
        return keep(shelf.store, name, key, source.store.get(key))

    def code(path: Path) -> StoredObject:
        return keep(shelf.store, name, f"code/{path.name}", path.read_bytes())

    with ThreadPoolExecutor(COPIERS) as pool:
        futures = [pool.submit(state, key) for key in keys]
        futures += [pool.submit(code, path) for path in codes]
        try:
            for future in futures:
                copied.append(future.result())
                if progress:
                    progress(len(copied), total)
        finally:
            pool.shutdown(cancel_futures=True)
    return copied


def state_keys(source: Source, entry: EpochEntry) -> Iterator[str]:
    """The state objects that an epoch needs. Raises `ShardDamaged`."""
    for stage in range(len(source.functions)):
        for shard, at in sorted(entry.positions(stage).items()):
            yield from source.log(stage, shard).objects_of(at)


def keep(store: ObjectStore, name: str, key: str, data: bytes) -> StoredObject:
    """Put an object into a savepoint."""
    store.put(f"{name}/{key}", [data])
    return StoredObject(key, len(data), hashlib.sha256(data).hexdigest())
