"""A pipeline's file as commands open it: TOML with this environment over it, or a script's name."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.pipeline.run.config import PipelineConfig
    from catchwater.recovery.intact import Look


def open_here(file: Path) -> "OpenPipeline":
    """The pipeline of the file; nobody is asked yet. Raises `ConfigError`."""
    from catchwater.pipeline.opened import OpenPipeline

    return OpenPipeline(load_here(file))


def load_here(file: Path) -> "PipelineConfig":
    """What the file says, and the checkpoint that it goes on from. Raises `ConfigError`."""
    from catchwater.recovery.handover import current

    config = _read(file)
    return replace(config, checkpoint=current(config.checkpoint))


def _read(file: Path) -> "PipelineConfig":
    """`pipeline.toml` with this environment over it, or `cards.py:pipeline`, which Python makes."""
    script, colon, name = str(file).rpartition(":")
    if colon and script.endswith(".py"):
        from catchwater.pipeline.pipeline import Pipeline

        return Pipeline.from_script(Path(script), name).declared
    from catchwater.pipeline.run.config import read

    return read(file, os.environ)


def look_here(file: Path) -> "tuple[PipelineConfig, Look]":
    """The pipeline's file, and what the files of its checkpoint say. Raises `ConfigError` only.

    Where one of them is damaged it is among the `problems`, and the rest is there.
    """
    from catchwater.pipeline.run import backfill, identity, versions
    from catchwater.pipeline.supervisor.supervise import read_supervision
    from catchwater.recovery.folder import SUPERVISOR, holder
    from catchwater.recovery.handover import find_current
    from catchwater.recovery.intact import look

    config = _read(file)
    checkpoint, _ = find_current(config.checkpoint)
    readers = (
        identity.read, versions.load, backfill.begun, read_supervision,
        partial(holder, name=SUPERVISOR),
    )  # fmt: skip
    return replace(config, checkpoint=checkpoint), look(checkpoint, readers)
