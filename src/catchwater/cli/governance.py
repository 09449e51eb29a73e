"""`catchwater governance …`: evidence of who did what, and of where data lies."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import FAILS, AsJson, noun, print_json, print_rows, talk

if TYPE_CHECKING:
    from catchwater.objects.base import ObjectStore

app = noun()
audit = noun()
app.add_typer(audit, name="audit")

Trail = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DIR]",
        show_default=False,
        help="A trail's folder (of a broker: catchwater.audit.dir, or audit in log.dirs), or a "
        "file of its lines; none: that of this user's commands.",
    ),
]
Objects = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The object store that has the anchors; without it a cut end is unseen."
    ),
]
Name = Annotated[str, typer.Option(help="Whose anchors: broker-ID.")]


@app.callback()
def governance() -> None:
    """Prove who did what, and where data lies."""


@audit.callback()
def trail() -> None:
    """Show and verify an audit trail."""


@audit.command()
def verify(
    trail: Trail = None,
    objects: Objects = None,
    name: Name = "broker-1",
    part: Annotated[
        bool, typer.Option("--part", help="There may be more lines before and behind: a topic's.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Name every line that was edited, removed, added or cut off. Exit 4 if there is one."""
    from catchwater.audit import anchored_heads, lines_of
    from catchwater.audit import verify as verified

    place = _place(trail)
    anchors = anchored_heads(_store(objects), name) if objects else []
    found = verified(lines_of(place), anchors, whole=not part)
    if as_json:
        print_json(
            {
                "lines": found.lines,
                "anchors": found.anchors,
                "heads": {chain: head._asdict() for chain, head in found.heads.items()},
                "findings": [each._asdict() for each in found.findings],
            }
        )
    else:
        for each in found.findings:
            typer.echo(f"{each.where}: {each.what}")
        chains = ", ".join(f"{chain} to line {head.number}" for chain, head in found.heads.items())
        verdict = f"{len(found.findings)} findings" if found.findings else "whole"
        talk(f"{found.lines} lines, {found.anchors} anchors ({chains}): {verdict}")
        if not objects:
            talk("without --objects it is not known whether the end was cut off")
    if found.findings:
        raise typer.Exit(FAILS)


@audit.command()
def show(
    trail: Trail = None,
    last: Annotated[int, typer.Option(help="How many of the newest lines.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the newest lines of a trail."""
    import msgspec

    from catchwater.audit import Line, lines_of

    lines = [msgspec.json.decode(data, type=Line) for _, data in lines_of(_place(trail))]
    if as_json:
        print_json([msgspec.to_builtins(line) for line in lines[-last:]])
        return
    columns = ["time", "kind", "principal", "host", "action", "resource", "rule", "count"]
    rows = [
        (_time(line.time_ms), line.kind, line.principal, line.host, line.action, line.resource,
         line.rule, line.count)
        for line in lines[-last:]
    ]  # fmt: skip
    print_rows(columns, rows, as_json=False)


def _place(trail: Path | None) -> Path:
    from catchwater.audit import files
    from catchwater.cli.trail import folder
    from catchwater.config import CatchwaterError

    place = trail or folder()
    if not place.exists() or (place.is_dir() and not files(place)):
        raise CatchwaterError(
            f"There is no audit trail in {place}.",
            hint="Name the folder: of a broker catchwater.audit.dir, or audit in its log.dirs.",
        )
    return place


def _store(url: str) -> "ObjectStore":
    from catchwater.clock import SYSTEM
    from catchwater.objects.open import open_store

    return open_store(
        url if "://" in url or url == "memory:" else Path(url).absolute().as_uri(), SYSTEM
    )


def _time(milliseconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
