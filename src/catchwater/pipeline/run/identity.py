"""Which pipeline a checkpoint belongs to.

State is found again by the function's name, offsets by the topic's, marks by the sink's. So a
checkpoint is bound to the pipeline, functions, shards, topics and sinks it was begun with, and a
start with others is refused before Spark touches anything. A sink may have moved: to a target that
holds all that was written to the one before. The functions' versions and their code may change, and
have a ledger of their own (`versions`).
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.pipeline.run.config import DEAD_LETTER
from catchwater.recovery import handover
from catchwater.recovery.handover import refuse_unfinished
from catchwater.recovery.ledger import FOLDER, Ledger, numbered, read_json, write_whole
from catchwater.sinks.config import SinkConfig, target_of


class OtherPipeline(CatchwaterError):
    """The checkpoint was begun by a pipeline that this one cannot continue."""

    exit_code = 5


class Identity(msgspec.Struct, frozen=True):
    """What has to stay the same for the life of a checkpoint."""

    pipeline: str
    functions: list[str]
    """The chain's names, in order."""
    shards: int
    topics: list[str]
    sinks: dict[str, str]
    """Sink → what it writes to, by a name that no other target has (`sinks.config.target_of`)."""


Doubts = Callable[[str, str], str]
"""Why this sink cannot have moved from the target it was bound to; empty: it has, or has not."""


def no_move(sink: str, was: str) -> str:
    """Nobody looks: another target is another one."""
    return "which is another target"


_WORDS = {
    "pipeline": "the pipeline",
    "functions": "the chain of functions",
    "shards": "the number of shards",
    "topics": "the input",
}
_HINTS = {"shards": "To change it, restore a savepoint into a new checkpoint: catchwater "
          "savepoint restore FILE NAME --into FOLDER --shards N."}  # fmt: skip
_OTHER_SINKS = (
    "Put them back as they were. To add one or take one away, restore a savepoint into a new "
    "checkpoint: catchwater savepoint restore FILE NAME --into FOLDER."
)


def bind(folder: Path, wanted: Identity, doubts: Doubts = no_move) -> None:
    """Bind the checkpoint to this pipeline; while nothing was begun in it, anew.

    A first start that failed, at a sink that was not there, must not hold on to that sink. Raises
    `OtherPipeline`.
    """
    ledger = Ledger(folder)
    epochs = [*numbered(folder / "offsets"), *ledger.epochs(), *ledger.recorded_epochs()]
    if epochs or handover.shadow_of(folder):
        claim(folder, wanted, doubts)
    else:
        refuse_unfinished(folder)
        write(folder, wanted)


def claim(checkpoint: Path, identity: Identity, doubts: Doubts = no_move) -> None:
    """Bind a new checkpoint to this pipeline, and one whose sinks have moved to where they are now.

    Raises `OtherPipeline` if it is bound to another, `RestoreUnfinished` if it is incomplete.
    """
    check(checkpoint, identity, doubts)
    bound = read(checkpoint)
    if bound is not None and DEAD_LETTER in bound.sinks and DEAD_LETTER not in identity.sinks:
        identity = with_sink(identity, DEAD_LETTER, bound.sinks[DEAD_LETTER])
    if bound != identity:
        write(checkpoint, identity)


def check(checkpoint: Path, identity: Identity, doubts: Doubts = no_move) -> None:
    """Raise what `claim` raises; changes nothing."""
    refuse_unfinished(checkpoint)
    bound = read(checkpoint)
    if bound is None:
        return
    compared = [
        (w, getattr(bound, n), getattr(identity, n), _HINTS.get(n)) for n, w in _WORDS.items()
    ]
    # Dead letters may be added or left out; where they go is compared like any sink's target.
    was, now = ({*each.sinks} - {DEAD_LETTER} for each in (bound, identity))
    compared.append(("the set of sinks", sorted(was), sorted(now), _OTHER_SINKS))
    for words, before, wanted, hint in compared:
        if before != wanted:
            raise OtherPipeline(
                f"The checkpoint {checkpoint} cannot be continued: {words} was {before} and is now "
                f"{wanted}. Its state would be lost or misread; nothing was changed.",
                hint=hint or "Put it back as it was, or begin a new checkpoint in another folder.",
            )
    check_sinks(checkpoint, bound, identity.sinks, doubts)


def check_sinks(
    checkpoint: Path, bound: Identity, sinks: Mapping[str, str], doubts: Doubts = no_move
) -> None:
    """Raise `OtherPipeline` if a sink is to write elsewhere, and has not moved there whole."""
    for sink, wanted in sinks.items():
        was = bound.sinks.get(sink, wanted)
        if was != wanted and (doubt := doubts(sink, was)):
            raise OtherPipeline(
                f"The checkpoint {checkpoint} cannot be continued: the sink {sink!r} has written "
                f"to {was} so far, and is now to write to {wanted}, {doubt}. Nothing was changed.",
                hint="Put it back as it was. If it has moved, let the new target hold what the old "
                "one does, marks included; if it is to begin anew there: catchwater sink moved "
                f"FILE --sink {sink}.",
            )


def is_target(sink: SinkConfig, folder: Path, bound: str) -> bool:
    """Whether the sink writes to what a checkpoint is bound to.

    Checkpoints of earlier versions know no more than a topic, table, path or URL.
    """
    earlier = f"{sink.kind} {sink.named.partition('?')[0]}"
    return bound in (target_of(sink, folder), earlier)


def with_sink(identity: Identity, sink: str, target: str) -> Identity:
    """The same with another target of one sink."""
    return msgspec.structs.replace(identity, sinks={**identity.sinks, sink: target})


def read(checkpoint: Path) -> Identity | None:
    """What the checkpoint is bound to, None if it is new. Raises `LedgerDamaged`."""
    return read_json(_path(checkpoint), Identity)


def write(checkpoint: Path, identity: Identity) -> None:
    """Bind the checkpoint, also one that is bound to another pipeline."""
    write_whole(_path(checkpoint), msgspec.json.format(msgspec.json.encode(identity), indent=1))


def _path(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "pipeline.json"
