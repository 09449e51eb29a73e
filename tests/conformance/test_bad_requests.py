"""Well-formed requests that ask for what must not be: refused by Kafka's error, and nothing else.

Beside `test_bad_input.py`, whose table says where each kind of bad input is tested. Requests are
made by hand, since no client library would send them.
"""

import http.client
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from types import NoneType
from typing import Any, get_args, get_origin

import pytest
from confluent_kafka import Consumer, TopicPartition
from crc32c import crc32c
from kio.index import load_request_schema
from tests.conftest import BrokerProcess, until

from catchwater.clock import SYSTEM
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import assembled, read_header
from catchwater.wire.codecs import Codec, compress
from catchwater.wire.connection import Connection, ask
from catchwater.wire.errors import ErrorCode
from catchwater.wire.messages import encode_request

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT = 0, 1, 2, 3, 8
JOIN_GROUP, CREATE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 11, 19, 21, 22
FIND_COORDINATOR, LEAVE_GROUP = 10, 13
NONE = "NONE"
MAX_I32, MAX_I64 = 2**31 - 1, 2**63 - 1
CRC_AT, ATTRIBUTES_AT, HEADER_BYTES = 17, 21, 61
MEMORY_BYTES = 64 * 2**20


def built(api_key: int, version: int, **values: Any) -> Any:
    """A request whose fields are zero, empty or null where no value is given; nested as dicts."""
    return _built(load_request_schema(api_key, version), values)


def _built(entity: Any, values: dict[str, Any]) -> Any:
    known = {field.name for field in fields(entity)}
    assert set(values) <= known, f"{entity.__name__} has {known}"
    return entity(**{field.name: _field(field, values) for field in fields(entity)})


def _field(field: Any, values: dict[str, Any]) -> Any:
    choices = [c for c in get_args(field.type) if c is not NoneType and c is not Ellipsis]
    if field.name in values:
        value = values[field.name]
        inner = choices[0] if choices else field.type
        if isinstance(value, list):
            inner = get_args(inner)[0] if get_origin(inner) is tuple else inner
            return tuple(_built(inner, v) if is_dataclass(inner) else v for v in value)
        if field.metadata["kafka_type"].startswith("timedelta"):
            return timedelta(milliseconds=value)
        return value
    if field.default is not MISSING:
        return field.default
    if get_origin(field.type) is tuple:
        return ()
    if NoneType in get_args(field.type):
        return None
    zeros = {"string": "", "bool": False, "timedelta_i32": timedelta(0), "bytes": b""}
    return zeros.get(field.metadata["kafka_type"], 0)


@pytest.fixture(scope="module")
def connection(broker: BrokerProcess) -> Iterator[Connection]:
    connection = Connection("127.0.0.1", broker.port, timeout_s=60, clock=SYSTEM)
    for name in ("plain", "compacted", "untouched"):
        configs = [{"name": "cleanup.policy", "value": "compact"}] if name == "compacted" else []
        topic = {"name": name, "num_partitions": 1, "replication_factor": -1, "configs": configs}
        ask(connection, "test", built(CREATE_TOPICS, 7, topics=[topic]))
    yield connection
    connection.close()


@pytest.fixture(autouse=True)
def the_broker_stays_small_and_silent(broker: BrokerProcess) -> Iterator[None]:
    lines = broker.log().count("\n")
    with open(f"/proc/{broker.process.pid}/clear_refs", "w") as clear:
        clear.write("5")  # the peak is counted anew
    before = memory(broker, "VmRSS")
    yield
    assert broker.is_running
    assert memory(broker, "VmHWM") - before < MEMORY_BYTES
    assert broker.log().count("\n") == lines, broker.log().splitlines()[lines:]


def memory(broker: BrokerProcess, what: str) -> int:
    with open(f"/proc/{broker.process.pid}/status") as status:
        found = next(line for line in status if line.startswith(what))
    return int(found.split()[1]) * 1024


def name_of(code: Any) -> str:
    return ErrorCode(int(code)).name


# Batches.


def batch(count: int = 3, *, key: bytes | None = b"k", value: bytes = b"v", **how: Any) -> bytes:
    now_ms = int(time.time() * 1000)
    return encode_batch([(key, value, now_ms + i, ()) for i in range(count)], **how)


def sealed(data: bytes, at: int, form: str, value: int) -> bytes:
    """The batch with another number in its header, under a CRC that fits."""
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    if at != CRC_AT:
        struct.pack_into(">I", changed, CRC_AT, crc32c(bytes(changed[ATTRIBUTES_AT:])))
    return bytes(changed)


def produce(
    connection: Connection, records: bytes | None, topic: str = "plain", **request: Any
) -> str:
    partition = {"index": 0, "records": records}
    data = [{"name": topic, "partition_data": [partition]}]
    message = built(PRODUCE, 9, **{"acks": -1, "timeout": 10_000, "topic_data": data} | request)
    (answer,) = ask(connection, "test", message).responses[0].partition_responses
    return name_of(answer.error_code)


def end_offset(connection: Connection, topic: str) -> int:
    answer = list_offsets(connection, -1, topic)
    assert name_of(answer.error_code) == NONE
    return int(answer.offset)


def holding(records: bytes, count: int = 3, codec: Codec = Codec.NONE) -> bytes:
    """A batch with these records, under a header and a CRC that fit."""
    header = read_header(memoryview(batch(count)))._replace(attributes=codec)
    return assembled(header, compress(codec, records))[1]


def records_of(count: int = 3) -> bytes:
    return batch(count)[HEADER_BYTES:]


YEARS_MS = 3 * 365 * 24 * 3600 * 1000
BATCHES = {
    "a CRC that does not fit": (sealed(batch(), CRC_AT, ">I", 7), "CORRUPT_MESSAGE"),
    "magic 0": (sealed(batch(), 16, ">b", 0), "INVALID_RECORD"),
    "magic 1": (sealed(batch(), 16, ">b", 1), "INVALID_RECORD"),
    "magic 3": (sealed(batch(), 16, ">b", 3), "INVALID_RECORD"),
    "a base offset": (sealed(batch(), 0, ">q", 5), "INVALID_RECORD"),
    "a last offset beyond the count": (sealed(batch(), 23, ">i", 9), "INVALID_RECORD"),
    "a count of -1": (sealed(batch(), 57, ">i", -1), "INVALID_RECORD"),
    "a count of 0": (sealed(batch(), 57, ">i", 0), "INVALID_RECORD"),
    "two billion records": (
        sealed(sealed(batch(), 57, ">i", MAX_I32), 23, ">i", MAX_I32 - 1),
        "INVALID_RECORD",
    ),
    "a control batch": (sealed(batch(), ATTRIBUTES_AT, ">h", 0x20), "INVALID_RECORD"),
    "codec 7": (sealed(batch(), ATTRIBUTES_AT, ">h", 7), "UNSUPPORTED_COMPRESSION_TYPE"),
    "a time in three years": (
        sealed(batch(), 35, ">q", int(time.time() * 1000) + YEARS_MS),
        "INVALID_TIMESTAMP",
    ),
    "too large": (batch(1, value=bytes(1_100_000)), "MESSAGE_TOO_LARGE"),
    "bytes behind it": (batch() + b"junk", "INVALID_RECORD"),
    "two batches": (batch() + batch(), "INVALID_RECORD"),
    "a header alone": (batch()[:HEADER_BYTES], "INVALID_RECORD"),
    "a length of -1": (sealed(batch(), 8, ">i", -1), "INVALID_RECORD"),
    "a length of two billion": (sealed(batch(), 8, ">i", MAX_I32), "INVALID_RECORD"),
    "nothing": (b"", "INVALID_RECORD"),
    "null": (None, "INVALID_RECORD"),
    "transactional without a producer": (
        sealed(batch(), ATTRIBUTES_AT, ">h", 0x10),
        "INVALID_RECORD",
    ),
    "bytes that are no record": (holding(b"\xff" * 50, 1), "INVALID_RECORD"),
    "5,000 records in 40 bytes": (holding(bytes(40), 5_000), "INVALID_RECORD"),
    "5,000 records in 40 compressed bytes": (
        holding(bytes(40), 5_000, Codec.ZSTD),
        "INVALID_RECORD",
    ),
    "a record too few": (holding(records_of(2)), "INVALID_RECORD"),
    "a record too many": (holding(records_of(4)), "INVALID_RECORD"),
    "a record twice": (holding(records_of(1) * 3), "INVALID_RECORD"),
    "bytes behind compressed records": (
        holding(bytes(compress(Codec.LZ4, records_of())) + b"junk"),
        "INVALID_RECORD",
    ),
    "gzip that is none": (sealed(batch(), ATTRIBUTES_AT, ">h", Codec.GZIP), "INVALID_RECORD"),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_bad_batch_is_refused_and_never_appended(connection: Connection, kind: str) -> None:
    records, wanted = BATCHES[kind]
    before = end_offset(connection, "plain")
    answer = produce(connection, records)
    assert answer == wanted
    assert end_offset(connection, "plain") == before


def test_a_compacted_topic_takes_no_record_without_a_key(connection: Connection) -> None:
    mixed = [(b"k", b"v", int(time.time() * 1000), ()), (None, b"v", int(time.time() * 1000), ())]
    for codec in Codec:
        assert produce(connection, encode_batch(mixed, codec=codec), "compacted") == (
            "INVALID_RECORD"
        )
    assert end_offset(connection, "compacted") == 0
    assert produce(connection, batch(), "compacted") == NONE


def test_whatever_is_acknowledged_is_read_to_the_end(
    connection: Connection, broker: BrokerProcess
) -> None:
    """Beside `unit/wire/test_walk.py`, which asks other readers; librdkafka reads from brokers."""
    topic = {"name": "mutated", "num_partitions": 1, "replication_factor": -1}
    ask(connection, "test", built(CREATE_TOPICS, 7, topics=[topic]))
    source = random.Random(7)
    verdicts: Counter[str] = Counter()
    wanted = 0
    for nth in range(600):
        codec = source.choice((Codec.NONE, Codec.NONE, *Codec))
        whole = batch(2, value=b"v" * source.choice((0, 1, 70)))
        body = bytearray(whole[HEADER_BYTES:])
        body[source.randrange(len(body))] = source.choice((0, 1, 2, 3, 127, 128, 255))
        packed = bytearray(compress(codec, bytes(body)))
        if codec and nth % 3 == 0:
            packed[source.randrange(len(packed))] ^= 1 << source.randrange(8)
        header = read_header(memoryview(whole))._replace(attributes=codec)
        answer = produce(connection, assembled(header, bytes(packed))[1], "mutated")
        verdicts[answer] += 1
        wanted += 2 if answer == NONE else 0
    assert set(verdicts) <= {NONE, "INVALID_RECORD", "INVALID_TIMESTAMP"}
    assert min(verdicts[NONE], verdicts["INVALID_RECORD"]) > 100, verdicts
    assert end_offset(connection, "mutated") == wanted
    settings = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "group.id": "reader"}
    consumer = Consumer(settings | {"enable.auto.commit": False, "check.crcs": True})
    consumer.assign([TopicPartition("mutated", 0, 0)])
    offsets: list[int] = []
    deadline = time.monotonic() + 60
    while len(offsets) < wanted and time.monotonic() < deadline:
        offsets += [message.offset() for message in consumer.consume(500, 0.1)]
    consumer.close()
    assert offsets == list(range(wanted))


def test_a_bad_batch_leaves_a_producers_sequence_where_it_was(connection: Connection) -> None:
    given = ask(connection, "test", built(INIT_PRODUCER_ID, 4, transaction_timeout=60_000))
    own = {"producer_id": given.producer_id, "producer_epoch": 0}
    good = batch(3, **own, base_sequence=0)
    header = read_header(memoryview(good))
    for codec in Codec:
        bad = assembled(header._replace(attributes=codec), compress(codec, b"\xff" * 50))[1]
        assert produce(connection, bad) == "INVALID_RECORD"
    assert produce(connection, good) == NONE
    assert produce(connection, batch(1, **own, base_sequence=3)) == NONE


def test_acks_of_two_are_refused(connection: Connection) -> None:
    before = end_offset(connection, "plain")
    for acks in (2, -2, 2**15 - 1, -(2**15)):
        assert produce(connection, batch(), acks=acks) == "INVALID_REQUIRED_ACKS"
    assert end_offset(connection, "plain") == before


def test_a_producer_that_is_out_of_order_or_fenced_is_refused(connection: Connection) -> None:
    given = ask(
        connection,
        "test",
        built(INIT_PRODUCER_ID, 4, transactional_id="tx", transaction_timeout=60_000),
    )
    own = {"producer_id": given.producer_id}
    plain = ask(connection, "test", built(INIT_PRODUCER_ID, 4, transaction_timeout=60_000))
    other = {"producer_id": plain.producer_id, "producer_epoch": 0}
    assert produce(connection, batch(**other, base_sequence=0)) == NONE
    before = end_offset(connection, "plain")
    assert produce(connection, batch(**other, base_sequence=9)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    transactional = batch(**own, producer_epoch=5, base_sequence=0, transactional=True)
    answer = produce(connection, transactional, transactional_id="tx")
    assert answer in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "INVALID_TXN_STATE")
    stranger = batch(**own, producer_epoch=0, base_sequence=0, transactional=True)
    answer = produce(connection, stranger, transactional_id="of somebody else")
    assert answer in ("INVALID_PRODUCER_ID_MAPPING", "INVALID_TXN_STATE", "INVALID_PRODUCER_EPOCH")
    assert end_offset(connection, "plain") == before


# Bombs: what a batch unfolds to is nobody's size but the client's.


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_is_opened_within_bounds_wherever_the_broker_opens_batches(
    connection: Connection, codec: Codec
) -> None:
    size = 20 * 2**20 if codec is Codec.SNAPPY else 250 * 2**20
    begin_ms = int(time.time() * 1000)
    bomb = encode_batch(
        [(b"k", bytes(size // 2), begin_ms, ()), (b"k", bytes(size // 2), begin_ms + 1000, ())],
        codec=codec,
    )
    for topic in ("plain", "compacted"):
        before = end_offset(connection, topic)
        answer = produce(connection, bomb, topic)
        assert answer in (NONE, "INVALID_RECORD", "MESSAGE_TOO_LARGE", "CORRUPT_MESSAGE")
        # In the middle of the batch, so that it has to be looked into.
        found = list_offsets(connection, begin_ms + 500, topic)
        assert name_of(found.error_code) in (NONE, "CORRUPT_MESSAGE", "KAFKA_STORAGE_ERROR")
        assert end_offset(connection, topic) == before + (2 if answer == NONE else 0)


# Names.

TOPIC_NAMES = (
    "",
    ".",
    "..",
    "n" * 250,
    "a/b",
    "../etc",
    "nul\x00",
    "line\nbreak",
    "\u00e9",
    " ",
    "a b",
)
IDS = ("", "g" * 256, "g" * 32_767, "nul\x00", "line\nERROR forged", "\x1b[31mred", "\u202e")


@pytest.mark.parametrize("name", TOPIC_NAMES, ids=lambda name: ascii(name[:12]))
def test_an_illegal_topic_name_is_refused_wherever_topics_come_to_be(
    connection: Connection, name: str
) -> None:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    (made,) = ask(connection, "test", built(CREATE_TOPICS, 7, topics=[topic])).topics
    assert name_of(made.error_code) == "INVALID_TOPIC_EXCEPTION"
    wanted = built(METADATA, 9, topics=[{"name": name}], allow_auto_topic_creation=True)
    (shown,) = ask(connection, "test", wanted).topics
    assert name_of(shown.error_code) == "INVALID_TOPIC_EXCEPTION"
    assert produce(connection, batch(), name) in (
        "INVALID_TOPIC_EXCEPTION",
        "UNKNOWN_TOPIC_OR_PARTITION",
    )


@pytest.mark.parametrize("group_id", IDS, ids=lambda text: ascii(text[:12]))
def test_an_id_that_cannot_be_shown_names_no_group(connection: Connection, group_id: str) -> None:
    answer = join(connection, group_id=group_id)
    assert name_of(answer.error_code) == "INVALID_GROUP_ID"
    (committed,) = commit(connection, group_id, offset=1)
    assert name_of(committed.error_code) == "INVALID_GROUP_ID"


@pytest.mark.parametrize(
    "txn_id", [each for each in IDS if len(each) != 256], ids=lambda text: ascii(text[:12])
)
def test_an_id_that_cannot_be_shown_names_no_transaction(
    connection: Connection, txn_id: str
) -> None:
    request = built(INIT_PRODUCER_ID, 4, transactional_id=txn_id, transaction_timeout=60_000)
    assert name_of(ask(connection, "test", request).error_code) == "INVALID_REQUEST"


def test_ids_of_clients_make_no_metric_without_bound(
    broker: BrokerProcess, connection: Connection
) -> None:
    for number in range(200):
        ask(connection, f"client-{number}", built(18, 0))
        commit(connection, f"flood-{number}", offset=1)
    client = http.client.HTTPConnection(broker.control_url.removeprefix("http://"), timeout=60)
    client.request("GET", "/metrics")
    page = client.getresponse().read().decode()
    client.close()
    assert "client-1" not in page
    assert len(page) < 2 * 2**20


# Fetches and offsets.


def fetch(connection: Connection, offset: int, **request: Any) -> Any:
    partition = {"fetch_offset": offset, "partition_max_bytes": 2**20}
    wanted = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 2**20}
    wanted |= {"topics": [{"topic": "plain", "partitions": [partition]}], "session_epoch": -1}
    return ask(connection, "test", built(FETCH, 11, **wanted | request))


def list_offsets(connection: Connection, timestamp: int, topic: str = "plain") -> Any:
    partition = {"timestamp": timestamp, "current_leader_epoch": -1}
    topics = [{"name": topic, "partitions": [partition]}]
    reply = ask(connection, "test", built(LIST_OFFSETS, 6, replica_id=-1, topics=topics))
    return reply.topics[0].partitions[0]


@pytest.mark.parametrize("offset", [-1, -2, -(2**63), MAX_I64, 10**9])
def test_a_fetch_from_an_offset_that_is_not_there_is_refused(
    connection: Connection, offset: int
) -> None:
    reply = fetch(connection, offset)
    assert name_of(reply.responses[0].partitions[0].error_code) == "OFFSET_OUT_OF_RANGE"


def test_no_limit_of_a_fetch_is_taken_at_its_word(connection: Connection) -> None:
    assert produce(connection, batch()) == NONE
    for size in (0, -1, MAX_I32, -(2**31)):
        reply = fetch(connection, 0, max_bytes=size)
        assert name_of(reply.error_code) == NONE
    end = end_offset(connection, "plain")
    began_s = time.monotonic()
    # As long as one may wait, but bytes enough are there.
    reply = fetch(connection, end - 1, max_wait=MAX_I32, min_bytes=1)
    assert name_of(reply.error_code) == NONE
    assert time.monotonic() - began_s < 50, "one may wait for 60"
    assert fetch(connection, end, max_wait=-(2**31), min_bytes=MAX_I32).error_code == 0


def test_a_session_that_does_not_exist_is_refused(connection: Connection) -> None:
    unknown = fetch(connection, 0, session_id=77, session_epoch=3)
    assert name_of(unknown.error_code) == "FETCH_SESSION_ID_NOT_FOUND"
    epoch = fetch(connection, 0, session_id=0, session_epoch=9)
    assert name_of(epoch.error_code) in (
        "INVALID_FETCH_SESSION_EPOCH",
        "FETCH_SESSION_ID_NOT_FOUND",
    )


def test_the_same_partition_many_times_is_sent_within_the_bound(connection: Connection) -> None:
    assert produce(connection, batch(1, value=bytes(500_000))) == NONE
    end = end_offset(connection, "plain")
    partition = {"fetch_offset": end - 1, "partition_max_bytes": 2**20}
    topics = [{"topic": "plain", "partitions": [partition] * 100_000}]
    reply = fetch(connection, 0, topics=topics, max_bytes=MAX_I32)
    sizes = [len(answer.records or b"") for topic in reply.responses for answer in topic.partitions]
    assert sum(sizes) < 60 * 2**20


@pytest.mark.parametrize("timestamp", [-6, -100, -(2**63)])
def test_a_time_that_means_nothing_is_refused(connection: Connection, timestamp: int) -> None:
    answer = list_offsets(connection, timestamp)
    assert name_of(answer.error_code) in ("INVALID_REQUEST", "UNSUPPORTED_VERSION", NONE)
    assert answer.offset == -1


def test_a_time_after_all_records_finds_none(connection: Connection) -> None:
    answer = list_offsets(connection, MAX_I64)
    assert (name_of(answer.error_code), answer.offset) == (NONE, -1)


def commit(connection: Connection, group_id: str, offset: int, metadata: str = "") -> Any:
    partition = {"committed_offset": offset, "committed_metadata": metadata}
    wanted = built(
        OFFSET_COMMIT,
        7,
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        topics=[{"name": "untouched", "partitions": [partition]}],
    )
    return ask(connection, "test", wanted).topics[0].partitions


def test_positions_are_offsets_and_their_metadata_is_small(connection: Connection) -> None:
    (answer,) = commit(connection, "careful", -5)
    assert name_of(answer.error_code) != NONE
    (answer,) = commit(connection, "careful", 1, "m" * 32_000)
    assert name_of(answer.error_code) == "OFFSET_METADATA_TOO_LARGE"


def test_records_that_are_not_there_are_not_deleted(connection: Connection) -> None:
    for offset in (10**9, -2, MAX_I64):
        topics = [{"name": "plain", "partitions": [{"offset": offset}]}]
        reply = ask(connection, "test", built(DELETE_RECORDS, 1, topics=topics, timeout=1000))
        (answer,) = reply.topics[0].partitions
        assert name_of(answer.error_code) == "OFFSET_OUT_OF_RANGE"


# Groups and topics.


def join(connection: Connection, **request: Any) -> Any:
    wanted = {"group_id": "joined", "session_timeout": 10_000, "rebalance_timeout": 10_000}
    wanted |= {"protocol_type": "consumer", "protocols": [{"name": "range"}]}
    return ask(connection, "test", built(JOIN_GROUP, 5, **wanted | request))


@pytest.mark.parametrize("session_timeout", [0, -1, 5, MAX_I32])
def test_a_session_too_short_or_too_long_is_refused(
    connection: Connection, session_timeout: int
) -> None:
    answer = join(connection, session_timeout=session_timeout)
    assert name_of(answer.error_code) == "INVALID_SESSION_TIMEOUT"


@pytest.mark.parametrize(
    "protocols",
    [
        [{"name": f"p{number}"} for number in range(100_000)],
        [{"name": "range", "metadata": bytes(10 * 2**20)}],
        [],
    ],
    ids=["many", "large", "none"],
)
def test_protocols_have_a_bound(connection: Connection, protocols: list[Any]) -> None:
    answer = join(connection, protocols=protocols)
    assert name_of(answer.error_code) in (
        "INVALID_REQUEST",
        "INCONSISTENT_GROUP_PROTOCOL",
        "GROUP_MAX_SIZE_REACHED",
    )


def test_members_that_never_come_back_cost_little(connection: Connection) -> None:
    for _ in range(2_000):
        answer = join(connection, group_id="crowd")
        assert name_of(answer.error_code) in ("MEMBER_ID_REQUIRED", "GROUP_MAX_SIZE_REACHED")


TOPICS = {
    "a million partitions": ({"num_partitions": 10**6}, "INVALID_PARTITIONS"),
    "no partition": ({"num_partitions": 0}, "INVALID_PARTITIONS"),
    "99 replicas": ({"replication_factor": 99}, "INVALID_REPLICATION_FACTOR"),
    "a setting that does not exist": (
        {"configs": [{"name": "cleanup.polcy", "value": "compact"}]},
        "INVALID_CONFIG",
    ),
    "a setting without a value": (
        {"configs": [{"name": "retention.ms", "value": None}]},
        "INVALID_CONFIG",
    ),
    "a setting of 30 KB": (
        {"configs": [{"name": "retention.ms", "value": "9" * 30_000}]},
        "INVALID_CONFIG",
    ),
}


@pytest.mark.parametrize("kind", TOPICS)
def test_a_topic_that_cannot_be_is_refused(connection: Connection, kind: str) -> None:
    values, wanted = TOPICS[kind]
    topic = {"name": "impossible", "num_partitions": 1, "replication_factor": 1} | values
    (answer,) = ask(connection, "test", built(CREATE_TOPICS, 7, topics=[topic])).topics
    assert name_of(answer.error_code) == wanted


def test_a_topic_named_twice_is_not_made(connection: Connection) -> None:
    topic = {"name": "twice", "num_partitions": 1, "replication_factor": 1}
    reply = ask(connection, "test", built(CREATE_TOPICS, 7, topics=[topic, topic]))
    assert {name_of(answer.error_code) for answer in reply.topics} == {"INVALID_REQUEST"}


# --- very many names -----------------------------------------------------------------------------

MANY = 50_000
MANY_NAMED = {
    "members": lambda: built(
        LEAVE_GROUP, 5, group_id="g", members=[{"member_id": f"m{n}"} for n in range(MANY)]
    ),
    "positions": lambda: built(
        OFFSET_COMMIT, 8, group_id="g", generation_id_or_member_epoch=-1,
        topics=[{"name": "plain", "partitions": [{"partition_index": n} for n in range(MANY)]}],
    ),
    "ends": lambda: built(
        LIST_OFFSETS, 7, topics=[{"name": f"t{n}", "partitions": [{}]} for n in range(MANY)]
    ),
    "coordinators": lambda: built(
        FIND_COORDINATOR, 5, coordinator_keys=tuple(f"g{n}" for n in range(MANY))
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANY_NAMED)
def test_a_request_with_fifty_thousand_names_holds_up_nobody_else(
    connection: Connection, broker: BrokerProcess, kind: str
) -> None:
    """It took seconds, in which nobody was answered."""
    parts = encode_request(connection.correlation_id(), "test", MANY_NAMED[kind]())
    took_s: list[float] = []
    is_over = threading.Event()

    def ask_again_and_again() -> None:
        with closing(Connection("127.0.0.1", broker.port, timeout_s=60, clock=SYSTEM)) as other:
            while not is_over.is_set():
                began_s = time.perf_counter()
                ask(other, "test", built(METADATA, 5, topics=[]))
                took_s.append(time.perf_counter() - began_s)

    asking = threading.Thread(target=ask_again_and_again)
    asking.start()
    until(lambda: len(took_s) > 10)
    connection.send(parts)
    connection.receive()
    is_over.set()
    asking.join()
    assert max(took_s) < 1.0, max(took_s)
