"""The audit trail: every way to change it is named, and a crash breaks nothing."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catchwater import audit
from catchwater.audit import Event, Finding, Line, Trail, anchored_heads, files, lines_of, verify
from catchwater.clock import ManualClock
from catchwater.objects.memory import MemoryStore

DAY_MS = 86_400_000


def event(action: str = "DeleteTopics DELETE", **more: Any) -> Event:
    settings = {
        "time_ms": 1, "kind": "action", "principal": "User:alice", "listener": "SASL_SSL",
        "host": "10.0.0.1", "action": action, "resource": "TOPIC payments",
    }  # fmt: skip
    return Event(**(settings | more))


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.objects = MemoryStore(self.clock)
        self.trail = self.open()

    def open(self) -> Trail:
        return Trail(self.folder, "broker-1", self.clock, retention_ms=DAY_MS)

    def write(self, count: int) -> None:
        self.trail.append([event(f"a{number}") for number in range(count)])

    def findings(self) -> list[Finding]:
        anchors = anchored_heads(self.objects, "broker-1")
        return verify(lines_of(self.folder), anchors).findings

    @property
    def path(self) -> Path:
        return files(self.folder)[-1]

    def change(self, decide: Callable[[list[bytes]], list[bytes]]) -> None:
        lines = self.path.read_bytes().splitlines(keepends=True)
        self.path.write_bytes(b"".join(decide(lines)))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "audit")


def test_a_trail_that_nobody_touched_is_found_whole(world: World) -> None:
    world.write(20)
    world.trail.anchor(world.objects)
    found = verify(lines_of(world.folder), anchored_heads(world.objects, "broker-1"))
    assert (found.findings, found.lines, found.anchors) == ([], 21, 1), "the first says BEGIN"
    line = msgspec.json.decode(world.path.read_bytes().splitlines()[3], type=Line)
    assert (line.principal, line.action, line.number) == ("User:alice", "a2", 4)


@pytest.mark.parametrize("at", [0, 5, 20])
def test_an_edited_line_is_named(world: World, at: int) -> None:
    world.write(20)
    world.change(lambda lines: [*lines[:at], _edited(lines[at]), *lines[at + 1 :]])
    assert world.findings()[0] == Finding(
        f"{world.path}:{at + 1}", f"line {at + 1} was edited: its hash is not that of its content"
    )


def _edited(data: bytes) -> bytes:
    return data.replace(b'"count":1', b'"count":2')


def test_an_edited_line_with_a_hash_that_fits_is_named_by_the_next(world: World) -> None:
    world.write(20)

    def forge(lines: list[bytes]) -> list[bytes]:
        line = msgspec.json.decode(_edited(lines[7]), type=Line)
        forged = msgspec.structs.replace(line, hash=audit._hash(line))
        return [*lines[:7], audit.encoded(forged) + b"\n", *lines[8:]]

    world.change(forge)
    assert world.findings() == [
        Finding(f"{world.path}:9", "line 8 before it was edited, or is another one")
    ]


def test_a_removed_line_is_named(world: World) -> None:
    world.write(20)
    world.change(lambda lines: [*lines[:7], *lines[8:]])
    assert world.findings() == [Finding(f"{world.path}:8", "line 8 before it: removed")]


def test_a_line_that_was_added_is_named(world: World) -> None:
    world.write(20)
    world.change(lambda lines: [*lines[:7], lines[3], *lines[7:]])
    assert "line 4 comes again: added" in world.findings()[0].what


def test_a_removed_beginning_is_named(world: World) -> None:
    world.write(20)
    world.change(lambda lines: lines[5:])
    assert world.findings() == [Finding("the beginning", "lines 1 to 5 are not there: removed")]


def test_a_cut_end_is_named_by_the_anchor(world: World) -> None:
    world.write(20)
    world.trail.anchor(world.objects)
    world.change(lambda lines: lines[:-1])
    (found,) = world.findings()
    assert found.where == f"line 21 of chain {world.trail.chain}"
    assert found.what == "was anchored, and the trail ends at line 20: truncated"


def test_a_chain_that_was_written_anew_is_named_by_the_anchor(world: World) -> None:
    world.write(20)
    world.trail.anchor(world.objects)

    def forge(lines: list[bytes]) -> list[bytes]:
        forged, previous = [], "0" * 64
        for number, data in enumerate(lines, start=1):
            old = msgspec.json.decode(_edited(data) if number == 9 else data, type=Line)
            line = audit.linked(old.chain, number, previous, old)
            previous = line.hash
            forged.append(audit.encoded(line) + b"\n")
        return forged

    world.change(forge)
    (found,) = world.findings()
    assert found.what == "is not the one that was anchored: rewritten"


def test_a_trail_that_is_gone_is_named_by_the_anchor(world: World) -> None:
    world.write(3)
    world.trail.anchor(world.objects)
    world.path.unlink()
    assert "truncated" in world.findings()[0].what


def test_a_restart_goes_on_and_a_torn_line_is_cut_off_and_said(world: World) -> None:
    world.write(3)
    world.trail.close()
    with open(world.path, "ab") as file:
        file.write(b'{"chain": "half')
    world.trail = world.open()
    world.write(2)
    assert world.findings() == []
    torn = msgspec.json.decode(world.path.read_bytes().splitlines()[4], type=Line)
    assert (torn.action, torn.after) == ("TORN", {"bytes": 15})


def test_what_could_not_be_written_is_not_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(3)
    write = os.write
    with monkeypatch.context() as full:
        calls: list[int] = []

        def half(descriptor: int, data: Any) -> int:
            calls.append(1)
            if len(calls) > 1:
                raise OSError(28, "No space left on device")
            return write(descriptor, data[:40])

        full.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            world.write(5)
    world.write(5)
    assert world.findings() == []
    assert world.trail.head.number == 9


def test_retention_deletes_whole_files_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES", 4_000)
    world.clock.advance(10 * 365 * DAY_MS)  # the files are of today, the clock's day is later
    world.write(30)
    world.write(30)
    world.write(30)
    assert audit.first_number(files(world.folder)[0]) > 1
    assert world.findings() == []
    world.trail.append([event()])
    world.change(lambda lines: lines[1:])
    assert "removed" in world.findings()[0].what, "nothing says that retention took it"


def test_a_long_value_is_its_hash(world: World) -> None:
    (line,) = world.trail.append([event(before={"x": "y" * 10_000})])
    assert line.before["bytes"] > 10_000 and len(line.before["sha256"]) == 64


def test_nobody_else_may_read_a_trail(world: World) -> None:
    assert world.folder.stat().st_mode & 0o077 == 0
    assert world.path.stat().st_mode & 0o077 == 0
