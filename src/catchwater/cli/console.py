"""Shared by all commands: options, what they open, questions, data on stdout, progress on stderr.

A command opens a pipeline by its file, TOML with this environment over it or a script's name, and a
broker with the settings of `--command-config`, which has the name and the format of Kafka's own
tools: of a properties file of client settings those on security are obeyed.

Rich is imported only when something is drawn in colour; it honours NO_COLOR and turns itself plain
where the output is no terminal.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from catchwater.cli import trail

if TYPE_CHECKING:
    from rich.console import Console

    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.pipeline.run.config import PipelineConfig
    from catchwater.recovery.intact import Look
    from catchwater.replay.control import Control
    from catchwater.wire.client import Client
    from catchwater.wire.security.settings import Security

PIPE_WIDTH = 240
_CONNECT_S = 2.0
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
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="CATCHWATER_COMMAND_CONFIG",
        metavar="FILE",
        help="A properties file of client settings: security.protocol, sasl.*, ssl.*.",
    ),
]

_PREFIXED = re.compile(r"\bkafka\.(?=(?:security|sasl|ssl)\.)")
_MAIN = "from catchwater.cli import main; main()"
"""What a child process runs; its arguments follow."""


def noun(*, has_verbs: bool = True) -> typer.Typer:
    """The typer application of a noun; a noun without verbs is itself the command.

    Completion can only be installed for the whole command, so no noun offers it.
    """
    return typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=has_verbs)


# Opening a pipeline, and a broker.


def open_here(file: Path) -> "OpenPipeline":
    """The pipeline of the file; nobody is asked yet. Raises `ConfigError`."""
    from catchwater.pipeline.opened import OpenPipeline

    return OpenPipeline(load_here(file))


def load_here(file: Path) -> "PipelineConfig":
    """What the file says, and the checkpoint that it goes on from. Raises `ConfigError`."""
    from catchwater.recovery.handover import current

    config = declared_here(file)
    return replace(config, checkpoint=current(config.checkpoint))


def declared_here(file: Path) -> "PipelineConfig":
    """`pipeline.toml` with this environment over it, or `cards.py:pipeline`, which Python makes."""
    script, colon, name = str(file).rpartition(":")
    if colon and script.endswith(".py"):
        from catchwater.pipeline.pipeline import Pipeline

        return Pipeline.from_script(Path(script), name).declared
    from catchwater.pipeline.run.config import read

    return read(file, os.environ)


def look_here(file: Path) -> "tuple[PipelineConfig, Look]":
    """The pipeline's file, and what the files of its checkpoint say. Raises `ConfigError` only.

    Where one of them is damaged it is among the `problems`, and the rest is there; so is a store
    that does not answer soon.
    """
    from catchwater.pipeline.run import backfill, versions
    from catchwater.pipeline.run.versions import Identity
    from catchwater.pipeline.supervise import read_supervision
    from catchwater.recovery.folder import SUPERVISOR, holder, refresh_soon
    from catchwater.recovery.handover import find_current
    from catchwater.recovery.intact import look

    config = declared_here(file)
    away = refresh_soon(config.checkpoint)
    checkpoint, _ = find_current(config.checkpoint)
    readers = (
        Identity.read, versions.load, backfill.begun, read_supervision,
        partial(holder, name=SUPERVISOR),
    )  # fmt: skip
    found = look(checkpoint, readers)
    if away:
        found = replace(found, away=away, problems=[away, *found.problems])
    return replace(config, checkpoint=checkpoint), found


def supervised(file: Path, config: "PipelineConfig", flags: Sequence[str]) -> None:
    """Run the pipeline until it ends or a signal comes; start it again when it fails."""
    from catchwater.pipeline.run.driver import zygote
    from catchwater.pipeline.spark.session import make_class_archive_later
    from catchwater.pipeline.supervise import RESTARTS, SupervisorSettings, supervise

    command = [sys.executable, "-c", _MAIN, "pipeline", "run", str(file), "--stand-by", *flags]
    restarts = RESTARTS if config.restarts is None else config.restarts
    folder, timeout_ms = config.checkpoint, config.epoch_timeout_ms
    # The supervisor's, so that a driver that is started again finds it ready.
    with zygote([str(config.folder)]) as shared:
        command += ["--python", shared]
        supervise(SupervisorSettings(command, folder, restarts, config.spare, timeout_ms))
    if "--quick" not in flags and make_class_archive_later():
        talk("preparing faster starts in the background: once, some 40 s of CPU time")


def answers(address: tuple[str, int]) -> bool:
    """Whether somebody listens there: a client would go on trying where nobody does."""
    import socket

    try:
        with socket.create_connection(address, _CONNECT_S):
            return True
    except OSError:
        return False


def client_of(bootstrap: str, config: Path | None, *, name: str, timeout_s: float) -> "Client":
    """A client of this broker; `name` is what brokers know it by. Raises `ConfigError`."""
    from catchwater.wire.client import Client
    from catchwater.wire.security.settings import UNSECURED

    security = UNSECURED if config is None else load_security(config)
    return Client(bootstrap, client_id=name, timeout_s=timeout_s, security=security)


def control_of(bootstrap: str, config: Path | None, *, name: str) -> "Control":
    """The control API of this broker, which has to be ours. Raises `ConfigError`."""
    from catchwater.config import CatchwaterError
    from catchwater.replay.control import CONTROL_URL, Control, logged_in
    from catchwater.wire.security.settings import UNSECURED

    security = UNSECURED if config is None else load_security(config)
    with client_of(bootstrap, config, name=name, timeout_s=10.0) as own:
        url = own.broker_config().get(CONTROL_URL)
    if not url:
        raise CatchwaterError(
            "That Kafka is no log of ours.", hint="Name a broker of ours with --bootstrap."
        )
    if security.username:
        url = logged_in(url, security.username, security.password)
    return Control(url, timeout_s=30.0)


def load_security(file: Path) -> "Security":
    """The security settings of a client's properties file; its other settings are ignored.

    Raises `ConfigError`, which names the file and the properties as they stand in it.
    """
    from catchwater.config import ConfigError
    from catchwater.wire.security.settings import PREFIXES, parse_security, read_properties, resolve

    found = {f"kafka.{key}": value for key, value in read_properties(file).items()}
    try:
        return parse_security(
            {
                key: resolve(value, os.environ, Path())
                for key, value in found.items()
                if key.startswith(PREFIXES)
            }
        )
    except ConfigError as error:
        hint = _PREFIXED.sub("", error.hint) if error.hint else None
        raise ConfigError(f"{file}: {_PREFIXED.sub('', str(error))}", hint=hint) from error


# Printing and asking.


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
    trail.plans.append(plan)
    return True


def print_finding(verdict: str, name: str, found: str, mend: str = "", *, width: int = 14) -> None:
    """Print the result of a check on a line: ok, warn, fail or unknown, and what to do next."""
    from rich.text import Text

    marks = {"ok": ("✔", "green"), "warn": ("⚠", "yellow"), "fail": ("✘", "red"),
             "unknown": ("?", "dim")}  # fmt: skip
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
