"""`pipeline backfill` and `rebuild` without Spark, in a process that is killed at a step.

What Spark does with a query is done in a thread (`in_session.HereQuery`), so a driver is there at
once, and a rebuild can be killed at each of its steps. The process is forked from one that has
everything imported and no threads. Every step that was done is a line of `steps.txt`.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.e2e.in_session import Pipeline
from tests.e2e.tally import produce, produced
from tests.forked import FORKSERVER, preload

from catchwater.cli import backfill as commands
from catchwater.pipeline import supervise as halting
from catchwater.pipeline.change import rebuild as changing
from catchwater.pipeline.run import backfill as backfills
from catchwater.pipeline.run import config
from catchwater.pipeline.run.driver import stop_requested
from catchwater.recovery.folder import lock
from catchwater.sinks.table import TableSink

preload(__name__)
PATIENCE_S = 400

# What a rebuild calls of these, epochs call as well: its own calls are told apart.
_OWN = {name: SimpleNamespace(**vars(getattr(changing, name))) for name in ("pins", "handover")}
SEAMS: tuple[tuple[str, Any, str], ...] = (
    ("pin the range", commands, "_pin"),
    ("keep the range", backfills, "begin"),
    ("catch up", commands, "supervised"),
    ("stop the pipeline", halting, "halt"),
    ("keep the new range", changing, "begin"),
    ("come to rest", changing, "settle"),
    ("fence the pipeline", _OWN["handover"], "replace"),
    ("exchange a table", TableSink, "take_place"),
    ("take the identity", changing, "rebind"),
    ("take the home", changing, "adopt_home"),
    ("hold the log", _OWN["pins"], "hold"),
    ("hand over", _OWN["handover"], "hand_over"),
    ("release the range", commands, "_release"),
)
TAKING = ("fence the pipeline", "hand over")
"""From the one to the other, the pipeline must not start."""

Place = tuple[str, int]
"""Behind a step, when it was done so many times."""


def run(
    command: str, file: Path, label: str, *, die_at: Place | None = None, meanwhile: int = 0,
    environment: Mapping[str, str] | None = None, **options: str,
) -> int:  # fmt: skip
    """The command's exit code; -9 if it was killed at the place `die_at`.

    When it has caught up for the first time, so many orders are appended to each partition.
    """
    (file.parent / "steps.txt").unlink(missing_ok=True)
    given = (command, file, label, die_at, meanwhile, dict(environment or {}), options)
    child = FORKSERVER.Process(target=_run, args=given)
    child.start()
    child.join(PATIENCE_S)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise AssertionError(f"{command} does not end; done: {done(file)}")
    return child.exitcode


@contextmanager
def running(file: Path) -> Iterator[None]:
    """The pipeline in a process of its own, until it is asked to stop."""
    child = FORKSERVER.Process(target=_live, args=(file,))
    child.start()
    try:
        yield
        child.join(PATIENCE_S)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()


def _live(file: Path) -> None:
    live = Pipeline(None, file.parent, file)
    with lock(config.load(file, {}).checkpoint), stop_requested() as stop:
        live.run(until=lambda: stop.requested)


def done(file: Path) -> list[str]:
    """The steps that the last process did."""
    with suppress(FileNotFoundError):
        return (file.parent / "steps.txt").read_text().splitlines()
    return []


def _run(
    command: str, file: Path, label: str, die_at: Place | None, meanwhile: int,
    environment: dict[str, str], options: dict[str, str],
) -> None:  # fmt: skip
    os.environ.update(environment)
    step = partial(_step, file, die_at)
    for name, module in _OWN.items():
        patch.object(changing, name, module).start()
    for name, owner, attribute in SEAMS:
        original = getattr(owner, attribute)
        if attribute == "supervised":
            original = _without_spark(file, label, meanwhile, step)
        patch.object(owner, attribute, _stepping(original, name, step)).start()
    getattr(commands, command)(file, label=label, yes=True, **options)


def _stepping(original: Callable[..., Any], name: str, step: Callable[[str], None]) -> Any:
    def stepping(*given: Any, **named: Any) -> Any:
        answer = original(*given, **named)
        step(name)
        return answer

    return stepping


def _step(file: Path, die_at: Place | None, name: str) -> None:
    with (file.parent / "steps.txt").open("a") as steps:
        steps.write(f"{name}\n")
    if die_at == (name, done(file).count(name)):
        os.kill(os.getpid(), signal.SIGKILL)


def _without_spark(
    file: Path, label: str, meanwhile: int, step: Callable[[str], None]
) -> Callable[..., None]:
    appended = iter([meanwhile])

    def supervised(_: Path, settings: Any, flags: Any) -> None:
        assert flags[:2] == ["--backfill", label]
        folder = file.parent
        Pipeline(None, folder, file, lambda epoch: step(f"write epoch {epoch}"), label=label).run()
        if count := next(appended, 0):
            bootstrap = settings.source["kafka.bootstrap.servers"]
            end = produced(bootstrap)
            produce(bootstrap, end, end + count)

    return supervised
