"""Which checkpoint is whole: every file and every object it needs, read and checked.

The newest whole one is looked for when something was found broken, not at every start: it takes
reading all state of the checkpoints before it. It may be restored only if the log still covers
it; the broken ones between make the replay longer.

For people there is a look at the files alone, which shows what can be read and names what cannot.
Changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from catchwater.config import CatchwaterError
from catchwater.objects.base import StoreError
from catchwater.recovery import handover
from catchwater.recovery.checkpoint import (
    Checkpoint,
    committed_epochs,
    last_commit,
    oldest_kept,
    read_one,
    read_query,
)
from catchwater.recovery.contract import Contract, PartitionTail, check_covered
from catchwater.recovery.estimate import read_samples
from catchwater.recovery.folder import home_of
from catchwater.recovery.ledger import (
    FOLDER,
    EpochEntry,
    Ledger,
    LedgerDamaged,
    SourceOffset,
    numbered,
    read_json,
)
from catchwater.recovery.savepoint.create import Source
from catchwater.recovery.savepoint.store import read_claim
from catchwater.state.parts import ShardDamaged

T = TypeVar("T")

Reader = Callable[[Path], object]
"""Reads a file of a checkpoint, and raises `LedgerDamaged` where it is not what was written."""

_LASTING = (
    "metadata",
    f"{FOLDER}/beginning.json",
    f"{FOLDER}/pipeline.json",
    f"{FOLDER}/versions.json",
)
"""What every checkpoint has that has done an epoch."""


READERS: tuple[Reader, ...] = (
    lambda folder: Ledger(folder).beginning(),
    home_of,
    handover.shadow_of,
    handover.fenced_by,
    handover.successor_of,
    partial(handover.pace, now_ms=0),
    handover.rewind_under_way,
    handover.restore_under_way,
    read_claim,
    read_samples,
    read_query,
)
"""Of the files that a checkpoint has one of."""


@dataclass(frozen=True)
class Look:
    """What the files of a checkpoint say, as far as they can be read."""

    folder: Path
    last: int
    """The newest epoch that Spark committed, -1 if none."""
    whole: list[Checkpoint]
    """Oldest first: all their files are what was written."""
    broken: dict[int, str]
    """Epoch → which of its files is missing or damaged; one cannot go back to it."""
    planned: SourceOffset | None
    """The end of an epoch that was planned and not committed."""
    entries: list[EpochEntry]
    """Of the ledger, oldest first."""
    problems: list[str]
    """Every file that was found missing or damaged, those of the broken epochs among them."""
    contract: Contract | None = None
    """The newest that can be read."""
    away: str = ""
    """Why the checkpoint's URL cannot be read now: all this is what was last known here of it."""


def look(folder: Path, more: Iterable[Reader] = ()) -> Look:
    """Read all files of a checkpoint but its state; no damage to them is an error here.

    `more` reads files of which this package knows nothing.
    """
    problems: list[str] = []
    ledger, last = Ledger(folder), last_commit(folder)
    entries = [_tried(problems, ledger.read, epoch) for epoch in ledger.epochs()]
    checked = {e: _tried(problems, check_files, folder, e) for e in _expected(folder)}
    ahead = max(numbered(folder / "offsets"), default=-1)
    planned = _tried(problems, read_one, folder, ahead) if ahead > last else None
    whole = [found for found in checked.values() if isinstance(found, Checkpoint)]
    contracts = [
        _tried(problems, _read_contract, folder, each) for each in _contracts(folder, checked)
    ]
    for name in _LASTING if last >= 0 else ():
        _tried(problems, _check_there, folder / name)
    for read in (*READERS, *more):
        _tried(problems, read, folder)
    return Look(
        folder,
        last,
        whole,
        {epoch: str(found) for epoch, found in checked.items() if isinstance(found, Exception)},
        planned.end if isinstance(planned, Checkpoint) else None,
        [entry for entry in entries if isinstance(entry, EpochEntry)],
        list(dict.fromkeys(problems)),
        next((each for each in reversed(contracts) if isinstance(each, Contract)), None),
    )


def _tried(
    problems: list[str], read: Callable[..., T], *arguments: object
) -> T | LedgerDamaged | OSError:
    """What was read, or what kept it from being read."""
    try:
        return read(*arguments)
    except (LedgerDamaged, OSError) as problem:
        problems.append(str(problem))
        return problem


def _expected(folder: Path) -> list[int]:
    """The epochs of which some file says that one can go back to them; where one ended does not."""
    done = {*numbered(folder / "commits")}
    spark = {*numbered(folder / "offsets"), *done}
    bound = {*numbered(folder / FOLDER / "contracts", ".json")}
    ours = {*Ledger(folder).epochs(), *bound}
    oldest = max(oldest_kept(folder), min(spark, default=0))
    newest = max([last_commit(folder), *bound])
    return [epoch for epoch in sorted(done | ours) if oldest <= epoch <= newest]


def _contracts(folder: Path, epochs: Iterable[int]) -> list[int]:
    """The epochs that have a contract, or should, being between two that have one."""
    there = {*numbered(folder / FOLDER / "contracts", ".json")}
    oldest, newest = min(there, default=0), max(there, default=0)
    return sorted(there | {epoch for epoch in epochs if oldest < epoch < newest})


def _read_contract(folder: Path, epoch: int) -> Contract:
    path = folder / FOLDER / "contracts" / f"{epoch}.json"
    found = read_json(path, Contract)
    if found is None or found.epoch != epoch:
        raise LedgerDamaged(f"{path} is missing, or of another epoch.")
    return found


def _check_there(path: Path) -> None:
    if not path.exists():
        raise LedgerDamaged(f"{path} is missing.")


def newest_intact(
    folder: Path, tails: Mapping[tuple[str, int], PartitionTail]
) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint that the log covers, if there is one, and why not a newer one."""
    problems: list[str] = []
    for epoch in reversed(committed_epochs(folder)):
        try:
            found = check_files(folder, epoch)
            for _ in _state(folder, epoch):
                pass
            check_covered(found.end, tails)
        except CatchwaterError as problem:
            problems.append(f"Checkpoint {epoch}: {problem}")
        else:
            return found, problems
    return None, problems


def check_files(folder: Path, epoch: int) -> Checkpoint:
    """The checkpoint of an epoch, all of whose files are what was written.

    Raises `LedgerDamaged` naming the one that is not, or is missing.
    """
    planned = read_one(folder, epoch)
    if planned is None:
        path = folder / "offsets" / str(epoch)
        raise LedgerDamaged(f"{path} is missing.", hint=_hint(epoch))
    entry = Ledger(folder).read(epoch)
    if entry is None or entry.epoch != epoch:
        path = Ledger(folder).folder / "epochs" / f"{epoch}.json"
        raise LedgerDamaged(f"{path} is missing, or of another epoch.", hint=_hint(epoch))
    if entry.end != planned.end:
        raise LedgerDamaged(
            f"{folder / 'offsets' / str(epoch)} says that epoch {epoch} ends elsewhere than its "
            "entry in the ledger does: one of them is not what was written.",
            hint=_hint(epoch),
        )
    commit = folder / "commits" / str(epoch)
    try:
        version, content = commit.read_text().split("\n", 1)
        msgspec.json.decode(content, type=dict[str, Any])
        whole = version == "v1"
    except (ValueError, RecursionError, OSError):
        whole = False
    if not whole:
        raise LedgerDamaged(f"Spark's commit file {commit} cannot be read.", hint=_hint(epoch))
    return planned


def _state(folder: Path, epoch: int) -> Iterator[object]:
    """Read all state of a checkpoint; raises `LedgerDamaged` with what is broken."""
    source = Source.at(folder)
    entry = Ledger(folder).read(epoch)
    assert entry is not None, "its files were looked at before"
    for each in entry.shards:
        try:
            yield from source.log(each.stage, each.shard).read(each.position)
        except (ShardDamaged, StoreError) as error:
            raise LedgerDamaged(str(error), hint=error.hint) from error


def _hint(epoch: int) -> str:
    command = f"catchwater recovery restore FILE --checkpoint {epoch - 1}"
    return f"Restore an older checkpoint: {command}."
