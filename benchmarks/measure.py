"""Alternating rounds of ours and a peer, and the one format every result is written in.

A claim is a ratio to a named peer, taken A B A B after a warm-up, as a median with its spread,
never a single time: machines are shared and noisy. A part of a benchmark may be run alone; rows
that it does not measure stay as they were, each with the day and the commit of its measurement.
"""

import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5
T = TypeVar("T")


@cache
def commit() -> str:
    """The commit that is measured, with a `+` where the tree has changes beside it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
        cwd=RESULTS.parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return described.stdout.strip()


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
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))
    commit: str = field(default_factory=commit)


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


def chosen_parts(parts: Mapping[str, T]) -> dict[str, T]:
    """All of them, or those that PARTS names with spaces between. SystemExit if there is none."""
    named = os.environ.get("PARTS", "").split()
    if unknown := [each for each in named if each not in parts]:
        raise SystemExit(f"PARTS={unknown[0]}: it has {', '.join(parts)}, with spaces between")
    return {each: parts[each] for each in named or parts}


@contextmanager
def full_page_cache() -> Iterator[None]:
    """Meanwhile the page cache has a file of holes, as large as the free memory but for 1 GiB.

    A virtual machine gets a page from its host when it is first written to, which takes much longer
    than later, and gives it back soon after it was freed: what a broker that writes new files costs
    would be decided by whether its pages are new to the machine. Clean pages of another file are
    taken for new ones at once, and the host is not asked.
    """
    began_s = time.monotonic()
    with open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemFree"))
    room = memoryview(bytearray(1 << 22))
    with tempfile.TemporaryFile(buffering=0) as holes:
        with suppress(OSError):  # a small disk, or one without holes
            holes.truncate(max(free - (1 << 30), 0))
        at = 0
        while read := os.preadv(holes.fileno(), [room], at):
            at += read
        took_s = time.monotonic() - began_s
        print(f"{at / 1e9:.1f} GB of the page cache are filled, in {took_s:.0f} s", flush=True)
        yield


def machine() -> dict[str, str | int | float]:
    """What the figures were measured on; `stolen_percent` is what its host gave to others."""
    return {
        "processor": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "stolen_percent": round(stolen_percent(), 1),
    }


def _ticks() -> tuple[int, int]:
    """(stolen, all) of what the processors have done since the machine was started."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return ticks[7], sum(ticks)


_BEGAN = _ticks()


def stolen_percent() -> float:
    """The share of the processors' time that was stolen since this benchmark began."""
    stolen, spent = (now - then for now, then in zip(_ticks(), _BEGAN, strict=True))
    return 100 * stolen / spent if spent else 0.0


def publish(name: str, rows: list[Row], *, is_whole: bool = True) -> None:
    """Print the table and write `results/<name>.json`.

    Of a benchmark that was run in part, the other rows of the last result stay where they are.
    """
    table = Table("claim", "unit", "ours", "peer", "theirs", "ratio", "low–high", title=name)
    for each in rows:
        table.add_row(
            each.claim, each.unit, f"{each.ours:,.4g}", each.peer, f"{each.theirs:,.4g}",
            f"{each.ratio:.2f}×", f"{each.low:.2f}–{each.high:.2f}",
        )  # fmt: skip
    Console(width=130).print(table)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    found = {_compared(each): each for each in map(asdict, rows)}
    if not is_whole and path.exists():
        before = json.loads(path.read_text())
        measured = {key: before["machine"][key] for key in ("date", "commit")}
        found = {_compared(each): {**measured, **each} for each in before["rows"]} | found
    result = {"machine": machine(), "rows": list(found.values())}
    path.write_text(json.dumps(result, indent=1) + "\n")


def _compared(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["claim"], row["unit"], row["peer"]


def cpu_seconds(pid: int) -> float:
    """User and system time a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
