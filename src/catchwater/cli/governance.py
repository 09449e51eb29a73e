"""`catchwater governance …`: evidence of who did what, and of where data lies."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from catchwater.cli.console import (
    FAILS,
    HERE,
    WARNS,
    AsJson,
    Bootstrap,
    CommandConfig,
    control_of,
    noun,
    print_json,
    print_rows,
    talk,
)
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.objects.base import ObjectStore
    from catchwater.replay.control import Control

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

    anchors = anchored_heads(_store(objects), name) if objects else []
    try:
        lines = lines_of(_place(trail))
    except NoTrail:
        if not anchors:
            raise
        lines = iter(())  # the anchors name what is gone
    found = verified(lines, anchors, whole=not part)
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


Files = Annotated[
    list[Path] | None,
    typer.Option("--pipeline", metavar="FILE", help="A pipeline's file; several may be named."),
]
_COLUMNS = ("what", "name", "place", "owner", "residency", "encrypted", "fields")


@app.command("map")
def map_(
    pipeline: Files = None,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """List where every topic, state, checkpoint, savepoint and sink lies, whose it is, and its key.

    Exit 3 if a topic has no owner (its setting catchwater.owner).
    """
    places = _topics(_control(bootstrap, command_config))
    for file in pipeline or ():
        places += [place for place, _ in _places_of(file)]
    print_rows(_COLUMNS, [tuple(place) for place in places], as_json=as_json)
    nobodys = [place.name for place in places if place.what == "topic" and not place.owner]
    if nobodys:
        talk(f"nobody owns {', '.join(nobodys)}: set catchwater.owner of each")
        raise typer.Exit(WARNS)


@app.command()
def prove(
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    pipeline: Files = None,
    trail: Annotated[
        list[Path] | None,
        typer.Option("--trail", metavar="DIR", help="An audit trail; several may be named."),
    ] = None,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """List every copy that was derived of a topic, those that are gone as well, with its evidence.

    What there is comes from the log and from pipelines' files; what there was, and who has read
    it by a plan, from audit trails, which are verified first. Exit 4 if one was changed.
    """
    from catchwater.audit import about, lines_of
    from catchwater.audit import verify as verified

    control = _control(bootstrap, command_config)
    rows = [("now", *place, "log") for place in _topics(control) if place.name == topic]
    for pin in control.pins():
        if any(each["topic"] == topic for each in pin["positions"]):
            rows.append(("now", *Place("pin", pin["id"], "", pin["owner"]), "log"))
    for file in pipeline or ():
        rows += [("now", *p, str(file)) for p, topics in _places_of(file) if topic in topics]
    broken = False
    for folder in trail or ():
        found = verified(lines_of(folder))
        for finding in found.findings:
            broken = True
            talk(f"{finding.where}: {finding.what}")
        for line in about(topic, lines_of(folder)):
            gone = line.after is None and line.before is not None
            state = "gone" if gone else "read" if "plan" in line.action else "changed"
            place = Place(line.action, line.resource, line.host, line.principal)
            rows.append((state, *place, f"line {line.number}, {_time(line.time_ms)}"))
    print_rows(["state", *_COLUMNS, "evidence"], rows, as_json=as_json)
    if broken:
        raise typer.Exit(FAILS)


class Place(NamedTuple):
    """Where something lies."""

    what: str
    name: str
    place: str
    owner: str = ""
    residency: str = ""
    encrypted: str = ""
    fields: str = ""
    """What is declared of its fields (`catchwater.fields`)."""


def _control(bootstrap: str, command_config: Path | None) -> "Control":
    return control_of(bootstrap, command_config, name="catchwater-governance")


def _topics(control: "Control") -> list[Place]:
    """Every topic that may be seen; deletes nothing, asks one question a topic."""
    storage = control.request("GET", "/api/v1/storage")
    key = "sealed" if storage.get("sealed") else "no"
    places = []
    for each in control.request("GET", "/api/v1/topics")["topics"]:
        settings = control.request("GET", f"/api/v1/topics/{each['name']}")["config"]
        residency = settings.get("catchwater.residency") or storage.get("location", "")
        owner = settings.get("catchwater.owner", "")
        fields = settings.get("catchwater.fields", "")
        place = Place("topic", each["name"], storage["objects"], owner, residency, key, fields)
        places.append(place)
    return places


def _places_of(file: Path) -> list[tuple[Place, set[str]]]:
    """What a pipeline derives, and of which topics."""
    from catchwater.cli.console import open_here
    from catchwater.objects.open import KEYS
    from catchwater.recovery.folder import home_of

    opened = open_here(file)
    config = opened.config
    topics = {*config.inputs.values(), *config.tables.values()}
    topics |= {each.strip() for each in config.source.get("subscribe", "").split(",") if each}
    key = "sealed" if os.environ.get(KEYS) else "no"
    owner = f"pipeline {opened.name}"
    found = [
        Place("checkpoint", opened.name, str(config.checkpoint), owner),
        Place("state", opened.name, home_of(config.checkpoint), owner, "", key),
        Place("savepoints", opened.name, opened.shelf().store.url(), owner, "", key),
    ]
    found += [
        Place("dead letters" if each is config.dead_letter else f"sink {each.kind}", name,
              each.place, owner)
        for name, each in config.every_sink.items()
    ]  # fmt: skip
    return [(place, topics) for place in found]


class NoTrail(CatchwaterError):
    """There is no audit trail where one was looked for."""

    def __init__(self, place: Path) -> None:
        super().__init__(
            f"There is no audit trail in {place}.",
            hint="Name the folder: of a broker catchwater.audit.dir, or audit in its log.dirs.",
        )


def _place(trail: Path | None) -> Path:
    """Where the trail is. Raises `NoTrail`."""
    from catchwater.audit import files
    from catchwater.cli.trail import folder

    place = trail or folder()
    if not place.exists() or (place.is_dir() and not files(place)):
        raise NoTrail(place)
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
