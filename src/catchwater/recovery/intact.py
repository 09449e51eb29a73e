"""Which checkpoint is whole: every file and every object it needs, read and checked.

Done when something was found broken, not at every start: it reads all state of the checkpoints it
looks at. The newest whole one may be restored only if the log still covers it; what is then
replayed beyond the broken one is what its `problems` cost. Changes nothing.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.objects.base import StoreError
from catchwater.recovery.checkpoint import Checkpoint, committed_epochs, read_one
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.ledger import Ledger, LedgerDamaged
from catchwater.recovery.restore import check_covered
from catchwater.recovery.savepoint.create import Source
from catchwater.state.parts import ShardDamaged


def newest_intact(
    folder: Path, tails: Mapping[tuple[str, int], PartitionTail]
) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint that the log covers, if there is one, and why not a newer one."""
    problems: list[str] = []
    for epoch in reversed(committed_epochs(folder)):
        try:
            check_files(folder, epoch)
            for _ in _state(folder, epoch):
                pass
            found = read_one(folder, epoch)
            assert found is not None, "it was just read"
            check_covered(found.end, tails)
        except CatchwaterError as problem:
            problems.append(f"Checkpoint {epoch}: {problem}")
        else:
            return found, problems
    return None, problems


def check_files(folder: Path, epoch: int) -> None:
    """Raise `LedgerDamaged` naming the file of this checkpoint that is not what was written."""
    planned = read_one(folder, epoch)
    if planned is None:
        raise LedgerDamaged(f"{folder / 'offsets' / str(epoch)} is missing.")
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
        msgspec.json.decode(content)
        whole = version == "v1"
    except (ValueError, OSError):
        whole = False
    if not whole:
        raise LedgerDamaged(f"Spark's commit file {commit} cannot be read.", hint=_hint(epoch))


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
