"""Back to the version before: its state, its outputs, its code.

The savepoint that was taken before the upgrade is brought back into the checkpoint; what the sinks
have of later epochs is withdrawn, by a writer of a newer generation, so that none of the old ones
can write again; what Spark and the ledger have of them is moved aside into `catchwater/withdrawn`.
The next start replays from there with the old version's code, which the checkpoint has kept.

Every step may be repeated, and a marker stands from the first to the last: a rollback that was cut
short is done again, and nothing is run before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.objects.open import open_store
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.pipeline import Pipeline
from catchwater.pipeline.run import identity, versions
from catchwater.pipeline.run.versions import Version, Versions
from catchwater.pipeline.supervisor.supervise import halt, running
from catchwater.recovery import handover
from catchwater.recovery.home import home_of
from catchwater.recovery.ledger import FOLDER, Ledger, numbered, sync_folder
from catchwater.recovery.restore import stopped
from catchwater.recovery.savepoint.create import Progress
from catchwater.recovery.savepoint.format import Savepoint
from catchwater.recovery.savepoint.restore import bring_state, write_epoch
from catchwater.recovery.savepoint.storage import NoSuchSavepoint, Shelf
from catchwater.sinks.open import target_of

ASIDE = "withdrawn"
"""Where what was undone is kept, in the ledger's folder, by generation."""


class NothingToRollBack(CatchwaterError):
    """No version took over from another on this checkpoint."""

    exit_code = 2


class SavepointGone(CatchwaterError):
    """The savepoint that was taken before the upgrade is not there any more."""

    exit_code = 5


@dataclass(frozen=True)
class Way:
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


def look(pipeline: Pipeline) -> Way:
    """Where a rollback leads. Changes nothing.

    Raises `NothingToRollBack`, `SavepointGone`, `CodeGone` naming what to put back, `HistoryGone`
    with both offsets, `OtherPipeline` where a sink writes elsewhere.
    """
    checkpoint = pipeline.config.checkpoint
    ledger = versions.load(checkpoint)
    upgraded = _upgraded(pipeline, ledger)
    if upgraded is None:
        raise NothingToRollBack(
            f"No version of {pipeline.config.checkpoint} took over from another.",
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
    last = max([*numbered(checkpoint / "offsets"), savepoint.epoch])
    return Way(bad, back, specs, shelf, savepoint, last)


def _check_sinks(pipeline: Pipeline, specs: Sequence[FunctionSpec]) -> None:
    """What the bad version wrote is to be withdrawn from where it was written."""
    config = pipeline.config
    bound = identity.read(config.checkpoint)
    if bound is not None:
        sinks = {name: target_of(each, config.folder) for name, each in config.every_sink.items()}
        doubt = pipeline.other(functions=specs).doubt
        identity.check_sinks(config.checkpoint, bound, sinks, doubt)


def _upgraded(pipeline: Pipeline, ledger: Versions) -> Version | None:
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


def roll_back(pipeline: Pipeline, way: Way, progress: Progress | None = None) -> int:
    """Go that way; the generation that writes from now on. The pipeline is stopped, not started.

    Raises `AnotherChange`, `NotStopped`, `SavepointDamaged`, `HandedOver`, and what the sinks'
    targets can raise; done again, it goes on where it was.
    """
    checkpoint, savepoint = pipeline.config.checkpoint, way.savepoint
    with handover.alone(checkpoint, pipeline.clock):
        if running(checkpoint) is not None:
            halt(checkpoint, pipeline.clock)
        with stopped(checkpoint, pipeline.clock):
            bound = identity.read(checkpoint)
            # It may have been cut into another number of shards since.
            shards = bound.shards if bound else savepoint.shards
            again = "catchwater pipeline rollback FILE --yes"
            handover.begin_restore(
                checkpoint, handover.Restore(way.shelf.url(savepoint.name), again)
            )
            home = open_store(home_of(checkpoint), pipeline.clock)
            entry = bring_state(way.shelf.store, savepoint, home, shards, progress)
            ledger = versions.load(checkpoint)
            generation = pipeline.withdraw(
                way.specs, checkpoint, savepoint.epoch, ledger.generation + 1
            )
            move_aside(checkpoint, savepoint.epoch, generation)
            handover.lead(checkpoint)
            write_epoch(checkpoint, entry, pipeline.clock)
            kept = [each for each in ledger.history if each not in way.bad]
            withdrawn = [each for each in way.bad if each not in ledger.withdrawn]
            versions.store(checkpoint, Versions(kept, [*ledger.withdrawn, *withdrawn], generation))
            handover.end_restore(checkpoint)
    return generation


def move_aside(checkpoint: Path, epoch: int, generation: int) -> None:
    """Take away what Spark and the ledger have of later epochs; commits first."""
    aside = Ledger(checkpoint).folder / ASIDE / str(generation)
    for path in list(_later(checkpoint, epoch)):
        target = aside / path.relative_to(checkpoint)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
        sync_folder(target.parent)
        sync_folder(path.parent)


def _later(checkpoint: Path, epoch: int) -> Iterator[Path]:
    ours = checkpoint / FOLDER
    folders = [
        (checkpoint / "commits", ""),
        (checkpoint / "offsets", ""),
        (ours / "replayed" / "offsets", ""),
        (ours / "contracts", ".json"),
        (ours / "epochs", ".json"),
    ]
    for folder, suffix in folders:
        for number in sorted(numbered(folder, suffix), reverse=True):
            if number > epoch:
                path = folder / f"{number}{suffix}"
                yield path
                beside = path.with_name(f".{path.name}.crc")
                if beside.exists():
                    yield beside
