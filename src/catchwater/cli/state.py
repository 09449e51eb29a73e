"""`catchwater state …`: a key's state, and two states compared, without Spark or the class."""

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchwater.cli.console import (
    AsJson,
    PipelineFile,
    SavepointsAt,
    noun,
    print_json,
    print_table,
    talk,
)
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.pipeline.run.config import PipelineConfig
    from catchwater.recovery.savepoint.view import View

app = noun()

Function = Annotated[
    str | None, typer.Option("--function", help="One of a chain; otherwise the first.")
]


class NoSuchKey(CatchwaterError):
    """There is no state for this key."""


@app.callback()
def state() -> None:
    """Show a key's state, and compare two states."""


@app.command()
def get(
    file: PipelineFile,
    key: Annotated[
        str,
        typer.Argument(show_default=False, help='As text; of several fields as ["a", 1]; -- -5.'),
    ],
    savepoint: Annotated[str | None, typer.Option("--savepoint", metavar="NAME")] = None,
    checkpoint: Annotated[
        int | None, typer.Option("--checkpoint", metavar="N", help="Otherwise the last epoch.")
    ] = None,
    function: Function = None,
    at: SavepointsAt = None,
    as_json: AsJson = False,
) -> None:
    """Show what a function keeps for one key; exit 1 if nothing is."""
    from catchwater.cli.console import load_here
    from catchwater.recovery.savepoint.view import find, keepers

    if savepoint is not None and checkpoint is not None:
        raise typer.BadParameter("--savepoint and --checkpoint name two places; give one.")
    config = load_here(file)
    place = _kept(config, checkpoint) if savepoint is None else _saved(config, savepoint, at)
    with place as view:
        found = find(view, key, function)
        if found is None:
            raise _nothing(view, key, function, keepers(view, key))
    if as_json:
        print_json(found)
        return
    rows: list[tuple[str, Any]] = [
        ("version", found.version),
        ("written_ms", found.written_ms),
    ]
    rows += [("state", _text(found.state))]
    rows += [(f"state.{name}", _text(entries)) for name, entries in found.entries.items()]
    rows += [(f"timer {name}", at_ms) for name, at_ms in found.timers.items()]
    rows += [(f"clock timer {name}", at_ms) for name, at_ms in found.clock_timers.items()]
    print_table([key, f"in {found.function}, after epoch {view.entry.epoch}"], rows)


def _nothing(view: "View", key: str, function: str | None, keep: list[str]) -> NoSuchKey:
    """A message with the function that was asked for, and those that have state."""
    nothing = f"Nothing is kept for the key {key!r} after epoch {view.entry.epoch}"
    if len(view.functions) == 1:
        return NoSuchKey(f"{nothing}.")
    names = ", ".join(view.functions)
    hint = f"The functions of this chain are {names}; --function names one."
    if keep:
        verb = "keeps" if len(keep) == 1 else "keep"
        hint = f"{', '.join(keep)} of this chain {verb} something: --function {keep[0]}."
    return NoSuchKey(f"{nothing} by {view.functions[view.stage(function)]!r}.", hint=hint)


@app.command()
def diff(
    file: PipelineFile,
    before: Annotated[str, typer.Argument(metavar="A", help="A checkpoint's number or a name.")],
    after: Annotated[str, typer.Argument(metavar="B", help="A checkpoint's number or a name.")],
    function: Function = None,
    at: SavepointsAt = None,
    as_json: AsJson = False,
) -> None:
    """List the keys added, removed and changed from A to B.

    A and B are checkpoints or savepoints.
    """
    from catchwater.cli.console import load_here
    from catchwater.recovery.savepoint.view import diff

    config = load_here(file)
    with ExitStack() as views:
        old, new = (views.enter_context(_named(config, each, at)) for each in (before, after))
        found = list(diff(old, new, function))
    if as_json:
        print_json(found)
        return
    rows = [
        (d.what, d.key, _text(d.before and d.before.state), _text(d.after and d.after.state))
        for d in found
    ]
    if rows:
        print_table(["what", "key", before, after], rows)
    talk(f"{len(rows)} keys differ")


def _named(config: "PipelineConfig", place: str, at: str | None) -> "AbstractContextManager[View]":
    """The checkpoint with this number, else the savepoint with this name, which may be a number."""
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.recovery import checkpoint

    if not (place.isascii() and place.isdigit()):
        return _saved(config, place, at)
    epoch = int(place)
    is_kept = epoch in checkpoint.committed_epochs(config.checkpoint)
    if not is_kept and OpenPipeline(config).shelf(at).exists(place):
        return _saved(config, place, at)
    return _kept(config, epoch)


def _kept(config: "PipelineConfig", epoch: int | None) -> "AbstractContextManager[View]":
    """A checkpoint, held while it is read; the last one by default."""
    from catchwater.clock import SYSTEM
    from catchwater.recovery.savepoint.view import View

    return View.held(config.checkpoint, epoch, SYSTEM)


def _saved(config: "PipelineConfig", name: str, at: str | None) -> "AbstractContextManager[View]":
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.recovery.savepoint.view import View

    shelf = OpenPipeline(config).shelf(at)
    return nullcontext(View.of_savepoint(shelf.store, shelf.read(name)))


def _text(value: Any) -> str:
    import msgspec

    return "" if value is None else msgspec.json.encode(value).decode()
