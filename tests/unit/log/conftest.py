"""A log in miniature for the tests of its parts: real WAL, catalog and store, no event loop."""

import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crc32c import crc32c

from catchwater.catalog.rows import (
    Changes,
    ObjectRow,
    PartitionKey,
    PartitionRow,
    RunRow,
    Topic,
)
from catchwater.catalog.sqlite import SqliteCatalog
from catchwater.catalog.topics import Topics
from catchwater.clock import ManualClock
from catchwater.log.core import Core
from catchwater.log.storage import Storage
from catchwater.log.write.sequence import PartitionState
from catchwater.log.write.writer import Appends, EmbeddedCommitter
from catchwater.objects.local import LocalStore
from catchwater.wal.base import Position
from catchwater.wal.file import FileWal
from catchwater.wire.batch import read_header
from catchwater.wire.codecs import compress


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def build_batch(
    values: Sequence[bytes], timestamps: Sequence[int] | None = None, codec: int = 0
) -> bytes:
    """A record batch as a producer sends it: base offset 0, no keys, leader epoch -1."""
    times = timestamps or [1_000] * len(values)
    records = b""
    for delta, (value, time) in enumerate(zip(values, times, strict=True)):
        body = b"\0" + _varint(time - times[0]) + _varint(delta) + _varint(-1)
        body += _varint(len(value)) + value + _varint(0)
        records += _varint(len(body)) + body
    payload = bytes(compress(codec, records))
    last_delta = len(values) - 1
    fields = (codec, last_delta, times[0], max(times), -1, -1, -1, len(values))
    covered = struct.pack(">hiqqqhii", *fields) + payload
    head = struct.pack(">qiibI", 0, 9 + len(covered), -1, 2, crc32c(covered))
    return head + covered


class _Writer:
    """As much of a writer as housekeeping looks at."""

    def __init__(self, log: "MiniLog") -> None:
        self._log = log
        self.appends = Appends()

    @property
    def sequenced(self) -> int:
        return self._log.applied

    async def between_chunks(self, change: Callable[[], Awaitable[Any]]) -> Any:
        return await change()

    async def to_the_end(self, work: Awaitable[Any]) -> Any:
        return await work


class MiniLog:
    """Appends like the appender, by hand: one chunk at a time, and at once in the catalog."""

    def __init__(self, root: Path, clock: ManualClock, wal_bytes: int = 1 << 20) -> None:
        self.root = root
        self.clock = clock
        self.catalog = SqliteCatalog(root / "catalog.db", new_cluster_id=lambda: "c", lag_s=0.001)
        loaded = self.catalog.load()
        self.applied = loaded.applied_sequence
        self.topics = {topic.id: topic for topic in loaded.topics}
        self.ends = {row[:2]: row.high_watermark for row in loaded.partitions}
        self.wal = FileWal(root, clock, applied=self.applied, segment_bytes=wal_bytes)
        self.objects = LocalStore(root / "objects", clock)
        self.storage = Storage(self.wal, self.objects)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> list[PartitionKey]:
        """A new topic's partitions."""
        options = {key.replace("_", "."): value for key, value in config.items()}
        topic = Topic(name.encode().ljust(16, b"."), name, partitions, options)
        self.catalog.create_topic(topic).result()
        self.topics[topic.id] = topic
        keys = [(topic.id, partition) for partition in range(partitions)]
        self.ends |= dict.fromkeys(keys, 0)
        return keys

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.topics.get(topic_id)
        return topic.name if topic else None

    def append(self, *batches: tuple[PartitionKey, bytes]) -> tuple[Position, list[RunRow], bytes]:
        """One chunk: position, runs and payload, as the reader is told."""
        payload = b"an index, as it were"
        cuts = []
        for key, batch in sorted(batches, key=lambda entry: entry[0]):
            if not cuts or cuts[-1][0] != key:
                cuts.append((key, len(payload), []))
            cuts[-1][2].append(read_header(memoryview(batch)))
            payload += batch
        position = self.wal.append([payload])
        runs = [self._run(position, *cut) for cut in cuts]
        size = position.offset + position.size
        row = ObjectRow(position.file, "chunk", "live", size, self.clock.now_ms())
        rows = [PartitionRow(*run[:2], 0, run.last_offset + 1, 0, 0) for run in runs]
        self.catalog.apply(position.sequence, Changes(runs, rows, objects=[row]))
        self.catalog.flush().result()
        self.applied = position.sequence
        return position, runs, payload

    def core(self) -> Core:
        """What the parts of a log share, with states that say what the catalog's runs are."""
        topics = Topics(list(self.topics.values()))
        states = {}
        for key, end in self.ends.items():
            for row in self.catalog.partitions([key]):
                runs = [r for r in self.catalog.runs(key, 0) if r.last_offset >= row.log_start]
                size = sum(run.byte_size for run in runs)
                oldest = runs[0].max_timestamp if runs else -1
                states[key] = PartitionState(row.log_start, end, size, oldest)
        intake = SimpleNamespace(wake=list)
        core = Core(self.catalog, self.storage, topics, states, {}, self.clock, intake)
        core.writer = _Writer(self)
        core.committer = EmbeddedCommitter(self.catalog, self.catalog.load())
        core.committer.states = states
        return core

    def _run(self, position: Position, key: PartitionKey, at: int, headers: list) -> RunRow:
        base = self.ends[key]
        count = sum(header.record_count for header in headers)
        self.ends[key] += count
        size = sum(header.size_bytes for header in headers)
        newest = max(header.max_timestamp for header in headers)
        at += position.offset
        return RunRow(*key, base, base + count - 1, position.file, at, size, newest, count)

    def changes(self, runs: list[RunRow]) -> Changes:
        """What a chunk with these runs changes."""
        return Changes(runs, objects=[ObjectRow(run.object, "chunk", "live", 1, 0) for run in runs])

    def object_keys(self) -> set[str]:
        """Every object and WAL file there is."""
        stored = {info.key for info in self.objects.list("")}
        return stored | {file.name for file in self.wal.files()}

    def close(self) -> None:
        self.wal.close()
        self.catalog.close()


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., bytes]:
    return build_batch


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_log(tmp_path: Path, clock: ManualClock) -> Iterator[Callable[..., MiniLog]]:
    """Opens the miniature log in the test's folder; call it again to restart."""
    opened: list[MiniLog] = []

    def open_again(wal_bytes: int = 1 << 20) -> MiniLog:
        if opened:
            opened.pop().close()
        opened.append(MiniLog(tmp_path, clock, wal_bytes))
        return opened[-1]

    yield open_again
    for log in opened:
        log.close()
