"""Batches on their way to the log: at once or through the thread, order, refusals, the end."""

import asyncio
import threading

import pytest

from catchwater.log.topic_settings import Rules
from catchwater.log.write import prepare
from catchwater.log.write.prepare import NotQuick, Preparation, Unprepared
from catchwater.log.write.writer import Appended
from catchwater.wire import batch
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import BatchError, BatchHeader, assembled, read_single
from catchwater.wire.codecs import Codec, compress
from catchwater.wire.errors import ErrorCode

KEY, OTHER = (b"t" * 16, 0), (b"t" * 16, 1)
DATA = memoryview(encode_batch([(b"k", b"v", 0, ())]))
HEADER = read_single(DATA)
RULES = Rules(10**6)


class Frame:
    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


class MemoryWriter:
    def __init__(self) -> None:
        self.taken: list = []
        self.frames: list = []

    def submit(self, batches, frame) -> asyncio.Future:
        first = len(self.taken)
        self.frames.append(frame)
        self.taken += batches
        answer = asyncio.get_running_loop().create_future()
        answer.set_result([Appended(ErrorCode.NONE, first + n, 0, 0) for n in range(len(batches))])
        return answer


@pytest.fixture
def writer() -> MemoryWriter:
    return MemoryWriter()


@pytest.fixture
async def preparation(writer):
    preparation = Preparation(writer.submit)
    yield preparation
    await preparation.close()


class Looks:
    """What is done to a batch, by the `now_ms` it bears; all else goes to the thread."""

    QUICK, SLOW, REFUSED, BROKEN = range(4)

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def prepared(self, header, data, rules, now_ms, *, at_once=False, room=None):
        if now_ms == self.REFUSED:
            raise BatchError(ErrorCode.INVALID_RECORD, "No.")
        if now_ms == self.BROKEN:
            raise ZeroDivisionError
        if now_ms == self.SLOW:
            if at_once:
                raise NotQuick
            assert self.gate.wait(60)
        return header, data


@pytest.fixture
def looks(monkeypatch) -> Looks:
    looks = Looks()
    monkeypatch.setattr(prepare, "prepared", looks.prepared)
    return looks


def unprepared(way: int = Looks.QUICK, key=KEY) -> Unprepared:
    return Unprepared(key, HEADER, DATA, RULES, way)


async def test_what_is_quick_is_handed_on_at_once(preparation, writer) -> None:
    frame = Frame()
    answer = preparation.submit([unprepared(), unprepared(key=OTHER)], frame)
    assert [batch.partition for batch in writer.taken] == [KEY, OTHER]
    assert writer.frames == [frame]
    assert [batch.data for batch in writer.taken] == [DATA, DATA], "nothing is copied"
    assert [each.base_offset for each in await answer] == [0, 1]
    assert not frame.released, "that is for the log"


async def test_requests_for_a_partition_keep_their_order(preparation, writer, looks) -> None:
    looks.gate.clear()
    first = preparation.submit([unprepared(Looks.SLOW), unprepared(key=OTHER)], Frame())
    second = preparation.submit([unprepared(key=OTHER)], Frame())
    await asyncio.sleep(0)
    assert not writer.taken, "a quick one waits for a slow one of its partition"
    third = preparation.submit([unprepared(key=(b"u" * 16, 0))], Frame())
    assert [each.base_offset for each in await third] == [0], "and no other does"
    looks.gate.set()
    assert [each.base_offset for each in await first] == [1, 2]
    assert [each.base_offset for each in await second] == [3]
    await preparation.close()
    assert not preparation._partitions


@pytest.mark.parametrize("way", [Looks.QUICK, Looks.SLOW])
async def test_a_refused_batch_does_not_hold_back_the_others(
    preparation, writer, looks, way
) -> None:
    frame = Frame()
    batches = [unprepared(way), unprepared(Looks.REFUSED), unprepared(way)]
    found = await preparation.submit(batches, frame)
    assert [type(each) for each in found] == [Appended, BatchError, Appended]
    assert [each.base_offset for each in found[::2]] == [0, 1]
    assert writer.frames == [frame]
    found = await preparation.submit([unprepared(Looks.REFUSED), unprepared(way)], frame)
    assert writer.frames == [frame, frame] and not frame.released
    (only,) = await preparation.submit([unprepared(Looks.REFUSED)], frame)
    assert only.code is ErrorCode.INVALID_RECORD
    assert frame.released == 1
    assert await preparation.submit([], frame) == []
    assert frame.released == 2


async def test_a_bug_in_one_request_is_raised_there_and_the_next_goes_on(
    preparation, looks
) -> None:
    frame = Frame()
    with pytest.raises(ZeroDivisionError):
        preparation.submit([unprepared(Looks.BROKEN)], frame)
    assert not frame.released, "then it is still the caller's"
    bad = preparation.submit([unprepared(Looks.SLOW), unprepared(Looks.BROKEN)], frame)
    good = preparation.submit([unprepared()], None)
    with pytest.raises(ZeroDivisionError):
        await bad
    assert (await good)[0].base_offset == 0
    assert frame.released == 1


@pytest.mark.parametrize("way", [Looks.SLOW, Looks.REFUSED])
async def test_what_nobody_waits_for_any_more_is_appended_all_the_same(
    preparation, writer, looks, way
) -> None:
    """A producer with acks=0 closes its connection behind its last batch."""
    frame = Frame()
    gone = preparation.submit([unprepared(Looks.SLOW), unprepared(way)], frame)
    gone.cancel()
    await preparation.close()
    assert len(writer.taken) == (2 if way == Looks.SLOW else 1)
    assert writer.frames[0] is frame


@pytest.mark.parametrize("size_bytes", [100, 1_000_000], ids=["at once", "in the thread"])
async def test_a_refusal_holds_nothing_of_what_was_unfolded(preparation, size_bytes: int) -> None:
    count_lies = header_of(1)._replace(attributes=int(Codec.ZSTD))
    header, data = assembled(count_lies, compress(Codec.ZSTD, bytes(size_bytes)))
    batch = Unprepared(KEY, header, memoryview(data), RULES, 0)
    (refused,) = await preparation.submit([batch], None)
    assert isinstance(refused, BatchError) and refused.code is ErrorCode.INVALID_RECORD
    assert refused.__traceback__ is refused.__cause__ is refused.__context__ is None


def header_of(count: int) -> BatchHeader:
    return HEADER._replace(record_count=count, last_offset_delta=count - 1)


@pytest.mark.parametrize("problem", [OSError(28, "No space left"), SystemError("NumPy's ABI")])
def test_a_numba_that_does_not_work_is_named_and_the_plain_loop_stays(
    monkeypatch, caplog, problem
) -> None:
    def load() -> bool:
        raise problem

    monkeypatch.setattr(prepare, "load_walk", load)
    prepare._load()
    assert "plain Python" in caplog.text and repr(problem) in caplog.text


async def test_the_compiled_loop_is_loaded_once_there_is_work_for_it(
    preparation, writer, monkeypatch
) -> None:
    loads, loaded = [], threading.Event()

    def load() -> bool:
        loads.append(threading.current_thread())
        loaded.set()
        return False

    monkeypatch.setattr(batch, "walk", batch.walk_plainly)
    monkeypatch.setattr(prepare, "load_walk", load)
    preparation.load_after_records = 6
    for _ in range(5):
        await preparation.submit([unprepared()], None)
    assert not loads
    for _ in range(3):
        await preparation.submit([unprepared()], None)
    assert await asyncio.to_thread(loaded.wait, 60)
    assert len(loads) == 1 and loads[0] is not threading.main_thread()
