"""A sink from its configuration.

Opening creates what is missing in the target (a topic, a table) and claims it; it refuses a target
that cannot take the outputs. What a kind needs is imported only when it is opened.
"""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from catchwater.config import CatchwaterError
from catchwater.sinks.base import Seen, Sink
from catchwater.sinks.config import SinkConfig, guarantee, kinds
from catchwater.sinks.staged import Archive, StagedFile
from catchwater.sinks.surroundings import Surroundings, staged_folder


class PackageMissing(CatchwaterError):
    """A sink needs a package that is not installed."""

    exit_code = 2


def open_sink(config: SinkConfig, around: Surroundings) -> Sink:
    """Open one sink. Raises `ConfigError`, and what the kind's target can raise."""
    guarantee(config, output_id=around.output_id)
    stager = StagedFile(around.objects, staged_folder(config.name))
    truth = Archive(stager, keep_ms=config.keep_ms)
    with _packages_named(config):
        return config.declared.open(config, around, truth)


def check_sink(config: SinkConfig, around: Surroundings) -> None:
    """Refuse what no target could mend: a delivery, a URL, a name, a field without a column.

    Opens nothing. Raises as `open_sink`, as far as that can be told beforehand.
    """
    guarantee(config, output_id=around.output_id)
    with _packages_named(config):
        for module in config.declared.modules:
            importlib.import_module(module)
        config.declared.check(config, around)


def target_of(config: SinkConfig, folder: Path) -> str:
    """What a sink writes to, told apart from every other target; without what gives access to it.

    Two names of one server are two targets to it. Relative paths are meant from the folder.
    Asks nobody. Raises `ConfigError`, `PackageMissing`.
    """
    with _packages_named(config):
        return f"{config.kind} {config.declared.target(config, folder)}"


def look_at(config: SinkConfig, around: Surroundings) -> Seen:
    """What the target of a sink is like now; asked once, without patience, and not changed.

    Raises what a target that is away raises, and `TargetTaken`.
    """
    with _packages_named(config):
        return config.declared.look(config, around)


def alter_target(config: SinkConfig, around: Surroundings) -> None:
    """Add to a table the columns that it lacks. Raises `TargetDiffers` if that is not enough."""
    alter = config.declared.alter
    assert alter is not None, "only a table is found to lack columns that can be added"
    with _packages_named(config):
        alter(config, around)


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
