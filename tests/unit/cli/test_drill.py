"""`catchwater drill`: what it says before it breaks anything, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from catchwater.drill.catalogue import DRILLS, Drill
from catchwater.drill.conduct import DrillRun
from catchwater.drill.readiness import PipelineEvidence, PlatformEvidence
from catchwater.drill.result import Budget, Result

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


@pytest.mark.parametrize("words", [("run", "replace-broker"), ("all",)], ids=" ".join)
@pytest.mark.parametrize(("shows", "has_browser"), [(False, True), (True, True), (True, False)])
def test_a_report_is_of_what_was_drilled_last_with_all_results(
    catchwater: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: Any,
    shows: bool,
    has_browser: bool,
) -> None:
    drilled: list[str] = []
    shown: list[str] = []

    def conduct(drill: Drill, budget: Budget, wanted: DrillRun) -> Result:
        wanted.ask(tmp_path / f"{drill.name}.toml")
        drilled.append(drill.name)
        return Result(
            drill.name, "here", "pass", [], drill.hypothesis, drill.blast_radius, [], [], None,
            1_790_000_000_000 + len(drilled), 1.0,
        )  # fmt: skip

    def show(url: str) -> bool:
        shown.append(url)
        return has_browser

    def asked_of(file: Path) -> tuple[PipelineEvidence, PlatformEvidence]:
        file.touch()
        return (
            PipelineEvidence(name=file.stem, file=str(file)),
            PlatformEvidence(name="here", ours=True),
        )

    monkeypatch.setattr("catchwater.drill.conduct.conduct", conduct)
    monkeypatch.setattr("catchwater.cli.readiness.asked_of", asked_of)
    monkeypatch.setattr("catchwater.cli.drill._check_spark", lambda: None)
    monkeypatch.setattr("webbrowser.open", show)
    results = tmp_path / "results"
    file = results / "readiness.html" if shows else tmp_path / "report.html"
    asked = ["--open"] if shows else ["--report", file]
    told = catchwater("drill", *words, *asked, "--results", results)
    assert told.code == 0, told.err
    assert len(drilled) == 1 if words[0] == "run" else len(drilled) > 8
    assert shown == ([file.absolute().as_uri()] if shows else [])
    assert ("which no browser here shows" in told.err) == (shows and not has_browser)
    page = file.read_text()
    assert f"{drilled[-1]}.toml" in page
    assert not any(f"{each}.toml" in page for each in drilled[:-1])
    assert all(each in page for each in drilled), "every result"


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
