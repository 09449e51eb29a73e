"""The walk over a batch's records: what it accepts every reader reads, and both loops agree.

Records are made by a grammar that says what is sound, and mutated. What is accepted has to be read
to its end by our decoder and by kafka-python. MUTATIONS sets how many the long forms try.
"""

import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.wire import batch, codecs, kernels
from catchwater.wire.arrow import decode, place
from catchwater.wire.batch import ENDED, LEFT_OVER, MISNUMBERED, SOUND, TORN, BatchHeader, assembled
from catchwater.wire.codecs import Codec, CodecError, decompress_checked

MUTATIONS = int(os.environ.get("MUTATIONS", "2000000"))
MAX_BYTES = 2**20
INTERESTING = (0, 1, 2, 3, 12, 13, 14, 63, 64, 126, 127, 128, 129, 192, 254, 255)

# The grammar: every number may be spelled longer than it has to be.


def varint(value: int, size: int = 0) -> bytes:
    """A zigzag varint of at least so many bytes."""
    bits = ((value << 1) ^ (value >> 63)) % 2**64
    encoded = bytearray()
    while bits >= 0x80 or len(encoded) + 1 < size:
        encoded.append(bits & 0x7F | 0x80)
        bits >>= 7
    return bytes([*encoded, bits])


class Made(NamedTuple):
    """Records, and what a walk finds in them."""

    body: bytes
    count: int
    newest: int
    oldest: int
    keyless: int


class Shape(NamedTuple):
    """One record. `sizes` are the least sizes of its numbers, in bytes."""

    attributes: int
    time_delta: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]
    sizes: Sequence[int]


def field(value: bytes | None, size: int = 0) -> bytes:
    return varint(-1, size) if value is None else varint(len(value), size) + value


def made(shapes: Sequence[Shape]) -> Made:
    body = b""
    for index, shape in enumerate(shapes):
        length, time, offset, key, value, count = shape.sizes
        inside = bytes([shape.attributes]) + varint(shape.time_delta, time)
        inside += varint(index, offset) + field(shape.key, key) + field(shape.value, value)
        inside += varint(len(shape.headers), count)
        inside += b"".join(field(name) + field(content) for name, content in shape.headers)
        body += varint(len(inside), length) + inside
    times = [shape.time_delta for shape in shapes]
    keyless = next((i for i, shape in enumerate(shapes) if shape.key is None), -1)
    return Made(body, len(shapes), max(times), min(times), keyless)


texts = st.text(max_size=6).map(str.encode)
contents = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=140)
sizes = st.tuples(*(st.sampled_from([0, 0, 0, 2, 3, 5]) for _ in range(6)))
shapes = st.builds(
    Shape,
    st.integers(0, 127),
    st.integers(0, 10) | st.integers(-(2**40), 2**40),
    contents,
    contents,
    st.lists(st.tuples(texts, contents), max_size=3),
    sizes,
)
batches = st.lists(shapes, min_size=1, max_size=5).map(made)


def loops(body: bytes, count: int) -> batch.Walked:
    """What both say, which has to be the same."""
    plain = batch.walk_plainly(memoryview(body), count)
    for loop in (kernels.walk, kernels.walk_beside):
        assert loop(memoryview(body), count) == plain, (body, count)
    return plain


def batch_of(body: bytes, count: int, codec: int = 0) -> bytes:
    header = BatchHeader(0, 0, -1, 2, 0, codec, count - 1, 2**41, 2**41, -1, -1, -1, count)
    return assembled(header, codecs.compress(codec, body))[1]


def read_by_us(data: bytes) -> list[int]:
    rows = decode(data, place(data))
    return [offset for each in rows for offset in each.column("offset").to_pylist()]


def read_by_kafka_python(data: bytes) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka.errors import CorruptRecordError
        from kafka.record import MemoryRecords

    try:
        return [record.offset for record in MemoryRecords(data).next_batch()]
    except CorruptRecordError as error:
        # It alone minds the key of a header that is no UTF-8.
        return read_by_us(data) if "UnicodeDecodeError" in str(error) else []


def is_read_whole(data: bytes, count: int, codec: int = 0) -> None:
    everything = list(range(count))
    assert read_by_us(data) == everything
    if codec in (Codec.NONE, Codec.GZIP, Codec.LZ4):  # the others need libraries that it lacks here
        assert read_by_kafka_python(data) == everything


@given(batches)
def test_sound_records_are_accepted_and_every_reader_reads_them(batch: Made) -> None:
    found = loops(batch.body, batch.count)
    assert found == (SOUND, batch.count, batch.newest, batch.oldest, batch.keyless)
    is_read_whole(batch_of(batch.body, batch.count), batch.count)


@given(batches, st.integers(1, 4))
def test_a_count_that_lies_is_seen(batch: Made, by: int) -> None:
    assert loops(batch.body, batch.count + by)[:2] == (ENDED, batch.count)
    fewer = max(batch.count - by, 0)
    assert loops(batch.body, fewer)[:2] == (LEFT_OVER, fewer)


@given(batches, st.data())
def test_records_that_are_cut_anywhere_are_refused(batch: Made, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(batch.body) - 1))
    fault, index, *_ = loops(batch.body[:at], batch.count)
    assert fault in (ENDED, TORN) and index < batch.count


GOOD = Shape(0, 0, b"k", b"v", [(b"h", b"c")], (0,) * 6)
LONG = 6  # bytes of a number that may have 5


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (made([GOOD]).body, SOUND),
        *(
            (made([GOOD._replace(sizes=[5 * (i == n) for i in range(6)])]).body, SOUND)
            for n in range(6)
        ),
        *(
            (made([GOOD._replace(sizes=[LONG * (i == n) for i in range(6)])]).body, fault)
            for n, fault in enumerate((TORN, SOUND, TORN, TORN, TORN, TORN))
        ),
        (made([GOOD._replace(sizes=(0, 10, 0, 0, 0, 0))]).body, SOUND),
        (made([GOOD._replace(sizes=(0, 11, 0, 0, 0, 0))]).body, TORN),
        (made([GOOD._replace(time_delta=2**63 - 1)]).body, SOUND),
        (made([GOOD._replace(time_delta=-(2**63))]).body, SOUND),
        (b"\x28\0" + b"\xff" * 9 + b"\x02" + bytes(9), TORN),  # more than 64 bits
        (b"\x0c\0\0\0\x01\x01\0", SOUND),  # nothing at all in it
        (b"\x0c\x7f\0\0\x01\x01\0", SOUND),
        (b"\x0c\x80\0\0\x01\x01\0", TORN),  # attributes that clients in Python misread
        (b"\x0a\0\0\0\x01\x01", TORN),
        (b"\x0e\0\0\0\x01\x01\0\0", TORN),  # a byte too many in the record
        (b"\x0c\0\0\x02\x01\x01\0", MISNUMBERED),
        (b"\x0c\0\0\x01\x01\x01\0", MISNUMBERED),
        (b"\x0c\0\0\0\x03\x01\0", TORN),  # a key of -2 bytes
        (b"\x0c\0\0\0\x01\x03\0", TORN),
        (b"\x0c\0\0\0\x7e\x01\0", TORN),
        (b"\x0c\0\0\0\x01\x01\x01", TORN),  # -1 headers
        (b"\x0c\0\0\0\x01\x01\x02", TORN),  # one that is not there
        (b"\x10\0\0\0\x01\x01\x02\x01\x01", TORN),  # a header without a key
        (b"\x10\0\0\0\x01\x01\x02\0\x01", SOUND),
        (b"\x01", TORN),
        (b"\xff" * 50, TORN),
        (bytes(40), TORN),
        (b"", ENDED),
    ],
)
def test_every_rule_has_its_case(record: bytes, fault: int) -> None:
    assert loops(record, 1)[0] == fault
    if fault == SOUND:
        is_read_whole(batch_of(record, 1), 1)


def test_who_walks_records_only_loads_no_arrow() -> None:
    code = "import sys, catchwater.wire.batch as b; assert b.load_walk(); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "catchwater.wire.kernels" in ran.stdout.split()
    assert "pyarrow" not in ran.stdout.split()


def test_more_headers_than_our_decoder_takes_are_refused() -> None:
    for count, fault in ((batch.MOST_HEADERS, SOUND), (batch.MOST_HEADERS + 1, TORN)):
        inside = b"\0\0\0\x01\x01" + varint(count) + b"\0\x01" * count
        assert loops(varint(len(inside)) + inside, 1)[0] == fault


def test_the_fault_is_said_in_a_sentence_with_the_record_to_blame() -> None:
    assert batch.blame(ENDED, 3, 9) == ("The batch promises 9 records, but ends after 3.", [])
    reason, blamed = batch.blame(TORN, 3, 9)
    assert blamed == [(3, reason)] and "Record 3 is damaged" in reason


def test_without_numba_the_plain_loop_stays() -> None:
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "from catchwater.wire import batch\n"
        "assert not batch.load_walk() and not batch.walk_is_compiled()\n"
        "assert batch.walk(memoryview(b'\\x0c\\0\\0\\0\\x01\\x01\\0'), 1) == (0, 1, 0, 0, 0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


# Mutations.


def seeds(source: random.Random) -> Iterator[Made]:
    """Small batches, which mutations of a byte have a chance to change."""
    while True:
        many = []
        for _ in range(source.choice((1, 1, 2, 3))):
            headers = [(b"h", source.choice((None, b"c")))] * source.choice((0, 0, 1, 2))
            key, value = (source.choice((None, b"", b"k" * 3, b"v" * 70)) for _ in range(2))
            spelled = [source.choice((0, 0, 0, 0, 2, 5)) for _ in range(6)]
            many.append(Shape(0, source.randrange(-70, 2000), key, value, headers, spelled))
        yield made(many)


def mutated(source: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        at = source.randrange(len(changed))
        match source.randrange(6):
            case 0:
                changed[at] = source.choice(INTERESTING)
            case 1:
                changed[at] ^= 1 << source.randrange(8)
            case 2:
                changed[at] = (changed[at] + source.choice((-2, -1, 1, 2))) % 256
            case 3:
                changed.insert(at, source.choice(INTERESTING))
            case 4 if len(changed) > 1:
                del changed[at]
            case _:
                changed[at : at + 2] = bytes(changed[at : at + 2][::-1])
    return bytes(changed)


def differ(mutations: int, seed: int, read_every: int) -> dict[int, int]:
    """How often each verdict came up; what is accepted is read, every so manieth time."""
    source, verdicts = random.Random(seed), dict.fromkeys(range(5), 0)
    batch = next(grown := seeds(source))
    for nth in range(mutations):
        if nth % 20 == 0:
            batch = next(grown)
        body = mutated(source, batch.body)
        count = batch.count + source.choice((0, 0, 0, 0, 0, 0, -1, 1))
        fault = loops(body, count)[0]
        verdicts[fault] += 1
        if fault == SOUND and count and verdicts[SOUND] % read_every == 0:
            is_read_whole(batch_of(body, count), count)
    return verdicts


def test_both_loops_agree_and_what_they_accept_is_read() -> None:
    verdicts = differ(20_000, 1, 10)
    assert min(verdicts.values()) > 100, verdicts


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_both_loops_agree_on_millions_of_mutations() -> None:
    verdicts = differ(MUTATIONS, int.from_bytes(os.urandom(4), "big"), 100)
    assert min(verdicts.values()) > MUTATIONS // 1000, verdicts


# What is compressed: one frame, and nothing behind it.


@settings(max_examples=60)
@given(batches, st.sampled_from(list(Codec)[1:]), st.data())
def test_compressed_bytes_that_are_accepted_are_read_by_all(
    batch: Made, codec: Codec, data: st.DataObject
) -> None:
    packed = bytes(codecs.compress(codec, batch.body))
    assert bytes(decompress_checked(codec, packed, max_bytes=MAX_BYTES)) == batch.body
    is_read_whole(batch_of(batch.body, batch.count, codec), batch.count, codec)
    source = random.Random(data.draw(st.integers(0, 2**32)))
    for changed in (mutated(source, packed), packed + b"\0", packed + packed, packed[:-1]):
        try:
            body = bytes(decompress_checked(codec, changed, max_bytes=MAX_BYTES))
        except CodecError:
            continue
        assert changed not in (packed + b"\0", packed + packed, packed[:-1])
        if loops(body, batch.count)[0] == SOUND:
            header = BatchHeader(
                0, 0, -1, 2, 0, codec, batch.count - 1, 0, 0, -1, -1, -1, batch.count
            )
            is_read_whole(assembled(header, changed)[1], batch.count, codec)
