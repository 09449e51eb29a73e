"""Which pipeline a checkpoint belongs to.

State is found again by the function's name, offsets by the topic's, marks by the sink's. So a
checkpoint is bound to the pipeline, functions, shards, topics and sinks it was begun with, and a
start with others is refused before Spark touches anything. The functions' versions and their code
may change, and have a ledger of their own (`versions`).
"""

from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import FOLDER, read_json, write_whole
from catchwater.recovery.savepoint.marker import refuse_unfinished


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
    """Sink → what it writes to."""


_WORDS = {
    "pipeline": "the pipeline",
    "functions": "the chain of functions",
    "shards": "the number of shards",
    "topics": "the input",
    "sinks": "the set of sinks",
}
_HINTS = {"shards": "To change it, restore a savepoint into a new checkpoint: catchwater "
          "savepoint restore FILE NAME --into FOLDER --shards N."}  # fmt: skip


def claim(checkpoint: Path, identity: Identity) -> None:
    """Bind a new checkpoint to this pipeline.

    Raises `OtherPipeline` if it is bound to another, `RestoreUnfinished` if it is incomplete.
    """
    check(checkpoint, identity)
    if read(checkpoint) is None:
        write(checkpoint, identity)


def check(checkpoint: Path, identity: Identity) -> None:
    """Raise what `claim` raises; a new checkpoint stays unbound."""
    refuse_unfinished(checkpoint)
    bound = read(checkpoint)
    if bound is None:
        return
    for name, words in _WORDS.items():
        was, wanted = getattr(bound, name), getattr(identity, name)
        if was != wanted:
            raise OtherPipeline(
                f"The checkpoint {checkpoint} cannot be continued: {words} was {was} and is now "
                f"{wanted}. Its state would be lost or misread; nothing was changed.",
                hint=_HINTS.get(
                    name, "Put it back as it was, or begin a new checkpoint in another folder."
                ),
            )


def read(checkpoint: Path) -> Identity | None:
    """What the checkpoint is bound to, None if it is new. Raises `LedgerDamaged`."""
    return read_json(_path(checkpoint), Identity)


def write(checkpoint: Path, identity: Identity) -> None:
    """Bind the checkpoint, whatever it was bound to."""
    write_whole(_path(checkpoint), msgspec.json.format(msgspec.json.encode(identity), indent=1))


def _path(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "pipeline.json"
