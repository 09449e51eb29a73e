"""How commands speak: data on stdout as a table or as JSON, talk on stderr.

Rich is imported only when something is drawn in colour; it honours NO_COLOR and turns itself plain
where the output is no terminal.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 240

HERE = "127.0.0.1:9092"
"""Where a broker listens if nobody says otherwise."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Bootstrap = Annotated[
    str,
    typer.Option(
        envvar="CATCHWATER_BOOTSTRAP", metavar="HOST:PORT", help="A broker's Kafka address."
    ),
]
PipelineFile = Annotated[
    Path, typer.Argument(metavar="FILE", show_default=False, help="The pipeline's TOML file.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Start sooner and run slower: for demos and tests.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change; change nothing.")]


def print_json(value: Any) -> None:
    """One JSON document on stdout, keys as given."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under their headings on stdout, two spaces apart; numbers stand right."""
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
    """A console on stdout, or on stderr for talk and progress; into a pipe lines stay whole."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(
        stderr=stderr, highlight=False, markup=False, width=None if terminal else PIPE_WIDTH
    )


def talk(message: str) -> None:
    """A sentence for the person at the terminal, on stderr."""
    typer.echo(message, err=True)
