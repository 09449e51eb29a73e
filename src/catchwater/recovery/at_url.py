"""Which URL a checkpoint's folder is the scratch of: its `url.json`, and what it is called by.

A checkpoint that is a folder has no such file.
"""

import hashlib
import re
from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import FOLDER, LedgerDamaged, read_json, write_whole


class Url(msgspec.Struct, frozen=True):
    """`url.json`, beside the files that are published."""

    url: str
    token: str = ""
    """Of the last claim that was made from here."""
    elsewhere: str = ""
    """Who held the lease when the folder was last brought up to date, if not a process here."""
    read_ms: int = 0
    """When that was; 0: never."""


class NotAtUrl(CatchwaterError):
    """What was asked for needs a checkpoint that is a folder."""

    exit_code = 2


def folder_of(url: str, cache: Path) -> Path:
    """The folder here of the checkpoint at this URL; there afterwards."""
    named = re.sub(r"[^A-Za-z0-9-]+", "-", url.partition("://")[2].partition("?")[0]).strip("-")
    folder = cache / "checkpoints" / f"{named}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    try:
        known = url_of(folder)
    except LedgerDamaged:
        known = None
    if known != url:
        keep(folder, Url(url))
    return folder


def url_of(folder: Path) -> str | None:
    """The URL that the folder is scratch of; None: it is a checkpoint itself."""
    kept = read(folder)
    return kept.url if kept else None


def shown(folder: Path) -> str:
    """The checkpoint as the pipeline's file names it, for people; raises nothing."""
    try:
        return url_of(folder) or str(folder)
    except (LedgerDamaged, OSError):
        return str(folder)


def refuse_url(folder: Path, what: str) -> None:
    """Raise `NotAtUrl` for what needs a second checkpoint beside this one."""
    if (url := url_of(folder)) is not None:
        raise NotAtUrl(
            f"{what} needs a checkpoint that is a folder, and this one is {url}.",
            hint="Take a savepoint and restore it by a file that names a folder: catchwater "
            "savepoint create FILE; savepoint restore FILE NAME.",
        )


def read(folder: Path) -> Url | None:
    """What the file says; None: there is none. Raises `LedgerDamaged`."""
    return read_json(_file(folder), Url)


def keep(folder: Path, at: Url) -> None:
    """Write the file."""
    write_whole(_file(folder), msgspec.json.encode(at))


def _file(folder: Path) -> Path:
    return folder / FOLDER / "url.json"
