"""Alternating rounds of ours and a peer, and the one format every result is written in.

A claim is a ratio to a named peer, taken A B A B after a warm-up, as a median with its spread,
never a single time: machines are shared and noisy.
"""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5


@dataclass
class Row:
    """One claim. `ratio` is ours to theirs; `low` and `high` are its range over the rounds."""

    claim: str
    unit: str
    ours: float
    peer: str
    theirs: float
    ratio: float
    low: float
    high: float
    rounds: int
    target: float | None = None
    better: str = "higher"


def alternate(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int = ROUNDS
) -> tuple[list[float], list[float]]:
    """Figures of both, after one round each that is not counted."""
    ours()
    theirs()
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def row(
    claim: str,
    unit: str,
    ours: list[float],
    peer: str,
    theirs: list[float],
    *,
    target: float | None = None,
    better: str = "higher",
) -> Row:
    """A row from the figures of alternating rounds."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b]
    return Row(
        claim, unit, statistics.median(ours), peer, statistics.median(theirs),
        statistics.median(ratios), min(ratios), max(ratios), len(ratios), target, better,
    )  # fmt: skip


def machine() -> dict[str, str | int]:
    """What the figures were measured on."""
    return {
        "processor": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit that is measured, with a `+` where the tree has changes beside it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
        cwd=RESULTS.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return described.stdout.strip()


def publish(name: str, rows: list[Row]) -> None:
    """Print the table and write `results/<name>.json`."""
    table = Table("claim", "unit", "ours", "peer", "theirs", "ratio", "low–high", title=name)
    for each in rows:
        table.add_row(
            each.claim, each.unit, f"{each.ours:,.4g}", each.peer, f"{each.theirs:,.4g}",
            f"{each.ratio:.2f}×", f"{each.low:.2f}–{each.high:.2f}",
        )  # fmt: skip
    Console(width=130).print(table)
    RESULTS.mkdir(exist_ok=True)
    result = {"machine": machine(), "rows": [asdict(each) for each in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def cpu_seconds(pid: int) -> float:
    """User and system time a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
