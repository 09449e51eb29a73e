"""Where a group is reset to, as it is typed."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from catchwater.cli import group
from catchwater.cli.group import parse_goal
from catchwater.recovery.group import Goal
from catchwater.wire.client import EARLIEST, LATEST, Cluster

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS = 1_772_366_400_000


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("earliest", Goal(EARLIEST)),
        ("latest", Goal(LATEST)),
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
    done = catchwater("group", "reset", "readers", "--to-checkpoint", pipeline_file, "--yes")
    assert done.code == 0, done.err
    inputs = json.loads(shown.out)["inputs"]
    wanted = {(each["topic"], each["partition"]): each["offset"] for each in inputs}
    assert wanted and brokers.committed_now == {("payments", 0): 4} | wanted


def test_one_goal_is_named(catchwater: Any, pipeline_file: Path) -> None:
    assert catchwater("group", "reset", "readers").code == 2
    both = ("--to", "latest", "--to-checkpoint", pipeline_file)
    assert catchwater("group", "reset", "readers", *both).code == 2
