"""`catchwater group …`: consumer groups of any Kafka, where they stand and where they go on."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer

from catchwater.cli.console import (
    HERE,
    AsJson,
    Bootstrap,
    CommandConfig,
    DryRun,
    client_of,
    load_here,
    noun,
    print_json,
    print_rows,
    print_table,
    spaced,
    talk,
)
from catchwater.config import duration_ms

if TYPE_CHECKING:
    from catchwater.recovery.group import Goal
    from catchwater.wire.client import Client

P = ParamSpec("P")
T = TypeVar("T")

app = noun()

Name = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]

_ASK_S = 10.0
_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


@app.callback()
def group() -> None:
    """List, describe and reset consumer groups."""


@app.command("list")
def list_groups(
    bootstrap: Bootstrap = HERE, command_config: CommandConfig = None, as_json: AsJson = False
) -> None:
    """List every group with its state and its protocol type."""
    with _client(bootstrap, command_config) as client:
        found = client.groups()
    rows = [(name, state, kind) for name, (state, kind) in sorted(found.items())]
    print_rows(["group", "state", "type"], rows, as_json=as_json)


@app.command()
def describe(
    name: Name,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show a group's positions, how far behind each is, and who reads it.

    The lag in seconds is the age of the record that comes next, by its own timestamp. A partition
    that a member reads, and of which nothing was committed yet, has no position.
    """
    from catchwater.clock import SYSTEM
    from catchwater.recovery.group import NoPositions, judge, observe
    from catchwater.wire.client import LATEST

    with _client(bootstrap, command_config) as client:
        members = client.members(name)
        readers = {key: member for member in members for key in member.partitions}
        seen = None
        try:
            seen = judge(observe(client, name), SYSTEM.now_ms())
        except NoPositions:
            if not members:
                raise
        state, kind = client.group_state(name) or ("Unknown", "")
        positions = seen.positions if seen else []
        unread = {*readers} - {(each.topic, each.partition) for each in positions}
        ends = client.list_offsets(dict.fromkeys(unread, LATEST)) if unread else {}
    found: dict[tuple[str, int], tuple[int | None, int, int | None, float | None]] = {
        (each.topic, each.partition): (each.offset, each.log_end, each.lag_records, each.lag_s)
        for each in positions
    }
    found |= {key: (None, end, None, None) for key, end in ends.items()}
    rows = []
    for key, (offset, end, lag, lag_s) in sorted(found.items()):
        reader = readers.get(key)
        who = "" if reader is None else f"{reader.client_id}@{reader.host}"
        rows.append((*key, offset, end, lag, None if lag_s is None else round(lag_s, 1), who))
    columns = ["topic", "partition", "position", "log_end", "lag", "lag_s", "member"]
    if as_json:
        named = [dict(zip(columns, row, strict=True)) for row in rows]
        print_json({"group": name, "state": state, "type": kind, "members": members,
                    "positions": named})  # fmt: skip
        return
    lag_s = seen.lag_s if seen else None
    age = "" if not lag_s else f", the oldest {lag_s:.1f} s old"
    behind = spaced(seen.lag_records if seen else 0)
    talk(f"{name}: {state}, {len(members)} members, {behind} records behind{age}")
    print_table(columns, rows)


@app.command()
def reset(
    name: Name,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help='"earliest", "latest", "current", or any of the following.',
        ),
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The same in every partition.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="To the first record from 2026-01-31T12:00:00Z on."),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="To the first record of the last 2h (or PT2H)."),
    ] = None,
    to_checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[#EPOCH]",
            help="To what a pipeline has read: at its newest checkpoint, or an older one.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:P,…]",
            help="Only this one, or these partitions; repeatable. Otherwise all it has read.",
        ),
    ] = None,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    execute: Annotated[
        bool, typer.Option("--execute", "--yes", "-y", help="Do it: otherwise it is only shown.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let a group go on from somewhere else; without --execute only show where.

    It must have no members. A time is that of the records; where none is so young, it is the end.
    Exit 5 if the log does not hold the offsets.
    """
    from catchwater.recovery.group import move, plan_reset, read_topics

    goal = goal_of(to, to_offset, to_time, by_duration, to_checkpoint, datetime.now(UTC))
    topics, only = _typed(read_topics, topic or ())
    with _client(bootstrap, command_config) as client:
        moves = plan_reset(client, name, goal, topics, only)
        rows = [(m.topic, m.partition, m.offset, m.to, m.again) for m in moves]
        print_rows(["topic", "partition", "position", "to", "again"], rows, as_json=as_json)
        changed = [each for each in moves if each.offset != each.to]
        if not changed:
            talk(f"group {name} stands there already; nothing was changed")
        elif dry_run or not execute:
            talk(f"would reset {len(changed)} partitions of group {name}; --execute does it")
        else:
            move(client, name, changed)
            talk(f"reset {len(changed)} partitions of group {name}")


def goal_of(
    to: str | None,
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    to_checkpoint: str | None,
    now: datetime,
) -> "Goal":
    """Where to, by the one option that says it. Raises `typer.BadParameter`, `NoContract`."""
    from catchwater.recovery.group import Goal, read_time_ms

    said = [to, to_offset, to_time, by_duration, to_checkpoint]
    if sum(each is not None for each in said) != 1:
        raise typer.BadParameter(
            "Name one place: --to earliest, --to latest, --to current, --to-offset N, "
            "--to-time TIME, --by-duration DURATION or --to-checkpoint FILE."
        )
    if to_offset is not None:
        return Goal(offset=to_offset)
    if to_checkpoint is not None:
        return _goal_of_checkpoint(to_checkpoint)
    if by_duration is not None:
        return Goal(round(now.timestamp() * 1000) - _duration_ms(by_duration))
    if to_time is not None:
        return Goal(_typed(read_time_ms, to_time))
    assert to is not None, "one of five is there"
    return parse_goal(to, now)


def _goal_of_checkpoint(named: str) -> "Goal":
    from catchwater.recovery.contract import load_contract
    from catchwater.recovery.group import Goal

    file, sharp, epoch = named.rpartition("#")
    if not sharp or not epoch.isdecimal():
        file, epoch = named, ""
    config = load_here(Path(file))
    inputs = load_contract(config.checkpoint, int(epoch) if epoch else None).inputs
    return Goal(offsets={(each.topic, each.partition): each.offset for each in inputs})


def parse_goal(text: str, now: datetime) -> "Goal":
    """What `--to` says. Raises `typer.BadParameter`."""
    from catchwater.recovery.group import read_goal

    return _typed(read_goal, text, now)


def _typed(read: Callable[P, T], *said: P.args, **more: P.kwargs) -> T:
    """What an option says. Raises `typer.BadParameter`."""
    from catchwater.recovery.group import BadGoal

    try:
        return read(*said, **more)
    except BadGoal as bad:
        raise typer.BadParameter(str(bad)) from None


def _duration_ms(text: str) -> int:
    """`2h` as everywhere here, or `P1DT2H30M` as Kafka's own tool has it (ISO 8601)."""
    iso = _ISO.fullmatch(text)
    if iso and any(iso.groups()):
        days, hours, minutes, seconds = (float(each or 0) for each in iso.groups())
        return round(1000 * (86_400 * days + 3_600 * hours + 60 * minutes + seconds))
    try:
        return duration_ms(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no duration such as 2h, 7d or PT2H30M.") from None


def _client(bootstrap: str, command_config: Path | None) -> "Client":
    return client_of(bootstrap, command_config, name="catchwater-group", timeout_s=_ASK_S)
