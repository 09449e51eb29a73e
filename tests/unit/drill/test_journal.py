"""Faults are undone, also when the drill is killed, and nothing else is touched."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import until

from catchwater.drill.journal import (
    MARK,
    OWNED,
    Command,
    Folder,
    Journal,
    Mended,
    Move,
    NotUndone,
    Processes,
    processes_of,
    undo_left,
)

DRILL = """
import os, subprocess, sys
from pathlib import Path
from catchwater.drill.journal import *
folder, run = Path(sys.argv[1]), sys.argv[2]
journal = Journal(folder / "journals", run)
journal.note(Processes(run))
journal.note(Move(str(folder / "away"), str(folder / "home")))
(folder / "home").replace(folder / "away")
marked = {**os.environ, MARK: run}
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], env=marked)
print(journal._guard.pid, flush=True)
import signal; signal.pause()
"""


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A drill under way, its guard and its run."""
    run = f"test-{os.getpid()}-{tmp_path.name}"
    (tmp_path / "home").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", DRILL, str(tmp_path), run], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    guard = int(process.stdout.readline())
    until(lambda: processes_of(run))
    yield process, guard, run
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_drill_that_is_killed_is_undone_by_its_guard(
    tmp_path: Path, drill: tuple[subprocess.Popen[str], int, str]
) -> None:
    process, _, run = drill
    assert undo_left(tmp_path / "journals") == [], "it runs, so nobody touches it"
    assert processes_of(run) and not (tmp_path / "home").exists()
    process.kill()
    until(lambda: not list((tmp_path / "journals").glob("*.undo")))
    assert processes_of(run) == []
    assert (tmp_path / "home").is_dir() and not (tmp_path / "away").exists()


def test_where_the_guard_is_killed_too_the_next_drill_undoes_it(
    tmp_path: Path, drill: tuple[subprocess.Popen[str], int, str]
) -> None:
    process, guard, run = drill
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.wait()
    assert processes_of(run), "nobody has undone it"
    assert undo_left(tmp_path / "journals") == [run]
    assert processes_of(run) == []
    assert (tmp_path / "home").is_dir()
    assert undo_left(tmp_path / "journals") == []


def test_a_folder_is_deleted_only_if_it_is_the_runs_own(tmp_path: Path) -> None:
    for name, owner in (("mine", "me"), ("others", "you"), ("nobodys", None)):
        (tmp_path / name).mkdir()
        if owner:
            (tmp_path / name / OWNED).write_text(owner)
    with Journal(tmp_path / "journals", "me") as journal:
        for name in ("mine", "others", "nobodys", "absent"):
            journal.note(Folder("me", str(tmp_path / name)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journals", "nobodys", "others"]


def test_what_was_put_in_the_place_of_a_moved_one_is_put_aside(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    away.mkdir()
    home.write_text("in its place")
    with Journal(tmp_path / "journals", "me") as journal:
        journal.note(Move(str(away), str(home)))
    assert home.is_dir()


def test_what_cannot_be_undone_stays_in_the_journal_and_is_tried_again(tmp_path: Path) -> None:
    journals, mended = tmp_path / "journals", tmp_path / "mended"
    journal = Journal(journals, "me")
    with pytest.raises(NotUndone, match="drill me"):
        with journal:
            journal.note(Command(["test", "-e", str(mended)]))
            journal.note(Processes("me"))
    assert list(journals.glob("*.undo"))
    with pytest.raises(NotUndone):
        undo_left(journals)
    mended.touch()
    assert undo_left(journals) == ["me"]


@pytest.mark.parametrize("mended", [True, False])
def test_a_command_that_the_drill_has_run_itself_is_not_run_again(
    tmp_path: Path, mended: bool
) -> None:
    ran = tmp_path / "ran"
    words = ["touch", str(ran)]
    with Journal(tmp_path / "journals", "me") as journal:
        if not mended:
            journal.note(Mended(words))  # of a kill before, which is another one
        journal.note(Command(words))
        if mended:
            journal.note(Mended(words))
    assert ran.exists() != mended


def test_a_line_that_was_cut_short_is_of_a_fault_that_did_not_happen(tmp_path: Path) -> None:
    (tmp_path / "me.undo").write_bytes(b'{"type":"processes","ru')
    assert undo_left(tmp_path) == ["me"]


def test_processes_are_found_by_the_whole_mark(tmp_path: Path) -> None:
    run = f"test-{os.getpid()}-mark"
    child = subprocess.Popen(["sleep", "600"], env={MARK: f"{run}-longer"})
    try:
        assert processes_of(run) == []
        until(lambda: processes_of(f"{run}-longer"))
    finally:
        child.kill()
        child.wait()
