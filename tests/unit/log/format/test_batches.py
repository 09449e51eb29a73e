"""Batches where they lie: final offsets, and the first record of a time."""

from collections.abc import Callable

import pytest

from catchwater.log.format.batches import DamagedObject, StoredBatch, first_record_at, place, walk
from catchwater.wire.batch import read_header, split

MakeBatch = Callable[..., bytes]


def test_batches_of_a_chunk_take_consecutive_offsets(make_batch: MakeBatch) -> None:
    batches = [make_batch([b"a"] * count) for count in (1, 3, 2)]
    found = list(walk(b"".join(batches), 40, 45, key="k", position=100, placed=False))
    assert [(b.header.base_offset, b.header.last_offset) for b in found] == [
        (40, 40),
        (41, 43),
        (44, 45),
    ]
    assert [batch.position for batch in found] == [
        100,
        100 + len(batches[0]),
        100 + sum(map(len, batches[:2])),
    ]


def test_placed_batches_carry_their_offsets_and_can_be_cut_anywhere(make_batch: MakeBatch) -> None:
    batches = [make_batch([b"a"] * count) for count in (1, 3, 2)]
    data = bytearray(b"".join(batches))
    block = place(data, 40)
    assert list(block.last_offsets) == [40, 43, 45]
    ends = [0, *block.ends]
    for (header, batch), original in zip(split(block.data), batches, strict=True):
        assert batch[16:] == original[16:]
        assert header.leader_epoch == 0, "a producer sends -1"
    assert [header.base_offset for header, _ in split(block.data)] == [40, 41, 44]
    sizes = [len(batch) for batch in batches]
    assert block.span(41, sizes[1] + sizes[2], at_least_one=False) == (ends[1], ends[3])
    assert block.span(43, sizes[1] + sizes[2] - 1, at_least_one=False) == (ends[1], ends[2])
    assert block.span(42, sizes[1] - 1, at_least_one=False) == (ends[1], ends[1])
    assert block.span(42, 0, at_least_one=True) == (ends[1], ends[2])
    found = list(walk(data, 40, 45, key="k", position=0, placed=True))
    assert [batch.header.base_offset for batch in found] == [40, 41, 44]


def test_damage_names_the_batch_it_lies_in(make_batch: MakeBatch) -> None:
    batches = [make_batch([bytes([i]) * 50]) for i in range(100)]
    data = bytearray(b"".join(batches))
    size = len(batches[0])
    data[10 * size + 80] ^= 1
    walking = walk(data, 0, 99, key="wal/1", position=1000, placed=False)
    for _ in range(10):
        next(walking)
    with pytest.raises(DamagedObject, match="CRC-32C") as damage:
        next(walking)
    assert (damage.value.first_byte, damage.value.last_byte) == (1000 + 10 * size, 999 + 11 * size)


def test_fewer_records_than_there_should_be_are_damage(make_batch: MakeBatch) -> None:
    data = make_batch([b"a"] * 3)
    with pytest.raises(DamagedObject, match=r"offset 5 should be the last, but it is 2\."):
        list(walk(data, 0, 5, key="k", position=0, placed=False))


@pytest.mark.parametrize("codec", range(5))
def test_the_first_record_of_a_time_is_found_in_every_codec(
    make_batch: MakeBatch, codec: int
) -> None:
    times = [100, 90, 300, 200, 300]
    data = make_batch([b"some value"] * 5, times, codec)
    [batch] = walk(data, 1000, 1004, key="k", position=0, placed=False)
    for wanted in range(80, 301):
        index = next(i for i, time in enumerate(times) if time >= wanted)
        assert first_record_at(batch, wanted) == (1000 + index, times[index])


def trusted(data: bytearray) -> StoredBatch:
    """The only batch in `data`, its checksum not looked at."""
    return StoredBatch(read_header(memoryview(data))._replace(base_offset=7), 0, memoryview(data))


def test_a_batch_that_cannot_be_opened_answers_for_its_first_record(make_batch: MakeBatch) -> None:
    data = bytearray(make_batch([b"a", b"b"], [5, 9], 4))
    data[61:] = bytes(len(data) - 61)
    assert first_record_at(trusted(data), 9) == (7, 9)
    plain = bytearray(make_batch([b"a", b"b"], [5, 9]))
    plain[61:] = b"\xff" * (len(plain) - 61)
    assert first_record_at(trusted(plain), 9) == (7, 9)


def test_with_the_brokers_time_every_record_has_the_same(make_batch: MakeBatch) -> None:
    data = bytearray(make_batch([b"a", b"b"], [5, 9]))
    data[22] |= 0x08
    assert first_record_at(trusted(data), 6) == (7, 9)
