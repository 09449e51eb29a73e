"""`catchwater log …`: the storage of a log, read from its data directory without opening it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from catchwater.cli.console import AsJson, print_json, print_table
from catchwater.config import BrokerConfig, CatchwaterError

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
wal = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The write-ahead log.")
app.add_typer(wal, name="wal")


class NoLogThere(CatchwaterError):
    """A directory that should hold a log holds none."""


@app.callback()
def log() -> None:
    """Describe the log's storage."""


@wal.callback()
def write_ahead_log() -> None:
    """The write-ahead log."""


@wal.command()
def describe(
    data: Annotated[Path, typer.Option(help="The data directory.")] = BrokerConfig.log_dirs,
    as_json: AsJson = False,
) -> None:
    """What the write-ahead log is, who can read it, and what its files hold.

    Only reads, also while a broker is running.
    """
    from catchwater.wal.file import description

    if not (data / "wal").is_dir():
        raise NoLogThere(f"{data} holds no write-ahead log.", hint="name another with --data")
    told = asdict(description(data, is_shared=False))
    files = [_file(path) for path in sorted((data / "wal").glob("[0-9]*.wal"))]
    if as_json:
        print_json({**told, "files": files})
        return
    print_table(["property", "value"], [(k.replace("_", " "), v) for k, v in told.items()])
    if files:
        print_table(list(files[0]), [list(file.values()) for file in files])


def _file(path: Path) -> dict[str, Any]:
    from catchwater.wal.scan import scan

    found = scan(f"wal/{path.name}", path.read_bytes(), int(path.stem))
    return {
        "file": path.name,
        "first_frame": found.first_sequence,
        "last_frame": found.last_sequence,
        "size_bytes": found.size_bytes,
        "unreadable_bytes": found.size_bytes
        - found.end
        + sum(gap.last_byte - gap.first_byte + 1 for gap in found.damage),
    }
