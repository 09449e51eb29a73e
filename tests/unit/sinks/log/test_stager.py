"""The log sink in a task: staged bytes depend on the records only."""

import pickle
from pathlib import Path

import pytest

from catchwater.clock import Clock
from catchwater.log.format import chunk
from catchwater.sinks import log_stager as module
from catchwater.sinks.base import OutputRecord, Staged, checksum_of
from catchwater.sinks.epochs import Archive, StagedFile
from catchwater.sinks.log_stager import (
    LogAppender,
    LogStager,
    StoreUnsupported,
    murmur2,
    partition_of,
)
from catchwater.wire.arrow import decode, place
from catchwater.wire.security.settings import Security

TOPIC = bytes(range(16))


def stager(root: Path, partitions: int = 3) -> LogStager:
    return LogStager(root.as_uri(), "staged/cards/alerts", TOPIC, partitions)


def records(count: int) -> list[OutputRecord]:
    return [OutputRecord(b"k%d" % (i % 7), b"value %d" % i, 1000) for i in range(count)]


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


def test_a_store_that_nobody_else_reaches_is_refused_by_name() -> None:
    with pytest.raises(StoreUnsupported, match="in its broker's memory"):
        LogStager("memory:///", "staged/a/b", TOPIC, 1).stage(0, 1, records(1))


def test_a_copy_beside_the_checkpoint_holds_the_same_records(tmp_path: Path) -> None:
    copy = StagedFile((tmp_path / "checkpoint").as_uri(), "staged/alerts")
    log = LogStager((tmp_path / "log").as_uri(), "staged/cards/alerts", TOPIC, 3, copy)
    staged = log.stage(7, 1, records(10))
    assert staged.kept.startswith("staged/alerts/00000000000000000007-00001-")
    assert staged.checksum == checksum_of(records(10))
    assert Archive(copy).records(staged) == records(10)


def test_a_task_that_appends_reaches_the_brokers_as_the_source_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[tuple[str, Security]] = []

    class Client:
        def __init__(self, bootstrap: str, *, security: Security) -> None:
            reached.append((bootstrap, security))

        def __enter__(self) -> "Client":
            return self

        def __exit__(self, *error: object) -> None: ...

        def produce(self, batches: object) -> None: ...

    monkeypatch.setattr(module, "Client", Client)
    security = Security("SASL_PLAINTEXT", "PLAIN", "writer", "s3cret")
    copy = StagedFile(tmp_path.as_uri(), "staged/alerts")
    appender = LogAppender("h:1", "alerts", 2, "cards/alerts", copy, security)
    pickle.loads(pickle.dumps(appender)).stage(0, 1, records(3))
    assert reached == [("h:1", security)]
