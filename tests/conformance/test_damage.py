"""Whatever is cut or flipped, a log gives the same bytes or names what is damaged (F4, F5, F12).

BITS=n flips so many random bits (default 2,000; of the log's own, a quarter in the short form),
seeded by SEED.
"""

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import MEMORY

from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import OffsetCommit, PartitionKey, Pin
from catchwater.catalog.sqlite import ReadOnlyCatalog, SqliteCatalog
from catchwater.catalog.sums import CatalogDamaged, find_spoiled
from catchwater.clock import ManualClock
from catchwater.config import CatchwaterError
from catchwater.log.format.chunk import decode_index
from catchwater.log.log import Log
from catchwater.log.read.history import History
from catchwater.log.repair.files import LogFiles
from catchwater.log.repair.fsck import Report, fsck
from catchwater.log.storage import Storage
from catchwater.log.write.sequence import PartitionState, sequence
from catchwater.log.write.writer import Submission
from catchwater.objects.local import LocalStore
from catchwater.wal.base import WalCorrupt
from catchwater.wal.file import FileWal
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header
from catchwater.wire.errors import ErrorCode

BITS = int(os.environ.get("BITS", "2000"))
SEED = int(os.environ.get("SEED", "4"))
PARTITIONS = 2
SEGMENT_TAIL_BYTES = 12

QUIET = LogConfig(background=False, wal_segment_bytes=6000)
CLOCK = ManualClock()


async def fill(data: Path) -> None:
    """Some records in segments, some in chunks, a group, a pin; closed cleanly."""
    draw = random.Random(SEED)
    log = await Log.open(data, QUIET, CLOCK)
    topic = await log.create_topic("t", PARTITIONS)
    producer = await log.allocate_producer_id()
    sequences = dict.fromkeys(range(PARTITIONS), 0)
    for step in range(40):
        submissions = []
        for partition in range(PARTITIONS):
            count = draw.randrange(1, 4)
            batch = encode_batch(
                [(None, draw.randbytes(draw.randrange(1, 200)), 1_000 + step, ())] * count,
                producer_id=producer, producer_epoch=0, base_sequence=sequences[partition],
            )  # fmt: skip
            sequences[partition] += count
            view = memoryview(batch)
            submissions.append(Submission((topic.id, partition), read_header(view), view))
        answers = await log.submit(submissions)
        assert all(answer.error is ErrorCode.NONE for answer in answers)
        if step == 20:
            await log.keeping.pack()
    await log.commit_offsets("g", {("t", 0): OffsetCommit(4)})
    await log.set_pin(Pin("checkpoint-7", "payments", {("t", 0): 0, ("t", 1): 10}, None, 1))
    await log.keeping.back_up()
    await log.close()


@dataclass
class World:
    """A closed log looked at from outside: nothing is cached between two looks."""

    data: Path
    catalog: ReadOnlyCatalog
    storage: Storage
    stored: LogFiles
    keys: list[PartitionKey]

    def read(self, key: PartitionKey) -> bytes:
        """All bytes of a partition. Raises what a reader is told."""
        history = History(self.catalog, self.storage, 1 << 20)
        [row] = self.catalog.partitions([key])
        offset, found = row.log_start, []
        while offset < row.high_watermark:
            for block in history.blocks(key, offset, 1 << 20):
                found.append(bytes(block.data))
                offset = block.last_offsets[-1] + 1
        return b"".join(found)

    def fsck(self) -> Report:
        return fsck(self.catalog, self.stored, deep=True, progress=lambda done, total: None)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data = tmp_path_factory.mktemp("damage") / "data"
    asyncio.run(fill(data))
    with closing(ReadOnlyCatalog(data / "catalog.db")) as catalog:
        snapshot = catalog.load()
        objects = LocalStore(data / "objects", CLOCK)
        wal = FileWal(data, CLOCK, applied=snapshot.applied_sequence)
        keys = [row[:2] for row in snapshot.partitions]
        yield World(data, catalog, Storage(wal, objects), LogFiles(objects, data), keys)
        wal.close()


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    with path.open("r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, bit // 8)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << bit % 8]), bit // 8)
        yield
        os.pwrite(file.fileno(), byte, bit // 8)


def drawn(files: list[Path], count: int) -> Iterator[tuple[Path, int]]:
    draw = random.Random(SEED)
    sizes = [file.stat().st_size for file in files]
    for _ in range(count):
        [file] = draw.choices(files, sizes)
        yield file, draw.randrange(file.stat().st_size * 8)


def same_or_named(
    world: World, truth: dict[PartitionKey, bytes]
) -> dict[PartitionKey, CatchwaterError]:
    """What readers are told; what they are given is the truth."""
    told = {}
    for key, expected in truth.items():
        try:
            assert world.read(key) == expected
        except CatchwaterError as error:
            told[key] = error
    return told


@pytest.mark.parametrize("bits", [BITS // 4, pytest.param(BITS, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_the_wal_or_a_segment_is_named_or_harmless_and_fsck_finds_it(
    world: World, bits: int
) -> None:
    truth = {key: world.read(key) for key in world.keys}
    assert world.fsck().is_good
    files = [*world.data.glob("wal/*.wal"), *world.data.glob("objects/segments/**/*.seg")]
    assert len(files) > 3
    harmful = alone = 0
    for path, bit in drawn(files, bits * 7 // 10):
        with flipped(path, bit):
            told = same_or_named(world, truth)
            named = [
                found
                for found in world.fsck().damaged
                if path.as_posix().endswith(found.object)
                and found.first_byte <= bit // 8 <= found.last_byte
            ]
        harmful += bool(told)
        if told:
            assert all(path.name in str(error) for error in told.values())
            of = {found.partition for found in named if found.first_offset >= 0}
            assert {partition for _, partition in told} <= of, "other partitions go on"
            alone += len(told) < PARTITIONS
        in_tail = path.suffix == ".seg" and bit // 8 >= path.stat().st_size - SEGMENT_TAIL_BYTES
        assert named or in_tail, (path, bit)
    assert harmful > bits // 4 and alone > harmful // 2


def test_a_flipped_bit_in_the_catalog_is_named_before_it_is_believed(
    world: World, tmp_path: Path
) -> None:
    path = tmp_path / "catalog.db"
    for file in world.data.glob("catalog.*"):
        shutil.copy(file, tmp_path)
    assert not list(find_spoiled(path))
    for number, (file, bit) in enumerate(drawn([path], BITS * 3 // 10)):
        with flipped(file, bit):
            assert any(
                found.path == path and found.first_byte <= bit // 8 <= found.last_byte
                for found in find_spoiled(path)
            )
            if number % 10 == 0:
                with pytest.raises(CatalogDamaged):
                    SqliteCatalog(path, new_cluster_id=lambda: "")
    SqliteCatalog(path, new_cluster_id=lambda: "").close()


def test_fsck_names_the_offsets_of_a_lost_object_and_the_pins_that_need_them(
    world: World, tmp_path: Path
) -> None:
    segment = next(world.data.glob("objects/segments/*/1/*.seg"))
    aside = tmp_path / segment.name
    shutil.move(segment, aside)
    try:
        [found] = world.fsck().damaged
    finally:
        shutil.move(aside, segment)
    assert (found.topic, found.partition, found.first_offset) == ("t", 1, 0)
    assert found.pins == ("checkpoint-7 (payments)",)
    assert segment.name in found.object


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder on a file system whose syncs cost nothing, where there is one."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("applied", [0, 4])
def test_a_wal_cut_at_every_byte_gives_a_prefix_or_is_refused_by_name(
    world: World, in_memory: Path, applied: int
) -> None:
    whole = (world.data / "wal" / f"{1:020d}.wal").read_bytes()
    file = in_memory / "wal" / f"{1:020d}.wal"
    file.parent.mkdir()

    def offsets(cut: int) -> list[tuple[int, int]]:
        """What a replay of the WAL's first bytes assigns, from the first frame on."""
        file.write_bytes(whole[:cut])
        wal = FileWal(in_memory, CLOCK, applied=applied)
        states = {key: PartitionState() for key in world.keys}
        found = []
        for _, payload in wal.frames(0 if applied == 0 else applied):
            chunk = decode_index(payload)
            found += [
                (result.error, result.base_offset)
                for result in sequence(chunk.entries, states, {}, chunk.created_ms).results
            ]
        wal.close()
        return found

    truth = offsets(len(whole))
    lengths = set()
    for cut in range(len(whole)):
        try:
            found = offsets(cut)
        except WalCorrupt as error:
            assert applied and file.name in str(error)
            continue
        assert found == truth[: len(found)]
        lengths.add(len(found))
    assert len(lengths) > 2


def test_a_start_tells_once_what_it_cuts_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    asyncio.run(fill(data))
    with max(data.glob("wal/*.wal")).open("ab") as file:
        file.write(b"garbage")

    async def start() -> str:
        caplog.clear()
        await (await Log.open(data, QUIET, CLOCK)).close()
        return caplog.text

    assert "7 bytes behind frame 40, never acknowledged, were cut off" in asyncio.run(start())
    assert "cut off" not in asyncio.run(start())
