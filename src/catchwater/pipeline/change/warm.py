"""A warm upgrade: the new version runs beside the old one before it takes over.

It starts from a savepoint of the old one, in a checkpoint of its own, and repeats the epochs that
the old one has done since, with the same ends. Its outputs are staged and compared, not written.
Once it has caught up it puts a fence: the old one ends after the epoch that it is at and hands
over (`recovery.handover`); from the epoch after on the new one writes. So no epoch is missing and
none is written twice, and there is no wait for Spark to start.

The old one must not forget epochs meanwhile: the caller holds them (`folder.hold`).

Whatever fails before the fence, the old version has noticed nothing. Where the new one dies behind
it, the old one hands over all the same, and the next `catchwater pipeline run` goes on from the new
checkpoint; unless the old one has died before, too, which then goes on as if nothing had been.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.change.upgrade import alter_targets, look, new_versions, save
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.config import AVAILABLE_NOW, CONTINUOUS, PipelineConfig
from catchwater.pipeline.run.versions import publish
from catchwater.recovery import checkpoint as checkpoints
from catchwater.recovery import handover
from catchwater.recovery.checkpoint import settle
from catchwater.recovery.folder import CheckpointInUse, holder, home_of, lock
from catchwater.recovery.handover import Role
from catchwater.recovery.ledger import Ledger, refuse_url
from catchwater.recovery.savepoint.create import Progress, Source
from catchwater.recovery.savepoint.restore import CheckpointTaken, refuse_taken, restore
from catchwater.sinks.base import Truth
from catchwater.sinks.epochs import Archive, StagedFile, staged_folder

# What two versions put out for the same epoch.


_SHOWN = 3


class SinkComparison(msgspec.Struct, frozen=True):
    """One epoch of one sink."""

    epoch: int
    sink: str
    same: int
    only_old: int
    only_new: int
    examples: list[str] = []
    """A few rows that only one of them has, as `- old` and `+ new`."""


class Comparison(msgspec.Struct, frozen=True):
    """All epochs that both have done."""

    epochs: int = 0
    same: int = 0
    only_old: int = 0
    only_new: int = 0
    examples: list[str] = []

    def with_epoch(self, found: Iterable[SinkComparison]) -> "Comparison":
        """One epoch more."""
        new = list(found)
        return Comparison(
            self.epochs + 1,
            self.same + sum(each.same for each in new),
            self.only_old + sum(each.only_old for each in new),
            self.only_new + sum(each.only_new for each in new),
            [*self.examples, *(line for each in new for line in each.examples)][: 4 * _SHOWN],
        )

    @property
    def differs(self) -> bool:
        """Whether any row is not in both."""
        return bool(self.only_old or self.only_new)


def compare(epoch: int, old: Mapping[str, Truth], new: Mapping[str, Truth]) -> list[SinkComparison]:
    """One epoch in all sinks that both have."""
    both = sorted(old.keys() & new.keys())
    return [_compare_sink(epoch, name, old[name], new[name]) for name in both]


def _compare_sink(epoch: int, sink: str, old: Truth, new: Truth) -> SinkComparison:
    before, after = _rows(old, epoch), _rows(new, epoch)
    gone, come = before - after, after - before
    examples = [f"- {_shown(row)}" for row in list(gone)[:_SHOWN]]
    examples += [f"+ {_shown(row)}" for row in list(come)[:_SHOWN]]
    same = sum((before & after).values())
    return SinkComparison(epoch, sink, same, sum(gone.values()), sum(come.values()), examples)


def _rows(truth: Truth, epoch: int) -> Counter[tuple[bytes, bytes]]:
    return Counter((row.record.key, row.record.value) for row in truth.rows(epoch))


def _shown(row: tuple[bytes, bytes]) -> str:
    return row[1].decode(errors="replace")


# Running beside.


_log = logging.getLogger("catchwater.pipeline")

NEAR = 1
"""How many epochs behind the old version count as caught up."""

_SLOWER = 2
"""While it leads, the old version waits this many epochs of the shadow between two of its own."""
_LONGEST_MS = 10_000
_PACED_BY = 3
"""Epochs of the shadow by which its pace is measured."""
_ASK_EVERY_MS = 1000
_IDLE_MS = 10_000
"""How long a shadow waits for an epoch to compare before it takes over without one."""


class OutputsDiffer(CatchwaterError):
    """The new version's outputs are not the old one's, and they were to be the same."""

    exit_code = 4


class NotRunning(CatchwaterError):
    """There is no old version that runs, to run beside."""

    exit_code = 2


def prepare(
    pipeline: OpenPipeline, to: int, progress: Progress | None = None, *, alter: bool = False
) -> PipelineConfig:
    """Make the shadow's checkpoint; what to run there. The old version goes on meanwhile.

    Raises what `upgrade.look` does, `NotRunning`, `AnotherChange`. The caller is `alone`.
    """
    leader = pipeline.config.checkpoint
    refuse_url(leader, "An upgrade beside the old version")
    changes = look(pipeline, to, alter=alter)
    if (asked := handover.fenced_by(leader)) is not None:
        raise handover.AnotherChange(
            f"{leader} is asked to hand over to {asked} already.",
            hint="When it has ended, go on from there: catchwater pipeline run FILE.",
        )
    if holder(leader) is None:
        raise NotRunning(
            f"Nothing works on {leader}: there is no old version to run beside.",
            hint=f"Upgrade without --warm: catchwater pipeline upgrade FILE --to {to}.",
        )
    alter_targets(pipeline)
    shelf = pipeline.shelf()
    savepoint = save(pipeline, changes, Source.at(leader).entry(None).epoch, progress)
    shadow = _free(leader.with_name(f"{leader.name}-v{to}-{savepoint.epoch}"), pipeline.clock)
    config = _beside(pipeline.config, shadow)

    def before_it_may_run() -> None:
        codes = [publish(change.spec, shadow) for change in changes]
        fresh = new_versions(pipeline, changes, codes, savepoint.epoch + 1, savepoint.name)
        versions.store(shadow, versions.load(shadow).added(*fresh))
        handover.follow(shadow, leader)

    restore(
        shelf.store,
        savepoint,
        shadow,
        handover.Restore(shelf.url(savepoint.name), "catchwater pipeline upgrade FILE --warm"),
        identity=msgspec.to_builtins(pipeline.identity()),
        shards=savepoint.shards,
        state=config.state,
        before_it_may_run=before_it_may_run,
        clock=pipeline.clock,
        progress=progress,
    )
    return config


def _free(shadow: Path, clock: Clock) -> Path:
    """This folder, or one beside it if an attempt that was given up has left its own there."""
    try:
        refuse_taken(shadow)
    except CheckpointTaken:
        return shadow.with_name(f"{shadow.name}-{clock.token()[:6]}")
    return shadow


def _beside(config: PipelineConfig, shadow: Path) -> PipelineConfig:
    """The pipeline's file for the shadow: nothing that only one of two can have."""
    local = config.local.with_name(f"{config.local.name}-{shadow.name}") if config.local else None
    trigger = CONTINUOUS if config.trigger == AVAILABLE_NOW else config.trigger
    return replace(config, checkpoint=shadow, local=local, trigger=trigger, metrics=None)


class Conductor:
    """Looks at both versions again and again, and lets the new one take over in time."""

    def __init__(
        self,
        pipeline: OpenPipeline,
        shadow: Path,
        taken_over: Callable[[Comparison], None],
        *,
        same: bool = False,
    ) -> None:
        """`taken_over` is called when the old version has handed over.

        With `same`, a row that differs ends the shadow before the fence (`OutputsDiffer`), and at
        least one epoch is compared.
        """
        self._pipeline = pipeline
        self._leader = pipeline.config.checkpoint
        self._shadow = shadow
        self._taken_over = taken_over
        self._same = same
        self._old = self._truths(self._leader)
        self._new = self._truths(shadow)
        self._next = checkpoints.last_commit(shadow) + 1
        self._first = self._next
        self._over = False
        self._asked_ms = 0
        self._began_ms = pipeline.clock.now_ms()
        self.comparison = Comparison()

    def __call__(self) -> None:
        """One look; cheap."""
        if self._over:
            return
        done = checkpoints.last_commit(self._shadow)
        shadow = handover.shadow_of(self._shadow)
        assert shadow is not None, "it was made one"
        last = done if shadow.until is None else min(done, shadow.until)
        while self._next <= last:
            self._compare(self._next)
            self._next += 1
        if shadow.until is not None:
            self._over = done >= shadow.until
            if self._over:
                self._taken_over(self.comparison)
        elif handover.fenced_by(self._leader) is not None:
            self._speak_for_the_dead()
        elif checkpoints.last_commit(self._leader) - done <= NEAR:
            if not self._has_compared() or handover.role_of(self._leader) is not Role.LEADS:
                return
            _log.info("Caught up at epoch %d; the old version is asked to hand over.", done)
            handover.ask(self._leader, self._shadow)
        else:
            self._ask_for_time(done)

    def _has_compared(self) -> bool:
        """Whether there was an epoch to compare; where nothing comes in, only `same` insists."""
        idle = self._pipeline.clock.now_ms() - self._began_ms >= _IDLE_MS
        return self.comparison.epochs > 0 or (idle and not self._same)

    def _ask_for_time(self, done: int) -> None:
        """Let the old version make fewer and larger epochs as long as the shadow is behind.

        Both run epochs of the same ends; at the same pace the one behind would stay behind.
        """
        now_ms = self._pipeline.clock.now_ms()
        if now_ms < self._asked_ms + _ASK_EVERY_MS:
            return
        ledger = Ledger(self._shadow)
        last, before = ledger.read(done), ledger.read(done - _PACED_BY)
        if last is not None and before is not None and done - _PACED_BY >= self._first:
            epoch_ms = (last.finished_ms - before.finished_ms) // _PACED_BY
            interval_ms = min(_SLOWER * epoch_ms, _LONGEST_MS)
            handover.set_pace(self._leader, interval_ms, now_ms + 3 * _ASK_EVERY_MS)
            self._asked_ms = now_ms

    def _compare(self, epoch: int) -> None:
        found = compare(epoch, self._old, self._new)
        self.comparison = self.comparison.with_epoch(found)
        for each in found:
            if each.only_old or each.only_new:
                _log.warning("Epoch %d, %s: %s", epoch, each.sink, "; ".join(each.examples))
        if self._same and self.comparison.differs:
            raise OutputsDiffer(
                f"In epoch {epoch} the outputs differ: {'; '.join(self.comparison.examples)}. The "
                "old version goes on.",
                hint="Without --same the new version may put out something else.",
            )

    def _speak_for_the_dead(self) -> None:
        """An old version that was killed behind the fence hands over by its lock."""
        handed = handover.successor_of(self._leader)
        if handed is not None and Path(handed.to) != self._shadow:
            raise handover.HandedOver(
                f"{self._leader} has handed over to {handed.to}, and not to {self._shadow}.",
                hint="Go on from there: catchwater pipeline run FILE.",
            )
        if handed is not None or holder(self._leader) is not None:
            return
        handover.check(self._leader, handover.Event.START)  # a rebuild may be taking its place
        try:
            with lock(self._leader, self._pipeline.clock, wait_s=0):
                if handover.successor_of(self._leader) is None:
                    handover.hand_over(self._leader, settle(self._leader))
        except CheckpointInUse:
            return

    def _truths(self, checkpoint: Path) -> dict[str, Truth]:
        objects = home_of(checkpoint)
        return {
            name: Archive(StagedFile(objects, staged_folder(name)))
            for name in self._pipeline.config.sinks
        }
