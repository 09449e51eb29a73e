"""`catchwater savepoint …`: take, list, check, restore, carry and delete them, without Spark."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchwater.cli.console import (
    AsJson,
    DryRun,
    PipelineFile,
    SavepointsAt,
    Yes,
    agreed,
    leave,
    noun,
    open_here,
    print_json,
    print_table,
    progress,
    spaced,
    talk,
)

if TYPE_CHECKING:
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.recovery.savepoint.format import Savepoint
    from catchwater.recovery.savepoint.store import Shelf
    from catchwater.recovery.savepoint.verify import Finding
    from catchwater.sinks.config import SinkConfig

app = noun()

_COLUMNS = (
    "name", "pipeline", "epoch", "functions", "shards", "objects", "bytes", "created_ms", "url",
)  # fmt: skip
"""The columns of a savepoint; a damaged one has only name and URL."""

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The savepoint.")]


@app.callback()
def savepoint() -> None:
    """Copy a pipeline's state to where it outlives the pipeline."""


@app.command()
def create(
    file: PipelineFile,
    name: Annotated[str | None, typer.Option("--name", help="Otherwise PIPELINE-EPOCH.")] = None,
    checkpoint: Annotated[
        int | None, typer.Option("--checkpoint", metavar="N", help="Otherwise the last epoch.")
    ] = None,
    at: SavepointsAt = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Copy the state of the last committed epoch, or of an older one.

    The pipeline may run on meanwhile.
    """
    pipeline = open_here(file).with_log()
    chosen, epoch, shelf = pipeline.savepoint(name, checkpoint, at)
    plan = f"copy epoch {epoch} of {pipeline.name} to {shelf.url(chosen)}"
    if not agreed(plan, dry_run=dry_run, yes=yes):
        return
    with progress("copying") as report:
        made = pipeline.save(chosen, epoch, shelf, report)
    if as_json:
        print_json(_row(made, shelf.url(chosen)))
    else:
        talk(f"savepoint {chosen}: epoch {made.epoch}, {spaced(len(made.objects))} objects, "
             f"{spaced(made.size_bytes)} bytes at {shelf.url(chosen)}")  # fmt: skip


@app.command(name="list")
def list_(file: PipelineFile, at: SavepointsAt = None, as_json: AsJson = False) -> None:
    """List the savepoints."""
    from catchwater.recovery.savepoint.format import SavepointDamaged

    shelf = _shelf(file, at)
    rows = []
    for name in shelf.names():
        try:
            rows.append(_row(shelf.read(name, trusted=False), shelf.url(name)))
        except SavepointDamaged as damage:
            rows.append(dict.fromkeys(_COLUMNS) | {"name": name, "url": shelf.url(name)})
            talk(str(damage))
    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        talk(f"there are no savepoints at {shelf.store.url()}")


@app.command()
def verify(
    file: PipelineFile, name: Name, at: SavepointsAt = None, as_json: AsJson = False
) -> None:
    """Read every byte of a savepoint, and ask the log.

    Exit 0, 3 (something could not be asked) or 4 (damaged).
    """
    from dataclasses import asdict

    from catchwater.recovery.savepoint.format import FILE, SavepointDamaged
    from catchwater.recovery.savepoint.verify import Finding, verify

    shelf = _shelf(file, at)
    try:
        found = shelf.read(name, trusted=False)
    except SavepointDamaged as damage:
        findings = [Finding("fail", FILE, str(damage))]
    else:
        tails, pins = _asked(file)
        with progress("reading") as report:
            findings = [*_signed(shelf, name), *verify(shelf.store, found, tails, pins, report)]
    if as_json:
        print_json([asdict(each) for each in findings])
    else:
        print_table(["verdict", "of", "why"], [(f.verdict, f.subject, f.message) for f in findings])
    leave(each.verdict for each in findings)


def _signed(shelf: "Shelf", name: str) -> "Iterator[Finding]":
    """Who vouches for it; nothing where there are no keys and it is not signed."""
    from catchwater.objects.open import given_keys
    from catchwater.recovery.savepoint.format import check_signed, signed_with
    from catchwater.recovery.savepoint.signature import SavepointUntrusted
    from catchwater.recovery.savepoint.verify import Finding

    data, where = shelf.raw(name)
    keys, key = given_keys(), signed_with(data)
    if keys is None:
        if key is not None:
            yield Finding("unknown", "signature", f"{key!r} signed it, and no key was given here")
        return
    try:
        check_signed(data, where, keys)
    except SavepointUntrusted as refusal:
        yield Finding("fail", "signature", str(refusal))
    else:
        yield Finding("pass", "signature", f"signed with the key {key!r}")


@app.command()
def sign(
    file: PipelineFile,
    name: Name,
    at: SavepointsAt = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Vouch for a savepoint with your key, so that it can be restored where there are keys.

    Reads all of it first. It brings code: sign what you know to be yours.
    """
    from catchwater.config import ConfigError
    from catchwater.objects.open import KEYS, given_keys
    from catchwater.recovery.savepoint.format import FILE, encode, signed_with
    from catchwater.recovery.savepoint.verify import check_whole

    shelf = _shelf(file, at)
    keys = given_keys()
    if keys is None:
        raise ConfigError(
            "There is no key here to sign with.",
            hint=f"Name the keys in {KEYS}: file:PATH, env:NAME or command:PROGRAM.",
        )
    found = shelf.read(name, trusted=False)
    plan = f"sign {shelf.url(name)}: epoch {found.epoch} of {found.pipeline}, made by "
    plan += f"{found.catchwater}, with code of {', '.join(found.functions)}"
    if not agreed(plan, dry_run=dry_run, yes=yes):
        return
    with progress("reading") as report:
        check_whole(shelf.store, found, report)
    data = encode(found, keys)
    shelf.store.put(f"{name}/{FILE}", [data])
    if as_json:
        print_json({"name": name, "key": signed_with(data)})
    else:
        talk(f"savepoint {name} is signed with the key {signed_with(data)!r}")


@app.command()
def restore(
    file: PipelineFile,
    name: Name,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="FOLDER", help="Otherwise the file's checkpoint."),
    ] = None,
    shards: Annotated[
        int | None, typer.Option("--shards", metavar="M", min=1, help="Otherwise as in the file.")
    ] = None,
    claim: Annotated[
        bool, typer.Option("--claim", help="Delete it once the pipeline has gone on from it.")
    ] = False,
    at: SavepointsAt = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Make a checkpoint of a savepoint.

    What the pipeline's sinks have of later epochs is withdrawn, and written anew by the replay.
    Exit 5, with nothing changed, if the log no longer holds what would be replayed, or a sink
    cannot take back all that it has.
    """
    from catchwater.pipeline.change.rollback import RestorePlan, bring_back, check_restore
    from catchwater.recovery.ledger import shown

    if into is not None and "://" in into:
        raise typer.BadParameter(
            f"--into names a folder, and {into} is a URL: name it as the checkpoint in {file} or "
            "in a copy of it, and leave --into out."
        )
    pipeline = open_here(file).with_log()
    shelf = pipeline.shelf(at)
    found = shelf.read(name)
    folder = pipeline.config.checkpoint if into is None else Path(into)
    count = shards or pipeline.config.shard_count
    given = {"--into": into, "--shards": shards, "--at": at}
    flags = [f" {flag} {value}" for flag, value in given.items() if value is not None]
    command = f"catchwater savepoint restore {file} {name}" + "".join(flags)
    command += " --claim" if claim else ""
    wanted = RestorePlan(shelf, found, folder.absolute(), count, claim, command)
    check_restore(pipeline, wanted)
    plan = f"restore epoch {found.epoch} of {found.pipeline} into {shown(folder)}, "
    plan += f"{found.shards} shards as {count}{_of_sinks(pipeline.config.sinks.values())}"
    if not agreed(plan, dry_run=dry_run, yes=yes):
        return
    with progress("restoring") as report:
        entry = bring_back(pipeline, wanted, report)
    if as_json:
        print_json({"checkpoint": str(folder), "epoch": entry.epoch, "shards": count})
        return
    talk(f"{shown(folder)} goes on after epoch {entry.epoch}: catchwater pipeline run {file}")
    if into is not None or count != pipeline.config.shard_count:
        talk(f"its file must say checkpoint = {str(folder)!r} and shards = {count} in [pipeline]")


def _of_sinks(sinks: "Iterable[SinkConfig]") -> str:
    """A sentence about later epochs in the sinks; at-least-once sinks have no marks of them."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for each in sinks:
        names[each.exactly_once].append(each.name)
    withdrawn, kept = (", ".join(names[once]) for once in (True, False))
    plan = f", and withdraw later epochs from {withdrawn}" if withdrawn else ""
    if kept:
        plan += f"; {kept} keeps what it has of them (at-least-once), to be deleted by hand"
    return plan


@app.command()
def export(
    file: PipelineFile,
    name: Name,
    to: Annotated[Path, typer.Argument(metavar="TAR", show_default=False, help="A new file.")],
    at: SavepointsAt = None,
    as_json: AsJson = False,
) -> None:
    """Write a savepoint into one file that can be moved anywhere."""
    from catchwater.recovery.savepoint.export import export_file

    with progress("exporting") as report:
        size = export_file(_shelf(file, at), name, to, report)
    if as_json:
        print_json({"name": name, "file": str(to), "bytes": size})
    else:
        talk(f"{to}: {spaced(size)} bytes")


@app.command(name="import")
def import_(
    file: PipelineFile,
    source: Annotated[Path, typer.Argument(metavar="TAR", show_default=False, help="Exported.")],
    at: SavepointsAt = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Add an exported savepoint, and pin the log for it again."""
    from catchwater.recovery.savepoint.export import import_file, read_head
    from catchwater.replay.control import ControlRefused

    pipeline = open_here(file).with_log()
    shelf = pipeline.shelf(at)
    head = read_head(source)
    plan = f"import epoch {head.epoch} of {head.pipeline} to {shelf.url(head.name)}"
    if not agreed(plan, dry_run=dry_run, yes=yes):
        return
    pin = pipeline.pin_id(head.name, shelf) if pipeline.control else ""
    with progress("importing") as report:
        made = import_file(shelf, source, report, pin=pin)
    try:
        pipeline.pin(made.name, made.entry.end, shelf)
    except ControlRefused as refused:
        talk(f"the log cannot be pinned for it: {refused}")
    if as_json:
        print_json(_row(made, shelf.url(made.name)))
    else:
        talk(f"savepoint {made.name}: epoch {made.epoch} of {made.pipeline}")


@app.command()
def delete(
    file: PipelineFile,
    name: Name,
    at: SavepointsAt = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete a savepoint, also an incomplete one; release its pin."""
    from catchwater.recovery.savepoint.format import SavepointDamaged

    pipeline = open_here(file).with_log()
    shelf = pipeline.shelf(at)
    there = shelf.exists(name)
    try:
        pin = shelf.read(name, trusted=False).pin if there else ""
    except SavepointDamaged:
        pin = ""
    plan = f"delete {shelf.url(name)}{_way_back(pipeline, name)}"
    if not agreed(plan, dry_run=dry_run, yes=yes):
        return
    size = shelf.delete(name)
    for each in {pin, pipeline.pin_id(name, shelf)}:
        pipeline.release(each)
    if not there and not size:
        shelf.read(name)  # raises, and lists those that exist
    if as_json:
        print_json({"name": name, "bytes": size, "pin": pin or None})
    else:
        talk(f"{spaced(size)} bytes deleted")


def _shelf(file: Path, at: str | None) -> "Shelf":
    return open_here(file).shelf(at)


def _way_back(pipeline: "OpenPipeline", name: str) -> str:
    """The end of a sentence: the upgrade that needs this savepoint to be rolled back."""
    from catchwater.pipeline.run.versions import load

    needed = [each for each in load(pipeline.config.checkpoint).history if each.savepoint == name]
    versions = ", ".join(f"version {each.version} of {each.function}" for each in needed)
    return f", the way back from {versions}" if versions else ""


def _asked(file: Path) -> tuple[Any, Any]:
    """The log's state; None if it does not answer."""
    from catchwater.config import CatchwaterError

    try:
        pipeline = open_here(file).with_log()
        pins = pipeline.control.pins() if pipeline.control else []
        return pipeline.tails(), pins
    except CatchwaterError as error:
        talk(f"the log could not be asked: {error}")
        return None, None


def _row(made: "Savepoint", url: str) -> dict[str, Any]:
    values = (
        made.name, made.pipeline, made.epoch, ", ".join(made.functions), made.shards,
        len(made.objects), made.size_bytes, made.created_ms, url,
    )  # fmt: skip
    return dict(zip(_COLUMNS, values, strict=True))
