"""The demo for real: broker, Spark, two kills, and a sink that holds every row once.

With generated payments it runs as `make demo`, within `make check`. Here, in `make slow`, with rows
of a file: how those are read and judged is in `unit/demo`.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from catchwater.demo.online_retail import COLUMNS
from catchwater.demo.reference import retail

KEYS = [
    "events", "alerts", "duplicates_dropped", "missing", "duplicate",
    "kills", "restore_s", "estimate_s", "seconds",
]  # fmt: skip


def demo(*arguments: object) -> dict[str, Any]:
    """Run `catchwater demo --json`; exactly one JSON object comes out, and nothing else."""
    command = [sys.executable, "-c", "from catchwater.cli import main; main()", "demo", "--json"]
    ended = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=1500
    )
    assert ended.returncode == 0, ended.stderr
    verdict: dict[str, Any] = json.loads(ended.stdout)
    assert list(verdict) == KEYS
    return verdict


def write_invoices(path: Path) -> None:
    """Three thousand rows of some customers who buy, repeat themselves and send things back."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for n in range(3_000):
            returned = n % 7 == 0
            row = [
                f"{'C' if returned else ''}{500_000 + n // 5}",
                f"article-{n % 23}",
                "",
                -(n % 4 + 1) if returned else n % 9 + 1,
                f"2011-{n // 300 + 1:02d}-{n % 300 // 12 + 1:02d} 10:{n % 12:02d}:00",
                f"{n % 50 / 10:.2f}",
                "" if n % 11 == 0 else f"{n % 37}.0",
                "UK",
            ]
            writer.writerows([row, row] if n % 50 == 0 else [row])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rows_of_a_csv_file_come_through_two_kills(tmp_path: Path) -> None:
    path = tmp_path / "invoices.csv"
    write_invoices(path)
    expected = retail(path)
    verdict = demo("--data", path)
    assert (verdict["missing"], verdict["duplicate"]) == (0, 0)
    assert verdict["events"] == expected.events == 3_060
    assert verdict["duplicates_dropped"] == expected.duplicates == 60
    assert verdict["alerts"] > 0
    assert verdict["kills"] == 2
    assert verdict["restore_s"] > 0


ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""Runs a command where there is no network but loopback."""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_it_is_installed_and_runs_where_there_is_no_network(tmp_path: Path) -> None:
    """R97, R99: from a wheelhouse, in a namespace without a route, in an empty home."""
    root = Path(__file__).parents[2]
    wheels = root / ".cache" / "wheelhouse"
    subprocess.run(["make", "wheelhouse", f"WHEELHOUSE={wheels}"], cwd=root, check=True)
    environment = {
        name: value for name, value in os.environ.items() if name in ("PATH", "JAVA_HOME")
    } | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}

    def alone(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ALONE, *map(str, command)], cwd=tmp_path, env=environment, capture_output=True,
            text=True, timeout=1500, check=False,
        )  # fmt: skip

    assert alone("ip", "route").stdout == ""
    home = tmp_path / "catchwater"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    installed = alone(
        home / "bin/pip", "install", "--no-index", "--find-links", wheels, "catchwater[spark]"
    )
    assert installed.returncode == 0, installed.stderr
    ended = alone(home / "bin/catchwater", "demo", "--json")
    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(ended.stdout)
    assert (verdict["missing"], verdict["duplicate"], verdict["kills"]) == (0, 0, 2)
    assert verdict["alerts"] > 0
