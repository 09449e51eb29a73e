"""A sink from its configuration and what it learns of its pipeline (`SinkContext`).

Opening creates what is missing in the target (a topic, a table) and claims it; it refuses a target
that cannot take the outputs. What a kind needs is imported only when it is opened.
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


class PackageMissing(CatchwaterError):
    """A sink needs a package that is not installed."""

    exit_code = 2


def open_sink(config: SinkConfig, context: SinkContext) -> Sink:
    """Open one sink. Raises `ConfigError`, and what the kind's target can raise."""
    guarantee(config, output_id=context.output_id)
    stager = StagedFile(context.objects, staged_folder(config.name))
    truth = Archive(stager, keep_ms=config.keep_ms)
    with _packages_named(config):
        return config.declared.open(config, context, truth)


def check_sink(config: SinkConfig, context: SinkContext) -> None:
    """Refuse what no target could mend: a delivery, a URL, a name, a field without a column.

    Opens nothing. Raises as `open_sink`, as far as that is known beforehand.
    """
    guarantee(config, output_id=context.output_id)
    with _packages_named(config):
        for module in config.declared.modules:
            importlib.import_module(module)
        config.declared.check(config, context)


def target_of(config: SinkConfig, folder: Path) -> str:
    """The unique name of what a sink writes to, without what gives access to it.

    Two names of one server are two targets to it. Relative paths are meant from the folder.
    Connects to nothing. Raises `ConfigError`, `PackageMissing`.
    """
    with _packages_named(config):
        return f"{config.kind} {config.declared.target(config, folder)}"


def look_at(config: SinkConfig, context: SinkContext) -> TargetState:
    """What the target of a sink is like now; asked once, without patience, and not changed.

    Raises what a target that is away raises, and `TargetTaken`.
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
    """Import what sinks of these kinds need before they are opened, which saves time then.

    A package that is missing is named by `open_sink`.
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
