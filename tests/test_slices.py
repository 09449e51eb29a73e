"""Every long form of the tests stands in a slice that CI runs, and a slice that fails says so."""

import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests import slices
from tests.slices import NOT_LONG, ROOT, SLICES

COMMANDS = [command for each in SLICES.values() for command in each.commands]


def paths_of(command: tuple[str, ...]) -> list[str]:
    """What stands behind TESTS= in a command."""
    return [p for word in command if word.startswith("TESTS=") for p in word[6:].split()]


def is_in(file: Path, patterns: list[str]) -> bool:
    name = str(file.relative_to(ROOT))
    return any(fnmatch(name, pattern) or name.startswith(pattern + "/") for pattern in patterns)


def test_every_target_of_the_makefile_is_a_long_form_in_a_slice_or_is_none() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    in_slices = {command[1] for command in COMMANDS}
    assert targets == in_slices | NOT_LONG
    assert not in_slices & NOT_LONG


def test_every_file_with_slow_tests_is_in_one_slice() -> None:
    marked = [
        path
        for folder in ("tests", "examples")
        for path in (ROOT / folder).rglob("test_*.py")
        if re.search(r"\bmark\.slow\b", path.read_text()) and path != Path(__file__)
    ]
    assert len(marked) > 20, "they are found"
    slow = [paths_of(command) for command in COMMANDS if command[1] == "slow"]
    for path in marked:
        found = [patterns for patterns in slow if is_in(path, patterns)]
        assert len(found) == 1, f"{path.relative_to(ROOT)} is in {len(found)} slices"


def test_every_file_that_kills_more_often_when_asked_is_in_a_slice() -> None:
    killing = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"environ\.get\(\"KILLS\"", path.read_text())
    ]
    assert killing
    asked = [p for command in COMMANDS if command[1] == "e2e" for p in paths_of(command)]
    assert {str(path.relative_to(ROOT)) for path in killing} == {
        p.partition("::")[0] for p in asked
    }


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command))
def test_what_a_slice_names_exists(command: tuple[str, ...]) -> None:
    assert command[0] == "make"
    for pattern in paths_of(command):
        name, _, test = pattern.partition("::")
        assert list(ROOT.glob(name)), pattern
        assert f"def {test}" in (ROOT / name).read_text() if test else True, pattern


def test_the_long_forms_are_as_long_as_they_are_said_to_be() -> None:
    told = {word for command in COMMANDS for word in command}
    assert {"SEEDS=500", "POINTS=300", "MINUTES=10"} <= told
    assert re.search(r"^e2e:.*\n\tKILLS=20 ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_a_commit_always_has_the_same_slice_and_every_slice_has_commits() -> None:
    commits = [f"{n:040x}" for n in range(2000)]
    assert [slices.chosen(c) for c in commits] == [slices.chosen(c) for c in commits]
    assert {slices.chosen(c) for c in commits} == set(SLICES)


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("SLICE", "COMMIT")}
    return subprocess.run(
        [sys.executable, "-m", "tests.slices", *arguments],
        cwd=ROOT, env=inherited | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_person_may_name_the_slice() -> None:
    assert call("needs", SLICE="suites").stdout.split() == ["javac:openjdk-17-jdk-headless"]
    assert call("run", SLICE="none").returncode == 0
    wrong = call("run", SLICE="everything")
    assert wrong.returncode == 1 and "there are: slow-log" in wrong.stderr
    assert "no commit" in call("needs", COMMIT="never").stderr


@pytest.mark.parametrize(
    ("commands", "bound_s", "reason"),
    [
        ((("true",), ("false",)), 60.0, "error: slice it failed: false ended with 1"),
        ((("sleep", "60"),), 0.2, r"error: slice it was ended after .* min in 60"),
    ],
)
def test_a_command_that_fails_or_takes_too_long_ends_it(
    monkeypatch: pytest.MonkeyPatch,
    commands: tuple[tuple[str, ...], ...],
    bound_s: float,
    reason: str,
) -> None:
    monkeypatch.setitem(SLICES, "it", slices.Slice(commands))
    monkeypatch.setattr(slices, "BOUND_S", bound_s)
    with pytest.raises(SystemExit, match=reason):
        slices.run("it")
