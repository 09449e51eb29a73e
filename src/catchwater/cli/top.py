"""`catchwater top`: a broker's page in the terminal.

It draws the record that the page is drawn from, so that both say the same.
"""

import os
import re
import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from msgspec.structs import replace

from catchwater.cli.console import AsJson, noun, print_json
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.replay.control import Control
    from catchwater.web.view import Cell, Column, Head, Line, Panel, Table, View

app = noun(has_verbs=False)

_EVERY_S = 2.0
_ASK_S = 5.0
_LABEL = 24
_CELL = 44
"""A longer cell is cut."""
_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
"""Of a shell's command."""
_SIGNS = {"ok": "✔", "warn": "⚠", "fail": "✘", "unknown": "?"}
_COLOURS = {"ok": "32", "warn": "33", "fail": "31", "unknown": "2"}


@app.command()
def top(
    page: Annotated[
        str,
        typer.Argument(
            metavar="[PAGE]", show_default=False,
            help="pipelines/NAME, topics, topics/NAME, groups, groups/NAME, transactions, brokers, "
            "drills or timeline; otherwise the overview.",
        ),
    ] = "",
    control: Annotated[
        str,
        typer.Option(
            envvar="CATCHWATER_CONTROL", metavar="URL",
            help="A broker's control port; with user:password@ where users log in.",
        ),
    ] = "http://127.0.0.1:9644",
    once: Annotated[bool, typer.Option("--once", help="Draw it once.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show a broker's page in the terminal, anew every two seconds."""
    from catchwater.clock import SYSTEM
    from catchwater.replay.control import Control

    asked = Control(control, timeout_s=_ASK_S)
    path = "/" + quote(page.strip("/"), safe="/%")
    if as_json:
        print_json(asked.request("GET", path))
        return
    terminal = sys.stdout.isatty()
    last: View | None = None
    while not once and terminal:
        size = get_terminal_size()
        try:
            last = _asked(asked, path)
            lines = drawn(last, size.columns)
        except CatchwaterError as error:
            lines = silent(last, error, size.columns)
        shown = "".join(f"{line}\x1b[K\n" for line in lines[: size.lines - 1])
        typer.echo(f"\x1b[H{shown}\x1b[J", nl=False)
        sys.stdout.flush()
        SYSTEM.pause(_EVERY_S)
    typer.echo("\n".join(drawn(_asked(asked, path), get_terminal_size().columns)))


def _asked(control: "Control", path: str) -> "View":
    import msgspec

    from catchwater.web.view import View

    return msgspec.convert(control.request("GET", path), View)


def silent(last: "View | None", error: CatchwaterError, width: int) -> list[str]:
    """Why there is no page, and what was known last: what was good then is unknown now."""
    lines = [paint("fail", line) for line in wrap(str(error), width)]
    lines += wrap(error.hint or "", width)
    if last is None:
        return lines
    lines += _typed(last.starts, 0, width) if last.starts else []
    from catchwater.web.words import moment

    lines += ["", f"As of {moment(last.at_ms)[11:]} UTC, the last answer:"[:width]]
    for head in last.pipelines:
        now = [
            replace(each, mark="unknown", reason="The broker does not answer.")
            if each.mark == "ok"
            else each
            for each in head.verdicts
        ]
        lines += ["", *_pipeline(replace(head, verdicts=now), width)]
    return lines


def drawn(view: "View", width: int) -> list[str]:
    """The lines of a page, each as wide as the terminal at most."""
    from catchwater.web.words import moment

    at = moment(view.at_ms)[11:] + " UTC"
    lines = [f"{view.title}  {view.about}"[: width - len(at) - 2].ljust(width - len(at)) + at]
    for head in view.pipelines:
        lines += ["", *_pipeline(head, width)]
    for panel in view.panels:
        lines += _panel(panel, width)
    return lines


def _pipeline(head: "Head", width: int) -> list[str]:
    lines = [_bold(f"{head.name}  {head.about}  {head.state}"[:width])]
    for each in head.verdicts:
        state = paint(each.mark, f"{_SIGNS.get(each.mark, ' ')} {each.mark:<8}")
        first, *more = wrap(each.reason, max(14, width - 26)) or [""]
        lines.append(f"  {each.of:<12} {state} {first}")
        lines += [f"{'':<26}{line}" for line in more]
        if each.command and each.mark != "ok":
            lines += _typed(each.command, 26, width)
    return lines


def _typed(command: str, indent: int, width: int) -> list[str]:
    """A command that can be marked and pasted: where it is long, as a shell goes on behind `\\`."""
    most, lines = max(20, width - indent - 4), [""]
    for word in _WORD.findall(command):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines[-1] += " \\"
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return [f"{'':<{indent}}{'  ' if at else '→ '}{line}" for at, line in enumerate(lines)]


def _panel(panel: "Panel", width: int) -> list[str]:
    lines = [line for each in panel.lines for line in _line(each, width)]
    if panel.table is not None:
        lines += _table(panel.table, width)
    lines += [line for each in panel.commands for line in _typed(each.text, 2, width)]
    if panel.note and lines:
        lines.insert(0, f"  {panel.note}"[:width])
    title = [_bold(panel.title[:width])] if panel.title else []
    return ["", *title, *lines] if lines else []


def _line(line: "Line", width: int) -> list[str]:
    text = f"{_SIGNS[line.mark]} {line.text}" if line.mark else line.text
    text = text[: width - _LABEL - 3]
    note = f"  {line.note}"[: max(0, width - _LABEL - 3 - len(text))] if line.note else ""
    return [f"  {line.label[:_LABEL]:<{_LABEL}} {paint(line.mark, text)}{paint('unknown', note)}"]


def _table(table: "Table", width: int) -> list[str]:
    if not table.rows:
        return [f"  {table.empty}"[:width]]
    texts = [[_cell(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(_titles(table.columns), *texts, strict=True)]
    lines = [paint("unknown", _row(_titles(table.columns), table.columns, widths)[:width])]
    for row, cells in zip(table.rows, texts, strict=True):
        marks = [cell.mark for cell in row if cell.mark]
        text = _row(cells, table.columns, widths)[:width]
        lines.append(paint(marks[0], text) if marks and marks[0] != "ok" else text)
    if table.paging is not None and table.paging.pages > 1:
        lines.append(f"  {len(table.rows)} of {table.paging.total}")
    return lines


def _titles(columns: "Sequence[Column]") -> list[str]:
    return [column.title for column in columns]


def _cell(cell: "Cell") -> str:
    text = f"{_SIGNS[cell.mark]} {cell.text}" if cell.mark else cell.text
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def _row(texts: Sequence[str], columns: "Sequence[Column]", widths: Sequence[int]) -> str:
    padded = (
        text.rjust(width) if column.right else text.ljust(width)
        for text, column, width in zip(texts, columns, widths, strict=True)
    )
    return "  " + "  ".join(padded).rstrip()


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if _in_colour() else text


def paint(mark: str, text: str) -> str:
    """The text in the colour of a verdict, where colours are wanted."""
    return f"\x1b[{_COLOURS[mark]}m{text}\x1b[0m" if mark in _COLOURS and _in_colour() else text


def _in_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
