"""Opens a sink from its configuration and its pipeline's (`SinkContext`).

Opening creates missing parts of the target (a topic, a table) and claims it; it refuses a target
that cannot take the outputs. A kind's packages are imported only when it is opened.
"""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.replay.control import Control
from catchwater.sinks.base import Sink, TargetState
from catchwater.sinks.config import SinkConfig, guarantee, kinds
from catchwater.sinks.marks import Owner
from catchwater.sinks.staged import Archive, StagedFile, staged_folder
from catchwater.wire.security.settings import UNSECURED, Security


@dataclass(frozen=True)
class SinkContext:
    """The settings of its pipeline that a sink needs."""

    pipeline: str
    objects: str
    """URL of the checkpoint's object store, with staged outputs under `staged/<sink>/`."""
    folder: Path
    """Relative paths in the pipeline's file start here."""
    bootstrap: str = ""
    """The brokers of the source."""
    security: Security = UNSECURED
    """How connections to them are secured."""
    control: Control | None = None
    """The control API of the source's log; None if the source is another Kafka."""
    generation: int = 0
    """Raised by a rollback, and by a restore that writes outputs anew."""
    output_type: Any = None
    """The type of the function's outputs; None: dead letters or late events."""
    output_id: tuple[str, ...] = ()
    clock: Clock = SYSTEM

    def owner(self, sink: str) -> Owner:
        """The writer of this sink's target."""
        return Owner(self.pipeline, sink, self.generation)


class PackageMissing(CatchwaterError):
    """A sink needs a package that is not installed."""

    exit_code = 2


def open_sink(config: SinkConfig, context: SinkContext) -> Sink:
    """Open one sink. Raises `ConfigError`, and the errors of the kind's target."""
    guarantee(config, output_id=context.output_id)
    stager = StagedFile(context.objects, staged_folder(config.name))
    truth = Archive(stager, keep_ms=config.keep_ms)
    with _packages_named(config):
        return config.declared.open(config, context, truth)


def check_sink(config: SinkConfig, context: SinkContext) -> None:
    """Refuse settings that no target could take: a delivery, a URL, a name, a field's type.

    Opens nothing. Raises as `open_sink`, for errors that can be found without the target.
    """
    guarantee(config, output_id=context.output_id)
    with _packages_named(config):
        for module in config.declared.modules:
            importlib.import_module(module)
        config.declared.check(config, context)


def target_of(config: SinkConfig, folder: Path) -> str:
    """The unique name of a sink's target, without credentials.

    Two names of one server count as two targets. Relative paths start in the folder. Does not
    connect. Raises `ConfigError`, `PackageMissing`.
    """
    with _packages_named(config):
        return f"{config.kind} {config.declared.target(config, folder)}"


def look_at(config: SinkConfig, context: SinkContext) -> TargetState:
    """The present state of a sink's target; read once, without retries, and not changed.

    Raises the errors of an unavailable target, and `TargetTaken`.
    """
    with _packages_named(config):
        return config.declared.look(config, context)


def alter_target(config: SinkConfig, context: SinkContext) -> None:
    """Add to a table the columns that it lacks. Raises `TargetDiffers` if that is not enough."""
    alter = config.declared.alter
    assert alter is not None, "only a table is found to lack columns that can be added"
    with _packages_named(config):
        alter(config, context)


def preload(names: Iterable[str]) -> None:
    """Import the packages of these kinds ahead of `open_sink`, to save time then.

    A missing package is ignored here; `open_sink` names it.
    """
    for name in names:
        for module in kinds()[name].modules:
            with suppress(ModuleNotFoundError):
                importlib.import_module(module)


@contextmanager
def _packages_named(config: SinkConfig) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise PackageMissing(
            f"The sink {config.name!r} of kind {config.kind} needs the package {error.name}, "
            "which is not installed.",
            hint=f"pip install 'catchwater[{config.declared.extra or config.kind}]'",
        ) from error
