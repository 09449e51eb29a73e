"""Checksums and digests: equal on every replay, and for nothing else."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from catchwater.sinks.base import (
    OutputRecord,
    RowId,
    Staged,
    checksum_of,
    epoch_checksum,
    record_digest,
)

pieces = st.lists(
    st.builds(
        Staged, st.integers(0, 9), st.just(""), st.integers(0, 3), st.just(0), st.integers(0, 9)
    ),
    unique_by=lambda piece: piece.shard,
)
part = st.binary(max_size=4)
records = st.builds(OutputRecord, part, part, st.integers(0, 3), st.just(()))


@given(pieces, st.randoms())
def test_the_checksum_of_an_epoch_does_not_depend_on_the_order_of_its_shards(
    staged: list[Staged], random: Any
) -> None:
    shuffled = random.sample(staged, len(staged))
    assert epoch_checksum(shuffled) == epoch_checksum(staged)


@given(records, records)
def test_records_differ_in_their_digest_when_they_differ_but_in_time(
    one: OutputRecord, other: OutputRecord
) -> None:
    same = one[:2] == other[:2]
    assert (record_digest(one) == record_digest(other)) == same
    assert (checksum_of([one]) == checksum_of([other])) == same


def test_headers_count() -> None:
    plain = OutputRecord(b"k", b"v", 0)
    with_header = plain._replace(headers=(("topic", b"t"),))
    assert checksum_of([plain]) != checksum_of([with_header])
    assert record_digest(plain) != record_digest(with_header)


def test_a_row_is_written_as_epoch_shard_and_row() -> None:
    assert str(RowId(12, 3, 45)) == "12/3/45"
