"""Where a group is reset to, as it is typed."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from catchwater.cli import group
from catchwater.cli.group import goal_of, parse_goal
from catchwater.recovery.group import Goal
from catchwater.wire.client import EARLIEST, LATEST, Cluster, RequestRefused
from catchwater.wire.errors import ErrorCode

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = 1_772_366_400_000


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("earliest", Goal(EARLIEST)),
        ("latest", Goal(LATEST)),
        ("current", Goal(stays=True)),
        ("0", Goal(offset=0)),
        ("2h ago", Goal(NOON_MS - 7_200_000)),
        ("2026-03-01T12:00:00Z", Goal(NOON_MS)),
        ("2026-03-01 13:00+01:00", Goal(NOON_MS)),
    ],
)
def test_where_to_is_an_end_an_offset_or_a_time(text: str, goal: Goal) -> None:
    assert parse_goal(text, NOON) == goal


@pytest.mark.parametrize("text", ["", "-1", "soon", "2h", "2 ago", "2026-03-01T12:00:00"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"none of|time zone"):
        parse_goal(text, NOON)


class Brokers:
    """Brokers with a topic of two partitions, and a group that has read something of one."""

    def __init__(self) -> None:
        self.committed_now: dict[tuple[str, int], int] = {("payments", 0): 4}

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *error: object) -> None: ...

    def members(self, name: str) -> list[Any]:
        return []

    def committed(self, name: str) -> dict[tuple[str, int], int]:
        return dict(self.committed_now)

    def metadata(self) -> Cluster:
        return Cluster("c", {1: ("h", 1)}, {("payments", 0): 1, ("payments", 1): 1})

    def list_offsets(self, wanted: dict[Any, int]) -> dict[Any, int]:
        return {key: 0 if time == EARLIEST else 1_000 for key, time in wanted.items()}

    def commit(self, name: str, positions: dict[tuple[str, int], int]) -> None:
        self.committed_now.update(positions)


def test_a_group_goes_on_where_a_checkpoint_does(
    catchwater: Any, pipeline_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers()
    monkeypatch.setattr(group, "_client", lambda *_: brokers)
    shown = catchwater("contract", "show", pipeline_file, "--json")
    assert shown.code == 0
    inputs = json.loads(shown.out)["inputs"]
    wanted = {(each["topic"], each["partition"]): each["offset"] for each in inputs}
    only_shown = catchwater("group", "reset", "readers", "--to-checkpoint", pipeline_file)
    assert only_shown.code == 0 and "would reset 1 partitions" in only_shown.err
    assert "--execute does it" in only_shown.err
    assert brokers.committed_now == {("payments", 0): 4}
    done = catchwater("group", "reset", "readers", "--to-checkpoint", pipeline_file, "--execute")
    assert done.code == 0, done.err
    assert wanted and brokers.committed_now == {("payments", 0): 4} | wanted
    older = catchwater(
        "group", "reset", "readers", "--to-checkpoint", f"{pipeline_file}#1", "--execute"
    )
    assert older.code == 0, older.err
    assert brokers.committed_now["payments", 0] == 20
    again = catchwater("group", "reset", "readers", "--to", "current", "--execute")
    assert "stands there already" in again.err
    gone = catchwater("group", "reset", "readers", "--to-checkpoint", f"{pipeline_file}#9")
    assert gone.code != 0 and brokers.committed_now["payments", 0] == 20


def test_kafkas_own_ways_to_say_where(catchwater: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    monkeypatch.setattr(group, "_client", lambda *_: brokers)

    def to(*where: object) -> list[tuple[int, int]]:
        answer = catchwater("group", "reset", "readers", *where, "--json")
        assert answer.code == 0, answer.err
        return [(row["partition"], row["to"]) for row in json.loads(answer.out)]

    assert to("--to-offset", 7) == [(0, 7), (1, 7)]
    assert to("--to-offset", 7, "--topic", "payments:1") == [(1, 7)]
    assert to("--to-time", "2026-03-01T12:00:00Z") == [(0, 1_000), (1, 1_000)]
    assert to("--by-duration", "PT1H30M") == [(0, 1_000), (1, 1_000)]
    assert to("--by-duration", "90m", "--topic", "payments:0,1") == [(0, 1_000), (1, 1_000)]
    absent = catchwater("group", "reset", "readers", "--to-offset", 7, "--topic", "payments:2")
    assert absent.code == 1 and "There is no partition payments-2" in absent.err
    assert brokers.committed_now == {("payments", 0): 4}


def test_a_duration_is_ours_or_kafkas() -> None:
    def goal(text: str) -> Goal:
        return goal_of(None, None, None, text, None, NOON)

    for text in ("PT2H", "2h", "P0DT1H60M"):
        assert goal(text) == Goal(NOON_MS - 7_200_000)
    for text in ("P", "PT", "", "soon"):
        with pytest.raises(typer.BadParameter, match="is no duration"):
            goal(text)


def test_a_group_that_members_have_joined_meanwhile_is_left_alone(
    catchwater: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Joined(Brokers):
        def commit(self, name: str, positions: dict[tuple[str, int], int]) -> None:
            raise RequestRefused("UNKNOWN_MEMBER_ID", code=ErrorCode.UNKNOWN_MEMBER_ID)

    monkeypatch.setattr(group, "_client", lambda *_: Joined())
    answer = catchwater("group", "reset", "readers", "--to-offset", 7, "--execute")
    assert answer.code == 1
    assert "has got members meanwhile" in answer.err and "Stop them first" in answer.err


def test_one_goal_is_named(catchwater: Any, pipeline_file: Path) -> None:
    assert catchwater("group", "reset", "readers").code == 2
    both = ("--to", "latest", "--to-offset", "3")
    assert catchwater("group", "reset", "readers", *both).code == 2
