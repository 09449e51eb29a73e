"""Another version of a function takes over its state: checked first, with a way back.

The old version runs on until everything is known to fit: the schema of the state, every record that
is stored, and the sinks' targets, which may get columns for new fields of the output. Then it is
stopped, the records are tried once more, a savepoint is taken, and the checkpoint is bound to the
new version. State is not rewritten: records are brought over when next touched (`from_vN`). Epoch
numbers, and the marks in the sinks, go on.

To try a function on what is stored is to do in particular what the schema promises in general: each
record is read, brought over by its `from_vN` where it has one, written and read again; each entry
of a list, map or value state is read. The first key that fails is named, with the reason.

Whatever fails, the checkpoint is as it was, and the old version can be started again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.opened import (
    OpenPipeline,
    check_fit,
    check_known_subjects,
    check_sinks,
)
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.versions import (
    FunctionCode,
    StateIncompatible,
    Version,
    Versions,
    check_identity,
    publish,
)
from catchwater.pipeline.supervise import halt, running
from catchwater.recovery.checkpoint import settle
from catchwater.recovery.folder import key_part
from catchwater.recovery.handover import alone, stopped
from catchwater.recovery.savepoint.create import Progress, Source, create
from catchwater.recovery.savepoint.format import Savepoint
from catchwater.recovery.savepoint.view import View, shown
from catchwater.sinks.base import TargetDiffers
from catchwater.sinks.config import alter_target, ask_others, look_at
from catchwater.state.entries import Table, key_of
from catchwater.state.keys import HASH_BYTES


class NotAnUpgrade(CatchwaterError):
    """The pipeline's file does not name the version that was asked for."""

    exit_code = 2


@dataclass(frozen=True)
class Change:
    """One function that another version takes over."""

    stage: int
    spec: FunctionSpec
    before: Version

    def __str__(self) -> str:
        return f"{self.spec.name} from version {self.before.version} to {self.spec.version}"


@dataclass(frozen=True)
class UpgradeResult:
    """What an upgrade has done."""

    changes: list[Change]
    savepoint: str
    epoch: int
    """The last one of the old version."""
    keys: int
    """Records that were tried."""


def look(pipeline: OpenPipeline, to: int, *, alter: bool = False) -> list[Change]:
    """Which functions the file has another version of; all of it fits what is stored.

    With `alter`, tables may lack columns that can be added. Raises `NotAnUpgrade`,
    `StateIncompatible` naming the field or the key, `OtherPipeline` if more than a function has
    changed, `TargetDiffers` and what else a sink's target can raise. Changes nothing.
    """
    checkpoint = pipeline.config.checkpoint
    check_identity(checkpoint, pipeline.identity(), pipeline.doubt)
    ledger = versions.load(checkpoint)
    changes = find(pipeline.specs, ledger, to)
    for change in changes:
        versions.check(checkpoint, ledger, change.spec)
    try_all(checkpoint, changes, pipeline.clock)
    lacking = alterations(pipeline)
    if lacking and not alter:
        sinks = ", ".join(map(repr, lacking))
        raise TargetDiffers(
            f"What the new version puts out does not fit {sinks}: "
            f"{' '.join(str(each) for each in lacking.values())}",
            hint=f"Let the upgrade alter the target, with --alter, or do it yourself: "
            f"{' '.join(f'{each};' for differs in lacking.values() for each in differs.alter)}",
        )
    return changes


def alterations(pipeline: OpenPipeline) -> dict[str, TargetDiffers]:
    """Sink → why its table does not take the outputs as it is, and what would make it.

    Raises `TargetDiffers` for a target that no statement of ours mends, `ConfigError`, and what a
    target that is away raises.
    """
    config = pipeline.config
    check_fit(config, pipeline.specs)
    check_sinks(config, pipeline.specs)
    check_known_subjects(config, pipeline.specs[0], again=False)
    lacking = {}
    for sink in config.every_sink.values():
        context = pipeline.context_of(sink)
        ask_others(sink, context)
        differs = look_at(sink, context).differs
        if differs is not None and not differs.alter:
            raise differs
        if differs is not None:
            lacking[sink.name] = differs
    return lacking


def alter_targets(pipeline: OpenPipeline) -> None:
    """Add what `alterations` says; the version before goes on with it, too."""
    lacking = alterations(pipeline)
    for name in lacking:
        sink = pipeline.config.every_sink[name]
        alter_target(sink, pipeline.context_of(sink))


def find(specs: Sequence[FunctionSpec], ledger: Versions, to: int) -> list[Change]:
    """The functions that are at another version than the ledger says. Raises `NotAnUpgrade`."""
    changes = []
    for stage, spec in enumerate(specs):
        before = ledger.current(spec.name)
        if before is None:
            raise NotAnUpgrade(
                f"The checkpoint has never run {spec.name!r}.",
                hint="Start it: catchwater pipeline run FILE.",
            )
        if before.version != spec.version:
            changes.append(Change(stage, spec, before))
    found = {change.spec.version for change in changes}
    if found != {to} or any(change.before.version > to for change in changes):
        file = ", ".join(f"{s.name} {s.version}" for s in specs)
        there = filter(None, (ledger.current(spec.name) for spec in specs))
        runs = ", ".join(f"{each.function} {each.version}" for each in there)
        if not changes and {spec.version for spec in specs} == {to}:
            raise NotAnUpgrade(
                f"The checkpoint is at version {to} already.",
                hint="Start it: catchwater pipeline run FILE.",
            )
        raise NotAnUpgrade(
            f"There is no upgrade to version {to}: the pipeline's file names {file}, and the "
            f"checkpoint is at {runs}.",
            hint="Functions that go to different versions are upgraded one after the other."
            if len(found) > 1
            else "Put the new version's code into place; to go back, catchwater pipeline rollback "
            "FILE.",
        )
    return changes


def try_all(checkpoint: Path, changes: Sequence[Change], clock: Clock) -> int:
    """Try the functions on all that is stored at the last epoch; how many keys that are."""
    with View.held(checkpoint, None, clock) as view:
        return sum(try_state(view, change.spec, change.stage) for change in changes)


def upgrade(
    pipeline: OpenPipeline, to: int, progress: Progress | None = None, *, alter: bool = False
) -> UpgradeResult:
    """Stop the pipeline if it runs, and let the new version take over; it is not started.

    Raises what `look` does, `AnotherChange`, `NotStopped`, `HandedOver`, and what taking a
    savepoint does.
    """
    checkpoint = pipeline.config.checkpoint
    with alone(checkpoint, pipeline.clock):
        changes = look(pipeline, to, alter=alter)
        codes = [publish(change.spec, checkpoint) for change in changes]
        if running(checkpoint) is not None:
            halt(checkpoint, pipeline.clock)
        with stopped(checkpoint, pipeline.clock):
            epoch = settle(checkpoint)
            keys = try_all(checkpoint, changes, pipeline.clock)
            name = save(pipeline, changes, epoch, progress).name
            alter_targets(pipeline)
            fresh = new_versions(pipeline, changes, codes, epoch + 1, name)
            ledger = versions.load(checkpoint)
            generation = _withdraw_unfinished(pipeline, changes, epoch, ledger)
            ledger = msgspec.structs.replace(ledger, generation=generation)
            versions.store(checkpoint, ledger.added(*fresh))
    return UpgradeResult(changes, pipeline.shelf().url(name), epoch, keys)


def new_versions(
    pipeline: OpenPipeline,
    changes: Sequence[Change],
    codes: Sequence[FunctionCode],
    epoch: int,
    savepoint: str,
) -> list[Version]:
    """The versions that take over from this epoch on, for the ledger."""
    shelf, now_ms = pipeline.shelf().store.url(), pipeline.clock.now_ms()
    return [
        msgspec.structs.replace(
            versions.version_of(change.spec, code, epoch, now_ms), savepoint=savepoint, shelf=shelf
        )
        for change, code in zip(changes, codes, strict=True)
    ]


def _withdraw_unfinished(
    pipeline: OpenPipeline, changes: Sequence[Change], epoch: int, ledger: Versions
) -> int:
    """Take back what the old version wrote of an epoch it did not finish: it is the new one's."""
    checkpoint = pipeline.config.checkpoint
    old = {change.spec.name: versions.kept(checkpoint, change.before)[0] for change in changes}
    specs = [old.get(spec.name, spec) for spec in pipeline.specs]
    return pipeline.withdraw(specs, checkpoint, epoch, ledger.generation)


def save(
    pipeline: OpenPipeline, changes: Sequence[Change], epoch: int, progress: Progress | None
) -> Savepoint:
    """The savepoint before an upgrade; one of this very state may be there from an attempt."""
    source, shelf = Source.at(pipeline.config.checkpoint, pipeline.clock), pipeline.shelf()
    name = f"{key_part(pipeline.name)}-{epoch}-before-v{changes[0].spec.version}".lstrip("_-")
    if shelf.exists(name):
        there = shelf.read(name)
        if there.entry == source.entry(epoch):
            return there
        name = f"{name}-{pipeline.clock.token()[:6]}"
    return create(
        source, shelf, name, epoch=epoch, pin=pipeline.pin, unpin=pipeline.release,
        clock=pipeline.clock, progress=progress,
    )  # fmt: skip


def try_state(view: View, spec: FunctionSpec, stage: int) -> int:
    """How many keys the function can read: all of them. Raises `StateIncompatible`."""
    keys, types = 0, view.key_types(stage)
    for shard in range(view.shards):
        tables = view.tables(stage, shard)
        for key, data in tables[Table.RECORD].items():
            _try_key(spec, key, types, lambda data=data: _read_again(spec, data))
            keys += 1
        for entry, data in tables[Table.ENTRY].items():
            _try_key(
                spec,
                key_of(Table.ENTRY, entry) or entry,
                types,
                lambda e=entry, d=data: _read_entry(spec, e, d),
            )
    return keys


def _try_key(spec: FunctionSpec, key: bytes, types: Sequence[str], read: Any) -> None:
    try:
        read()
    except Exception as error:  # from_vN is the user's, and may raise anything
        reason = str(error).rstrip(".") if isinstance(error, CatchwaterError) else repr(error)
        raise StateIncompatible(
            f"Version {spec.version} of {spec.name!r} cannot take over the state of the key "
            f"{shown(key[HASH_BYTES:], types)!r}: {reason}. Nothing was changed.",
            hint="Mend the function, and try again: the version before goes on as it is.",
        ) from error


def _read_again(spec: FunctionSpec, data: bytes) -> None:
    codec = spec.record_codec
    codec.decode(codec.encode(codec.decode(data)))


def _read_entry(spec: FunctionSpec, entry: bytes, data: bytes) -> None:
    """An entry as its field's declared type; one of a field that is gone does not count."""
    head = HASH_BYTES + 1 + entry[HASH_BYTES]
    field, _, key = entry[head:].partition(b"\0")
    declared = spec.entry_fields.get(field.decode())
    if declared is None or (not key and declared.kind.__name__ != "ValueState"):
        return
    value = data[8:]
    try:
        declared.decode(value)
        if declared.kind.__name__ == "MapState":
            declared.decode_key(key)
    except msgspec.DecodeError as error:
        raise StateIncompatible(f"{declared.name}: {error}") from error
