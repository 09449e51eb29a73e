"""`catchwater table …`: topics that are Iceberg tables, asked of a broker."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from catchwater.cli.console import (
    HERE,
    WARNS,
    AsJson,
    Bootstrap,
    CommandConfig,
    DryRun,
    Yes,
    agreed,
    control_of,
    noun,
    print_json,
    print_table,
    spaced,
    talk,
)
from catchwater.config import CatchwaterError

app = noun()

Name = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


class BadOffsets(CatchwaterError):
    """A place that no table can be rewound to."""

    exit_code = 2


@app.callback()
def table() -> None:
    """Topics as tables: where each stands, and taking it back."""


@app.command()
def status(
    name: Name,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show where a topic's table stands, and what it lacks. Exit 3 if it waits or has gaps."""
    found = _ask(bootstrap, command_config, "GET", name, "")
    here = found["here"] or {}
    error = found["why"] or here.get("error", "")
    if as_json:
        print_json(found)
    else:
        _print_status(found, here)
        if error:
            talk(f"it waits: {error}")
        for partition, first, stop in found["gaps"]:
            talk(f"offsets {first} to {stop - 1} of partition {partition} are not in it: the log "
                 "had deleted them")  # fmt: skip
    if error or found["gaps"] or found.get("unfit"):
        raise typer.Exit(WARNS)


@app.command()
def rewind(
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            metavar="OFFSETS", help='Where to, by partition, as JSON: {"0": 1000, "1": 900}.'
        ),
    ],
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a table's rows from these offsets on, and have them written again from the log."""
    _rewind(name, _offsets(to), bootstrap, command_config, dry_run, yes, as_json)


@app.command()
def rebuild(
    name: Name,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Have all rows written again that the log still has; older ones stay as they are."""
    _rewind(name, None, bootstrap, command_config, dry_run, yes, as_json)


def _rewind(
    name: str,
    offsets: dict[str, int] | None,
    bootstrap: str,
    command_config: Path | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    content = {"offsets": offsets, "dry_run": True}
    plan = _ask(bootstrap, command_config, "POST", name, "/rewind", content)
    if as_json and dry_run:
        print_json(plan)
        return
    if not plan["partitions"]:
        talk(f"the table {plan['table']} has nothing from there on; nothing was changed")
        return
    places = ", ".join(
        f"partition {each['partition']} from {each['from']} to {each['to']}"
        for each in plan["partitions"]
    )
    what = f"delete {spaced(plan['rows'])} rows of the table {plan['table']} and write them again"
    if not agreed(f"{what} ({places})", dry_run=dry_run, yes=yes):
        return
    done = _ask(bootstrap, command_config, "POST", name, "/rewind", {**content, "dry_run": False})
    if as_json:
        print_json(done)
    else:
        talk(f"deleted {spaced(done['rows'])} rows; they are written again with the next commits")


def _print_status(found: dict[str, Any], here: dict[str, Any]) -> None:
    facts = ["table", "location", "snapshot_id", "rows", "files", "bytes"]
    rows = [(name.replace("_", " "), found[name]) for name in facts if found.get(name) is not None]
    if at_ms := found.get("committed_ms"):
        rows.append(("last commit", _time(at_ms)))
    if not found["is_there"] and not found["why"]:
        rows.append(("state", "not there yet; it is made with its first commit"))
    if found.get("unfit"):
        rows.append(("fields that do not fit", ", ".join(found["unfit"])))
    rows += [
        (f"{name.replace('_', ' ')} here", value)
        for name, value in here.items()
        if value and name not in ("error", "committed_ms")
    ]
    print_table(["property", "value"], rows)
    columns = ["partition", "next_offset", "log_start", "end", "behind"]
    print_table(columns, [[each[column] for column in columns] for each in found["partitions"]])


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _ask(
    bootstrap: str,
    command_config: Path | None,
    method: str,
    topic: str,
    path: str,
    content: object = None,
) -> dict[str, Any]:
    control = control_of(bootstrap, command_config, name="catchwater-table")
    url = f"/api/v1/topics/{quote(topic, safe='')}/table{path}"
    return control.request(method, url, content)


def _offsets(text: str) -> dict[str, int]:
    try:
        found = json.loads(text)
        return {str(int(partition)): int(at) for partition, at in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise BadOffsets(
            f"{text!r} names no offsets.", hint='Give them by partition: {"0": 1000, "1": 900}.'
        ) from None
