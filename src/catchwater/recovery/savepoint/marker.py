"""The mark of a restore that is under way: a checkpoint with one is incomplete, and is not run."""

from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import FOLDER, read_json, sync_folder, write_whole


class RestoreUnfinished(CatchwaterError):
    """A restore into this checkpoint was cut short: it is not to be run."""

    exit_code = 5


class Marker(msgspec.Struct, frozen=True):
    """A restore that is under way."""

    savepoint: str
    """Its URL."""
    command: str
    """What to type to go on."""


def read(checkpoint: Path) -> Marker | None:
    """The restore into this checkpoint that is under way, or was cut short."""
    return read_json(_marker(checkpoint), Marker)


def refuse_unfinished(checkpoint: Path) -> None:
    """Raise `RestoreUnfinished` if a restore into this checkpoint was cut short."""
    marker = read(checkpoint)
    if marker is not None:
        raise RestoreUnfinished(
            f"Restoring {marker.savepoint} into {checkpoint} was cut short; it is incomplete.",
            hint=f"Do it again: {marker.command}.",
        )


def begin(checkpoint: Path, marker: Marker) -> None:
    """Let nobody run the checkpoint before `done`."""
    write_whole(_marker(checkpoint), msgspec.json.encode(marker))


def done(checkpoint: Path) -> None:
    """The restore is complete."""
    _marker(checkpoint).unlink(missing_ok=True)
    sync_folder(_marker(checkpoint).parent)


def _marker(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "restoring-savepoint.json"
