"""Batches where they lie: final offsets, and the first record of a time."""

from collections.abc import Callable

import pytest

from catchwater.log.batches import DamagedObject, first_record_at, walk

MakeBatch = Callable[..., bytes]


def test_batches_of_a_chunk_take_consecutive_offsets(make_batch: MakeBatch) -> None:
    batches = [make_batch([b"a"] * count) for count in (1, 3, 2)]
    found = list(walk(b"".join(batches), 40, key="k", position=100, placed=False))
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
    head, rest = found[1].parts()
    assert head[:8] == (41).to_bytes(8, "big")
    assert head[12:] == bytes(4), "the leader epoch a producer sends is -1, a reader sees 0"
    assert head + rest == head + batches[1][16:]


def test_damage_names_the_batch_it_lies_in(make_batch: MakeBatch) -> None:
    batches = [make_batch([bytes([i]) * 50]) for i in range(100)]
    data = bytearray(b"".join(batches))
    size = len(batches[0])
    data[10 * size + 80] ^= 1
    walking = walk(data, 0, key="wal/1", position=1000, placed=False)
    for _ in range(10):
        next(walking)
    with pytest.raises(DamagedObject, match="CRC-32C") as damage:
        next(walking)
    assert (damage.value.first_byte, damage.value.last_byte) == (1000 + 10 * size, 999 + 11 * size)


def test_trusted_bytes_are_not_verified(make_batch: MakeBatch) -> None:
    data = bytearray(make_batch([b"x" * 50]))
    data[-1] ^= 1
    assert len(list(walk(data, 0, key="k", position=0, placed=False, verify=False))) == 1


@pytest.mark.parametrize("codec", range(5))
def test_the_first_record_of_a_time_is_found_in_every_codec(
    make_batch: MakeBatch, codec: int
) -> None:
    times = [100, 90, 300, 200, 300]
    data = make_batch([b"some value"] * 5, times, codec)
    [batch] = walk(data, 1000, key="k", position=0, placed=False)
    for wanted in range(80, 301):
        index = next(i for i, time in enumerate(times) if time >= wanted)
        assert first_record_at(batch, wanted) == (1000 + index, times[index])


def test_a_batch_that_cannot_be_opened_answers_for_its_first_record(make_batch: MakeBatch) -> None:
    data = bytearray(make_batch([b"a", b"b"], [5, 9], 4))
    data[61:] = bytes(len(data) - 61)
    [batch] = walk(data, 7, key="k", position=0, placed=False, verify=False)
    assert first_record_at(batch, 9) == (7, 9)
    plain = bytearray(make_batch([b"a", b"b"], [5, 9]))
    plain[61:] = b"\xff" * (len(plain) - 61)
    [batch] = walk(plain, 7, key="k", position=0, placed=False, verify=False)
    assert first_record_at(batch, 9) == (7, 9)


def test_with_the_brokers_time_every_record_has_the_same(make_batch: MakeBatch) -> None:
    data = bytearray(make_batch([b"a", b"b"], [5, 9]))
    data[22] |= 0x08
    [batch] = walk(data, 7, key="k", position=0, placed=False, verify=False)
    assert first_record_at(batch, 6) == (7, 9)
