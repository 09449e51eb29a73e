"""A test that failed once beside others is forgiven only if it passes alone, three times."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.again import FEW, TIMES
from tests.slices import ROOT

FAILS_AT = """
from pathlib import Path

def test_counted() -> None:
    counted = Path({name!r})
    runs = len(counted.read_text()) + 1 if counted.exists() else 1
    counted.write_text("x" * runs)
    assert runs not in {runs}
"""


def run_all(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.again", "-q", "-m", "not slow", str(folder)],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("failing", "code", "runs"),
    [((), 0, 1), ((1,), 0, 1 + TIMES), ((1, 2), 1, 2), ((1, 1 + TIMES), 1, 1 + TIMES)],
)
def test_a_test_that_fails_again_alone_has_failed(tmp_path, failing, code, runs) -> None:
    (tmp_path / "test_it.py").write_text(FAILS_AT.format(name="counted", runs=failing))
    ended = run_all(tmp_path)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert len((tmp_path / "counted").read_text()) == runs
    assert ("UNSTEADY test_it.py::test_counted" in ended.stdout) == (bool(failing) and not code)


def test_many_that_fail_are_not_run_again(tmp_path) -> None:
    for number in range(FEW + 1):
        name = f"counted-{number}"
        (tmp_path / f"test_{number}.py").write_text(FAILS_AT.format(name=name, runs=(1,)))
    assert run_all(tmp_path).returncode == 1
    assert all((tmp_path / f"counted-{n}").read_text() == "x" for n in range(FEW + 1))


def test_what_is_no_failed_test_is_not_run_again(tmp_path) -> None:
    (tmp_path / "test_none.py").touch()
    assert run_all(tmp_path).returncode == pytest.ExitCode.NO_TESTS_COLLECTED
