"""Back to a savepoint: the version before, in its checkpoint; or any savepoint, in a free folder.

**A rollback.** The savepoint that was taken before the upgrade is brought back into the checkpoint;
what the sinks have of later epochs is withdrawn, by a writer of a newer generation, so that none of
the old ones can write again. The next start replays from there with the old version's code, which
the checkpoint has kept. One that was cut short is done again, and nothing is run before.

**A restore.** A savepoint becomes a pipeline's checkpoint: on a fresh machine, in another size, a
second time. The pipeline's file says whose it is to be: its name, its sinks, its number of shards.
Sinks that have epochs after the savepoint's, because this very pipeline went on behind it, are
withdrawn to it as well: the replay writes them anew. With a claim the savepoint belongs to the new
checkpoint: it is deleted, and its pin released, as soon as the pipeline has done an epoch there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.versions import (
    Identity,
    Version,
    Versions,
    check_targets,
)
from catchwater.pipeline.supervise import halt, running
from catchwater.recovery import handover, rewind
from catchwater.recovery.handover import Restore, alone
from catchwater.recovery.ledger import EpochEntry, numbered, shown
from catchwater.recovery.savepoint.create import Progress
from catchwater.recovery.savepoint.format import Savepoint
from catchwater.recovery.savepoint.restore import restore
from catchwater.recovery.savepoint.store import Claim, NoSuchSavepoint, Shelf, keep_claim
from catchwater.sinks.config import target_of

# A rollback.


class NothingToRollBack(CatchwaterError):
    """No version took over from another on this checkpoint."""

    exit_code = 2


class SavepointGone(CatchwaterError):
    """The savepoint that was taken before the upgrade is not there any more."""

    exit_code = 5


@dataclass(frozen=True)
class RollbackPlan:
    """What a rollback would do."""

    bad: list[Version]
    """Versions that are given up, newest first."""
    back: list[Version]
    """What runs after it, a version for each function."""
    specs: list[FunctionSpec]
    """Theirs, from the code that was kept."""
    shelf: Shelf
    savepoint: Savepoint
    last: int
    """The last epoch there is; those after the savepoint's are written anew."""


def look(pipeline: OpenPipeline) -> RollbackPlan:
    """Where a rollback leads. Changes nothing.

    Raises `NothingToRollBack`, `SavepointGone`, `CodeGone` naming what to put back, `HistoryGone`
    with both offsets, `OtherPipeline` where a sink writes elsewhere, `OutputsStay` where one cannot
    take back what it has.
    """
    checkpoint = pipeline.config.checkpoint
    ledger = versions.load(checkpoint)
    upgraded = _upgraded(pipeline, ledger)
    if upgraded is None:
        raise NothingToRollBack(
            f"No version of {shown(pipeline.config.checkpoint)} took over from another.",
            hint="To go back to an older checkpoint: catchwater recovery restore FILE "
            "--checkpoint N.",
        )
    shelf = Shelf.at(upgraded.shelf, pipeline.clock)
    try:
        savepoint = shelf.read(upgraded.savepoint)
    except NoSuchSavepoint as error:
        raise SavepointGone(
            f"The savepoint {upgraded.savepoint!r} that was taken before version "
            f"{upgraded.version} is not at {upgraded.shelf} any more: its state is lost.",
            hint="Import it from an exported file: catchwater savepoint import FILE TAR --at "
            f"{upgraded.shelf}",
        ) from error
    before = msgspec.convert(savepoint.versions, Versions)
    back = [each for name in savepoint.functions if (each := before.current(name))]
    bad = [each for each in reversed(ledger.history) if each not in before.history]
    specs = [versions.kept(checkpoint, each)[0] for each in back]
    pipeline.check_covered(savepoint.entry.end)
    _check_sinks(pipeline, specs)
    pipeline.check_withdraw(specs, checkpoint, savepoint.epoch)
    last = max([*numbered(checkpoint / "offsets"), savepoint.epoch])
    return RollbackPlan(bad, back, specs, shelf, savepoint, last)


def _check_sinks(pipeline: OpenPipeline, specs: Sequence[FunctionSpec]) -> None:
    """What the bad version wrote is to be withdrawn from where it was written."""
    config = pipeline.config
    bound = Identity.read(config.checkpoint)
    if bound is not None:
        sinks = {name: target_of(each, config.folder) for name, each in config.every_sink.items()}
        doubt = pipeline.other(functions=specs).doubt
        check_targets(config.checkpoint, bound, sinks, doubt)


def _upgraded(pipeline: OpenPipeline, ledger: Versions) -> Version | None:
    """The version that is to be given up; of a rollback that was cut short, the same again."""
    begun = handover.restore_under_way(pipeline.config.checkpoint)
    if begun is None:
        return next((each for each in reversed(ledger.history) if each.savepoint), None)
    for each in (*ledger.history, *ledger.withdrawn):
        if each.savepoint:
            shelf = Shelf.at(each.shelf, pipeline.clock)
            if shelf.url(each.savepoint) == begun.savepoint:
                return each
    handover.refuse_unfinished(pipeline.config.checkpoint)
    return None


def roll_back(pipeline: OpenPipeline, way: RollbackPlan, progress: Progress | None = None) -> int:
    """Go that way; the generation that writes from now on. The pipeline is stopped, not started.

    Raises `AnotherChange`, `NotStopped`, `SavepointDamaged`, `HandedOver`, and what the sinks'
    targets can raise; done again, it goes on where it was.
    """
    checkpoint, savepoint, clock = pipeline.config.checkpoint, way.savepoint, pipeline.clock
    again = Restore(way.shelf.url(savepoint.name), "catchwater pipeline rollback FILE --yes")
    with alone(checkpoint, clock):
        if running(checkpoint) is not None:
            halt(checkpoint, clock)
        with handover.stopped(checkpoint, clock):
            bound, ledger = Identity.read(checkpoint), versions.load(checkpoint)

            def withdraw() -> int:
                generation = ledger.generation + 1
                return pipeline.withdraw(way.specs, checkpoint, savepoint.epoch, generation)

            def before_it_may_run(generation: int) -> None:
                kept = [each for each in ledger.history if each not in way.bad]
                bad = [each for each in way.bad if each not in ledger.withdrawn]
                versions.store(checkpoint, Versions(kept, [*ledger.withdrawn, *bad], generation))

            return rewind.roll_back(
                checkpoint,
                way.shelf.store,
                savepoint,
                again,
                # It may have been cut into another number of shards since.
                shards=bound.shards if bound else savepoint.shards,
                withdraw=withdraw,
                before_it_may_run=before_it_may_run,
                clock=clock,
                progress=progress,
            )


# A restore.


class OtherFunctions(CatchwaterError):
    """The savepoint is of other functions than the pipeline's file names."""

    exit_code = 5


@dataclass(frozen=True)
class RestorePlan:
    """What is to be made of a savepoint."""

    shelf: Shelf
    savepoint: Savepoint
    into: Path
    shards: int
    claim: bool
    command: str
    """What to type to do it again."""


def check_restore(pipeline: OpenPipeline, wanted: RestorePlan) -> None:
    """Raise `OtherFunctions`, `HistoryGone` with both offsets, `LogBehind`, or `OutputsStay`.

    Changes nothing.
    """
    names = [spec.name for spec in pipeline.specs]
    if names != wanted.savepoint.functions:
        raise OtherFunctions(
            f"The savepoint {wanted.savepoint.name!r} holds the state of "
            f"{', '.join(wanted.savepoint.functions)}, and the pipeline's file names "
            f"{', '.join(names)}.",
            hint="Restore it by a file that names the same functions, in the same order.",
        )
    pipeline.check_covered(wanted.savepoint.entry.end)
    pipeline.check_withdraw(pipeline.specs, wanted.into, wanted.savepoint.epoch)


def bring_back(
    pipeline: OpenPipeline, wanted: RestorePlan, progress: Progress | None = None
) -> EpochEntry:
    """Make the checkpoint; its epoch's entry. The caller has seen that it can be (`check_restore`).

    Raises what `savepoint.restore` does, and what the sinks' targets can raise.
    """
    config, savepoint = pipeline.config, wanted.savepoint
    bound = msgspec.structs.replace(pipeline.identity(), shards=wanted.shards)

    def before_it_may_run() -> None:
        ledger = msgspec.convert(savepoint.versions, Versions)
        generation = pipeline.withdraw(
            pipeline.specs, wanted.into, savepoint.epoch, ledger.generation
        )
        versions.store(wanted.into, msgspec.structs.replace(ledger, generation=generation))
        if wanted.claim:
            keep_claim(wanted.into, Claim(
                wanted.shelf.store.url(), savepoint.name, savepoint.epoch, savepoint.pin
            ))  # fmt: skip

    return restore(
        wanted.shelf.store,
        savepoint,
        wanted.into,
        Restore(wanted.shelf.url(savepoint.name), wanted.command),
        identity=msgspec.to_builtins(bound),
        shards=wanted.shards,
        state=config.state,
        before_it_may_run=before_it_may_run,
        clock=pipeline.clock,
        progress=progress,
    )
