"""Parquet under faults: at the end it is its segment's, and no object is left that nobody names."""

import io
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from tests.simulation import machine
from tests.simulation.run import TOPICS, simulate
from tests.simulation.truth import Truth

from catchwater.catalog.rows import Session
from catchwater.log.keep.parquet import PARQUET
from catchwater.log.storage import SEGMENTS
from catchwater.wire.arrow import decode, place

ASKING = ("trimmed", "keyed", "txn")


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_fails_parquet_is_that_of_its_segment(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ASKING:
        partitions, config = TOPICS[name]
        monkeypatch.setitem(TOPICS, name, (partitions, config | {PARQUET: "true"}))
    monkeypatch.setattr(machine, "CONFIG", replace(machine.CONFIG, parquet_after_ms=2_000))
    judge = Truth.judge_objects
    compared = []

    def judge_parquet_too(truth: Truth, session: Session | None) -> None:
        judge(truth, session)
        compared.extend(differing(truth))

    monkeypatch.setattr(Truth, "judge_objects", judge_parquet_too)
    outcome = simulate(seed, faulty_s=8.0)
    assert outcome.is_good, outcome.explained()
    assert len(compared) > 3
    assert [segment for segment, is_equal in compared if not is_equal] == []


def differing(truth: Truth) -> list[tuple[str, bool]]:
    """The segments with Parquet, and whether it has the same offsets and values."""
    catalog, bucket = truth._catalog, truth._world.bucket
    found = []
    for name in ASKING:
        topic = truth._world.topic(name)
        for partition in range(topic.partitions):
            key = (topic.id, partition)
            rows = {row.segment: row for row in catalog.parquet(key, 0, 2**62)}
            for run in catalog.runs(key, 0):
                if run.object not in rows:
                    continue
                assert run.object.startswith(SEGMENTS)
                data = bucket.get_range(run.object, run.byte_offset, run.byte_size)
                columns = ("offset", "value")
                wanted = [
                    tuple(row.values())
                    for batch in decode(data, place(data), columns=columns)
                    for row in batch.to_pylist()
                ]
                table = pq.read_table(
                    io.BytesIO(bucket.get(rows[run.object].object)), columns=list(columns)
                )
                have = [tuple(row.values()) for row in table.to_pylist()]
                found.append((run.object, have == wanted))
    return found
