"""A reset: a pipeline begins anew, with empty state, at another place of its input.

Epochs go on by number, so what the sinks have stays and is still known to be this pipeline's; what
is read again is put out again. The newest epoch is written over as one that read nothing, ends at
that place and has left every shard empty; what the ledger had of it and of those before is moved
into `catchwater/reset/`. Its state is in a savepoint, if one was asked for, and in no other place.

Refused before anything is changed: a place that the log does not hold. The place is pinned first. A
marker stands from the first change to the last (`handover.Work.RESTORING`); only the same command
goes on, and may be cut short anywhere: the newest epoch's number is the same before and after.
"""

from contextlib import closing
from dataclasses import dataclass

import msgspec

from catchwater.config import CatchwaterError
from catchwater.objects.open import open_store
from catchwater.pipeline.opened import OpenPipeline, check_fit
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.backfill import STARTING, point
from catchwater.pipeline.run.versions import Identity, check_targets
from catchwater.pipeline.watermark import FIRST_WATERMARK_MS
from catchwater.recovery import handover, pins
from catchwater.recovery.checkpoint import Checkpoint, find, last_commit, settle
from catchwater.recovery.contract import check_covered, pin_id
from catchwater.recovery.handover import Restore, alone
from catchwater.recovery.ledger import EpochEntry, Ledger, ShardEpoch, SourceOffset, shown
from catchwater.recovery.rewind import begin_anew
from catchwater.recovery.savepoint.create import Progress, state_log
from catchwater.recovery.savepoint.store import Shelf
from catchwater.replay.offsets import from_json, to_json
from catchwater.replay.options import parse_options
from catchwater.replay.subscription import Subscription
from catchwater.sinks.config import SinkConfig, target_of
from catchwater.state.entries import no_changes
from catchwater.state.log import StateLog
from catchwater.state.roll import EMPTY, END, Position
from catchwater.wire.client import EARLIEST

_HOLD_MS = 3_600_000
"""How long the place is held for a reset that was cut short before its first change."""


class NothingToReset(CatchwaterError):
    """The pipeline has not done an epoch yet."""

    exit_code = 2


@dataclass(frozen=True)
class Move:
    """What a reset does to one partition of the input."""

    topic: str
    partition: int
    log_start: int
    at: int
    """What was read so far, up to and without this offset."""
    to: int
    end: int
    """Where the log ends now."""

    @property
    def again(self) -> int:
        """Offsets that are read again."""
        return max(0, self.at - self.to)

    @property
    def skipped(self) -> int:
        """Offsets that are never read."""
        return max(0, self.to - self.at)


@dataclass(frozen=True)
class ResetPlan:
    """What a reset would do."""

    epoch: int
    """The newest one, which ends at the place afterwards."""
    moves: list[Move]
    place: SourceOffset
    keys: int
    state_bytes: int
    """What the state takes that is given up."""
    sinks: dict[str, str]
    """Sink → what becomes of what it has, and of what is put out again."""

    @property
    def again(self) -> int:
        """Offsets of all partitions that are read again."""
        return sum(each.again for each in self.moves)

    @property
    def skipped(self) -> int:
        """Offsets of all partitions that are never read."""
        return sum(each.skipped for each in self.moves)


def look(pipeline: OpenPipeline, to: str | None, checkpoint: int | None) -> ResetPlan:
    """Where a reset leads: `to` is a place of a log as a backfill's, or what a checkpoint has read.

    Changes nothing. Raises `NothingToReset`, `NoSuchCheckpoint`, `BadBackfill` for a place that is
    none, `HistoryGone` and `LogBehind` naming every range that the log lacks, and `OtherPipeline`
    where a sink writes elsewhere than it did.
    """
    config, folder = pipeline.config, pipeline.config.checkpoint
    begun = handover.restore_under_way(folder)
    if begun is not None and not begun.reset:
        handover.refuse_unfinished(folder)
    ledger = Ledger(folder)
    newest = ledger.read(last_commit(folder))
    if newest is None:
        raise NothingToReset(
            f"{shown(folder)} has no committed epoch yet, so there is nothing to reset.",
            hint="startingOffsets in [source] says where the first start begins.",
        )
    newest = ledger.read(newest.epoch + 1) or newest  # which `settle` commits
    _check_sinks(pipeline)
    place = _place(pipeline, newest, to, checkpoint)
    tails = pipeline.tails()
    check_covered(place, tails, "The place that is asked for")
    at = from_json(newest.end.offsets)
    moves = [
        Move(*key, tails[key].log_start, at.get(key, tails[key].log_start), offset,
             tails[key].high_watermark)
        for key, offset in sorted(from_json(place.offsets).items())
    ]  # fmt: skip
    sinks = {
        name: f"keeps what it has; outputs that are made again {_again(sink)}"
        for name, sink in config.every_sink.items()
    }
    return ResetPlan(
        newest.epoch, moves, place, newest.total("keys"), newest.total("state_bytes"), sinks
    )


def _again(sink: SinkConfig) -> str:
    replaced = sink.declared.replaces(sink.options)
    return f"replace {replaced}" if replaced else "are added to them"


def _check_sinks(pipeline: OpenPipeline) -> None:
    """An epoch that was under way is taken back from where it was written."""
    config = pipeline.config
    check_fit(config, pipeline.specs)
    bound = Identity.read(config.checkpoint)
    if bound is not None:
        sinks = {name: target_of(each, config.folder) for name, each in config.every_sink.items()}
        check_targets(config.checkpoint, bound, sinks, pipeline.doubt)


def _place(
    pipeline: OpenPipeline, newest: EpochEntry, to: str | None, checkpoint: int | None
) -> SourceOffset:
    """The end of the newest epoch as it will be: nothing read, no time passed in the input."""
    config, clock = pipeline.config, pipeline.clock
    if checkpoint is not None:
        offsets = find(config.checkpoint, checkpoint).end.offsets
    else:
        offsets = _resolved(pipeline, to or "")
    tables = {}
    if config.tables:
        options = parse_options(config.table_options)
        with closing(Subscription(options, clock, timeout_s=pipeline.timeout_s)) as read:
            tables = to_json(read.starting(EARLIEST))
    now_ms = max(clock.now_ms(), newest.end.clock_ms)
    watermarks = [FIRST_WATERMARK_MS] * len(pipeline.specs)
    return SourceOffset(newest.epoch, offsets, watermarks, now_ms, tables, now_ms)


def _resolved(pipeline: OpenPipeline, to: str) -> dict[str, dict[str, int]]:
    """The offsets of a place in every partition."""
    given = pipeline.config.source_options.items()
    kept = {key: value for key, value in given if not key.lower().startswith(STARTING)}

    def starting(place: dict[str, str]) -> dict[str, dict[str, int]]:
        options = {**kept, **place, "startingOffsetsByTimestampStrategy": "latest"}
        read = Subscription(parse_options(options), pipeline.clock, timeout_s=pipeline.timeout_s)
        with closing(read):
            return to_json(read.starting(EARLIEST))

    if not to.isdecimal():
        return starting(point("starting", to))
    everywhere = starting({})
    return {topic: dict.fromkeys(numbers, int(to)) for topic, numbers in everywhere.items()}


def reset(
    pipeline: OpenPipeline,
    plan: ResetPlan,
    command: str,
    save: tuple[str, Shelf] | None,
    progress: Progress | None = None,
) -> str:
    """Carry it out; the savepoint's URL, "" without one. The pipeline must not be running.

    `command` is what to type if it is cut short. Raises `CheckpointInUse`, `AnotherChange`,
    `HandedOver`, `ControlRefused` where the log deletes the place meanwhile, and what a savepoint
    and the sinks' targets raise.
    """
    folder, clock = pipeline.config.checkpoint, pipeline.clock
    with alone(folder, clock), handover.stopped(folder, clock):
        epoch = settle(folder)
        # The way back, while the state is there.
        begun = handover.restore_under_way(folder)
        url = begun.savepoint if begun is not None else ""
        if begun is None and save is not None:
            name, shelf = save
            url = shelf.url(pipeline.save(name, epoch, shelf, progress).name)
        # What is to be read stays from here on.
        held = f"{pipeline.name}/reset"
        if pipeline.control is not None:
            positions = pins.positions(plan.place.needed)
            content = {"owner": pipeline.name, "positions": positions}
            pipeline.control.set_pin(held, {**content, "lease_ms": _HOLD_MS})
        handover.begin_restore(folder, Restore(url, command, reset=True))
        _take_back_unfinished(pipeline, epoch)
        entry = _emptied(pipeline, epoch, msgspec.structs.replace(plan.place, epoch=epoch))
        begin_anew(folder, entry, clock)
        if pipeline.control is not None:
            pipeline.control.set_pin(pin_id(pipeline.name, epoch), content)
            pins.hold(pipeline.control, pipeline.name, [Checkpoint(epoch, entry.end)])
            pipeline.control.release_pin(held)
        handover.end_restore(folder)
    return url


def _take_back_unfinished(pipeline: OpenPipeline, epoch: int) -> None:
    """What sinks have of later epochs would be taken for what is written under their numbers."""
    folder = pipeline.config.checkpoint
    ledger = versions.load(folder)
    generation = pipeline.withdraw(pipeline.specs, folder, epoch, ledger.generation)
    versions.store(folder, msgspec.structs.replace(ledger, generation=generation))


def _emptied(pipeline: OpenPipeline, epoch: int, place: SourceOffset) -> EpochEntry:
    """The newest epoch as one that read nothing and left every shard empty.

    The shards keep their version, so that sweeping finds what was before.
    """
    before = Ledger(pipeline.config.checkpoint).read(epoch)
    assert before is not None, "it was settled"
    store = open_store(pipeline.home, pipeline.clock)
    names = [spec.name for spec in pipeline.specs]
    shards = [
        _empty(state_log(store, "", names[each.stage], each.shard), each, pipeline.clock.token())
        for each in before.shards
    ]
    return EpochEntry(
        epoch=epoch,
        start=msgspec.structs.replace(place, epoch=epoch - 1),
        end=place,
        shards=shards,
        sinks=before.sinks,
        finished_ms=pipeline.clock.now_ms(),
    )


def _empty(log: StateLog, before: ShardEpoch, token: str) -> ShardEpoch:
    """A shard without a key, at the version it has; one that never had any is as it was."""
    if before.version == EMPTY.version:
        return ShardEpoch(shard=before.shard, stage=before.stage)
    at = Position(before.version, token)
    logged = log.write_whole(at, [(no_changes(), END)])
    return ShardEpoch(
        shard=before.shard,
        stage=before.stage,
        version=at.version,
        token=at.token,
        state_bytes=logged.state_bytes,
        written_bytes=logged.written_bytes,
    )
