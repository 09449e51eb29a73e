"""One drill from its declaration to its result: prepared, run, undone and written down.

A child that dies or stands still before any fault leaves the outcome unknown; after one, that is
what the drill has found.
"""

import platform
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from shutil import copyfile
from tempfile import mkdtemp

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.drill.catalogue import Drill
from catchwater.drill.journal import (
    MARK,
    OWNED,
    Folder,
    Journal,
    Processes,
    folder_of_drills,
)
from catchwater.drill.plain_spark import SparkPlace
from catchwater.drill.platforms import ApacheKafka, OwnLog, Platform
from catchwater.drill.result import Budget, Finding, Result, verdict_of
from catchwater.drill.scene import Scene, Shape
from catchwater.drill.zones import OwnBrokers

Make = Callable[[Path, ExitStack, Clock, dict[str, str]], Platform]
"""Folder, children, clock, and the environment of all that it starts."""


@dataclass(frozen=True)
class DrillRun:
    """How a drill is to be run."""

    make: Make
    shape: Shape = Shape()  # noqa: RUF009  (frozen)
    tell: Callable[[str], None] = lambda what: None
    worsen: Callable[[Scene], None] | None = None
    """What a test does, right after the fault, to see the drill fail."""
    journals: Path = field(default_factory=folder_of_drills)
    logs: Path | None = None
    """Where the children's logs are kept of a drill that did not pass."""
    ask: Callable[[Path], None] = lambda file: None
    """Called with the file of the pipeline that was drilled, while its log and its checkpoint are
    still there."""
    spark: SparkPlace | None = None
    """Drill a plain Spark job there, and no pipeline of ours."""


def ours(folder: Path, children: ExitStack, clock: Clock, marks: dict[str, str]) -> Platform:
    """A log of ours, embedded."""
    return OwnLog(folder, children, clock, marks=marks)


def ours_in_zones(
    folder: Path, children: ExitStack, clock: Clock, marks: dict[str, str]
) -> Platform:
    """Three brokers of ours over one catalog."""
    return OwnBrokers(folder, children, clock, marks=marks)


def apache_kafka(jars: Path, nodes: int = 1) -> Make:
    """Nodes of Apache Kafka from these archives."""

    def make(folder: Path, children: ExitStack, clock: Clock, marks: dict[str, str]) -> Platform:
        return ApacheKafka(folder, children, jars, clock, nodes=nodes, marks=marks)

    return make


def conduct(drill: Drill, budget: Budget, wanted: DrillRun, clock: Clock = SYSTEM) -> Result:
    """Run a drill; nothing of it is left when this returns. Raises `NotUndone`."""
    started_ms, began_s, run = clock.now_ms(), clock.monotonic_s(), clock.token()
    with Journal(wanted.journals, run) as journal, ExitStack() as children:
        folder = Path(mkdtemp(prefix="catchwater-drill-"))
        journal.note(Folder(run, str(folder)))
        (folder / OWNED).write_text(run)
        journal.note(Processes(run))
        scene = Scene(
            wanted.make(folder, children, clock, {MARK: run}), folder, journal,
            children, clock, wanted.shape, budget, wanted.tell, spark=wanted.spark,
        )  # fmt: skip
        if wanted.worsen is not None:
            scene.worsen = wanted.worsen
        try:
            drill.run(scene)
        except CatchwaterError as error:
            _note_failure(scene, error)
        scene.settle()
        if scene.pipeline_file is not None and scene.pipeline_file.exists():
            wanted.ask(scene.pipeline_file)
        if wanted.logs is not None and verdict_of(scene.findings) != "pass":
            _keep_logs(folder, wanted.logs / f"{run}-logs")
    return Result(
        drill=drill.name,
        platform=scene.platform.name,
        job=None if not drill.needs_spark else "spark" if wanted.spark else "catchwater",
        verdict=verdict_of(scene.findings),
        findings=scene.findings,
        hypothesis=drill.hypothesis,
        blast_radius=drill.blast_radius,
        manual_steps=scene.manual_steps,
        faults=scene.faults,
        workload=scene.workload,
        started_ms=started_ms,
        seconds=round(clock.monotonic_s() - began_s, 2),
        restore_s=scene.restore_s,
        estimate_s=scene.estimate_s,
        versions=_versions(),
        run=run,
    )


def _versions() -> dict[str, str]:
    return {"catchwater": version("catchwater"), "python": platform.python_version()}


def _keep_logs(folder: Path, kept: Path) -> None:
    for path in [*folder.glob("*.log"), *folder.glob("broker-*/broker.log")]:
        kept.mkdir(parents=True, exist_ok=True)
        copyfile(path, kept / "-".join(path.relative_to(folder).parts))


def _note_failure(scene: Scene, error: CatchwaterError) -> None:
    if scene.faults:
        scene.find(Finding("came back", "fail", None, None, "", str(error)))
    else:
        scene.unseen("the fault", f"it could not be caused: {error}")
