"""What every write-ahead log keeps to, whatever it writes to."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.wal.base import Wal
from catchwater.wal.file import FileWal

Open = Callable[[int], Wal]


@pytest.fixture(params=["file"])
def open_wal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same WAL again and again, as after a crash: the one before is not closed."""
    opened: list[Wal] = []

    def open_again(applied: int = 0) -> Wal:
        wal = FileWal(tmp_path, ManualClock(), applied=applied, segment_bytes=300)
        opened.append(wal)
        return wal

    yield open_again
    for wal in opened:
        wal.close()


def test_frames_come_back_whole_and_in_order_after_a_crash(open_wal: Open) -> None:
    wal = open_wal(0)
    payloads = [b"%d" % n * n for n in range(30)]
    positions = [wal.append([payload[:3], payload[3:]]) for payload in payloads]
    assert [position.sequence for position in positions] == list(range(1, 31))
    again = open_wal(0)
    frames = list(again.frames(0))
    assert [bytes(view) for _, view in frames] == payloads
    assert [position for position, _ in frames] == positions
    assert again.recovered.last_sequence == 30
    assert again.recovered.dropped_bytes == 0


def test_a_position_is_where_the_payload_lies(open_wal: Open) -> None:
    wal = open_wal(0)
    for n in range(10):
        position = wal.append([b"payload", b"%d" % n])
        assert wal.read(position.file, position.offset, position.size) == b"payload%d" % n


def test_frames_begin_behind_the_sequence_asked_for(open_wal: Open) -> None:
    wal = open_wal(0)
    for n in range(1, 21):
        wal.append([b"%d" % n])
    for after in range(21):
        expected = [b"%d" % n for n in range(after + 1, 21)]
        assert [bytes(view) for _, view in wal.frames(after)] == expected


def test_sequences_go_on_after_reopening(open_wal: Open) -> None:
    for n in range(1, 6):
        assert open_wal(n // 2).append([b"x" * 100]).sequence == n


def test_a_removed_file_is_gone_and_the_others_stay(open_wal: Open) -> None:
    wal = open_wal(0)
    for _ in range(10):
        wal.append([b"x" * 100])
    files = wal.files()
    assert len(files) > 2
    wal.remove(files[0].name)
    assert wal.files() == files[1:]
    again = open_wal(files[1].first_sequence)
    assert again.recovered.last_sequence == 10
    assert again.files() == files[1:]


def test_rolling_begins_a_new_file(open_wal: Open) -> None:
    wal = open_wal(0)
    first = wal.append([b"one"])
    wal.roll()
    second = wal.append([b"two"])
    assert second.file != first.file
    assert [file.name for file in wal.files()] == [first.file, second.file]
    assert [file.first_sequence for file in wal.files()] == [1, 2]


def test_it_says_what_it_is(open_wal: Open) -> None:
    description = open_wal(0).describe()
    assert description.kind
    assert description.latency_class
    assert description.failure_domain
    assert description.readers
