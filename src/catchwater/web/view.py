"""The record of a page: what is drawn in HTML, sent as JSON, and printed by `catchwater top`.

A page is a row of pipelines with their verdicts and then panels; a panel has lines, a table,
charts. Everything is text that is ready to be read, so that all three forms say the same. Pure.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec.structs import replace

T = TypeVar("T")

Mark = Literal["", "ok", "warn", "fail", "unknown"]
PAGE_ROWS = 50


class Command(msgspec.Struct, frozen=True):
    """What to type next; the page copies it."""

    text: str
    why: str = ""
    asks_log: bool = False
    """Whether it needs the broker's Kafka address, which `aimed` appends."""


class Line(msgspec.Struct, frozen=True):
    """One thing that is known, or is said to be unknown."""

    label: str
    text: str
    mark: Mark = ""
    note: str = ""
    """The reason, in a sentence or less."""
    href: str = ""
    share: float | None = None
    """0 to 1, drawn as a bar."""


class Cell(msgspec.Struct, frozen=True):
    """One cell of a table."""

    text: str
    mark: Mark = ""
    href: str = ""
    command: str = ""
    """What to type about it."""


class Column(msgspec.Struct, frozen=True):
    """A column; one with a key can be sorted by."""

    title: str
    key: str = ""
    right: bool = False
    """Numbers stand right."""
    grows: bool = False
    """Has sentences, and takes the room that others leave."""


class Paging(msgspec.Struct, frozen=True):
    """Which rows of how many are shown, and in which order."""

    total: int
    page: int
    pages: int
    sort: str
    descending: bool
    find: str = ""


class Table(msgspec.Struct, frozen=True):
    """Rows of cells, as many as are shown."""

    columns: list[Column]
    rows: list[list[Cell]]
    empty: str
    """Said where there are no rows."""
    paging: Paging | None = None


class Chart(msgspec.Struct, frozen=True):
    """Series of the history on one pair of axes."""

    title: str
    unit: Literal["", "bytes", "s", "records", "per s", "share"]
    series: dict[str, str]
    """Name in the history to label."""


class Field(msgspec.Struct, frozen=True):
    """What is typed into a form."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    """Shown while nothing is typed."""


class Form(msgspec.Struct, frozen=True):
    """Asks for another page."""

    href: str
    fields: list[Field]
    button: str


class Act(msgspec.Struct, frozen=True):
    """A button that changes something: what is sent, and where the browser goes then."""

    text: str
    href: str
    body: dict[str, Any]
    then: str


class Panel(msgspec.Struct, frozen=True):
    """A part of the page with a heading."""

    id: str
    title: str
    lines: list[Line] = []
    table: Table | None = None
    charts: list[Chart] = []
    commands: list[Command] = []
    note: str = ""
    wide: bool = False
    form: Form | None = None
    act: Act | None = None
    strip: bool = False
    """Its lines stand side by side: a few numbers to be taken in at once."""


class Trend(msgspec.Struct, frozen=True):
    """A series of the last hour, as small as a word."""

    values: list[float | None]
    """Oldest first; None where nothing is known."""
    most: float | None = None
    """What it ought to stay below."""
    about: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """Correct, recoverable or fresh: how it stands, why, and what to do next."""

    of: str
    mark: Mark
    reason: str
    command: str = ""
    share: float | None = None
    """How much of what was promised is used, 0 to 1, drawn as a bar."""
    trend: Trend | None = None


class Head(msgspec.Struct, frozen=True):
    """A pipeline in one line, with its three verdicts."""

    name: str
    href: str
    state: str
    verdicts: list[Verdict]
    about: str = ""
    at_ms: int = 0
    """Of the report that this is from; 0: there is none."""


class Crumb(msgspec.Struct, frozen=True):
    """A page above this one."""

    title: str
    href: str


class View(msgspec.Struct, frozen=True):
    """A whole page."""

    title: str
    nav: str
    """The entry of the navigation that it belongs to."""
    at_ms: int
    panels: list[Panel] = []
    pipelines: list[Head] = []
    crumbs: list[Crumb] = []
    about: str = ""
    is_live: bool = True
    """Whether an open page is sent what has changed."""
    starts: str = ""
    """What starts this broker again, shown once it is silent; empty for who may not know."""


class PageQuery(NamedTuple):
    """How a page was asked for in the query of its URL: a list's order, where a reset leads."""

    sort: str = ""
    descending: bool = False
    page: int = 1
    find: str = ""
    to: str = ""
    topics: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "PageQuery":
        """From a query that anybody may have written."""
        page = query.get("page", "1")
        number = int(page) if page.isdecimal() and len(page) < 9 else 1
        return cls(
            query.get("sort", "")[:40],
            query.get("order") == "desc",
            max(1, number),
            query.get("find", "")[:200],
            query.get("to", "")[:200],
            query.get("topics", "")[:2_000],
        )


class Sorted(msgspec.Struct, frozen=True):
    """A column's cell of a row, and what rows are sorted by."""

    column: Column
    cell: Callable[[Any], Cell]
    by: Callable[[Any], Any] | None = None


def listed(
    items: Iterable[T], columns: Sequence[Sorted], asked: PageQuery, default: str, empty: str,
    name: Callable[[T], str],
) -> Table:  # fmt: skip
    """One page of the items: those whose name has what is looked for, in the order asked for.

    Cells are made of the rows that are shown alone. A default that begins with "-" descends.
    """
    wanted = asked.find.lower()
    found = [item for item in items if wanted in name(item).lower()]
    orders = {each.column.key: each.by for each in columns if each.by is not None}
    sort, descending = asked.sort, asked.descending
    if sort not in orders:
        sort, descending = default.removeprefix("-"), default.startswith("-")
    by = orders[sort]
    assert by is not None
    found.sort(key=name)
    found.sort(key=by, reverse=descending)
    pages = max(1, -(-len(found) // PAGE_ROWS))
    page = min(asked.page, pages)
    shown = found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    return Table(
        [each.column for each in columns],
        [[each.cell(item) for each in columns] for item in shown],
        f"Nothing has {asked.find!r} in its name." if asked.find else empty,
        Paging(len(found), page, pages, sort, descending, asked.find),
    )


def query_of(paging: Paging, **changes: Any) -> str:
    """The query that asks for the same list with these changes."""
    now = {"sort": paging.sort, "order": "desc" if paging.descending else "asc",
           "page": paging.page, "find": paging.find}  # fmt: skip
    return "?" + urlencode({key: value for key, value in (now | changes).items() if value != ""})


def aimed(view: View, bootstrap: str) -> View:
    """The view with commands that ask this broker, wherever they are typed."""
    panels = [
        replace(
            panel,
            commands=[
                replace(each, text=f"{each.text} --bootstrap {bootstrap}")
                if each.asks_log
                else each
                for each in panel.commands
            ],
        )
        for panel in view.panels
    ]
    return replace(view, panels=panels)


def shell_word(name: str) -> str:
    """As one word of a shell's command."""
    return shlex.quote(name)


def worst(marks: Iterable[Mark]) -> Mark:
    """The one that matters most."""
    found = set(marks)
    order: tuple[Mark, ...] = ("fail", "unknown", "warn", "ok")
    return next((mark for mark in order if mark in found), "unknown")
