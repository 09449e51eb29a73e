"""Runs are replaced by better ones and dropped; objects without runs are given up.

Every run also keeps the largest timestamp up to it (`reach_timestamp`), which never falls along
the offsets, so that a timestamp is found by one descent. Taking runs out may lower it for those
that follow: `_renew_reach` walks on until it meets one that is right, usually the first.
"""

from collections.abc import Mapping, Sequence

from catchwater.catalog.base import RunsChanged
from catchwater.catalog.change.brokers import require_lease
from catchwater.catalog.change.commit import lock_partitions, tell_partitions, write_changes
from catchwater.catalog.db import Db
from catchwater.catalog.rows import (
    Changes,
    ObjectRow,
    ParquetRow,
    PartitionKey,
    PartitionRow,
    RunRow,
    Session,
)

_RUNS_A_STEP = 1000


def replace_runs(
    old: Sequence[RunRow],
    new: Sequence[RunRow],
    objects: Sequence[ObjectRow],
    lease: tuple[str, Session] | None,
    db: Db,
) -> PartitionRow:
    """Take runs of one partition out and put others in their place. Raises `RunsChanged`.

    Raises `SessionFenced` unless the lease, if one is named, is held.
    """
    if lease is not None:
        require_lease(*lease, db)
    assert old, "something is replaced"
    assert len({run[:2] for run in (*old, *new)}) == 1, "runs of one partition are replaced"
    key = old[0][:2]
    lock_partitions([key], db)
    taken = {base_offset for (base_offset,) in db.each("run_take_out", [run[:5] for run in old])}
    for run in old:
        if run.base_offset not in taken:
            raise _gone(run)
    write_changes(Changes(runs=new, objects=objects), db)
    _renew_reach(key, old[0].base_offset, max(run.last_offset for run in (*old, *new)), db)
    grown = sum(run.byte_size for run in new) - sum(run.byte_size for run in old)
    oldest = db.query("run_oldest", *key)
    [row] = db.query("partition_resize", grown, oldest[0][2] if oldest else -1, *key)
    return PartitionRow._make(row)


def add_parquet(run: RunRow, parquet: ParquetRow, row: ObjectRow, db: Db) -> None:
    """Let a run have its records as Parquet too. Raises `RunsChanged`."""
    assert (parquet.segment, parquet.object) == (run.object, row.key), "they belong together"
    lock_partitions([run[:2]], db)
    write_changes(Changes(objects=[row]), db)
    _, *told = parquet
    if not db.each("run_set_parquet", [(*told, *run[:5])]):
        raise _gone(run)


def trim(
    log_starts: Mapping[PartitionKey, int], lease: tuple[str, Session] | None, db: Db
) -> list[PartitionRow]:
    """Move log starts up and drop the runs that end before them; the partitions as they are.

    Raises `SessionFenced` unless the lease, if one is named, is held.
    """
    if lease is not None:
        require_lease(*lease, db)
    keys = [row[:2] for row in lock_partitions(log_starts, db)]
    dropped = dict.fromkeys(keys, 0)
    starts = [(*key, log_starts[key]) for key in keys]
    for topic_id, partition, byte_size in db.each("run_trim", starts):
        dropped[topic_id, partition] += byte_size
    db.many("aborted_txn_trim", starts)
    earliest = dict.fromkeys(keys, -1)
    for topic_id, partition, timestamp, reach in db.each("run_oldest", keys):
        key = (topic_id, partition)
        earliest[key] = timestamp
        if reach != timestamp:
            _renew_reach(key, log_starts[key], log_starts[key] - 1, db)
    told = [(log_starts[key], log_starts[key], dropped[key], earliest[key], *key) for key in keys]
    rows = [PartitionRow._make(row) for row in db.each("partition_trim", told)]
    tell_partitions(rows, db)
    return rows


def mark_deleting(keys: Sequence[str], db: Db) -> list[str]:
    """Move objects that no run lies in or names to state `deleting`; those that were moved."""
    return [key for (key,) in db.each("object_mark_deleting", [(key,) for key in keys])]


def _gone(run: RunRow) -> RunsChanged:
    return RunsChanged(
        f"The run of offsets {run.base_offset} to {run.last_offset} in {run.object} is not in the "
        "catalog any more."
    )


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
