"""The log sink: staged bytes depend on the records only, an epoch is committed once."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.clock import Clock
from catchwater.log.format import chunk
from catchwater.sinks.base import EpochDiffers, OutputRecord, Staged, epoch_checksum
from catchwater.sinks.log import LogSink, LogStager, StoreUnsupported, murmur2, partition_of
from catchwater.wire.records import decode, place

TOPIC = bytes(range(16))


def stager(root: Path, partitions: int = 3) -> LogStager:
    return LogStager(root.as_uri(), "staged/cards/alerts", TOPIC, partitions)


def records(count: int) -> list[OutputRecord]:
    return [OutputRecord(b"k%d" % (i % 7), b"value %d" % i, 1000) for i in range(count)]


class FakeControl:
    """Keeps epochs as the catalog does."""

    def __init__(self) -> None:
        self.epochs: dict[int, dict[str, Any]] = {}

    def commit_epoch(
        self, pipeline: str, sink: str, epoch: int, *, topic: str, staged: Any, checksum: str
    ) -> dict[str, Any]:
        already = epoch in self.epochs
        answer = {"epoch": epoch, "records": len(list(staged)), "offsets": {"0": [0, 9]},
                  "checksum": checksum, "topic": topic}  # fmt: skip
        self.epochs.setdefault(epoch, answer)
        return {**self.epochs[epoch], "already": already}

    def last_epoch(self, pipeline: str, sink: str) -> dict[str, Any] | None:
        return self.epochs[max(self.epochs)] if self.epochs else None


def sink(control: FakeControl, root: Path) -> LogSink:
    return LogSink(
        control,  # type: ignore[arg-type]
        pipeline="cards", name="alerts", topic="alerts", stager=stager(root),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_murmur2_is_that_of_kafkas_java_client(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


def test_a_staged_chunk_holds_every_record_in_its_keys_partition_and_order(tmp_path: Path) -> None:
    given_records = records(100)
    staged = stager(tmp_path).stage(0, 5, given_records)
    assert (staged.shard, staged.records) == (5, 100)
    data = (tmp_path / staged.location).read_bytes()
    assert staged.bytes == len(data)
    found: dict[int, list[tuple[bytes, bytes]]] = {}
    for entry in chunk.decode_index(data).entries:
        assert entry.topic_id == TOPIC
        batch = data[entry.byte_offset : entry.byte_offset + entry.size_bytes]
        for rows in decode(batch, place(batch)):
            pairs = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
            found.setdefault(entry.partition, []).extend(pairs)
    for partition, pairs in found.items():
        assert pairs == [(r.key, r.value) for r in given_records
                         if partition_of(r.key, 3) == partition]  # fmt: skip
    assert sum(map(len, found.values())) == 100


def test_the_same_records_are_staged_as_the_same_bytes_under_another_name(tmp_path: Path) -> None:
    first, second = (stager(tmp_path).stage(0, 1, records(50), Clock(seed)) for seed in (1, 2))
    assert first.location != second.location
    assert first.checksum == second.checksum
    assert (tmp_path / first.location).read_bytes() == (tmp_path / second.location).read_bytes()


def test_a_shard_without_output_puts_nothing(tmp_path: Path) -> None:
    assert stager(tmp_path).stage(0, 1, []) == Staged(1, "", 0, 0, 0)
    assert not (tmp_path / "staged").exists()


def test_large_output_is_cut_into_batches_a_broker_would_take(tmp_path: Path) -> None:
    large = [OutputRecord(b"k", bytes(100_000), 0) for _ in range(20)]
    staged = stager(tmp_path).stage(0, 1, large)
    entries = chunk.decode_index((tmp_path / staged.location).read_bytes()).entries
    assert len(entries) > 1
    assert all(entry.size_bytes < 1_000_000 for entry in entries)


def test_committing_an_epoch_again_answers_what_the_first_commit_wrote(tmp_path: Path) -> None:
    target = sink(FakeControl(), tmp_path)
    first = target.commit(0, [target.stager().stage(0, 1, records(3))])
    assert target.commit(0, [target.stager().stage(0, 1, records(3))]) == first
    assert target.last_epoch() == 0


def test_an_epoch_with_other_content_is_refused(tmp_path: Path) -> None:
    target = sink(FakeControl(), tmp_path)
    target.commit(0, [target.stager().stage(0, 1, records(3))])
    with pytest.raises(EpochDiffers, match="epoch 0 of 'cards' with checksum"):
        target.commit(0, [target.stager().stage(0, 1, records(4))])


def test_a_store_that_nobody_else_reaches_is_refused_by_name() -> None:
    with pytest.raises(StoreUnsupported, match="in its broker's memory"):
        LogStager("memory:///", "staged/a/b", TOPIC, 1).stage(0, 1, records(1))


pieces = st.lists(
    st.builds(
        Staged, st.integers(0, 9), st.just(""), st.integers(0, 3), st.just(0), st.integers(0, 9)
    ),
    unique_by=lambda piece: piece.shard,
)


@given(pieces, st.randoms())
def test_the_checksum_of_an_epoch_does_not_depend_on_the_order_of_its_shards(
    staged: list[Staged], random: Any
) -> None:
    shuffled = random.sample(staged, len(staged))
    assert epoch_checksum(shuffled) == epoch_checksum(staged)
