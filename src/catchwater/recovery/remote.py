"""A checkpoint at a URL: its files in a log in an object store, and a folder here that is scratch.

All code works on a folder. Where the checkpoint is a URL, that folder lies in this machine's cache
and holds nothing of its own: who takes the checkpoint's lock takes its lease in the store as well
(`fenced`), and makes the folder again from the log; what changes there counts once it is published:

- an epoch's end (Spark's `offsets/N`) before any sink is given the epoch's outputs, so that another
  driver that goes on repeats the same epoch;
- its entry in the ledger before Spark commits it: with that, the epoch is;
- contracts, and what is forgotten, behind it.

Spark's `commits/N` are made up of the entries. Locks, the supervisor's notes and Spark's log belong
to this machine and stay here. State, staged outputs and answers are objects in the same store
(`folder.home_of`).

A process that only reads has the folder brought up to date first (`refresh`), unless one on this
machine works on it.
"""

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import StoreError
from catchwater.objects.open import check_seal, open_store
from catchwater.objects.retry import PATIENT, RetryPolicy
from catchwater.recovery import checkpoint as spark_log
from catchwater.recovery import fenced
from catchwater.recovery.fenced import Changes, Claim, Files, Holder, LeaseLost
from catchwater.recovery.ledger import (
    FOLDER,
    EpochEntry,
    LedgerDamaged,
    Url,
    between,
    keep_url,
    numbered,
    read_url,
    shown,
)

_log = logging.getLogger("catchwater.recovery")

_EPOCHS = re.compile(rf"{FOLDER}/epochs/(\d+)\.json")
_HERE = {
    "alive",
    "catching-up.json",
    "compared.json",
    "failure.json",
    "spark.log",
    "supervisor.json",
    "url.json",
    "holds",
}
"""What belongs to this machine, in the ledger's folder; locks do as well."""
_LASTING = {"beginning.json", "pipeline.json", "versions.json"}
"""What no process of ours takes out of the ledger's folder."""
LOOKS = 10
"""How often during one lease a waiting driver looks."""
_KEPT_CODE = f"{FOLDER}/code/"
"""Files named by their content: one too many does no harm, and may be about to be needed."""


class ElsewhereInUse(CatchwaterError):
    """A process on another machine works on this checkpoint, or has been lost there."""


class ScratchGone(CatchwaterError):
    """Something else has deleted in the scratch folder of a checkpoint that is in use."""


class Remote:
    """A checkpoint at a URL, in the hands of this process."""

    def __init__(self, folder: Path, writer: fenced.Writer, clock: Clock) -> None:
        self._folder = folder
        self._writer = writer
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, int, int]] = {}
        """Path → what its status was when it was found to be as published."""
        self._ended = threading.Event()

    def publish(self) -> None:
        """Commit what has changed in the folder. Raises `LeaseLost`, `StoreError`."""
        with self._lock:
            self._writer.check()
            while changes := self._changes():
                self._writer.append(changes)

    def still(self) -> None:
        """Raise `LeaseLost` if another driver has begun to take over. Asks the store."""
        with self._lock:
            self._writer.look()

    def check(self) -> None:
        """Raise `LeaseLost` if that is known by now."""
        self._writer.check()

    def hold(self) -> None:
        """The same, and ask the store after a standstill."""
        with self._lock:
            self._writer.hold()

    @property
    def claim(self) -> Claim:
        """The fence that it was taken with."""
        return self._writer.claim

    def keep(self) -> None:
        """Renew the lease until `release`, on a thread of its own."""
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._renewing.start()

    def release(self) -> None:
        """Let go: another driver need not wait."""
        self._ended.set()
        self._renewing.join(self._writer.mine.lease_ms / 1000)
        with suppress(LeaseLost, StoreError):
            self._writer.beat(released=True)

    def _renew(self) -> None:
        while not self._ended.wait(self._writer.mine.lease_ms / 1000 / fenced.BEATS):
            try:
                self._writer.beat()
            except LeaseLost as lost:
                _log.error("%s", lost)
                return
            except StoreError as error:
                _log.warning("The lease was not renewed: %s", error)

    def _changes(self) -> dict[str, bytes | None]:
        """What is in the folder and not in the log, and the other way."""
        published = self._writer.files
        changes: dict[str, bytes | None] = {}
        there = set()
        for path, status in _files(self._folder):
            there.add(path)
            if self._seen.get(path) == status and path in published:
                continue
            try:
                content = (self._folder / path).read_bytes()
            except FileNotFoundError:
                there.discard(path)
                continue
            if published.get(path) != content:
                changes[path] = content
            else:
                self._seen[path] = status
        gone = published.keys() - there
        lost = [path for path in sorted(gone) if not self._may_go(path, there, changes)]
        if lost:
            raise ScratchGone(
                f"Files have vanished from {self._folder}, a checkpoint's scratch folder, "
                f"{lost[0]} among them; nothing was published.",
                hint="A start makes the folder again. Keep other programs from deleting in it.",
            )
        return {**changes, **dict.fromkeys(gone)}

    def _may_go(self, path: str, there: Set[str], changes: Changes) -> bool:
        """Whether a file is gone because we moved or forgot it, and not with the whole folder."""
        parent, _, name = path.rpartition("/")
        if parent == FOLDER:
            return name not in _LASTING
        content = self._writer.files[path]
        kept = (each for other, each in self._writer.files.items() if other in there)
        if parent == f"{FOLDER}/contracts" or content in changes.values() or content in kept:
            return True
        number = name.partition(".")[0]
        if parent == f"{FOLDER}/between":
            oldest = min(numbered(self._folder / FOLDER / "epochs", ".json"), default=-1)
            return any(last < oldest for _, last in between([name]))
        left = [*numbered(self._folder / parent, name.removeprefix(number))]
        if not (number.isdigit() and left):
            return False
        if parent == f"{FOLDER}/epochs":
            known = between(each.rpartition("/")[2] for each in there)
            if any(first <= int(number) <= last for first, last in known):
                return True
        # We forget the oldest first; Spark purges in any order, and keeps the newest two at least.
        return int(number) < (max(left) - 1 if parent == "offsets" else min(left))


_taken: dict[Path, Remote] = {}
"""Folder → the checkpoint that this process has in hand."""


# In the hands of this process. For a folder that is a checkpoint itself, all this does nothing.


def take(folder: Path, clock: Clock, *, lease_ms: int = fenced.LEASE_MS, lapsed: str = "") -> None:
    """Take the lease, and make the folder again. The caller holds its lock, and calls `release`.

    `lapsed` is the token of a holder that has been silent for its whole lease. Raises `LeaseHeld`,
    `LedgerDamaged`, `StoreError`, which other keys than those it was sealed with are.
    """
    if (kept := read_url(folder)) is None:
        return
    store = open_store(kept.url, clock)
    check_seal(store)
    # Whoever took it from here last is gone: it held the lock that is ours now.
    writer = fenced.take(store, clock, gone=(kept.token, lapsed), lease_ms=lease_ms)
    keep_url(folder, Url(kept.url, writer.mine.token))
    remote = Remote(folder, writer, clock)
    _taken[folder] = remote
    remote.keep()
    _make(folder, writer.files, clock)


def release(folder: Path) -> None:
    """Let go of it. What was not published is not."""
    if (remote := _taken.pop(folder, None)) is not None:
        remote.release()


def publish(folder: Path, *, ask: bool = False) -> None:
    """Commit what has changed; `ask` whether this is the driver still, also where nothing has.

    What a store cannot take back comes next then. Raises `LeaseLost`, `StoreError`.
    """
    if (remote := _taken.get(folder)) is not None:
        remote.publish()
        if ask:
            remote.still()


def check(folder: Path) -> None:
    """Raise `LeaseLost` if another driver has taken over."""
    if (remote := _taken.get(folder)) is not None:
        remote.check()


def hold(folder: Path) -> None:
    """Raise `LeaseLost` if another driver has taken over; asks the store after a standstill only.

    For what can be asked right before each thing that cannot be taken back. Raises `StoreError`.
    """
    if (remote := _taken.get(folder)) is not None:
        remote.hold()


def claim_of(folder: Path) -> Claim | None:
    """The fence this process holds; None: none, or the folder is a checkpoint itself."""
    remote = _taken.get(folder)
    return remote.claim if remote else None


# Not held by this process.


def await_turn(folder: Path, wait: Callable[[float], bool], clock: Clock) -> str:
    """Wait until no other machine works on it; the token of a holder that was silent for a lease.

    `wait` waits for so many seconds, and says whether to go on waiting. Raises `StoreError`.
    """
    if (kept := read_url(folder)) is None:
        return ""
    store, seen, since_s, said = open_store(kept.url, clock), None, 0.0, ""
    while True:
        end = fenced.read_end(store)
        if end.holder is None or end.released or end.holder.token == kept.token:
            return ""
        if (end.number, end.fence, end.beat) != seen:
            seen, since_s = (end.number, end.fence, end.beat), clock.monotonic_s()
        elif clock.monotonic_s() - since_s >= end.holder.lease_ms / 1000:
            return end.holder.token
        if said != end.holder.token:
            said = end.holder.token
            _log.info("Standing by: %s works on %s.", end.holder, kept.url)
        if not wait(end.holder.lease_ms / 1000 / LOOKS):
            return ""


def refresh(folder: Path, clock: Clock, policy: RetryPolicy = PATIENT) -> None:
    """Make the folder as the log has it. The caller holds its lock, and does not go on to write."""
    if (kept := read_url(folder)) is None or folder in _taken:
        return
    store = open_store(kept.url, clock, policy)
    check_seal(store, may_write=False)
    end = fenced.read_end(store)
    _make(folder, end.files, clock)
    found = msgspec.structs.replace(
        kept, elsewhere=str(_other(end, kept) or ""), read_ms=clock.now_ms()
    )
    keep_url(folder, found)


def read_ms(folder: Path) -> int:
    """When the folder was last brought up to date; 0: never."""
    kept = read_url(folder)
    return kept.read_ms if kept else 0


def elsewhere(folder: Path) -> str | None:
    """Who else held the lease when the folder was last brought up to date, in words."""
    kept = read_url(folder)
    return kept.elsewhere or None if kept else None


def works_elsewhere(folder: Path, clock: Clock) -> Holder | None:
    """Who holds the lease and has not let go, on another machine than this or in another folder."""
    if (kept := read_url(folder)) is None or folder in _taken:
        return None
    return _other(fenced.read_end(open_store(kept.url, clock)), kept)


def _other(end: fenced.End, kept: Url) -> Holder | None:
    if end.holder is None or end.holder.token == kept.token or end.released:
        return None
    return end.holder


def refuse_elsewhere(folder: Path, clock: Clock) -> None:
    """Raise `ElsewhereInUse` where what is read here could be deleted from there meanwhile."""
    if (holder := works_elsewhere(folder, clock)) is not None:
        raise ElsewhereInUse(
            f"The checkpoint {shown(folder)} is in use by {holder}.",
            hint="Do it there, or stop the pipeline there first. If that machine is lost, start "
            "the pipeline here: catchwater pipeline run FILE.",
        )


# Folder and log.


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, int, int]]]:
    """What is published of a folder: path, and a status that changes with the content."""
    for top in (FOLDER, "offsets"):
        for parent, names, files in os.walk(folder / top):
            inside = Path(parent).relative_to(folder)
            names[:] = [name for name in names if _is_shared(inside / name)]
            for name in files:
                if _is_shared(inside / name):
                    with suppress(FileNotFoundError):
                        status = os.stat(folder / inside / name)
                        found = (status.st_mtime_ns, status.st_size, status.st_ino)
                        yield (inside / name).as_posix(), found


def _is_shared(path: Path) -> bool:
    name = path.name
    if name.startswith("."):
        return False
    if path.parent.as_posix() != FOLDER:
        return True
    return not (name in _HERE or name.startswith("seen-") or name.endswith("lock"))


def _make(folder: Path, files: Files, clock: Clock) -> None:
    """Make the folder what the log says, Spark's own files included.

    Not synced, for it can be made again. What Spark has of an epoch goes first, its commit last, so
    that a folder that was made in part is one of a driver that was killed; and it is made again.
    """
    _forget_spark(folder, files)
    for path, _ in list(_files(folder)):
        if path not in files and not path.startswith(_KEPT_CODE):
            (folder / path).unlink(missing_ok=True)
    for path, content in files.items():
        if path.startswith("/") or ".." in path.split("/"):
            raise LedgerDamaged(f"The log of {shown(folder)} names a file {path!r}.")
        at = folder / path
        if not (at.is_file() and at.read_bytes() == content):
            at.parent.mkdir(parents=True, exist_ok=True)
            at.unlink(missing_ok=True)
            at.write_bytes(content)
    ends = {*numbered(folder / "offsets")}
    for epoch, entry in _entries(files).items():
        if epoch in ends and not (folder / "commits" / str(epoch)).exists():
            spark_log.write_commit(folder, epoch, entry.finished_ms)
    if ends:
        spark_log.name_query(folder, clock)
        for log in ("sources", "commits"):
            (folder / log).mkdir(exist_ok=True)


def _forget_spark(folder: Path, files: Files) -> None:
    """Take away the commits that are no longer, and checksums of files that may change."""
    entries = _entries(files)
    for epoch in list(numbered(folder / "commits")):
        if epoch not in entries:
            (folder / "commits" / str(epoch)).unlink(missing_ok=True)
    for log in ("commits", "offsets"):
        for path in (folder / log).glob(".*"):
            path.unlink(missing_ok=True)


def _entries(files: Files) -> dict[int, EpochEntry]:
    """The ledger's entries; one that cannot be read is for the start to find."""
    found = {}
    for path, content in files.items():
        if match := _EPOCHS.fullmatch(path):
            with suppress(msgspec.DecodeError):
                found[int(match[1])] = msgspec.json.decode(content, type=EpochEntry)
    return found
