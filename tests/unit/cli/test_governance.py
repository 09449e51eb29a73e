"""`catchwater governance`: the trail of commands, and what verification says and exits with."""

import json
from pathlib import Path
from typing import Any

import pytest

from catchwater.audit import Event, Trail, files
from catchwater.cli import trail as commands
from catchwater.clock import SYSTEM
from catchwater.objects.local import LocalStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trail = Trail(tmp_path / "audit", "broker-1", SYSTEM, retention_ms=1_000_000_000)
    for number in range(5):
        trail.append(
            [
                Event(
                    time_ms=1, kind="action", principal="User:a", listener="SSL", host="h",
                    action=f"a{number}", resource="TOPIC t",
                )
            ]
        )  # fmt: skip
    trail.anchor(LocalStore(tmp_path / "objects"))
    trail.close()
    return trail.folder


def test_a_whole_trail_is_said_to_be_so(catchwater: Any, folder: Path, tmp_path: Path) -> None:
    answer = catchwater(
        "governance", "audit", "verify", folder, "--objects", tmp_path / "objects", "--json"
    )
    assert answer.code == 0
    told = json.loads(answer.out)
    assert (told["lines"], told["anchors"], told["findings"]) == (6, 1, [])
    answer = catchwater("governance", "audit", "show", folder)
    assert "a4" in answer.out and "User:a" in answer.out


def test_an_edited_line_and_a_cut_end_are_named(
    catchwater: Any, folder: Path, tmp_path: Path
) -> None:
    (path,) = files(folder)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"action":"a2"', b'"action":"a9"'))
    answer = catchwater("governance", "audit", "verify", folder)
    assert answer.code == 4
    assert f"{path}:4: line 4 was edited" in answer.out
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    objects = ("--objects", (tmp_path / "objects").as_uri())
    answer = catchwater("governance", "audit", "verify", folder, *objects)
    assert answer.code == 4
    assert "the trail ends at line 5: truncated" in answer.out
    assert catchwater("governance", "audit", "verify", folder).code == 0, "nothing tells"
    path.unlink()
    for gone in (folder, tmp_path / "none"):
        answer = catchwater("governance", "audit", "verify", gone, *objects)
        assert answer.code == 4
        assert "the trail ends at line 0: truncated" in answer.out


def test_a_trail_that_is_not_there_is_said_to_be_so(catchwater: Any, tmp_path: Path) -> None:
    answer = catchwater("governance", "audit", "verify", tmp_path / "none")
    assert answer.code == 1
    assert "There is no audit trail" in answer.err


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(commands.FOLDER, str(tmp_path / "own"))
    return tmp_path / "own"


def test_a_command_that_changes_something_is_a_line(
    catchwater: Any, own: Path, tmp_path: Path
) -> None:
    access = tmp_path / "access.json"
    catchwater("access", "allow", "User:a", "READ", "topic", "t", "--file", access)
    catchwater("access", "list", "--file", access)
    catchwater("access", "deny", "User:a", "SHOUT", "topic", "t", "--file", access)
    answer = catchwater("governance", "audit", "show", "--json")
    _, allowed, denied = json.loads(answer.out)
    assert (allowed["action"], allowed["after"]["exit"]) == ("access allow", 0)
    assert allowed["resource"].startswith("User:a READ topic t --file")
    assert (denied["action"], denied["after"]["exit"]) == ("access deny", 2)
    assert catchwater("governance", "audit", "verify").code == 0


def test_a_dry_run_is_none_and_a_password_in_a_url_is_masked(own: Path) -> None:
    assert not commands.is_audited(["recovery", "restore", "p.toml", "--dry-run"])
    assert not commands.is_audited(["recovery", "explain", "p.toml"])
    assert commands.is_audited(["drill", "run", "kill", "--yes"])
    assert commands.is_audited(["savepoint", "sign", "p.toml", "x"])
    commands.record(["savepoint", "create", "p.toml", "--at", "s3://user:secret@bucket/x"], 0)
    text = files(own)[0].read_text()
    assert "secret" not in text and "s3://***@bucket/x" in text


def test_every_audited_command_exists(catchwater: Any) -> None:
    for noun, verbs in commands.AUDITED.items():
        for verb in verbs:
            assert catchwater(noun, verb, "--help").code == 0, (noun, verb)
