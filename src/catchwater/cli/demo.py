"""`catchwater demo`: the main job with its accidents, and a verdict one can read at a glance."""

import os
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import AsJson, console, noun, print_json, spaced, talk
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.demo.scenarios import Scenario
    from catchwater.demo.verdict import Verdict
    from catchwater.drill.stage import Tell

app = noun(has_verbs=False)


@app.command()
def demo(
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv[.gz]", help="Online-retail rows instead of payments."),
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="How many payments to generate.")] = 400_000,
    seed: Annotated[int, typer.Option(help="The generator's seed.")] = 1,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where to work, and leave everything; empty.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
    open_page: Annotated[
        bool, typer.Option("--open", help="Watch it on the broker's page, in the browser.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """See a pipeline lose its process and its broker, and come back with nothing missing."""
    from catchwater.demo.run import run
    from catchwater.demo.scenarios import card_payments, online_retail
    from catchwater.pipeline.spark import session

    session.check_packages()
    session.find_java()
    scenario = online_retail(data) if data else card_payments(events, seed)
    folder = _fresh_folder(directory)
    try:
        with _progress() as tell:
            verdict = run(scenario, folder, tell, onlooker=_Browser() if open_page else None)
    except (CatchwaterError, KeyboardInterrupt):
        talk(f"the logs of broker and pipeline are in {folder}")
        raise
    if as_json:
        print_json(verdict.summary())
    else:
        _print_verdict(scenario, verdict)
    if verdict.correct and directory is None and not keep:
        shutil.rmtree(folder)
    else:
        talk(f"everything is in {folder}")
    raise typer.Exit(0 if verdict.correct else 1)


class _Browser:
    """Opens the page where there is a display, and keeps it until somebody has seen enough."""

    def begins(self, url: str) -> None:
        talk(f"the page: {url}")
        if has_display():
            webbrowser.open(url)

    def ends(self, verdict: "Verdict") -> None:
        if sys.stdin.isatty() and sys.stderr.isatty():
            talk("the page stays until you press Enter")
            sys.stdin.readline()


def has_display() -> bool:
    """Whether a browser with windows can be opened; one of the terminal would hide the demo."""
    return sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


def _fresh_folder(chosen: Path | None) -> Path:
    if chosen is None:
        return Path(tempfile.mkdtemp(prefix="catchwater-demo-"))
    if chosen.exists() and any(chosen.iterdir()):
        raise typer.BadParameter(f"{chosen} is not empty", param_hint="--dir")
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen.absolute()


@contextmanager
def _progress() -> "Iterator[Tell]":
    """A progress bar on a terminal, else a line on stderr for each step."""
    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield lambda what, share: talk(what)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<42}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def _print_verdict(scenario: "Scenario", verdict: "Verdict") -> None:
    from rich import box
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    good = verdict.correct
    color = "green" if good else "red"
    table = Table.grid(padding=(0, 3))
    for label, finding in _findings(verdict):
        table.add_row(Text(label, style="bold"), finding)
    spec = scenario.spec
    headline = "CORRECT ✔" if good else "WRONG ✘"
    console().print(
        Panel(
            table,
            title=Text(f" {spec.name} v{spec.version} · {headline} ", style=f"bold {color}"),
            border_style=color,
            box=box.ROUNDED,
            padding=(1, 2),
            expand=False,
        )
    )


def _findings(verdict: "Verdict") -> Iterator[tuple[str, str]]:
    yield "events", f"{spaced(verdict.events)} through a broker and a pipeline"
    yield "killed", f"{verdict.kills} processes with SIGKILL: the pipeline in mid-batch, the broker"
    yield "alerts", f"{spaced(verdict.alerts)} of {spaced(verdict.rows)} rows in the sink"
    yield "missing", spaced(verdict.missing)
    yield "duplicate", spaced(verdict.duplicate)
    repeats = f"{spaced(verdict.duplicates_dropped)} of {spaced(verdict.duplicates_expected)}"
    yield "repeats dropped", repeats
    yield "late dropped", f"{spaced(verdict.late_dropped)} of {spaced(verdict.late_expected)}"
    estimate = "none estimated: input came faster than it was read"
    if verdict.estimate_s is not None:
        estimate = f"{verdict.estimate_s:.1f} s estimated by the contract"
    yield "restore", f"{verdict.restore_s:.1f} s measured, {estimate}"
    yield "in all", f"{verdict.seconds:.0f} s"
