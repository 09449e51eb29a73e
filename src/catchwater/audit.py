"""The audit trail: lines that say who did what, and prove that none was changed or taken away.

A line is JSON and holds the hash of the line before it, so an edited, a missing and an added line
all break the chain at a place that `verify` names. A cut end breaks nothing, and who can write the
files can make a whole new chain; so the head is anchored again and again: as an object whose key
has the number and the hash of a line (`audit/<name>/<chain>/…`). An object store that lets nobody
overwrite or delete (a bucket with object lock) makes that a proof.

    {"chain": …, "number": 1, "time_ms": …, "kind": "action", "principal": …, …, "previous": …,
     "hash": …}

`Trail` keeps the files of one chain: it goes on where they end, after a crash as well, begins a new
one at `FILE_BYTES`, and deletes those that are older than the retention, which is a line itself.
Blocking, and used by one thread at a time.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectExists, ObjectStore

AUDIT_TOPIC = "__catchwater_audit"
"""Has the same lines; nobody may write to it, delete it or shorten it."""
FILE_BYTES = 16 * 1024 * 1024
LONGEST_VALUE = 8_192
"""Of what was there before and after, as JSON; of a longer one there is its hash."""
ANCHORS = "audit/"
_BEGINNING = "0" * 64


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, before it has a place in a chain."""

    time_ms: int
    kind: str
    """`refusal`, `login` (one that failed), `action`, or `trail` (of the trail itself)."""
    principal: str
    listener: str
    host: str
    action: str
    """Kafka's API and operation, a path of the control API, or a command."""
    resource: str
    rule: str = ""
    before: Any = None
    after: Any = None
    count: int = 1
    """How often; more than 1 where many alike were summed."""


class Line(Event, frozen=True, kw_only=True):
    """An event in its chain."""

    chain: str
    number: int
    previous: str
    hash: str = ""


class TrailBroken(CatchwaterError):
    """The newest file does not end with a line of its chain."""


def bounded(value: Any) -> Any:
    """The value, or its size and hash if it is too long for a line."""
    data = msgspec.json.encode(value)
    if len(data) <= LONGEST_VALUE:
        return value
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def linked(chain: str, number: int, previous: str, event: Event) -> Line:
    """The event as the chain's next line."""
    values = {name: getattr(event, name) for name in Event.__struct_fields__}
    values |= {"before": bounded(event.before), "after": bounded(event.after)}
    line = Line(**values, chain=chain, number=number, previous=previous)
    return msgspec.structs.replace(line, hash=_hash(line))


def _hash(line: Line) -> str:
    bare = msgspec.structs.replace(line, hash="")
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def encoded(line: Line) -> bytes:
    """The line's bytes, without the newline."""
    return msgspec.json.encode(line, order="sorted")


class Head(NamedTuple):
    """Where a chain has come to."""

    number: int
    hash: str


class Trail:
    """One chain of lines in the files of a folder, which this process alone goes on with."""

    def __init__(
        self, folder: Path, name: str, clock: Clock, *, retention_ms: int, about: str = "trail"
    ) -> None:
        """Open or begin it. `name` is whose trail it is, for anchors.

        Raises `TrailBroken`, or `OSError`.
        """
        self.folder, self.name = folder, name
        self._clock, self._retention_ms, self._about = clock, retention_ms, about
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = -1
        with ExitStack() as undo:
            undo.callback(self.close)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._open()
            undo.pop_all()
        self.anchored = Head(0, "")

    def _open(self) -> None:
        newest = files(self.folder)[-1:]
        if not newest:
            self.chain, self.head = self._clock.uuid().hex, Head(0, _BEGINNING)
            self._begin_file()
            self.append([self._own("BEGIN")])
            return
        path = newest[0]
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:  # a crash before the file's first line was whole
            path.unlink()
            self._open()
            return
        try:
            last = msgspec.json.decode(whole.rstrip(b"\n").rpartition(b"\n")[2], type=Line)
        except msgspec.DecodeError as error:
            raise TrailBroken(
                f"The last line of the audit trail {path} is none.",
                hint="Keep the folder as evidence, and name another: catchwater.audit.dir.",
            ) from error
        self.chain, self.head = last.chain, Head(last.number, last.hash)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._size = len(whole)
        if len(whole) < len(data):
            os.ftruncate(self._file, len(whole))
            self.append([self._own("TORN", after={"bytes": len(data) - len(whole)})])

    def _begin_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        path = self.folder / f"audit-{self.head.number + 1:012d}.jsonl"
        self._file = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        self._size = 0

    def _own(self, action: str, **more: Any) -> Event:
        return Event(
            time_ms=self._clock.now_ms(), kind="trail", principal="", listener="", host="",
            action=action, resource=self.name, **more,
        )  # fmt: skip

    def append(self, events: Sequence[Event]) -> list[Line]:
        """Write and sync these as the next lines. After an `OSError` none of them is there."""
        lines: list[Line] = []
        head = self.head
        for event in events:
            lines.append(linked(self.chain, head.number + 1, head.hash, event))
            head = Head(lines[-1].number, lines[-1].hash)
        data = b"".join(encoded(line) + b"\n" for line in lines)
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, memoryview(data)[written:])
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self.head, self._size = head, self._size + len(data)
        if self._size >= FILE_BYTES:
            self._begin_file()
            self._prune()
        return lines

    def _prune(self) -> None:
        """Delete the files all of whose lines are older than the retention; that is a line."""
        before_ms = self._clock.now_ms() - self._retention_ms
        kept = files(self.folder)
        gone: list[Path] = []
        while len(kept) > 1 and kept[0].stat().st_mtime_ns // 1_000_000 < before_ms:
            gone.append(kept.pop(0))
        if gone:
            self.append([self._own("RETENTION", after={"first": first_number(kept[0])})])
            for path in gone:
                path.unlink()

    def anchor(self, objects: ObjectStore) -> None:
        """Put the head into the object store, if it has moved. Raises `StoreError`."""
        head = self.head
        if head == self.anchored:
            return
        key = f"{ANCHORS}{self.name}/{self.chain}/{head.number:012d}-{head.hash}"
        try:
            objects.put_if_absent(key, [str(self._clock.now_ms()).encode()])
        except ObjectExists:
            pass  # put before a restart
        self.anchored = head

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1


def files(folder: Path) -> list[Path]:
    """The files of a trail, the oldest first."""
    return sorted(folder.glob("audit-*.jsonl"))


def first_number(path: Path) -> int:
    """The number of a file's first line, by its name."""
    return int(path.stem.partition("-")[2])


# --- Verification


class Finding(NamedTuple):
    """What is wrong, and where."""

    where: str
    what: str


class Verified(NamedTuple):
    """What a look at a trail found."""

    lines: int
    heads: dict[str, Head]
    """By chain."""
    anchors: int
    findings: list[Finding]


def verify(
    places: Iterable[tuple[str, bytes]], anchors: Iterable[str] = (), *, whole: bool = True
) -> Verified:
    """Whether the lines are those that were written; `places` are names of places and their bytes.

    `anchors` are keys of objects (`anchored_heads`). `whole`: the lines are all that there were;
    else there may be more before and behind.
    """
    chains: dict[str, _Chain] = {}
    findings: list[Finding] = []
    count = 0
    for where, data in places:
        count += 1
        try:
            line = msgspec.json.decode(data, type=Line)
        except msgspec.DecodeError:
            findings.append(Finding(where, "is no line of an audit trail: edited, or cut off"))
            continue
        chain = chains.setdefault(line.chain, _Chain(whole))
        findings += [Finding(where, what) for what in chain.add(line, data)]
    found_anchors = sorted(anchors)
    for key in found_anchors:
        _, _, rest = key.rpartition(ANCHORS)
        _, chain_id, place = rest.split("/")
        number, _, hash_ = place.partition("-")
        if what := chains.setdefault(chain_id, _Chain(whole)).anchored(int(number), hash_):
            findings.append(Finding(f"line {int(number)} of chain {chain_id}", what))
    for chain in chains.values():
        findings += chain.missing_start()
    heads = {name: chain.head for name, chain in chains.items()}
    return Verified(count, heads, len(found_anchors), findings)


class _Chain:
    """The lines of one chain as they come."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self.head = Head(0, _BEGINNING)
        self._first = 0
        self._pruned = 1
        """The first line that retention has left."""
        self._hashes: dict[int, str] = {}

    def add(self, line: Line, data: bytes) -> Iterator[str]:
        own = _hash(line)
        if own != line.hash or data.strip() != encoded(line):
            yield f"line {line.number} was edited: its hash is not that of its content"
        if not self._first:
            self._first = line.number
        elif line.number != self.head.number + 1:
            missing = f"lines {self.head.number + 1} to {line.number - 1}"
            if line.number == self.head.number + 2:
                missing = f"line {line.number - 1}"
            yield (
                f"{missing} before it: removed"
                if line.number > self.head.number
                else f"line {line.number} comes again: added"
            )
        elif line.previous != self.head.hash:
            yield f"line {self.head.number} before it was edited, or is another one"
        if line.kind == "trail" and line.action == "RETENTION":
            self._pruned = int(line.after["first"])
        self.head = Head(line.number, line.hash)
        self._hashes[line.number] = line.hash

    def anchored(self, number: int, hash_: str) -> str | None:
        """What is wrong with the line that an anchor names."""
        found = self._hashes.get(number)
        if found is not None:
            return None if found == hash_ else "is not the one that was anchored: rewritten"
        if number > self.head.number and self._whole:
            return f"was anchored, and the trail ends at line {self.head.number}: truncated"
        return None

    def missing_start(self) -> Iterator[Finding]:
        if self._whole and self._first > self._pruned:
            removed = f"lines {self._pruned} to {self._first - 1}"
            yield Finding("the beginning", f"{removed} are not there: removed")


def lines_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The lines of a trail's files, or of one file, with their places."""
    for path in files(folder) if folder.is_dir() else [folder]:
        for number, data in enumerate(path.read_bytes().splitlines(), start=1):
            yield f"{path}:{number}", data


def anchored_heads(objects: ObjectStore, name: str) -> list[str]:
    """The keys of the anchors of a trail."""
    return [info.key for info in objects.list(f"{ANCHORS}{name}/")]


def about(topic: str, lines: Iterable[tuple[str, bytes]]) -> Iterator[Line]:
    """The lines of actions that concern a topic: changes of it, pins that hold it, plans of it."""
    named = f"TOPIC {topic}"
    for _, data in lines:
        if topic.encode() not in data:
            continue
        try:
            line = msgspec.json.decode(data, type=Line)
        except msgspec.DecodeError:
            continue
        if line.kind == "action" and (
            line.resource == named or topic in (*_held(line.before), *_held(line.after))
        ):
            yield line


def _held(value: Any) -> set[str]:
    """The topics of a pin's positions."""
    positions = value.get("positions", ()) if isinstance(value, dict) else ()
    return {each["topic"] for each in positions if isinstance(each, dict) and "topic" in each}
