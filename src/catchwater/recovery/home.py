"""Where a checkpoint's objects lie: its shards' state logs, and what sinks have staged.

By default beside the ledger. A pipeline may name another store (`[pipeline] state`), such as a
bucket: then every checkpoint has a folder of its own there, drawn once and kept in `home.json`, so
that two checkpoints of one pipeline never sweep each other's objects.
"""

import re
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.open import join
from catchwater.recovery.ledger import FOLDER, read_json, write_whole

STATE = "state"
"""The folder of the state logs; one folder a function in it."""


class StateElsewhere(CatchwaterError):
    """The pipeline's file names another store than the one the checkpoint's state lies in."""

    exit_code = 5


class _Home(msgspec.Struct, frozen=True):
    """`home.json`."""

    store: str
    """As the pipeline's file names it."""
    url: str
    """The checkpoint's own folder in it."""


def home_of(checkpoint: Path) -> str:
    """The URL of the checkpoint's object store."""
    kept = read_json(_path(checkpoint), _Home)
    return kept.url if kept else (checkpoint / FOLDER).absolute().as_uri()


def claim_home(checkpoint: Path, store: str | None, pipeline: str, clock: Clock) -> str:
    """The URL of the checkpoint's object store, chosen at the first start.

    Raises `StateElsewhere` if the pipeline's file names another one now.
    """
    kept = read_json(_path(checkpoint), _Home)
    begun = (checkpoint / FOLDER / "beginning.json").exists()
    if kept is None and store is not None and not begun:
        name = f"{key_part(pipeline)}-{clock.token()[:8]}"
        kept = _Home(store, join(store, name))
        write_whole(_path(checkpoint), msgspec.json.encode(kept))
    if (kept.store if kept else None) != store:
        raise StateElsewhere(
            f"The state of the checkpoint {checkpoint} lies in "
            f"{kept.store if kept else 'the checkpoint itself'}, and the pipeline's file says "
            f"{store or 'nothing'}.",
            hint="Set state in [pipeline] back, or move the state through a savepoint.",
        )
    return home_of(checkpoint)


def adopt_home(checkpoint: Path, store: str | None) -> None:
    """Let the pipeline's file name this store from now on; the objects stay where they are."""
    kept = read_json(_path(checkpoint), _Home)
    if kept is not None and store is not None:
        write_whole(_path(checkpoint), msgspec.json.encode(_Home(store, kept.url)))


def state_folder(function: str) -> str:
    """Where in the checkpoint's store the state logs of a function lie."""
    return f"{STATE}/{key_part(function)}"


def key_part(name: str) -> str:
    """The name as it may stand in an object's key: what may not is spelled out in hex."""
    return re.sub(
        "[^A-Za-z0-9-]", lambda match: "".join(f"_{b:02x}" for b in match[0].encode()), name
    )


def _path(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "home.json"
