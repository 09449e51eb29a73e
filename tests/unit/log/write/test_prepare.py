"""Batches on their way through the thread that looks into them: order, refusals, the end."""

import asyncio
import threading

import pytest

from catchwater.log.format.chunk import ADDS_PARTITION
from catchwater.log.write.intake import Appended
from catchwater.log.write.prepare import Preparation, Unprepared
from catchwater.wire.batch import BatchError, read_single
from catchwater.wire.errors import ErrorCode
from catchwater.wire.records import encode_batch

KEY, OTHER = (b"t" * 16, 0), (b"t" * 16, 1)
DATA = encode_batch([(b"k", b"v", 0, ())])
HEADER = read_single(memoryview(DATA))


class MemoryWriter:
    def __init__(self) -> None:
        self.taken: list = []

    def submit(self, batches) -> asyncio.Future:
        first = len(self.taken)
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


def refused(header, data):
    raise BatchError(ErrorCode.INVALID_RECORD, "No.")


def unprepared(make=lambda header, data: (header, data), key=KEY, header=HEADER) -> Unprepared:
    return Unprepared(key, header, DATA, make)


async def test_requests_are_handed_on_in_their_order(preparation, writer) -> None:
    gate = threading.Event()

    def slow(header, data):
        assert gate.wait(60)
        return header, data

    first = preparation.submit([unprepared(slow)])
    second = preparation.submit([unprepared(key=OTHER)])
    await asyncio.sleep(0)
    assert preparation.holds(KEY) and preparation.holds(OTHER) and not writer.taken
    gate.set()
    assert [(await first)[0].base_offset, (await second)[0].base_offset] == [0, 1]
    assert [batch.partition for batch in writer.taken] == [KEY, OTHER]
    assert not preparation.holds(OTHER)


async def test_a_refused_batch_does_not_hold_back_the_others(preparation, writer) -> None:
    found = await preparation.submit([unprepared(), unprepared(refused), unprepared()])
    assert [type(each) for each in found] == [Appended, BatchError, Appended]
    assert [each.base_offset for each in found[::2]] == [0, 1]
    (only,) = await preparation.submit([unprepared(refused)])
    assert only.code is ErrorCode.INVALID_RECORD


async def test_the_bits_of_the_index_are_kept_and_not_shown(preparation, writer) -> None:
    shown = []

    def look(header, data):
        shown.append(header.attributes)
        return header, data

    header = HEADER._replace(attributes=HEADER.attributes | ADDS_PARTITION)
    await preparation.submit([unprepared(look, header=header)])
    assert shown == [HEADER.attributes]
    assert writer.taken[0].header == header


async def test_a_bug_in_one_request_is_raised_there_and_the_next_goes_on(preparation) -> None:
    def broken(header, data):
        raise ZeroDivisionError

    bad, good = preparation.submit([unprepared(broken)]), preparation.submit([unprepared()])
    with pytest.raises(ZeroDivisionError):
        await bad
    assert (await good)[0].base_offset == 0


async def test_what_nobody_waits_for_any_more_is_not_begun(preparation, writer) -> None:
    gone = preparation.submit([unprepared()])
    gone.cancel()
    assert (await preparation.submit([unprepared()]))[0].base_offset == 0
    assert len(writer.taken) == 1
    assert not preparation.holds(KEY)
