"""Batches opened because their topic asks for it: keys, times, another compression."""

import pytest

from catchwater.log.format.records import open_records
from catchwater.log.write.inside import MAX_OPENED_BYTES, prepared
from catchwater.log.write.rules import Rules
from catchwater.wire.batch import BatchError, check, read_single
from catchwater.wire.errors import ErrorCode
from catchwater.wire.records import encode_batch

TRANSACTIONAL = {
    "producer_id": 7,
    "producer_epoch": 2,
    "base_sequence": 30,
    "transactional": True,
}


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
    for rules in (Rules(10**6, codec=1), Rules(10**6, needs_keys=True)):
        assert refusal(header, torn, rules).code is ErrorCode.INVALID_RECORD
    bomb = memoryview(encode_batch([(b"k", bytes(MAX_OPENED_BYTES), 0, ())], codec=4))
    assert refusal(read_single(bomb), bomb, Rules(10**9, codec=0)).code is ErrorCode.INVALID_RECORD


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
