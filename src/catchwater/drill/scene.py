"""What a drill acts on, and what it has found so far.

A drill writes down how a fault is undone, causes it, and says so (`fault`); it adds what it
measures (`find`) and the steps that a person would have had to take (`manual`).
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.drill.journal import MARK, Command, Journal, Mended, Topic, Undo
from catchwater.drill.plain_spark import SparkPlace
from catchwater.drill.platforms import ByCommands, Platform, brokers_of
from catchwater.drill.processes import CATCHWATER, Child
from catchwater.drill.result import Budget, Finding, Workload, at_most

COMMAND_S = 600.0
"""Patience with one `catchwater` command."""
HELD_S = 240.0
"""Patience until a database is locked, while others write to it."""
_HOLD = """
import sqlite3, sys, time
path, held_s, free_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
database = sqlite3.connect(path, isolation_level=None, timeout=60)
while True:
    database.execute("BEGIN EXCLUSIVE")
    print("held", flush=True)
    time.sleep(held_s)
    database.execute("COMMIT")
    time.sleep(free_s)
"""


class CommandRefused(CatchwaterError):
    """A `catchwater` command that the drill relies on failed."""


class Shape(msgspec.Struct, frozen=True):
    """The workload that is asked for."""

    rate: float = 1_000.0
    """Records a second."""
    state_bytes: int = 0
    """What the function keeps of all cards together, beside what it needs."""
    cards: int = 2_000
    skew: float = 1.05
    late: float = 0.001
    seed: int = 1


def _nothing(scene: "Scene") -> None:
    """No worse than the drill is."""


@dataclass
class Scene:
    """One run of one drill."""

    platform: Platform
    folder: Path
    journal: Journal
    children: ExitStack
    clock: Clock
    shape: Shape
    budget: Budget
    tell: Callable[[str], None]
    worsen: Callable[["Scene"], None] = _nothing
    """Called right after the fault: what a test does to see the drill fail."""
    findings: list[Finding] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    manual_steps: list[str] = field(default_factory=list)
    spark: SparkPlace | None = None
    """Of a plain Spark job in place of a pipeline of ours."""
    pipeline_file: Path | None = None
    """Of the pipeline that is drilled, if one of ours is."""
    workload: Workload | None = None
    restore_s: float | None = None
    estimate_s: float | None = None

    @property
    def marks(self) -> dict[str, str]:
        """The environment of everything that the drill starts."""
        return {MARK: self.journal.run}

    def fault(self, what: str, cause: Callable[[], None], undo: Undo | None = None) -> None:
        """Cause a fault, once it is written down how it is undone."""
        if undo is not None:
            self.journal.note(undo)
        self.tell(what)
        cause()
        self.faults.append(what)
        self.worsen(self)

    def kill_broker(self, what: str = "kill -9 of the broker") -> None:
        """The fault of most drills; a platform that stays is started again whatever happens."""
        undo = None
        if isinstance(self.platform, ByCommands):
            bootstrap = self.platform.bootstrap
            # Of several brokers others answer, which says nothing of the one that is away.
            alone = len(brokers_of(bootstrap)) <= 1
            undo = Command(self.platform.commands["start"], bootstrap if alone else "")
        self.fault(what, self.platform.kill, undo)

    def start_broker(self) -> None:
        """After `kill_broker`: wait until it is back."""
        self.platform.start()
        if isinstance(self.platform, ByCommands):
            self.journal.note(Mended(self.platform.commands["start"]))

    def hold_database(self, path: Path, held_s: float, free_s: float = 0.0) -> Child:
        """Lock a SQLite database against all others: for so long, then free, and again."""
        log = self.folder / "hold.log"
        child = Child(
            "holder", [str(path), str(held_s), str(free_s)], log, self.clock,
            program=[sys.executable, "-c", _HOLD], marks=self.marks,
        )  # fmt: skip
        self.children.enter_context(child)
        child.wait_until(lambda: "held" in child.said(), f"locked {path.name}", HELD_S)
        return child

    def topic(self, of: str) -> str:
        """A topic of this run's own; on a platform that stays, it is deleted in the end."""
        name = f"catchwater-drill-{self.journal.run}-{of}"
        if not self.platform.started_here:
            self.journal.note(Topic(self.platform.bootstrap, name))
        return name

    def manual(self, step: str) -> None:
        """A step that no program takes by itself."""
        self.manual_steps.append(step)

    def find(self, *findings: Finding) -> None:
        """Add what was measured."""
        self.findings += findings

    def unseen(self, name: str, why: str) -> None:
        """What ought to have been measured and could not be."""
        self.find(Finding(name, "unknown", None, None, "", why))

    def catchwater(
        self,
        *arguments: str,
        codes: tuple[int, ...] = (0,),
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command; what it puts out. Raises `CommandRefused`."""
        words = " ".join(arguments[:2])
        done = subprocess.run(
            [*CATCHWATER, *arguments], capture_output=True, text=True, timeout=COMMAND_S,
            check=False, stdin=subprocess.DEVNULL, cwd=self.folder,
            env={**os.environ, **self.marks, **(variables or {})},
        )  # fmt: skip
        if done.returncode not in codes:
            said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            problem = said[-1].removeprefix("error: ") if said else done.stderr.strip()[-300:]
            raise CommandRefused(f"catchwater {words} ended with {done.returncode}: {problem}")
        return done.stdout

    def settle(self) -> None:
        """What holds of every drill."""
        steps = len(self.manual_steps)
        why = "; ".join(self.manual_steps)
        self.find(at_most("manual steps", steps, self.budget.manual_steps, "steps", why))
