"""`catchwater savepoint …`: take, list, check, restore, carry and delete them, without Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchwater.cli.console import (
    AsJson,
    DryRun,
    PipelineFile,
    Yes,
    console,
    print_json,
    print_table,
    spaced,
    talk,
)

if TYPE_CHECKING:
    from catchwater.pipeline.change.around import Around
    from catchwater.recovery.savepoint.create import Progress
    from catchwater.recovery.savepoint.format import Savepoint

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

WARNS, FAILS = 3, 4

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The savepoint.")]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="URL", help="Where savepoints lie; otherwise as the pipeline's file says."
    ),
]


@app.callback()
def savepoint() -> None:
    """Keep a pipeline's state where it outlives the pipeline."""


@app.command()
def create(
    file: PipelineFile,
    name: Annotated[str | None, typer.Option("--name", help="Otherwise PIPELINE-EPOCH.")] = None,
    checkpoint: Annotated[
        int | None, typer.Option("--checkpoint", metavar="N", help="Otherwise the last epoch.")
    ] = None,
    at: At = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Copy the state of the last committed epoch, or of an older one; the pipeline may run on."""
    from catchwater.recovery.home import key_part
    from catchwater.recovery.savepoint.create import Source, create

    around = _around(file)
    source = Source.at(around.config.checkpoint, around.clock)
    epoch = source.entry(checkpoint).epoch
    chosen = name or f"{key_part(source.pipeline).lstrip('_-')}-{epoch}"
    shelf = around.shelf(at)
    if not _agreed(f"copy epoch {epoch} of {source.pipeline} to {shelf.url(chosen)}", dry_run, yes):
        return
    with progress("copying") as told:
        made = create(
            source, shelf, chosen, epoch=epoch, pin=around.pin, clock=around.clock,
            progress=told,
        )  # fmt: skip
    if as_json:
        print_json(_row(made, shelf.url(chosen)))
    else:
        talk(f"savepoint {chosen}: epoch {made.epoch}, {spaced(len(made.objects))} objects, "
             f"{spaced(made.size_bytes)} bytes at {shelf.url(chosen)}")  # fmt: skip


@app.command(name="list")
def list_(file: PipelineFile, at: At = None, as_json: AsJson = False) -> None:
    """The savepoints there are."""
    from catchwater.pipeline.change.around import shelf_url
    from catchwater.recovery.savepoint.storage import Shelf

    config, clock = _config(file)
    shelf = Shelf.at(at or shelf_url(config), clock)
    rows = [_row(shelf.read(name), shelf.url(name)) for name in shelf.names()]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        talk(f"there are no savepoints at {shelf.store.url()}")


@app.command()
def verify(file: PipelineFile, name: Name, at: At = None, as_json: AsJson = False) -> None:
    """Read every byte of a savepoint, and ask the log; exit 0, 3 (unknown), 4 (damaged)."""
    from dataclasses import asdict

    from catchwater.pipeline.change.around import shelf_url
    from catchwater.recovery.savepoint.storage import Shelf
    from catchwater.recovery.savepoint.verify import verify

    config, clock = _config(file)
    shelf = Shelf.at(at or shelf_url(config), clock)
    found = shelf.read(name)
    tails, pins = _asked(file)
    with progress("reading") as told:
        findings = verify(shelf.store, found, tails, pins, told)
    if as_json:
        print_json([asdict(each) for each in findings])
    else:
        print_table(["verdict", "of", "why"], [(f.verdict, f.subject, f.message) for f in findings])
    verdicts = {each.verdict for each in findings}
    raise typer.Exit(FAILS if "fail" in verdicts else WARNS if "unknown" in verdicts else 0)


@app.command()
def restore(
    file: PipelineFile,
    name: Name,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="FOLDER", help="Otherwise the file's checkpoint."),
    ] = None,
    shards: Annotated[
        int | None, typer.Option("--shards", metavar="M", min=1, help="Otherwise as in the file.")
    ] = None,
    claim: Annotated[
        bool, typer.Option("--claim", help="Delete it once the pipeline has gone on from it.")
    ] = False,
    at: At = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Make a checkpoint of a savepoint; exit 5 if the log no longer holds what would be replayed.

    What the pipeline's sinks have of later epochs is withdrawn, and written anew by the replay.
    """
    from catchwater.pipeline.change.restoring import Wanted, bring_back, check

    around = _around(file)
    shelf = around.shelf(at)
    found = shelf.read(name)
    folder = into or around.config.checkpoint
    count = shards or around.config.shard_count
    command = f"catchwater savepoint restore {file} {name}" + (f" --into {into}" if into else "")
    wanted = Wanted(shelf, found, folder.absolute(), count, claim, command)
    check(around, wanted)
    plan = f"restore epoch {found.epoch} of {found.pipeline} into {folder}, {found.shards} shards "
    plan += f"as {count}, and withdraw later epochs from {', '.join(around.config.sinks)}"
    if not _agreed(plan, dry_run, yes):
        return
    with progress("restoring") as told:
        entry = bring_back(around, wanted, told)
    if as_json:
        print_json({"checkpoint": str(folder), "epoch": entry.epoch, "shards": count})
        return
    talk(f"{folder} goes on after epoch {entry.epoch}: catchwater pipeline run {file}")
    if into is not None or count != around.config.shard_count:
        talk(f"its file must say checkpoint = {str(folder)!r} and shards = {count} in [pipeline]")


@app.command()
def export(
    file: PipelineFile,
    name: Name,
    to: Annotated[Path, typer.Argument(metavar="TAR", show_default=False, help="A new file.")],
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """Write a savepoint into one file that can be carried anywhere."""
    from catchwater.pipeline.change.around import shelf_url
    from catchwater.recovery.savepoint.export import export_file
    from catchwater.recovery.savepoint.storage import Shelf

    config, clock = _config(file)
    with progress("exporting") as told:
        size = export_file(Shelf.at(at or shelf_url(config), clock), name, to, told)
    if as_json:
        print_json({"name": name, "file": str(to), "bytes": size})
    else:
        talk(f"{to}: {spaced(size)} bytes")


@app.command(name="import")
def import_(
    file: PipelineFile,
    source: Annotated[Path, typer.Argument(metavar="TAR", show_default=False, help="Exported.")],
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """Put an exported savepoint among the others, and pin the log for it again."""
    from catchwater.recovery.savepoint.export import import_file
    from catchwater.replay.control import ControlRefused

    around = _around(file)
    shelf = around.shelf(at)
    with progress("importing") as told:
        made = import_file(shelf, source, told)
    try:
        if made.pin:
            around.pin(made.name, made.entry.end, made.pin)
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
    at: At = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete a savepoint, or what is left of an incomplete one, and release its pin."""
    around = _around(file)
    shelf = around.shelf(at)
    there = shelf.exists(name)
    pin = shelf.read(name).pin if there else ""
    if not _agreed(f"delete {shelf.url(name)}", dry_run, yes):
        return
    size = shelf.delete(name)
    for each in {pin, around.pin_id(name)}:
        around.release(each)
    if not there and not size:
        shelf.read(name)  # says that there is none, and which there are
    if as_json:
        print_json({"name": name, "bytes": size, "pin": pin or None})
    else:
        talk(f"{spaced(size)} bytes deleted")


def _config(file: Path) -> Any:
    from catchwater.cli.pipeline_file import load_here
    from catchwater.clock import SYSTEM

    return load_here(file), SYSTEM


def _around(file: Path) -> "Around":
    from catchwater.cli.pipeline_file import load_here
    from catchwater.pipeline.change.around import Around

    return Around.of(load_here(file))


def _asked(file: Path) -> tuple[Any, Any]:
    """What the log says; None where it cannot be asked."""
    from catchwater.config import CatchwaterError

    try:
        around = _around(file)
        pins = around.control.pins() if around.control else []
        return around.tails(), pins
    except CatchwaterError as error:
        talk(f"the log could not be asked: {error}")
        return None, None


def _row(made: "Savepoint", url: str) -> dict[str, Any]:
    return {
        "name": made.name,
        "pipeline": made.pipeline,
        "epoch": made.epoch,
        "functions": ", ".join(made.functions),
        "shards": made.shards,
        "objects": len(made.objects),
        "bytes": made.size_bytes,
        "created_ms": made.created_ms,
        "url": url,
    }


def _agreed(plan: str, dry_run: bool, yes: bool) -> bool:
    if dry_run:
        talk(f"would {plan}")
        return False
    if not yes:
        typer.confirm(f"{plan[0].upper()}{plan[1:]}?", abort=True, err=True)
    return True


@contextmanager
def progress(what: str) -> "Iterator[Progress | None]":
    """A bar on the terminal for what takes longer than two seconds; nothing into a pipe."""
    import sys

    from catchwater.clock import SYSTEM

    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress as Bar

    began_s = SYSTEM.monotonic_s()
    with Bar(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, visible=False)

        def told(done: int, total: int) -> None:
            late = SYSTEM.monotonic_s() - began_s > 2
            bar.update(task, completed=done, total=total, visible=late)

        yield told
