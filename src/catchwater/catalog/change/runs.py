"""Runs are replaced by better ones and dropped; objects without runs are given up.

Every run also keeps the largest timestamp up to it (`reach_timestamp`), which never falls along
the offsets, so that a timestamp is found by one descent. Taking runs out may lower it for those
that follow: `_renew_reach` walks on until it meets one that is right, usually the first.
"""

from collections.abc import Mapping, Sequence

from catchwater.catalog.base import RunsChanged
from catchwater.catalog.change.commit import lock_partitions, tell_partitions, write_changes
from catchwater.catalog.db import Db
from catchwater.catalog.rows import Changes, ObjectRow, PartitionKey, PartitionRow, RunRow

_RUNS_A_STEP = 1000


def replace_runs(
    old: Sequence[RunRow], new: Sequence[RunRow], objects: Sequence[ObjectRow], db: Db
) -> PartitionRow:
    """Take runs of one partition out and put others in their place. Raises `RunsChanged`."""
    assert old, "something is replaced"
    assert len({run[:2] for run in (*old, *new)}) == 1, "runs of one partition are replaced"
    key = old[0][:2]
    lock_partitions([key], db)
    for run in old:
        if not db.query("run_take_out", *run[:5]):
            raise RunsChanged(
                f"The run of offsets {run.base_offset} to {run.last_offset} in {run.object} is "
                "not in the catalog any more."
            )
    write_changes(Changes(runs=new, objects=objects), db)
    _renew_reach(key, old[0].base_offset, max(run.last_offset for run in (*old, *new)), db)
    grown = sum(run.byte_size for run in new) - sum(run.byte_size for run in old)
    [row] = db.query("partition_resize", grown, _earliest_timestamp(key, db), *key)
    return PartitionRow._make(row)


def trim(log_starts: Mapping[PartitionKey, int], db: Db) -> list[PartitionRow]:
    """Move log starts up and drop the runs that end before them; the partitions as they are."""
    rows = []
    for partition in lock_partitions(log_starts, db):
        key = partition[:2]
        log_start = log_starts[key]
        dropped = sum(size for (size,) in db.query("run_trim", *key, log_start))
        db.query("aborted_txn_trim", *key, log_start)
        if dropped:
            _renew_reach(key, log_start, log_start - 1, db)
        told = (log_start, log_start, dropped, _earliest_timestamp(key, db))
        rows += [PartitionRow._make(row) for row in db.query("partition_trim", *told, *key)]
    tell_partitions(rows, db)
    return rows


def mark_deleting(keys: Sequence[str], db: Db) -> list[str]:
    """Move objects that no run lies in to state `deleting`; those that were moved."""
    return [key for (key,) in db.each("object_mark_deleting", [(key,) for key in keys])]


def _earliest_timestamp(key: PartitionKey, db: Db) -> int:
    oldest = db.query("run_select", *key, 0, 1)
    return RunRow._make(oldest[0]).max_timestamp if oldest else -1


def _renew_reach(key: PartitionKey, first: int, last: int, db: Db) -> None:
    """Make `reach_timestamp` right from `first` to `last`, and behind it as far as it is wrong."""
    before = db.query("run_reach_before", *key, first)
    reach = before[0][0] if before else -1
    while runs := db.query("run_reach", *key, first, _RUNS_A_STEP):
        wrong = []
        is_right = False
        for last_offset, timestamp, told in runs:
            reach = max(reach, timestamp)
            is_right = reach == told
            if not is_right:
                wrong.append((reach, *key, last_offset))
            elif last_offset > last:
                break
        db.many("run_set_reach", wrong)
        first = runs[-1][0] + 1
        if is_right and first > last:
            return
