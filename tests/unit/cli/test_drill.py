"""`catchwater drill`: what it says before it breaks anything, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from catchwater.drill.catalogue import DRILLS

PLATFORM = (
    'name = "{name}"\nbootstrap = "127.0.0.1:1"\nkill = ["touch", "{touched}"]\nstart = ["x"]\n'
)


@pytest.fixture(autouse=True)
def _own_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATCHWATER_DRILLS", str(tmp_path / "journals"))


def test_the_list_has_every_drill_with_its_hypothesis(catchwater: Any) -> None:
    told = json.loads(catchwater("drill", "list", "--json").out)
    assert [each["drill"] for each in told] == list(DRILLS)
    assert all(each["hypothesis"] and each["blast_radius"] for each in told)


def test_an_unknown_drill_is_told_with_the_nearest(catchwater: Any) -> None:
    answer = catchwater("drill", "run", "kill-drivr")
    assert answer.code == 2
    assert "kill-driver" in answer.err


def test_a_dry_run_prints_the_blast_radius_and_does_nothing(
    catchwater: Any, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    answer = catchwater("drill", "run", "kill-driver", "--dry-run", "--results", results)
    assert answer.code == 0
    assert DRILLS["kill-driver"].blast_radius in answer.err
    assert not results.exists()


@pytest.mark.parametrize("name", ["staging", "prod"])
def test_what_the_drill_did_not_start_is_left_alone(
    catchwater: Any, tmp_path: Path, name: str
) -> None:
    touched, file = tmp_path / "touched", tmp_path / "platform.toml"
    file.write_text(PLATFORM.format(name=name, touched=touched))
    answer = catchwater(
        "drill", "run", "replace-broker", "--on", file, "--results", tmp_path / "results"
    )
    assert answer.code == (5 if name == "prod" else 0)
    assert ("--yes-really prod" if name == "prod" else "--allow staging") in answer.err
    assert f"touch {touched}" in answer.err, "what it would do"
    assert not touched.exists()


def test_nothing_is_undone_where_nothing_is_left(catchwater: Any) -> None:
    assert "nothing is left" in catchwater("drill", "undo").err


@pytest.mark.parametrize("size", ["a lot", "3XB", "-1"])
def test_a_size_that_is_none_is_refused(catchwater: Any, size: str) -> None:
    answer = catchwater("drill", "run", "kill-driver", "--dry-run", f"--state={size}")
    assert answer.code == 2
