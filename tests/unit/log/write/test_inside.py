"""Batches looked into: sound records, keys, times, another compression."""

import pytest

from catchwater.log.format.chunk import ADDS_PARTITION
from catchwater.log.format.records import open_records
from catchwater.log.topic_settings import Rules
from catchwater.log.write.prepare import (
    MAX_OPENED_BYTES,
    QUICK_EFFORT,
    NotQuick,
    Undecided,
    effort,
    prepared,
)
from catchwater.wire import batch
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import BatchError, check, read_single
from catchwater.wire.errors import ErrorCode

TRANSACTIONAL = {
    "producer_id": 7,
    "producer_epoch": 2,
    "base_sequence": 30,
    "transactional": True,
}


PLAIN = Rules(10**6)


def make(codec: int = 0, **settings):
    records = [(b"k%d" % i, b"water" * 20, 1_000 + i, ()) for i in range(50)]
    data = memoryview(encode_batch(records, codec=codec, **settings))
    return read_single(data), data


@pytest.mark.parametrize("source", range(5))
@pytest.mark.parametrize("wanted", range(5))
def test_every_codec_becomes_every_other_and_nothing_else_changes(source, wanted) -> None:
    header, data = make(source, **TRANSACTIONAL)
    new, stored = prepared(header, data, Rules(10**6, codec=wanted), 0)
    check(memoryview(stored), new)
    assert read_single(memoryview(stored)) == new
    assert new.compression == wanted
    same = {"size_bytes": 0, "crc": 0, "attributes": new.attributes & ~7}
    old = header._replace(**same | {"attributes": header.attributes & ~7})
    assert new._replace(**same) == old
    opened = [open_records(h, memoryview(d)) for h, d in ((header, data), (new, stored))]
    assert [r.data.tobytes() for r in opened[0]] == [r.data.tobytes() for r in opened[1]]


def test_a_batch_that_is_compressed_so_already_is_taken_as_it_is() -> None:
    header, data = make(4)
    assert prepared(header, data, Rules(10**6, codec=4), 0) == (header, data)


def refusal(header, data, rules: Rules, now_ms: int = 0) -> BatchError:
    with pytest.raises(BatchError) as caught:
        prepared(header, data, rules, now_ms)
    return caught.value


def test_what_cannot_be_opened_is_refused() -> None:
    header, data = make(4)
    torn = memoryview(bytes(data[:-9]))
    for rules in (PLAIN, Rules(10**6, codec=1), Rules(10**6, needs_keys=True)):
        assert refusal(header, torn, rules).code is ErrorCode.INVALID_RECORD
    bomb = memoryview(encode_batch([(b"k", bytes(MAX_OPENED_BYTES), 0, ())], codec=4))
    error = refusal(read_single(bomb), bomb, Rules(10**9, codec=0))
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE


def test_what_becomes_too_large_is_refused() -> None:
    header, data = make(4)
    error = refusal(header, data, Rules(1_000, codec=0))
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE


def test_records_that_are_too_old_are_named() -> None:
    header, data = make()
    error = refusal(header, data, Rules(10**6, before_ms=100), now_ms=1_103)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in error.records] == [0, 1, 2]
    assert prepared(header, data, Rules(10**6, before_ms=100), 1_100) == (header, data)


def test_the_bits_of_the_index_are_kept_and_not_written() -> None:
    header, data = make(4, **TRANSACTIONAL)
    marked = header._replace(attributes=header.attributes | ADDS_PARTITION)
    assert prepared(marked, data, PLAIN, 0) == (marked, data)
    for lie, rules in ((marked, Rules(10**6, codec=0)), (marked._replace(max_timestamp=7), PLAIN)):
        new, stored = prepared(lie, data, rules, 0)
        assert new.attributes & ADDS_PARTITION
        written = read_single(memoryview(stored))
        assert written.attributes & ~7 == header.attributes & ~7
        assert written.max_timestamp == header.max_timestamp == new.max_timestamp


@pytest.mark.parametrize("codec", range(1, 5))
def test_what_takes_long_is_not_done_at_once(codec) -> None:
    small = make(codec)
    assert prepared(*small, PLAIN, 0, at_once=True) == small
    data = memoryview(encode_batch([(b"k", bytes(100_000), 0, ())], codec=codec))
    header = read_single(data)
    with pytest.raises(NotQuick):
        prepared(header, data, PLAIN, 0, at_once=True)
    room = memoryview(bytearray(200_000))
    assert prepared(header, data, PLAIN, 0, room=room) == (header, data)
    keyless = memoryview(encode_batch([(None, b"v", 0, ())] * 2000))
    with pytest.raises(NotQuick):
        prepared(read_single(keyless), keyless, Rules(10**6, needs_keys=True), 0, at_once=True)


def test_the_effort_of_a_request_decides_where_it_is_looked_into(monkeypatch) -> None:
    monkeypatch.setattr(batch, "walk", batch.walk_plainly)
    header, _ = make()
    assert effort(header._replace(record_count=900), PLAIN) <= QUICK_EFFORT
    assert effort(header._replace(record_count=2_000), PLAIN) > QUICK_EFFORT
    assert batch.load_walk()
    assert effort(header._replace(record_count=10_000), PLAIN) <= QUICK_EFFORT
    assert effort(header, Rules(10**6, codec=4)) > QUICK_EFFORT
    assert effort(make(4)[0]._replace(size_bytes=17_000), PLAIN) > QUICK_EFFORT


def test_values_that_do_not_fit_are_refused_by_name_and_tombstones_fit() -> None:
    values = [b"good", b"bad", None, b"", b"worse"]
    records = [(None, value, 1_000, [(f"h{at}", b"x")]) for at, value in enumerate(values)]
    seen = []

    def fit(value: bytes) -> str | None:
        seen.append(value)
        return None if value in (b"good", b"") else f"it is {value.decode()}"

    for codec in range(5):
        data = memoryview(encode_batch(records, codec=codec))
        error = refusal(read_single(data), data, Rules(10**6, fit=fit))
        assert error.code is ErrorCode.INVALID_RECORD
        assert [(index, why[-7:]) for index, why in error.records] == [
            (1, " is bad"),
            (4, "s worse"),
        ]
        assert "Record 1 of the batch: Its value does not fit" in error.reason
    assert seen == 5 * [value for value in values if value is not None]
    header, data = make(4)
    assert prepared(header, data, Rules(10**6, fit=lambda value: None), 0) == (header, data)


def test_what_is_not_known_yet_may_be_sent_again_and_is_no_work_for_the_event_loop() -> None:
    def fit(value: bytes) -> str | None:
        raise Undecided("the registry does not answer")

    header, data = make()
    error = refusal(header, data, Rules(10**6, fit=fit))
    assert error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert error.reason == "the registry does not answer"
    assert effort(header, PLAIN) < QUICK_EFFORT < effort(header, Rules(10**6, fit=fit))
