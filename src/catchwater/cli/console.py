"""Shared by all commands: options, questions, data on stdout, messages and progress on stderr.

Rich is imported only when something is drawn in colour; it honours NO_COLOR and turns itself plain
where the output is no terminal.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 240
BAR_AFTER_S = 2.0
"""A progress bar appears for operations that take longer."""

WARNS, FAILS = 3, 4
"""Exit codes of commands that check something."""

HERE = "127.0.0.1:9092"
"""The default address of a broker."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Bootstrap = Annotated[
    str,
    typer.Option(
        envvar="CATCHWATER_BOOTSTRAP", metavar="HOST:PORT", help="A broker's Kafka address."
    ),
]
PipelineFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="The pipeline's TOML file, or SCRIPT.py:NAME of one in Python.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Start sooner and run slower: for demos and tests.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change; change nothing.")]
SavepointsAt = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="URL", help="Where savepoints lie; otherwise as the pipeline's file says."
    ),
]


def noun(*, has_verbs: bool = True) -> typer.Typer:
    """The typer application of a noun; a noun without verbs is itself the command.

    Completion can only be installed for the whole command, so no noun offers it.
    """
    return typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=has_verbs)


def print_json(value: Any) -> None:
    """One JSON document on stdout, keys as given."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def as_json_line(value: Any) -> str:
    """One JSON document on one line, for a program that reads many."""
    import msgspec

    return msgspec.json.encode(value).decode()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under their headings on stdout, two spaces apart; numbers are right-aligned."""
    cells = [list(row) for row in rows]
    lines = [list(columns), *([_cell(value) for value in row] for row in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = [
        bool(cells) and all(isinstance(row[index], int | float) for row in cells)
        for index in range(len(columns))
    ]
    for line in lines:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        typer.echo("  ".join(padded).rstrip())


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], *, as_json: bool) -> None:
    """The rows as a table, or as a JSON list of objects."""
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows)


def _cell(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return spaced(value)
        case dict():
            return ", ".join(f"{key}={_cell(each)}" for key, each in value.items())
        case None:
            return ""
    return str(value)


def spaced(number: int) -> str:
    """A number for a person: 1 234 567."""
    return f"{number:_}".replace("_", " ")


def console(*, stderr: bool = False) -> "Console":
    """A console on stdout, or on stderr for messages and progress; no line breaks in a pipe."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(
        stderr=stderr, highlight=False, markup=False, width=None if terminal else PIPE_WIDTH
    )


def talk(message: str) -> None:
    """A sentence for the person at the terminal, on stderr."""
    typer.echo(message, err=True)


def agreed(plan: str, *, dry_run: bool, yes: bool) -> bool:
    """Whether to carry out the plan ("delete x"); a dry run only prints it, else the user is asked.

    Raises `typer.Abort` if the answer is no.
    """
    if dry_run:
        talk(f"would {plan}")
        return False
    if not yes:
        typer.confirm(f"{plan[0].upper()}{plan[1:]}?", abort=True, err=True)
    return True


def print_finding(verdict: str, name: str, found: str, mend: str = "", *, width: int = 14) -> None:
    """Print the result of a check on a line: ok, warn or fail, and what to do next."""
    from rich.text import Text

    marks = {"ok": ("✔", "green"), "warn": ("⚠", "yellow"), "fail": ("✘", "red")}
    line = Text.assemble(marks[verdict], f" {name:<{width}} {found}")
    if mend:
        line.append(f"  →  {mend}", style="bold")
    console().print(line, soft_wrap=True)


def leave(verdicts: Iterable[str]) -> NoReturn:
    """End the command with the exit code of the worst verdict: fail, then warn or unknown."""
    found = set(verdicts)
    raise typer.Exit(FAILS if "fail" in found else WARNS if found & {"warn", "unknown"} else 0)


def log_to_stderr() -> None:
    """Send log messages to stderr, but not those of Spark's bridge to the JVM.

    It logs every connection, and a traceback for errors that we report in one line.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for handler in logging.getLogger().handlers:  # py4j logs partly without a name
        handler.addFilter(lambda record: "py4j" not in Path(record.pathname).parts)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yields a callback of (done, total) that draws a bar on a terminal; None in a pipe."""
    from catchwater.clock import SYSTEM

    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    began_s = SYSTEM.monotonic_s()
    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, visible=False)

        def advance(done: int, total: int) -> None:
            visible = SYSTEM.monotonic_s() - began_s > BAR_AFTER_S
            bar.update(task, completed=done, total=total, visible=visible)

        yield advance
