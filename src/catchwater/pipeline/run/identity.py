"""Which pipeline a checkpoint belongs to.

State is found again by the function's name; it is read again by its version's class. So a
checkpoint is bound to the pipeline, function, version, state schema, shards, topics and sinks it
was begun with, and a start with others is refused before Spark touches anything. The code itself
may change: it has a hash of its own in every contract.
"""

from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import FOLDER, read_json, write_whole


class OtherPipeline(CatchwaterError):
    """The checkpoint was begun by a pipeline that this one cannot continue."""

    exit_code = 5


class Identity(msgspec.Struct, frozen=True):
    """What has to stay the same for the life of a checkpoint."""

    pipeline: str
    function: str
    version: int
    state_schema: str
    shards: int
    topics: list[str]
    sinks: dict[str, str]


_WORDS = {
    "pipeline": "the pipeline",
    "function": "the function",
    "version": "the function's version",
    "state_schema": "the schema of the function's state",
    "shards": "the number of shards",
    "topics": "the input",
    "sinks": "the sinks",
}


def claim(checkpoint: Path, identity: Identity) -> None:
    """Bind a new checkpoint to this pipeline. Raises `OtherPipeline` if it is bound to another."""
    path = checkpoint / FOLDER / "pipeline.json"
    bound = read_json(path, Identity)
    if bound is None:
        write_whole(path, msgspec.json.format(msgspec.json.encode(identity), indent=1))
        return
    for name, words in _WORDS.items():
        was, wanted = getattr(bound, name), getattr(identity, name)
        if was != wanted:
            raise OtherPipeline(
                f"The checkpoint {checkpoint} cannot be continued: {words} was {was} and is now "
                f"{wanted}. Its state would be lost or misread; nothing was changed.",
                hint="Start the old version again, or begin a new checkpoint in another folder.",
            )
