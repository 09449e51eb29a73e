"""A savepoint becomes a pipeline's checkpoint: on a fresh machine, in another size, a second time.

The pipeline's file says whose checkpoint it is to be: its name, its sinks, its number of shards.
Sinks that have epochs after the savepoint's, because this very pipeline went on behind it, are
withdrawn to it by a writer of a newer generation: the replay writes them anew.

With a claim the savepoint belongs to the new checkpoint: it is deleted, and its pin released, as
soon as the pipeline has done an epoch of its own (`settle_claim`).
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.pipeline.pipeline import Pipeline
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.versions import Versions
from catchwater.recovery.handover import Restore
from catchwater.recovery.ledger import EpochEntry
from catchwater.recovery.savepoint.claim import Claim, keep_claim
from catchwater.recovery.savepoint.create import Progress
from catchwater.recovery.savepoint.format import Savepoint
from catchwater.recovery.savepoint.restore import restore
from catchwater.recovery.savepoint.storage import Shelf


class OtherFunctions(CatchwaterError):
    """The savepoint is of other functions than the pipeline's file names."""

    exit_code = 5


@dataclass(frozen=True)
class Wanted:
    """What is to be made of a savepoint."""

    shelf: Shelf
    savepoint: Savepoint
    into: Path
    shards: int
    claim: bool
    command: str
    """What to type to do it again."""


def check(pipeline: Pipeline, wanted: Wanted) -> None:
    """Raise `OtherFunctions`, `HistoryGone` with both offsets, or `LogBehind`; changes nothing."""
    names = [spec.name for spec in pipeline.specs]
    if names != wanted.savepoint.functions:
        raise OtherFunctions(
            f"The savepoint {wanted.savepoint.name!r} holds the state of "
            f"{', '.join(wanted.savepoint.functions)}, and the pipeline's file names "
            f"{', '.join(names)}.",
            hint="Restore it by a file that names the same functions, in the same order.",
        )
    pipeline.check_covered(wanted.savepoint.entry.end)


def bring_back(pipeline: Pipeline, wanted: Wanted, progress: Progress | None = None) -> EpochEntry:
    """Make the checkpoint; its epoch's entry. The caller has `check`ed.

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
