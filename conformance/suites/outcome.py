"""What a suite tells: one outcome per test, and what it takes to be a suite."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """One test: its name within the suite; `note` says why, of a failure or a skip, in a line."""

    name: str
    status: Status
    note: str = ""


class Suite(Protocol):
    """A module with a `run`."""

    def run(self, bootstrap: str, folder: Path) -> Iterator[Outcome]:
        """Outcomes in the order they come, each name once.

        `bootstrap` is the address of a broker that nobody else uses, `folder` an empty one for
        logs and work, kept until the next run. What is fetched belongs below `programs.BUILT`.
        Raises `programs.Missing` before the first outcome where a tool is not installed.
        """
        ...
