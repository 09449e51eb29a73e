"""Produce (0), v3-13: record batches to the log; answered when they are durable.

Every batch is checked from the outside (`wire/batch.py`), handed to the log as a view of the
frame it came in, and answered for itself: one bad partition does not hold back the others. The
log keeps the frame until the write-ahead log has its bytes. With acks=0 nothing is answered;
acks=1 and acks=-1 (all) mean the same here, synced to disk. Only a batch for a compacted topic is
opened: every record there needs a key.

Version notes: v8 adds a message per partition (KIP-467), v9 is flexible, v12 lets a transactional
batch add its partition to the transaction (KIP-890), v13 has topic ids (KIP-516).
"""

import asyncio
from functools import partial

from catchwater.broker.broker import Api, Broker, Call, Later
from catchwater.broker.gate import Operation
from catchwater.catalog.rows import (
    Topic,
)
from catchwater.log.format.chunk import ADDS_PARTITION, KAFKAS_ATTRIBUTES
from catchwater.log.format.records import Unopened, open_records
from catchwater.log.keep.policy import COMPACT, cleanup_policies
from catchwater.log.write.intake import Appended, Submission
from catchwater.objects.base import Buffer
from catchwater.wire.batch import BatchError, BatchHeader, check, read_single
from catchwater.wire.errors import ErrorCode
from catchwater.wire.hot import (
    PRODUCE_VERSIONS,
    ProduceReplyPartition,
    ProduceReplyTopic,
    ProduceRequest,
    encode_produce_reply,
    parse_produce,
)

LATEST_TIMESTAMP_MS = 365 * 24 * 60 * 60 * 1000
"""How far in the future a record may lie; beyond, a producer's clock must be wrong."""

MAX_OPENED_BYTES = 32 * 1024 * 1024
"""How large the records of a batch for a compacted topic may be when unfolded."""

_ADDS_PARTITIONS_SINCE = 12


def start(broker: Broker, call: Call) -> Later:
    """Hand the good batches to the log; runs without a pause, so that batches keep their order."""
    request = parse_produce(call.frame.data, call.version, call.header.body_at)
    latest_ms = broker.clock.now_ms() + LATEST_TIMESTAMP_MS
    accepted: list[Submission] = []
    # One for each partition, in the request's order; None where the log will answer.
    refusals: list[ProduceReplyPartition | None] = []
    for wanted in request.topics:
        topic = broker.find_topic(wanted.name, wanted.id or b"")
        name = topic.name if topic else wanted.name
        may_write = name is None or broker.may(call.principal, Operation.WRITE, name)
        by_id = wanted.id is not None
        for index, records in wanted.partitions:
            try:
                _check_allowed(may_write, name)
                _check_request(request, topic, index, by_id)
                assert topic is not None
                data = records or memoryview(b"")
                header = _check_batch(broker, request, topic, data, latest_ms)
            except BatchError as error:
                broker.metrics.batches_refused.labels(error.code.name).inc()
                refusal = ProduceReplyPartition(index, error.code, error_message=error.reason)
                refusals.append(refusal)
                continue
            # The upper bits of the attributes are the index's; what a client put there is not read.
            attributes = header.attributes & KAFKAS_ATTRIBUTES
            if header.is_transactional and call.version >= _ADDS_PARTITIONS_SINCE:
                attributes |= ADDS_PARTITION
            if attributes != header.attributes:
                header = header._replace(attributes=attributes)
            accepted.append(Submission((topic.id, index), header, data, None))
            refusals.append(None)
    encode = partial(_encode, call.correlation_id, call.version, request, refusals)
    if not accepted:
        call.frame.release()
        return Later(_nothing(), encode)
    # The log releases the frame with the last batch that lies in it.
    accepted[-1] = accepted[-1]._replace(frame=call.frame)
    return Later(broker.log.submit(accepted), encode)


def _check_allowed(may_write: bool, name: str | None) -> None:
    if not may_write:
        raise BatchError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Topic {name} may not be written to."
        )


def _check_request(request: ProduceRequest, topic: Topic | None, index: int, by_id: bool) -> None:
    """Raises `BatchError` for what is wrong before the batch is looked at."""
    if request.acks not in (-1, 0, 1):
        raise BatchError(ErrorCode.INVALID_REQUIRED_ACKS, "acks is -1 (all), 0 or 1.")
    if topic is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise BatchError(unknown, "There is no such topic.")
    if not 0 <= index < topic.partitions:
        raise BatchError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Topic {topic.name} has {topic.partitions} partitions.",
        )


def _check_batch(
    broker: Broker, request: ProduceRequest, topic: Topic, data: memoryview, latest_ms: int
) -> BatchHeader:
    header = read_single(data)
    max_bytes = topic.config.get("max.message.bytes", broker.config.message_max_bytes)
    check(data, header, max_bytes=int(max_bytes), latest_timestamp_ms=latest_ms)
    if header.is_transactional and request.transactional_id is None:
        raise BatchError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "The batch is transactional, but the request names no transactional id.",
        )
    if COMPACT in cleanup_policies(topic):
        _check_keys(topic, header, data)
    return header


def _check_keys(topic: Topic, header: BatchHeader, data: memoryview) -> None:
    try:
        records = open_records(header, data, max_bytes=MAX_OPENED_BYTES)
    except Unopened as reason:
        raise BatchError(ErrorCode.INVALID_RECORD, str(reason)) from reason
    if any(record.key is None for record in records):
        raise BatchError(
            ErrorCode.INVALID_RECORD,
            f"Topic {topic.name} is compacted, so every record needs a key.",
        )


def _nothing() -> asyncio.Future[list[Appended]]:
    future: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
    future.set_result([])
    return future


def _encode(
    correlation_id: int,
    version: int,
    request: ProduceRequest,
    refusals: list[ProduceReplyPartition | None],
    appended: list[Appended],
) -> list[Buffer]:
    if request.acks == 0:
        return []
    answers, refused = iter(appended), iter(refusals)
    topics = [
        ProduceReplyTopic(
            topic.name,
            topic.id,
            [
                next(refused) or _answer(index, next(answers), version)
                for index, _ in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return encode_produce_reply(correlation_id, version, topics)


def _answer(index: int, appended: Appended, version: int) -> ProduceReplyPartition:
    error = appended.error
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDS_PARTITIONS_SINCE:
        # Older clients try again after this one only.
        error = ErrorCode.NOT_ENOUGH_REPLICAS
    # The append time is told only where it is the records' timestamp, which it never is here.
    return ProduceReplyPartition(index, error, appended.base_offset, log_start=appended.log_start)


API = Api(0, "Produce", PRODUCE_VERSIONS, start=start)
