"""`catchwater group …`: consumer groups of any Kafka, where they stand and where they go on."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import (
    HERE,
    AsJson,
    Bootstrap,
    CommandConfig,
    DryRun,
    Yes,
    agreed,
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

app = noun()

Name = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]

_ASK_S = 10.0
_AGO = re.compile(r"(.+?)\s*ago")


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

    The lag in seconds is the age of the record that comes next, by its own timestamp.
    """
    from catchwater.clock import SYSTEM
    from catchwater.recovery.group import judge, observe

    with _client(bootstrap, command_config) as client:
        members = client.members(name)
        seen = judge(observe(client, name), SYSTEM.now_ms())
    readers = {key: member for member in members for key in member.partitions}
    rows = []
    for each in seen.positions:
        reader = readers.get((each.topic, each.partition))
        who = "" if reader is None else f"{reader.client_id}@{reader.host}"
        rows.append(
            (each.topic, each.partition, each.offset, each.log_end, each.lag_records,
             None if each.lag_s is None else round(each.lag_s, 1), who)
        )  # fmt: skip
    columns = ["topic", "partition", "position", "log_end", "lag", "lag_s", "member"]
    if as_json:
        positions = [dict(zip(columns, row, strict=True)) for row in rows]
        print_json({"group": name, "state": seen.state, "type": seen.protocol_type,
                    "members": members, "positions": positions})  # fmt: skip
        return
    age = "" if not seen.lag_s else f", the oldest {seen.lag_s:.1f} s old"
    talk(
        f"{name}: {seen.state}, {len(members)} members, {spaced(seen.lag_records)} records "
        f"behind{age}"
    )
    print_table(columns, rows)


@app.command()
def reset(
    name: Name,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help='"earliest", "latest", an offset, a time (2026-01-31T12:00:00Z), or "2h ago".',
        ),
    ] = None,
    to_checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="To what a pipeline's checkpoint has read."),
    ] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --to-checkpoint: an older one than the newest."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Only this one; repeatable. Otherwise all it has read."),
    ] = None,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a group go on from somewhere else; it must have no members.

    A time is that of the records. Exit 5 if the log does not hold the offsets any more.
    """
    from catchwater.recovery.group import plan_reset

    goal = _goal(to, to_checkpoint, checkpoint)
    with _client(bootstrap, command_config) as client:
        moves = plan_reset(client, name, goal, topic or ())
        rows = [(m.topic, m.partition, m.offset, m.to, m.again) for m in moves]
        print_rows(["topic", "partition", "position", "to", "again"], rows, as_json=as_json)
        changed = {(m.topic, m.partition): m.to for m in moves if m.offset != m.to}
        if not changed:
            talk(f"group {name} stands there already; nothing was changed")
        elif agreed(f"reset {len(changed)} partitions of group {name}", dry_run=dry_run, yes=yes):
            client.commit(name, changed)
            talk(f"reset {len(changed)} partitions of group {name}")


def _goal(to: str | None, file: Path | None, checkpoint: int | None) -> "Goal":
    from catchwater.recovery.contract import load_contract
    from catchwater.recovery.group import Goal

    if (to is None) == (file is None):
        raise typer.BadParameter("Name where to: --to WHERE, or --to-checkpoint FILE.")
    if file is not None:
        inputs = load_contract(load_here(file).checkpoint, checkpoint).inputs
        return Goal(offsets={(each.topic, each.partition): each.offset for each in inputs})
    assert to is not None
    return parse_goal(to, datetime.now(UTC))


def parse_goal(text: str, now: datetime) -> "Goal":
    """What `--to` says. Raises `typer.BadParameter`."""
    from catchwater.recovery.group import Goal
    from catchwater.wire.client import EARLIEST, LATEST

    ends = {"earliest": EARLIEST, "latest": LATEST}
    if text in ends:
        return Goal(ends[text])
    if text.isdecimal():
        return Goal(offset=int(text))
    try:
        if match := _AGO.fullmatch(text):
            return Goal(round(now.timestamp() * 1000) - duration_ms(match[1]))
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f'{text!r} is none of "earliest", "latest", an offset, a time such as '
            '2026-01-31T12:00:00Z, and a duration such as "2h ago".'
        ) from None
    if at.tzinfo is None:
        raise typer.BadParameter(f"{text!r} names no time zone; end it with Z for UTC.")
    return Goal(round(at.timestamp() * 1000))


def _client(bootstrap: str, command_config: Path | None) -> "Client":
    return client_of(bootstrap, command_config, name="catchwater-group", timeout_s=_ASK_S)
