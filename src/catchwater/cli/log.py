"""`catchwater log …`: describes, checks and repairs the storage of a log without opening it.

A log is named by its data directory or by a broker's settings. All but `rebuild` only read, also
while brokers are running.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchwater.broker_config import BrokerConfig, load_broker_config
from catchwater.cli.console import (
    FAILS,
    WARNS,
    AsJson,
    DryRun,
    Yes,
    console,
    noun,
    print_json,
    print_table,
    spaced,
    talk,
)
from catchwater.clock import SYSTEM
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.log.repair.fsck import Progress, Report
    from catchwater.log.repair.rebuild import RebuiltCatalog
    from catchwater.objects.base import ObjectStore
    from catchwater.wal.base import WalDescription

app = noun()
wal = noun()
app.add_typer(wal, name="wal")

Data = Annotated[Path | None, typer.Option(help="The data directory of a broker alone (log.dirs).")]
Settings = Annotated[
    Path | None, typer.Option(help="A broker's settings, which say where its log is written.")
]


class NoLogThere(CatchwaterError):
    """There is no log in the directory."""


@app.callback()
def log() -> None:
    """The log's storage: describe it, check it, make its catalog again."""


@wal.callback()
def write_ahead_log() -> None:
    """The write-ahead log."""


@wal.command()
def describe(
    data: Data = None,
    config: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Describe the write-ahead log and its files.

    Says what it survives and who can read it. Only reads, also while a broker is running.
    """
    settings = _settings(data, config)
    what, files = _shared(settings) if settings.is_shared else _alone(settings.log_dirs)
    properties = asdict(what)
    if as_json:
        print_json({**properties, "files": files})
        return
    print_table(["property", "value"], [(k.replace("_", " "), v) for k, v in properties.items()])
    if files:
        print_table(list(files[0]), [list(file.values()) for file in files])


def _settings(data: Path | None, config: Path | None) -> BrokerConfig:
    from catchwater.objects.open import use_keys

    given = {} if data is None else {"log.dirs": str(data)}
    settings = load_broker_config(config, os.environ, given)
    use_keys(settings.catchwater_encryption_keys, settings.catchwater_encryption_local)
    return settings


def _alone(data: Path) -> tuple["WalDescription", list[dict[str, Any]]]:
    """The WAL in a data directory, file by file."""
    from catchwater.wal.file import description

    if not (data / "wal").is_dir():
        raise NoLogThere(f"{data} holds no write-ahead log.", hint="name another with --data")
    files = [_file(path) for path in sorted((data / "wal").glob("[0-9]*.wal"))]
    return description(data, is_shared=False), files


def _shared(settings: BrokerConfig) -> tuple["WalDescription", list[dict[str, Any]]]:
    """The WALs of many brokers, session by session; payload rows are not counted."""
    from catchwater.objects.open import open_store
    from catchwater.wal import directory, file, object, postgres

    match settings.catchwater_wal:
        case "postgres":
            return postgres.DESCRIPTION, []
        case "file":
            root = settings.catchwater_wal_dir
            assert root is not None, "the settings were checked"
            what = file.description(root, is_shared=True)
            listing = directory.WalDirectory(root).listing()
        case _:
            store = open_store(settings.catchwater_objects, SYSTEM)
            what = object.description(store, settings.catchwater_wal_linger_ms)
            listing = store.list("wal/")
    sessions: dict[str, list[int]] = {}
    for info in listing:
        session = info.key.removeprefix("wal/").rpartition("/")[0]
        sessions.setdefault(session, []).append(info.size_bytes)
    return what, [
        {"session": session, "files": len(sizes), "size_bytes": sum(sizes)}
        for session, sizes in sorted(sessions.items())
    ]


def _file(path: Path) -> dict[str, Any]:
    from catchwater.wal.frames import scan

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


@app.command()
def fsck(
    data: Data = None,
    config: Settings = None,
    deep: Annotated[bool, typer.Option(help="Read every byte, not only what is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find every damaged or missing byte range.

    Names its offsets, and the pins that need them. Exit 4 if there is any.
    """
    settings = _settings(data, config)
    with _progress(as_json) as progress:
        report = _fsck(settings, deep, progress)
    if as_json:
        print_json({"good": report.is_good, **_as_dict(report)})
    else:
        _print_report(report)
    if not report.is_good:
        raise typer.Exit(FAILS)


def _as_dict(report: "Report") -> dict[str, object]:
    return {**asdict(report), "damaged": [found._asdict() for found in report.damaged]}


def _print_report(report: "Report") -> None:
    if report.damaged:
        columns = ("object", "bytes", "partition", "offsets", "needed by", "what is wrong")
        rows = [
            (
                found.object,
                _span(found.first_byte, found.last_byte),
                f"{found.topic}-{found.partition}" if found.topic else "",
                _span(found.first_offset, found.last_offset),
                ", ".join(found.pins),
                found.reason,
            )
            for found in report.damaged
        ]
        print_table(columns, rows)
    talk(
        f"{spaced(report.partitions)} partitions, {spaced(report.runs)} runs, "
        f"{spaced(report.objects)} objects, {spaced(report.bytes_read)} bytes read: "
        f"{len(report.damaged) or 'nothing'} damaged or missing, {len(report.orphans)} orphans"
    )


def _span(first: int, last: int) -> str:
    if first < 0 or (first == 0 and last < 0):
        return ""
    return f"{first} to {last}" if last >= 0 else f"from {first} on"


def _fsck(settings: BrokerConfig, deep: bool, progress: "Progress") -> "Report":
    from catchwater.log.repair.files import LogFiles
    from catchwater.log.repair.fsck import fsck as check
    from catchwater.log.repair.fsck import fsck_directory
    from catchwater.log.repair.replace import has_catalog

    data = settings.log_dirs
    if not settings.is_shared:
        # A catalog that was made of the object store alone has no write-ahead log yet.
        if not (data / "wal").is_dir() and not has_catalog(data):
            raise NoLogThere(f"{data} holds no log.", hint="name another with --data")
        objects = _objects(settings.catchwater_objects, data)
        return fsck_directory(data, objects, deep=deep, progress=progress, clock=SYSTEM)
    from catchwater.log.open import open_catalog

    with closing(open_catalog(settings.catchwater_catalog, SYSTEM)) as catalog:
        objects = _objects(settings.catchwater_objects, data)
        files = LogFiles(objects, settings.catchwater_wal_dir, catalog.payload)
        return check(catalog, files, deep=deep, progress=progress)


@app.command()
def rebuild(
    to: Annotated[
        str,
        typer.Option(
            metavar="DIR|URL", help="The data directory, or an empty PostgreSQL database."
        ),
    ],
    source: Annotated[
        str,
        typer.Option("--from", metavar="DIR|URL", help="The object store; DIR/objects by default."),
    ] = "",
    wal_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="catchwater.wal.dir of several brokers.")
    ] = None,
    guess: Annotated[
        bool, typer.Option(help="Also take chunks of unknown order, by the time they were made.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the catalog from what is stored.

    From the object store and, of a broker alone, its write-ahead log. Exit 3 if something is lost
    or uncertain. A catalog that is there is moved aside, and only with --yes.
    """
    if "://" in to:
        if not source:
            raise typer.BadParameter("name the object store", param_hint="--from")
        rebuilt = _rebuild_shared(to, _objects(source, Path()), wal_dir, guess, dry_run)
    else:
        rebuilt = _rebuild_directory(Path(to), source, guess, yes, dry_run)
    _print_rebuilt(rebuilt, as_json)
    if any(found.kind != "note" for found in rebuilt.findings):
        raise typer.Exit(WARNS)


def _rebuild_directory(
    data: Path, source: str, guess: bool, yes: bool, dry_run: bool
) -> "RebuiltCatalog":
    from catchwater.log.directory import locked, new_cluster_id
    from catchwater.log.repair.files import LogFiles
    from catchwater.log.repair.rebuild import rebuild as read_all
    from catchwater.log.repair.replace import CatalogThere, has_catalog, replace_catalog

    with locked(data):
        if has_catalog(data) and not (yes or dry_run):
            raise CatalogThere(
                f"There is a catalog in {data}.",
                hint="say --yes to have it moved aside, or --dry-run to see what would be made",
            )
        files = LogFiles(_objects(source, data), data)
        rebuilt = read_all(files, new_cluster_id(SYSTEM), guess=guess)
        if not dry_run:
            aside = replace_catalog(data, rebuilt, SYSTEM)
            talk(f"the catalog in {data} is made" + (f"; the old one is {aside}" if aside else ""))
    return rebuilt


def _rebuild_shared(
    url: str, objects: "ObjectStore", wal_dir: Path | None, guess: bool, dry_run: bool
) -> "RebuiltCatalog":
    from catchwater.log.directory import new_cluster_id
    from catchwater.log.open import open_catalog
    from catchwater.log.repair.files import LogFiles
    from catchwater.log.repair.rebuild import rebuild as read_all
    from catchwater.log.repair.replace import CatalogThere

    rebuilt = read_all(LogFiles(objects, wal_dir), new_cluster_id(SYSTEM), guess=guess)
    if not dry_run:
        with closing(open_catalog(url, SYSTEM)) as catalog:
            if catalog.load().topics or catalog.groups():
                raise CatalogThere(
                    "The database holds a catalog already.", hint="name an empty database with --to"
                )
            rebuilt.write(catalog)
        talk("the catalog was made; start the brokers")
    return rebuilt


def _print_rebuilt(rebuilt: "RebuiltCatalog", as_json: bool) -> None:
    properties = {
        "backup": rebuilt.backup.number if rebuilt.backup else None,
        "backup_created_ms": rebuilt.backup.created_ms if rebuilt.backup else None,
        "topics": len(rebuilt.state["topic"]),
        "runs": len(rebuilt.runs),
        "objects": len(rebuilt.objects),
        "frames": rebuilt.frames,
    }
    if as_json:
        print_json({**properties, "findings": [found._asdict() for found in rebuilt.findings]})
        return
    print_table(["property", "value"], [(k.replace("_", " "), v) for k, v in properties.items()])
    if rebuilt.findings:
        rows = [
            (
                found.kind,
                f"{found.topic}-{found.partition}" if found.partition >= 0 else "",
                _span(found.first_offset, found.last_offset),
                found.what,
            )
            for found in rebuilt.findings
        ]
        print_table(["finding", "partition", "offsets", "what"], rows)


def _objects(place: str, data: Path) -> "ObjectStore":
    """The store of a URL or a directory; by default the one in the data directory."""
    from catchwater.objects.open import check_seal, open_store

    if "://" not in place:
        folder = Path(place) if place else data / "objects"
        if not folder.is_dir():
            raise NoLogThere(f"{folder} holds no objects.", hint="name the directory that does")
        place = folder.absolute().as_uri()
    store = open_store(place, SYSTEM)
    check_seal(store, may_write=False)
    return store


@contextmanager
def _progress(is_quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, else nothing."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    terminal = console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=terminal, transient=True, disable=is_quiet or not terminal.is_terminal
    ) as bar:
        task = bar.add_task("bytes", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
