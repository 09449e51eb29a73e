"""Going back to an older checkpoint, and looking before the leap.

Restoring epoch N moves what was written after it into `catchwater/replayed/`: Spark's offset and
commit files, our ledger entries and contracts. Nothing is deleted, and state is not touched: the
entry of epoch N names its own. The moved offset files are what the source issues again, so that the
epochs after N are the same epochs.

A marker stands while files are being moved; whoever opens the checkpoint next finishes the move.
A checkpoint whose input the log no longer holds is refused with both offsets.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.recovery import checkpoint, handover
from catchwater.recovery.checkpoint import Checkpoint
from catchwater.recovery.contract import Contract, PartitionTail
from catchwater.recovery.ledger import (
    Ledger,
    LedgerDamaged,
    SourceOffset,
    numbered,
    read_json,
    read_offset,
    sync_folder,
    write_whole,
)
from catchwater.recovery.lock import lock


class HistoryGone(CatchwaterError):
    """The log does not reach back to a checkpoint's offsets; replaying would skip records."""

    exit_code = 5


class LogBehind(CatchwaterError):
    """The log ends before a checkpoint's offsets: it is not the log the checkpoint came from."""

    exit_code = 5


class NoSuchCheckpoint(CatchwaterError):
    """The epoch asked for is not one that Spark committed and still has."""

    exit_code = 2


def check_covered(end: SourceOffset, tails: Mapping[tuple[str, int], PartitionTail]) -> None:
    """Raise `HistoryGone` or `LogBehind` unless the log can go on from these offsets."""
    for topic, partitions in end.needed.items():
        for partition, offset in partitions.items():
            tail = tails.get((topic, int(partition)))
            if tail is None:
                raise HistoryGone(f"The log has no partition {topic}-{partition} any more.")
            if offset < tail.log_start:
                raise HistoryGone(
                    f"The checkpoint of epoch {end.epoch} needs {topic}-{partition} from offset "
                    f"{offset} on, and the log begins at offset {tail.log_start}: "
                    f"{tail.log_start - offset} records are gone.",
                    hint="Restore a newer checkpoint, or rebuild from what the log still holds.",
                )
            if offset > tail.high_watermark:
                raise LogBehind(
                    f"The checkpoint of epoch {end.epoch} stands at offset {offset} of "
                    f"{topic}-{partition}, and the log ends at offset {tail.high_watermark}.",
                    hint="Is this the log that the checkpoint was written from?",
                )


def find(folder: Path, epoch: int) -> Checkpoint:
    """The committed checkpoint of this epoch. Raises `NoSuchCheckpoint` naming those there are."""
    committed = checkpoint.committed_epochs(folder)
    found = checkpoint.read_one(folder, epoch) if epoch in committed else None
    if found is not None:
        return found
    there = ", ".join(map(str, committed)) or "none"
    raise NoSuchCheckpoint(f"{folder} has no checkpoint {epoch}; there are: {there}.")


def restore(folder: Path, epoch: int, tails: Mapping[tuple[str, int], PartitionTail]) -> Checkpoint:
    """Make the checkpoint of this epoch the newest one. The pipeline must not be running.

    Raises `NoSuchCheckpoint`, `HistoryGone`, `LogBehind`, `CheckpointInUse`; then nothing was
    moved.
    """
    found = find(folder, epoch)
    check_covered(found.end, tails)
    with lock(folder, wait_s=0):
        go_back(folder, epoch)
    return found


def go_back(folder: Path, epoch: int) -> None:
    """Move aside what came after the epoch. The caller holds the lock and has looked at it."""
    handover.begin_rewind(folder, epoch)
    finish(folder)


def set_aside(folder: Path, epoch: int) -> None:
    """Take a broken checkpoint's files out of Spark's logs and ours, into `catchwater/broken/`."""
    ours = Ledger(folder).folder
    logs = (folder / log / str(epoch) for log in ("commits", "offsets"))
    spark = (each for path in logs for each in _with_checksum(path))
    for path in (*spark, *(ours / name / f"{epoch}.json" for name in ("contracts", "epochs"))):
        if path.exists():
            _move(path, ours / "broken" / path.parent.name)


def finish(folder: Path) -> None:
    """Complete a restore that was interrupted, if there is one. The caller holds the lock."""
    rewind = handover.rewind_under_way(folder)
    if rewind is None:
        return
    aside = Ledger(folder).replayed
    for path in list(_later(folder, rewind.epoch)):
        _move(path, aside / path.parent.name)
    handover.end_rewind(folder)


@contextmanager
def stopped(folder: Path, clock: Clock) -> Iterator[None]:
    """Hold a checkpoint that still leads, and stays so; the pipeline was asked to stop.

    The caller is `alone`, so a version that had asked to take over and did not is gone, and its
    fence would only let a later start hand over to it. Raises `CheckpointInUse`, `HandedOver`.
    """
    with lock(folder, clock):
        handover.forget(folder)  # refused if it has handed over when it was stopped
        finish(folder)
        yield


def respell(folder: Path) -> None:
    """Let Spark see nothing new where there is nothing new. The caller holds the lock.

    Restores of earlier versions have spelled offsets otherwise than our source does. Where a query
    was started since, Spark has taken that for input, and has planned an epoch with nothing in it.
    """
    last, ahead = checkpoint.last_commit(folder), max(numbered(folder / "offsets"), default=-1)
    try:
        if ahead == last + 1 > 0 and _end(folder, ahead) == _end(folder, last):
            set_aside(folder, ahead)
        checkpoint.respell_offset(folder, last)
    except (LedgerDamaged, FileNotFoundError):
        return  # what is damaged, or missing, the start will name


def _end(folder: Path, epoch: int) -> SourceOffset:
    return read_offset(folder / "offsets" / str(epoch))


def _move(path: Path, into: Path) -> None:
    """Give the file another folder, durably."""
    into.mkdir(parents=True, exist_ok=True)
    path.replace(into / path.name)
    sync_folder(into)
    sync_folder(path.parent)


def _later(folder: Path, epoch: int) -> Iterator[Path]:
    """The files of what came after the epoch; commits first, so that no commit lacks an entry."""
    for log in ("commits", "offsets"):
        for number in _after(folder / log, epoch):
            yield from _with_checksum(folder / log / str(number))
    for name in ("contracts", "epochs"):
        kept = Ledger(folder).folder / name
        for number in _after(kept, epoch, ".json"):
            yield kept / f"{number}.json"


def _after(folder: Path, epoch: int, suffix: str = "") -> list[int]:
    """The files' numbers beyond the epoch, newest first."""
    return sorted((n for n in numbered(folder, suffix) if n > epoch), reverse=True)


def _with_checksum(path: Path) -> Iterator[Path]:
    yield path
    beside = path.with_name(f".{path.name}.crc")
    if beside.exists():
        yield beside


def load_contracts(folder: Path) -> list[Contract]:
    """The contracts in a checkpoint folder, oldest first."""
    contracts = Ledger(folder).folder / "contracts"
    found = (
        read_json(contracts / f"{n}.json", Contract) for n in sorted(numbered(contracts, ".json"))
    )
    return [contract for contract in found if contract]


def write_contract(folder: Path, contract: Contract) -> None:
    """Keep a contract beside its checkpoint, durably."""
    path = Ledger(folder).folder / "contracts" / f"{contract.epoch}.json"
    write_whole(path, msgspec.json.format(msgspec.json.encode(contract), indent=1))


def forget_contracts_before(folder: Path, epoch: int) -> None:
    """Drop the contracts of checkpoints that are not retained any more."""
    contracts = Ledger(folder).folder / "contracts"
    for number in list(numbered(contracts, ".json")):
        if number < epoch:
            (contracts / f"{number}.json").unlink(missing_ok=True)
