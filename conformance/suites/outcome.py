"""What a suite tells: one outcome per test, and what it takes to be a suite."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """One test: its name within the suite; `note` says why, of a failure or a skip, in a line."""

    name: str
    status: Status
    note: str = ""


def judged(name: str, problem: str, note: str = "") -> Outcome:
    """Failed with the problem, or passed, if it is empty, with the note."""
    return Outcome(name, "failed", problem) if problem else Outcome(name, "passed", note)


class Suite(Protocol):
    """A module with a `run`."""

    def run(self, bootstrap: str, folder: Path) -> Iterator[Outcome]:
        """Outcomes in the order they come, each name once.

        `bootstrap` is the address of a broker that nobody else uses, `folder` an empty one for
        logs and work, kept until the next run. What is fetched belongs below `programs.BUILT`.
        Raises `programs.Missing` before the first outcome where a tool is not installed.
        """
        ...


@runtime_checkable
class KillingSuite(Protocol):
    """A suite that has a `run_killing`, too, which starts and kills a broker itself."""

    def run_killing(self, against: str, folder: Path) -> Iterator[Outcome]:
        """As `run`, and taken after it; `against` is one of `targets.TARGETS`."""
        ...


@runtime_checkable
class ConfiguredSuite(Protocol):
    """A suite whose tests take the broker to be set up as their own would be."""

    def settings(self, against: str, folder: Path) -> Mapping[str, str]:
        """Keys of the broker of `run`, as in its file; `against` is one of `targets.TARGETS`."""
        ...
