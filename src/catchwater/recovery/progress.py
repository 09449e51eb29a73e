"""How far a restore is that is under way: per shard of state and per partition of input.

A driver that starts with something to catch up with says so in `catchwater/catching-up.json`: from
where to where each partition is read, and where the shards' local copies lie; it moves the ends on
with the log, and takes the file away when the restore is over (`epochs.RestoreWatch`). A task
that reads a shard's state notes how far it is beside the shard's local copy (`state.store`), which
only processes on its machine see. Partitions get on by epochs: one epoch may be all there is.

Pure but for reading and writing those files.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from catchwater.recovery.estimate import Tail
from catchwater.recovery.ledger import FOLDER, EpochEntry, LedgerDamaged, read_json, write_whole
from catchwater.state.store import read_rebuilding


class Range(msgspec.Struct, frozen=True):
    """What is to be read of one partition."""

    topic: str
    partition: int
    first: int
    end: int
    """Where the log ended when it was last asked."""
    record_bytes: float = 0.0
    """Of a record of it, about."""


class CatchingUp(msgspec.Struct, frozen=True):
    """A restore that is under way."""

    began_ms: int
    epoch: int
    """The first to run."""
    inputs: list[Range]
    shards: dict[str, str] = {}
    """Function → the folder of its shards' local copies, on the machine that read them."""


class Done(msgspec.Struct, frozen=True):
    """How far one part is."""

    name: str
    done: int
    of: int
    percent: float
    per_s: float | None = None
    """Bytes of state, or records, a second; None: not known yet."""
    bytes_per_s: float | None = None
    eta_s: float | None = None


class Progress(msgspec.Struct, frozen=True):
    """How far all is."""

    since_s: float
    """From the start of the process."""
    percent: float
    """Of the input's records."""
    eta_s: float | None
    """Until the end of the log is reached; None: not known yet, or never."""
    phase: str
    """`session`, `state` or `input`."""
    shards: list[Done]
    """The shards whose state has to be read, on this machine."""
    partitions: list[Done]


def begin(folder: Path, catching_up: CatchingUp) -> None:
    """Say what is to be caught up with."""
    write_whole(_file(folder), msgspec.json.encode(catching_up))


def move_on(folder: Path, tail: Tail) -> None:
    """The log ends elsewhere by now."""
    under_way = read(folder)
    if under_way is not None:
        inputs = [
            msgspec.structs.replace(each, end=tail.get((each.topic, each.partition), each.end))
            for each in under_way.inputs
        ]
        begin(folder, msgspec.structs.replace(under_way, inputs=inputs))


def end(folder: Path) -> None:
    """It has caught up, or there is nothing to catch up with."""
    with suppress(OSError):
        _file(folder).unlink(missing_ok=True)


def read(folder: Path) -> CatchingUp | None:
    """The restore that is under way, or was when the last process died. None: there is none."""
    with suppress(LedgerDamaged, OSError):
        return read_json(_file(folder), CatchingUp)
    return None


def progress(
    under_way: CatchingUp,
    entries: Sequence[EpochEntry],
    *,
    now_ms: int,
    input_per_s: float = 0.0,
    capacity_per_s: float | None = None,
) -> Progress:
    """How far it is; `entries` are the ledger's, oldest first.

    Until an epoch is done the time left is by `capacity_per_s`, which a contract knows.
    """
    ran = [each for each in entries if each.epoch >= under_way.epoch]
    at: Mapping[str, Mapping[str, int]] = ran[-1].end.offsets if ran else {}
    over_s = 0.0
    if ran:
        over_s = max(0.001, (ran[-1].finished_ms - ran[0].finished_ms + ran[0].run_ms) / 1000)
    partitions = [_partition(each, at, over_s) for each in under_way.inputs]
    shards = [] if ran else _shards(under_way)
    done, of = (sum(getattr(each, name) for each in partitions) for name in ("done", "of"))
    per_s = done / over_s if done and over_s else capacity_per_s
    gain_per_s = (per_s or 0.0) - input_per_s
    phase = "input" if ran else "state" if any(each.done for each in shards) else "session"
    return Progress(
        since_s=round((now_ms - under_way.began_ms) / 1000, 1),
        percent=_percent(done, of),
        eta_s=round((of - done) / gain_per_s, 1) if gain_per_s > 0 else None,
        phase=phase,
        shards=shards,
        partitions=partitions,
    )


def _partition(given: Range, at: Mapping[str, Mapping[str, int]], over_s: float) -> Done:
    read_to = at.get(given.topic, {}).get(str(given.partition), given.first)
    done, of = max(0, read_to - given.first), max(0, given.end - given.first)
    per_s = done / over_s if done and over_s else None
    return Done(
        f"{given.topic}-{given.partition}",
        min(done, of),
        of,
        _percent(done, of),
        None if per_s is None else round(per_s, 1),
        None if per_s is None else round(per_s * given.record_bytes, 1),
        None if per_s is None else round(max(0, of - done) / per_s, 1),
    )


def _shards(under_way: CatchingUp) -> list[Done]:
    found = []
    for function, folder in under_way.shards.items():
        for directory in sorted(Path(folder).glob("*"), key=lambda path: path.name.zfill(9)):
            note = read_rebuilding(directory)
            if note is None or note.began_ms < under_way.began_ms:
                continue
            over_s = (note.at_ms - note.began_ms) / 1000
            per_s = note.read_bytes / over_s if over_s > 0 and note.read_bytes else None
            left = max(0, note.bytes - note.read_bytes)
            found.append(
                Done(
                    f"{function} {directory.name}",
                    note.read_bytes,
                    note.bytes,
                    _percent(note.read_bytes, note.bytes),
                    None if per_s is None else round(per_s, 1),
                    None if per_s is None else round(per_s, 1),
                    None if per_s is None else round(left / per_s, 1),
                )
            )
    return found


def _percent(done: int, of: int) -> float:
    return round(min(100.0, 100 * done / of), 1) if of else 100.0


def _file(folder: Path) -> Path:
    return folder / FOLDER / "catching-up.json"
