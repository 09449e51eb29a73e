"""Produce (0), v3-13: record batches to the log; answered when they are durable.

Every batch is checked from the outside (`wire/batch.py`), looked into (`log/write/prepare.py`: on
the loop where that is quick, else in a thread, in its producer's order) and handed to the log as a
view of the frame it came in. Each is answered for itself: one bad partition does not hold back the
others. What is wrong with a batch for good is answered with an error that no client tries
again: INVALID_RECORD, where Kafka has UNKNOWN_SERVER_ERROR or CORRUPT_MESSAGE for some of it.

A request in which all is good and nothing asks for more goes the plain way, as nearly all do: one
pass, which changes nothing and gives up at the first thing it does not expect. The request is then
looked at again from its beginning, with care, and with reasons for what is refused.

The log keeps the frame until the write-ahead log has its bytes. acks=1 and acks=-1 (all) mean the
same here, synced to disk. With acks=0 nothing is answered; an error closes the connection, as in
Kafka, so that the producer notices.

What else is done with a batch, its topic has to ask for (`log/topic_settings.py`): the time of the
append is written into the header where it lies.

Version notes: before v7 zstd is refused (KIP-110), v8 adds a message per partition and the records
to blame (KIP-467), v9 is flexible, v10 has room for a new leader, of which there are none
(KIP-951), v11 has TRANSACTION_ABORTABLE for what lies outside of a transaction, v12 lets a
transactional batch add its partition to the transaction (KIP-890), v13 has topic ids (KIP-516).
"""

from collections.abc import Sequence
from functools import partial

from catchwater.broker.broker import Api, Broker, Call, Later, LaterOf
from catchwater.broker.gate import ByHandler, Operation, ResourceType
from catchwater.broker.quotas import PRODUCE
from catchwater.catalog.rows import (
    Topic,
)
from catchwater.config import CatchwaterError
from catchwater.log.format.chunk import ADDS_PARTITION, KAFKAS_ATTRIBUTES
from catchwater.log.topic_settings import LATEST_MS, UNCHECKED, Rules, rules_of
from catchwater.log.write.prepare import Outcome, Unprepared
from catchwater.log.write.writer import Appended, Submission
from catchwater.objects.base import Buffer
from catchwater.wire.batch import BatchError, BatchHeader, check, plain, read_single, stamp
from catchwater.wire.codecs import Codec
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fields import body_of
from catchwater.wire.produce import (
    FLEXIBLE_SINCE,
    PRODUCE_VERSIONS,
    ProduceReplyPartition,
    ProduceReplyTopic,
    ProduceRequest,
    encode_one,
    encode_produce_reply,
    parse_one,
    parse_produce,
)

_ZSTD_SINCE = 7
_ABORTABLE_SINCE = 11
_ADDS_PARTITIONS_SINCE = 12
_NO_TIME = -1
_ACKS = (-1, 0, 1)
_WRITE_TOPIC = ByHandler(Operation.WRITE, ResourceType.TOPIC)
_WRITE_WITH_ID = ByHandler(Operation.WRITE, ResourceType.TRANSACTIONAL_ID)


class Unanswered(CatchwaterError):
    """A batch was refused whose producer waits for no answer."""


def start(broker: Broker, call: Call) -> Later:
    """Hand the good batches to the log; runs without a pause, so that batches keep their order."""
    version = call.header.api_version
    request = one = parse_one(call.frame.data, version, call.header.rest_at)
    if request is None:
        body = body_of(call.frame.data, call.header.rest_at, version >= FLEXIBLE_SINCE)
        request = parse_produce(body, version)
    meter = call.meter
    if meter is not None:
        meter.take(PRODUCE, len(call.frame.data))
    batches = _plain(broker, call, request)
    if not batches:
        return _start_with_care(broker, call, request)
    correlation_id, is_one = call.header.correlation_id, one is not None
    throttle_ms = 0 if meter is None else meter.throttle_ms
    later = Later(
        partial(_encode_plain, broker, correlation_id, version, request, is_one, throttle_ms)
    )
    broker.log.append(batches, later, call.frame)
    return later


def _plain(broker: Broker, call: Call, request: ProduceRequest) -> list[Submission] | None:
    """The batches of a request that is good as it is, in the order they have; None for any other.

    Nothing is changed or refused here: what is not plain is left to the careful way.
    """
    preparation = broker.log.preparation
    left = preparation.quick_records
    latest_ms = broker.clock.now_ms() + LATEST_MS
    if request.transactional_id is not None or request.acks not in _ACKS:
        return None
    if preparation.load_after_records <= 0:
        return None
    plain_topics = broker.log.plain_topics
    batches: list[Submission] = []
    for wanted in request.topics:
        topic = broker.find_topic(wanted.name, wanted.id or b"")
        if topic is None or (call.gate is not None and not call.allows(_WRITE_TOPIC, topic.name)):
            return None
        max_bytes = plain_topics.get(topic.id)
        if max_bytes is None:  # its settings ask for more, or nobody has looked
            return None
        for part in wanted.partitions:
            index, data = part.partition, part.records
            if data is None or not 0 <= index < topic.partitions:
                return None
            header = plain(data, max_bytes, latest_ms, left)
            if header is None:
                return None
            left -= header.record_count
            batches.append(Submission((topic.id, index), header, data))
    preparation.load_after_records -= preparation.quick_records - left
    return batches


def _start_with_care(broker: Broker, call: Call, request: ProduceRequest) -> Later:
    """As `start`, for a request with something in it to be refused, changed or looked into."""
    transactional_id = request.transactional_id
    may_use_id = transactional_id is None or call.may(_WRITE_WITH_ID, transactional_id)
    now_ms = broker.clock.now_ms()
    taken: list[Unprepared] = []
    # For every partition of the request a refusal, or where there will be an outcome the time of
    # the append that stands in the batch, -1 if none does.
    answers: list[ProduceReplyPartition | int] = []
    for wanted in request.topics:
        topic = broker.find_topic(wanted.name, wanted.id or b"")
        name = topic.name if topic else wanted.name
        may_write = name is None or call.may(_WRITE_TOPIC, name)
        by_id = wanted.id is not None
        rules = rules_of(topic, broker.config.message_max_bytes) if topic else None
        if topic and rules and rules.are_plain:
            broker.log.plain_topics[topic.id] = rules.max_bytes
        elif topic and rules and rules.validation != UNCHECKED:
            rules = rules._replace(fit=broker.value_checks.of(topic, rules.validation))
        for part in wanted.partitions:
            index, data = part.partition, part.records or memoryview(b"")
            try:
                _check_allowed(request, may_use_id, may_write, name)
                _check_request(request, topic, index, by_id)
                assert topic is not None and rules is not None
                header = _check_batch(request, call.version, rules, data, now_ms)
            except BatchError as error:
                answers.append(_refusal(broker, index, error))
                continue
            header = _marked(header, data, rules, call.version, now_ms)
            answers.append(now_ms if rules.stamps else _NO_TIME)
            taken.append(Unprepared((topic.id, index), header, data, rules, now_ms))
    throttle_ms = 0 if call.meter is None else call.meter.throttle_ms
    encode = partial(
        _encode, broker, call.correlation_id, call.version, request, throttle_ms, answers
    )
    return LaterOf(encode, future=broker.log.preparation.submit(taken, call.frame))


def _marked(
    header: BatchHeader, data: memoryview, rules: Rules, version: int, now_ms: int
) -> BatchHeader:
    """The header with what the request and the topic say of the batch."""
    if rules.stamps:
        header = stamp(data, header, now_ms)
    # The upper bits of the attributes are the index's; what a client put there is not read.
    attributes = header.attributes & KAFKAS_ATTRIBUTES
    if header.is_transactional and version >= _ADDS_PARTITIONS_SINCE:
        attributes |= ADDS_PARTITION
    if attributes != header.attributes:
        header = header._replace(attributes=attributes)
    return header


def _check_allowed(
    request: ProduceRequest, may_use_id: bool, may_write: bool, name: str | None
) -> None:
    if not may_use_id:
        raise BatchError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"Transactional id {request.transactional_id} may not be written with.",
        )
    if not may_write:
        raise BatchError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"Topic {name} may not be written to."
        )


def _check_request(request: ProduceRequest, topic: Topic | None, index: int, by_id: bool) -> None:
    """Raises `BatchError` for what is wrong before the batch is looked at."""
    if request.acks not in _ACKS:
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
    request: ProduceRequest, version: int, rules: Rules, data: memoryview, now_ms: int
) -> BatchHeader:
    try:
        header = read_single(data)
    except BatchError as error:
        # Bytes that are no batch have one code, which clients do not try again.
        raise BatchError(ErrorCode.INVALID_RECORD, error.reason) from error
    latest_ms = now_ms + rules.after_ms
    check(data, header, max_bytes=rules.max_bytes, latest_timestamp_ms=latest_ms)
    if header.is_transactional and request.transactional_id is None:
        raise BatchError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "The batch is transactional, but the request names no transactional id.",
        )
    if header.compression == Codec.ZSTD and version < _ZSTD_SINCE:
        raise BatchError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce v{version} has no zstd; v{_ZSTD_SINCE} is the first that does.",
        )
    return header


def _encode_plain(
    broker: Broker,
    correlation_id: int,
    version: int,
    request: ProduceRequest,
    is_one: bool,
    throttle_ms: int,
    outcomes: Sequence[Appended],
) -> list[Buffer]:
    first = outcomes[0]
    if is_one and request.acks != 0 and first.error is ErrorCode.NONE and not throttle_ms:
        return encode_one(correlation_id, request.topics[0], first.base_offset, first.log_start)
    times = [_NO_TIME] * len(outcomes)
    return _encode(broker, correlation_id, version, request, throttle_ms, times, outcomes)


def _encode(
    broker: Broker,
    correlation_id: int,
    version: int,
    request: ProduceRequest,
    throttle_ms: int,
    answers: Sequence[ProduceReplyPartition | int],
    outcomes: Sequence[Outcome],
) -> list[Buffer]:
    given, appended = iter(answers), iter(outcomes)

    def answer(index: int) -> ProduceReplyPartition:
        refusal = next(given)
        if isinstance(refusal, ProduceReplyPartition):
            return refusal
        outcome = next(appended)
        if isinstance(outcome, BatchError):
            return _refusal(broker, index, outcome)
        return _answer(index, outcome, version, refusal)

    topics = [
        ProduceReplyTopic(each.name, each.id, [answer(part.partition) for part in each.partitions])
        for each in request.topics
    ]
    if request.acks != 0:
        return encode_produce_reply(correlation_id, version, topics, throttle_ms=throttle_ms)
    for topic in topics:
        for partition in topic.partitions:
            if partition.error:
                raise Unanswered(
                    f"A batch that was sent with acks=0 is refused with "
                    f"{ErrorCode(partition.error).name}. {partition.error_message or ''}"
                )
    return []


def _refusal(broker: Broker, index: int, error: BatchError) -> ProduceReplyPartition:
    broker.metrics.batches_refused.labels(error.code.name).inc()
    return ProduceReplyPartition(
        index, error.code, error_message=error.reason, record_errors=error.records
    )


def _answer(index: int, appended: Appended, version: int, append_ms: int) -> ProduceReplyPartition:
    error = appended.error
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDS_PARTITIONS_SINCE:
        # Older clients try again after this one only.
        error = ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.INVALID_TXN_STATE:
        known = version >= _ABORTABLE_SINCE
        return ProduceReplyPartition(index, ErrorCode.TRANSACTION_ABORTABLE if known else error)
    if error is not ErrorCode.NONE:
        append_ms = _NO_TIME
    return ProduceReplyPartition(index, error, appended.base_offset, append_ms, appended.log_start)


API = Api(0, "Produce", PRODUCE_VERSIONS, start=start, asks=[_WRITE_TOPIC, _WRITE_WITH_ID])
