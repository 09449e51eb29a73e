"""What every kind of sink learns of the pipeline it belongs to."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catchwater.clock import SYSTEM, Clock
from catchwater.replay.control import Control
from catchwater.sinks.marks import Owner
from catchwater.wire.security.settings import UNSECURED, Security


@dataclass(frozen=True)
class Surroundings:
    """What a sink learns of its pipeline."""

    pipeline: str
    objects: str
    """URL of the checkpoint's object store: staged outputs lie there under `staged/<sink>/`."""
    folder: Path
    """Relative paths of the pipeline's file are meant from here."""
    bootstrap: str = ""
    """The brokers of the source."""
    security: Security = UNSECURED
    """How connections to them are secured."""
    control: Control | None = None
    """The control API of the source's log; None: it is another Kafka."""
    generation: int = 0
    """Raised by a rollback, and by a restore that writes outputs anew."""
    output_type: Any = None
    """What the function puts out; None: dead letters or late events."""
    output_id: tuple[str, ...] = ()
    clock: Clock = SYSTEM

    def owner(self, sink: str) -> Owner:
        """The writer of this sink's target."""
        return Owner(self.pipeline, sink, self.generation)


def staged_folder(*names: str) -> str:
    """Where outputs are staged in an object store: `staged/`, then a folder for each name.

    A name that may not stand in an object's key is replaced by a digest of it.
    """
    return "/".join(("staged", *map(_folder, names)))


def _folder(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        return name
    return hashlib.sha256(name.encode()).hexdigest()[:16]
