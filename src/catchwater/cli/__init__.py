"""The command line: a noun, a verb, data on stdout, messages on stderr.

Exit codes: 0 good, 1 error, 2 usage, 3 a check warns, 4 a check fails, 5 refused because state or
history would be lost, 124 timeout, 130 interrupted (Ctrl-C).

Here is the root command. Each noun is a module of this package with a typer application named
`app`, imported when it is typed, so that `catchwater --help` stays quick. An operating error
becomes one line on stderr and its hint on a second; its traceback is shown with CATCHWATER_DEBUG=1.
"""

import errno
import importlib
import os
import sys
import traceback
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperGroup

    from catchwater.cli.trail import is_audited, record
    from catchwater.config import CatchwaterError, nearest
except KeyboardInterrupt:  # Ctrl-C during these imports shows no traceback either
    sys.exit(130)

NOUNS = {
    "demo": "see a pipeline lose its process and its broker, and come back",
    "top": "watch pipelines and their log: correct, recoverable, fresh",
    "dev": "run a broker and a pipeline here, and take saved changes over at once",
    "doctor": "name what is missing on this machine, and how to fix it",
    "init": "write a small pipeline to start from",
    "broker": "run a broker",
    "access": "who may log in at a broker, and what they may do",
    "topic": "list, create, delete and describe topics",
    "table": "show where topics stand as Iceberg tables, rewind and rebuild them",
    "group": "list, describe and reset consumer groups",
    "txn": "list transactions, and abort one that hangs",
    "log": "describe, check and repair the log's storage",
    "pipeline": "run, inspect, upgrade, roll back and rebuild a pipeline",
    "executor": "be a Spark executor: what an image for Kubernetes starts",
    "diagnose": "name what holds a pipeline back, and what helps",
    "schema": "make classes for events out of a schema, and check that they fit",
    "contract": "what a restore would need, and whether it would succeed",
    "recovery": "explain and carry out a restore",
    "savepoint": "copy a pipeline's state to where it outlives the pipeline",
    "state": "show a key's state, and compare two states",
    "sink": "compare what a sink holds with the outputs, and repair it",
    "drill": "rehearse failures, and hold what happens against a budget",
    "readiness": "say whether pipelines and their log are ready for production, by evidence",
    "governance": "prove who did what, and where data lies",
    "check": "check a recorded history for anomalies",
    "config": "check configuration files",
}
"""The nouns, in the order of the help page."""


_SURROUNDINGS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT), "Free some space there, and run the command again."
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR),
        "Name a place that this user may write to, or change its permissions.",
    ),
    **dict.fromkeys((errno.ENOENT, errno.EEXIST), "Name another place."),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit of open files (ulimit -n)."),
}
"""Hints by error number, for system errors that are no bug: a full disk, a permission, a limit."""


_EXTRAS = {
    **dict.fromkeys(("numba", "numpy", "pandas", "pyarrow", "pyspark", "py4j", "google"), "spark"),
    "confluent_kafka": "kafka",
    "cryptography": "encryption",
    "fastavro": "avro",
    "obstore": "s3",
    "psycopg": "postgres",
    "pyiceberg": "iceberg",
}
"""The extra that installs a package. Brokers and tests of functions need none."""


class Nouns(TyperGroup):
    """The root group; its commands are in modules that are imported on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every noun, in the order of `NOUNS`."""
        return list(NOUNS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The noun's command; for an unknown noun the error names the nearest one."""
        if cmd_name not in NOUNS:
            ctx.fail(f"No such command {cmd_name!r}; the nearest is {nearest(cmd_name, NOUNS)!r}.")
        module = importlib.import_module(f"catchwater.cli.{cmd_name}")
        return typer.main.get_command(module.app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The help page's list, from `NOUNS` alone."""
        with formatter.section("Commands"):
            formatter.write_dl(list(NOUNS.items()))


app = typer.Typer(
    cls=Nouns,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"catchwater {version('catchwater')}")
        raise typer.Exit


@app.callback()
def catchwater(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Stateful stream processing whose recovery is boring."""


def main() -> None:
    """The `catchwater` command; leaves with one of the exit codes above.

    What changes something is written into the audit trail of commands, however it ends.
    """
    arguments = sys.argv[1:]
    code: object = 1
    try:
        _run()
    except SystemExit as end:
        code = end.code or 0
        raise
    finally:
        if is_audited(arguments):
            record(arguments, code if isinstance(code, int) else 1)


def _run() -> None:
    try:
        app(prog_name="catchwater")
    except KeyboardInterrupt:
        sys.exit(130)
    except CatchwaterError as error:
        sys.exit(_report(error, str(error), error.hint, error.exit_code))
    except OSError as error:
        if error.errno not in _SURROUNDINGS:
            sys.exit(_report_bug(error))
        named = f" ({error.filename})" if error.filename else ""
        message = f"The operating system says: {error.strerror}{named}."
        sys.exit(_report(error, message, _SURROUNDINGS[error.errno], 1))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            sys.exit(_report_bug(error))
        hint = f"Install it: {sys.executable} -m pip install 'catchwater[{_EXTRAS[package]}]'."
        sys.exit(_report(error, f"This command needs {package}, which is not installed.", hint, 1))
    except Exception as error:  # noqa: BLE001  (the last resort: a bug still gets one line)
        sys.exit(_report_bug(error))


def _report_bug(error: Exception) -> int:
    hint = "this is a bug; run it again with CATCHWATER_DEBUG=1 and report what it prints"
    return _report(error, f"{type(error).__name__}: {error}", hint, 1)


def _report(error: Exception, message: str, hint: str | None, exit_code: int) -> int:
    if os.environ.get("CATCHWATER_DEBUG"):
        traceback.print_exception(error)
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    if hint:
        typer.echo(f"hint: {' '.join(hint.split())}", err=True)
    return exit_code
