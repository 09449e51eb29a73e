"""What every write-ahead log keeps to, whatever it writes to.

First the logs of many brokers, each session under a prefix of its own, then the recovery that the
log of a broker alone promises besides.
"""

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faulty import FaultPlan, FaultyStore, FaultyWal, Rates

from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase, call_now
from catchwater.catalog.rows import Changes, Scope
from catchwater.clock import ManualClock
from catchwater.objects.base import StoreError
from catchwater.objects.keys import ListedKeys
from catchwater.objects.local import LocalStore
from catchwater.objects.memory import MemoryStore
from catchwater.objects.open import KEYS, given_keys, open_store
from catchwater.objects.retry import RetryingStore, RetryPolicy
from catchwater.objects.urls import read_range
from catchwater.wal.base import (
    Position,
    RecoverableWal,
    Wal,
    WalDead,
    WalFull,
    WalReadError,
    WalUnavailable,
)
from catchwater.wal.file import FileWal
from catchwater.wal.frames import scan
from catchwater.wal.object import ObjectWal
from catchwater.wal.open import WalKind, open_wal
from catchwater.wal.sealed import payload as payload_of

Open = Callable[[str], Wal]

FLAKY = Rates(slow=0.1, unavailable=0.15, lost_reply=0.2, late=0.05)
SHARED = [
    "file",
    "file, sealed",
    "object on memory",
    "object on local",
    "object on s3",
    "object, flaky",
    "postgres",
]


class Place:
    """Where the brokers of one cluster write, and how a frame is committed there."""

    def __init__(self, name: str, folder: Path, request: pytest.FixtureRequest) -> None:
        self.clock = ManualClock()
        self.database = MemoryDatabase(self.clock, call_now)
        self.catalog = MemoryCatalog(self.database)
        self.folder = folder
        kind, _, where = name.replace(", ", " on ").partition(" on ")
        self.kind: WalKind = kind  # type: ignore[assignment]
        self.memory = MemoryStore(self.clock)
        match where:
            case "local":
                self.store = RetryingStore(LocalStore(folder / "objects"), self.clock)
            case "s3":
                self.store = open_store(request.getfixturevalue("s3_url"), self.clock)
            case "flaky":
                faulty = FaultyStore(self.memory, FaultPlan(3, FLAKY), self.clock)
                self.store = RetryingStore(faulty, self.clock, RetryPolicy(tries=50, total_s=1e9))
            case _:
                self.store = RetryingStore(self.memory, self.clock)

    def open(self, prefix: str, kind: WalKind | None = None) -> Wal:
        """A session's WAL."""
        return open_wal(
            kind or self.kind,
            prefix,
            self.clock,
            catalog=self.catalog,
            store=self.store,
            root=self.folder,
            cluster_id="the-cluster",
            segment_bytes=300,
        )

    def written(self, wal: Wal, *parts: bytes) -> Position:
        """Append a frame and let it count."""
        position = wal.append(parts)
        if wal.in_commit:
            changes = Changes(payloads=[(position.file, b"".join(parts))])
            self.catalog.transact(Scope(), lambda _: (changes, None)).result()
        return position


def seal(monkeypatch: pytest.MonkeyPatch) -> ListedKeys:
    """Let what is opened from now on be sealed."""
    monkeypatch.setenv("OF_THE_WAL", f"k = {base64.b64encode(bytes(32)).decode()}")
    monkeypatch.setenv(KEYS, "env:OF_THE_WAL")
    return ListedKeys({"k": bytes(32)})


@pytest.fixture(params=SHARED)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "file, sealed":
        seal(monkeypatch)
    made = Place(request.param, tmp_path, request)
    yield made
    made.database.close()


# --- many brokers ------------------------------------------------------------------------------


def test_every_broker_reads_what_any_of_them_wrote(place: Place) -> None:
    brokers = [place.open("1-1/"), place.open("2-1/"), place.open("1-2/")]
    written = [
        (place.written(wal, b"frame ", b"", b"%d" % n), b"frame %d" % n)
        for n, wal in enumerate(brokers * 5)
    ]
    assert len({position[1:3] for position, _ in written}) == len(written)
    for wal in brokers:
        for (_, file, offset, size), payload in written:
            assert wal.read(file, offset, size) == payload
            room = bytearray(b"<" + b"?" * size + b">")
            wal.read_into(file, offset, memoryview(room)[1:-1])
            assert room == b"<" + payload + b">"


def test_a_file_lies_below_its_writers_prefix(place: Place) -> None:
    wal = place.open("31-7/")
    numbers = [place.written(wal, b"x" * 100) for _ in range(6)]
    assert [position.sequence for position in numbers] == [1, 2, 3, 4, 5, 6]
    assert all(position.file.startswith("wal/31-7/") for position in numbers)
    if wal.one_frame_files:
        assert len({position.file for position in numbers}) == 6
        assert wal.files() == []


def test_several_threads_write_at_once_where_that_is_allowed(place: Place) -> None:
    wal = place.open("1-1/")
    payloads = [b"%d" % n * 1000 for n in range(40)]
    with ThreadPoolExecutor(wal.max_in_flight) as threads:
        positions = list(threads.map(lambda payload: place.written(wal, payload), payloads))
    assert len({position.sequence for position in positions}) == 40
    for (_, file, offset, size), payload in zip(positions, payloads, strict=True):
        assert wal.read(file, offset, size) == payload


def test_what_is_written_holds_checked_frames_as_documented(place: Place) -> None:
    wal = place.open("1-1/")
    if wal.in_commit:
        pytest.skip("a payload row is the bytes as they are")
    payloads = {place.written(wal, b"payload %d" % n).sequence: b"payload %d" % n for n in range(9)}
    found = {}
    for info in wal.listing():
        in_file = place.kind == "file"
        data = (
            (place.folder / info.key).read_bytes()
            if in_file
            else wal.read(info.key, 0, info.size_bytes)
        )
        first = int(info.key.rpartition("/")[2].removesuffix(".wal"))
        whole = scan(info.key, data, first)
        assert whole.header_intact and not whole.damage
        keys = given_keys()
        found |= {
            f.sequence: bytes(payload_of(whole, info.key, data, f, keys)) for f in whole.frames
        }
    assert found == payloads


def test_any_broker_removes_any_finished_file(place: Place) -> None:
    theirs, mine = place.open("1-1/"), place.open("2-1/")
    positions = [place.written(theirs, b"x" * 200) for _ in range(6)]
    kept = place.written(mine, b"kept")
    finished = positions[0].file
    for _ in range(2):
        mine.remove(finished)
    for wal in (theirs, mine):
        with pytest.raises(WalReadError, match=finished):
            wal.read(finished, positions[0].offset, 1)
    assert theirs.read(*positions[-1][1:]) == b"x" * 200
    mine.remove(finished)
    assert mine.read(*kept[1:]) == b"kept"
    assert finished not in {info.key for info in mine.listing()}


def test_a_dead_session_can_be_removed_to_the_last_file(place: Place) -> None:
    dead, mine = place.open("1-1/"), place.open("2-1/")
    files = {place.written(dead, b"x" * 200).file for _ in range(6)}
    for file in files:
        mine.remove(file)
    assert [info for info in mine.listing() if info.key.startswith("wal/1-1")] == []
    assert not (place.folder / "wal" / "1-1").exists()


@pytest.mark.parametrize("earlier", ["file", "object", "postgres"])
def test_what_was_written_to_another_kind_before_is_read_and_removed(
    place: Place, earlier: WalKind
) -> None:
    before = place.open("1-1/", earlier)
    positions = [place.written(before, b"x" * 300) for _ in range(3)]
    wal = place.open("1-2/")
    place.written(wal, b"own")
    for position in positions:
        assert wal.read(*position[1:]) == b"x" * 300
        room = bytearray(position.size)
        wal.read_into(position.file, position.offset, memoryview(room))
        assert room == b"x" * 300
        assert wal.url(position.file) == before.url(position.file)
    wal.remove(positions[0].file)
    with pytest.raises(WalReadError, match=positions[0].file):
        wal.read(*positions[0][1:])
    listed = {info.key for info in wal.listing()}
    assert listed >= ({p.file for p in positions[1:]} if earlier != "postgres" else set())


def test_a_range_that_is_not_there_is_named(place: Place) -> None:
    wal = place.open("1-1/")
    position = place.written(wal, b"payload")
    with pytest.raises(WalReadError, match=position.file):
        wal.read(position.file, position.offset, 4_000)
    with pytest.raises(WalReadError, match=position.file):
        wal.read_into(position.file, position.offset, memoryview(bytearray(4_000)))
    with pytest.raises(WalReadError, match=r"wal/9-9/0{19}1\.wal"):
        wal.read(f"wal/9-9/{1:020d}.wal", 0, 1)


def test_the_url_of_a_file_is_read_elsewhere_or_refused_by_name(place: Place) -> None:
    wal = place.open("1-1/")
    position = place.written(wal, b"payload")
    url = wal.url(position.file, (position.offset, position.size))
    if url.startswith(("file:", "http:", "sealed+file:")):
        assert read_range(url, position.offset, position.size) == b"payload"
    else:
        with pytest.raises(StoreError, match=position.file) as refusal:
            read_range(url, position.offset, position.size)
        assert "catchwater.read=kafka" in str(refusal.value.hint)


def test_it_says_what_it_is_and_who_can_read_it(place: Place) -> None:
    description = place.open("1-1/").describe()
    assert description.kind == place.kind
    assert description.is_shared
    assert description.latency_class and description.failure_domain and description.readers


# --- a broker alone ------------------------------------------------------------------------------

Reopen = Callable[[int], RecoverableWal]


@pytest.fixture(params=["plain", "sealed"])
def reopen(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Reopen]:
    """Opens the same WAL again and again, as after a crash: the one before is not closed."""
    opened: list[Wal] = []
    seals = request.param == "sealed"
    keys = ListedKeys({"k": bytes(32)}) if seals else None

    def open_again(applied: int = 0) -> RecoverableWal:
        wal = FileWal(
            tmp_path, ManualClock(), applied=applied, segment_bytes=800 if seals else 300,
            keys=keys, seals=seals,
        )  # fmt: skip
        opened.append(wal)
        return wal

    yield open_again
    for wal in opened:
        wal.close()


def test_frames_come_back_whole_and_in_order_after_a_crash(reopen: Reopen) -> None:
    wal = reopen(0)
    payloads = [b"%d" % n * n for n in range(30)]
    positions = [wal.append([payload[:3], payload[3:]]) for payload in payloads]
    assert [position.sequence for position in positions] == list(range(1, 31))
    again = reopen(0)
    frames = list(again.frames(0))
    assert [bytes(view) for _, view in frames] == payloads
    assert [position for position, _ in frames] == positions
    assert again.recovered.last_sequence == 30
    assert again.recovered.dropped_bytes == 0


def test_a_position_is_where_the_payload_lies(reopen: Reopen) -> None:
    wal = reopen(0)
    for n in range(10):
        position = wal.append([b"payload", b"%d" % n])
        assert wal.read(position.file, position.offset, position.size) == b"payload%d" % n


def test_frames_begin_behind_the_sequence_asked_for(reopen: Reopen) -> None:
    wal = reopen(0)
    for n in range(1, 21):
        wal.append([b"%d" % n])
    for after in range(21):
        expected = [b"%d" % n for n in range(after + 1, 21)]
        assert [bytes(view) for _, view in wal.frames(after)] == expected


def test_sequences_go_on_after_reopening(reopen: Reopen) -> None:
    for n in range(1, 6):
        assert reopen(n // 2).append([b"x" * 100]).sequence == n


def test_a_removed_file_is_gone_and_the_others_stay(reopen: Reopen) -> None:
    wal = reopen(0)
    for _ in range(10):
        wal.append([b"x" * 100])
    files = wal.files()
    assert len(files) > 2
    wal.remove(files[0].name)
    assert wal.files() == files[1:]
    again = reopen(files[1].first_sequence)
    assert again.recovered.last_sequence == 10
    assert again.files() == files[1:]


def test_rolling_begins_a_new_file(reopen: Reopen) -> None:
    wal = reopen(0)
    first = wal.append([b"one"])
    wal.roll()
    second = wal.append([b"two"])
    assert second.file != first.file
    assert [file.name for file in wal.files()] == [first.file, second.file]
    assert [file.first_sequence for file in wal.files()] == [1, 2]


def test_it_says_that_nobody_else_reads_it(reopen: Reopen) -> None:
    description = reopen(0).describe()
    assert not description.is_shared
    assert description.readers == "this broker only"


def test_a_faulty_log_confirms_only_what_is_there_and_is_dead_for_ever() -> None:
    clock = ManualClock()
    own = ObjectWal(MemoryStore(clock), clock, prefix="1-1/")
    plan = FaultPlan(5, Rates(slow=0.1, unavailable=0.2, lost_reply=0.2, full=0.1))
    wal = FaultyWal(own, plan, clock)
    confirmed = []
    for n in range(100):
        with suppress(WalUnavailable, WalFull):
            confirmed.append((wal.append([b"%d" % n]), b"%d" % n))
    assert len({position.file for position, _ in confirmed}) == len(confirmed) > 30
    assert all(wal.read(*position[1:]) == payload for position, payload in confirmed)
    plan.rates = Rates(dead=1.0)
    with pytest.raises(WalDead):
        wal.append([b"x"])
    plan.heal()
    with pytest.raises(WalDead):
        wal.append([b"x"])
