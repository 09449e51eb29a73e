"""The Kafka sink's use of librdkafka: writing a transaction, reading a topic to its end.

Our own client (`wire.client`) has no transactions; librdkafka has them, for every Kafka from 2.8
on, and takes options by the names its users know (`security.protocol`, …).

A `Writer` is used until its first failure. The outcome of a failed transaction is not guessed: the
next `Writer` with the same transactional id waits until the brokers have ended it, and fences the
old one; then the ledger topic shows the outcome. `read` also waits for records that an open
transaction hides.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka import Message as Received
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, ConfigError, Restart
from catchwater.sinks.base import Headers, NotAdmitted, SinkUnavailable, Superseded

Offsets = dict[str, tuple[int, int]]
"""Partition (as text) → (first, last) offset."""

REQUEST_S = 15.0
"""The timeout of one request."""
FLUSH_S = 60.0
"""The timeout of a produced message; as long as librdkafka lets a transaction last."""

_LOOK_S = 5.0
_POLL_EVERY = 500
_POLL_S = 0.5
_OURS = ("transactional.id", "enable.idempotence", "isolation.level", "acks", "group.id")
_QUIET = {"log_level": 2, "log.connection.close": False}
_READING = {
    "group.id": "catchwater",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # The end of a partition shows as an answer without records, which comes after this time.
    "fetch.wait.max.ms": 10,
}
_WRITING = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    # As Kafka's Java client chooses partitions; librdkafka's own choice is another.
    "partitioner": "murmur2_random",
}
_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
_TOO_LARGE = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
)

Options = Mapping[str, str]


class RecordRefused(CatchwaterError):
    """The brokers refuse a record for good."""

    restart = Restart.ONCE


class Message(NamedTuple):
    """One record to write."""

    topic: str
    key: bytes
    value: bytes
    timestamp_ms: int
    headers: Headers = ()
    partition: int = -1
    """-1: that of the key."""


class Brokers:
    """One Kafka cluster, and the options to connect to it."""

    def __init__(self, options: Options) -> None:
        """`options` are librdkafka's; raises `ConfigError` for those that this module sets."""
        for name in _OURS:
            if name in options:
                raise ConfigError(
                    f"kafka.{name} cannot be set: the sink's promises rest on it.",
                    hint="Leave it out.",
                )
        self.options = dict(options)
        self.name = self.options.get("bootstrap.servers", "")
        self._last_error: KafkaError | None = None

    def connect(self, kind: Callable[[dict[str, Any]], Any], extra: Mapping[str, Any]) -> Any:
        """A producer, consumer or admin client. Raises `ConfigError` for options it refuses."""
        try:
            return kind({**_QUIET, **self.options, **extra, "error_cb": self._note})
        except KafkaException as error:
            if error.args[0].code() != KafkaError._INVALID_ARG:
                raise
            raise ConfigError(
                f"The Kafka client refuses an option of {self.name}: {error.args[0].str()}.",
                hint="The keys under kafka. are librdkafka's configuration properties.",
            ) from error

    @cached_property
    def admin(self) -> AdminClient:
        """The client for topics and offsets; connects when it is first needed."""
        client: AdminClient = self.connect(AdminClient, {})
        return client

    def check_there(self) -> None:
        """Raise `SinkUnavailable` or `NotAdmitted` if no broker answers, sooner than a request."""
        with self.named():
            self.admin.list_topics(timeout=_LOOK_S)

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create the topic if it is missing; -1 partitions are the brokers' default."""
        with self.named():
            admin = self.admin
            if topic in admin.list_topics(timeout=REQUEST_S).topics:
                return
            new = NewTopic(topic, partitions, -1, config=dict(config))
            try:
                admin.create_topics([new], request_timeout=REQUEST_S)[topic].result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    @contextmanager
    def named(self) -> Iterator[None]:
        """Turn librdkafka's errors into ours, naming the brokers."""
        try:
            yield
            self._last_error = None
        except (KafkaException, SystemError) as raised:
            # A fatal error is raised amid callbacks: Python then says of the next one that it
            # returned with an exception set.
            error = raised.__cause__ if isinstance(raised, SystemError) else raised
            if not isinstance(error, KafkaException):
                raise
            reason: KafkaError = error.args[0]
            if "admin" in self.__dict__:
                self.admin.poll(0)  # it calls back only when it is polled
            said, self._last_error = self._last_error, None
            self._refuse_for_good(reason)
            if reason.code() in _FENCED:
                raise Superseded(
                    f"The Kafka at {self.name} has fenced this pipeline's transactions: "
                    f"{reason.str()}.",
                    hint="Another process writes to this sink, or this one stood still for too "
                    "long. Start the pipeline again if no other is running.",
                ) from error
            if said is not None and _is_for_good(said):
                raise NotAdmitted(
                    f"The Kafka at {self.name} cannot be reached as the options say: {said.str()}.",
                    hint="Are user name and password right (kafka.sasl.*), and is the authority "
                    "known that signed the brokers' certificates (kafka.ssl.ca.location)?",
                ) from error
            because = f" ({said.str()})" if said else ""
            raise SinkUnavailable(
                f"The Kafka at {self.name} did not do what was asked: {reason.str()}{because}."
            ) from error

    def _refuse_for_good(self, reason: KafkaError) -> None:
        """Raise permanent errors, which a retry would only repeat."""
        if reason.code() in _TOO_LARGE:
            raise RecordRefused(
                f"The Kafka at {self.name} does not take an output: {reason.str()}.",
                hint="Set kafka.message.max.bytes in the sink's section to what the topic and its "
                "brokers take (max.message.bytes), raise that, or put out less.",
            )
        if reason.code() in _DENIED:
            raise NotAdmitted(
                f"The Kafka at {self.name} does not let this user: {reason.str()}.",
                hint="The principal needs write, describe and read on the sink's topic and on "
                "catchwater-sink-epochs, and its transactional ids (catchwater.…).",
            )

    def _note(self, error: KafkaError) -> None:
        # "All brokers are down" follows the actual reason, and says less.
        if self._last_error is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error


def _is_for_good(error: KafkaError) -> bool:
    """Whether the error is permanent; a TLS handshake can also fail because a broker restarts.

    librdkafka reports a handshake that fails in its first step as a failure of the transport.
    """
    if error.code() == KafkaError._AUTHENTICATION:
        return True
    return error.code() in (KafkaError._SSL, KafkaError._TRANSPORT) and "certificate" in error.str()


class Writer:
    """A producer; with a transactional id, each `write` is one transaction."""

    def __init__(self, brokers: Brokers, transactional_id: str | None, options: Options) -> None:
        """Fences an earlier writer with this id, and ends its open transaction.

        Raises `SinkUnavailable` and `ConfigError`.
        """
        own: dict[str, Any] = {**_WRITING, **options}
        if transactional_id is not None:
            own["transactional.id"] = transactional_id
        self._brokers = brokers
        self._transactional = transactional_id is not None
        self._producer: Producer = brokers.connect(Producer, own)
        if self._transactional:
            with self._closed_by_failure():
                self._producer.init_transactions(REQUEST_S)

    def write(
        self, messages: Iterable[Message], then: Callable[[Offsets], Message] | None
    ) -> Offsets:
        """Write the messages, and then those that `then` makes of their offsets.

        After any error nothing can be written any more. Raises `SinkUnavailable`, where it is not
        known whether all was written, and `Superseded`.
        """
        with self._closed_by_failure():
            if self._transactional:
                self._producer.begin_transaction()
            offsets = self._send(messages)
            if then is not None:
                self._send([then(offsets)])
            if self._transactional:
                self._producer.commit_transaction(REQUEST_S)
            return offsets

    def close(self) -> None:
        """Close the producer and abort its open transaction."""
        with warnings.catch_warnings():
            # A failed abort raises this; the brokers then end the transaction by themselves.
            warnings.simplefilter("ignore", RuntimeWarning)
            self._producer.purge(blocking=False)
            with suppress(KafkaException, SystemError):  # nor has it a say in what failed before
                self._producer.close()

    def _send(self, messages: Iterable[Message]) -> Offsets:
        offsets: Offsets = {}
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Received) -> None:
            if error is not None:
                failed.append(error)
                return
            partition, offset = str(message.partition()), message.offset() or 0
            first, last = offsets.get(partition, (offset, offset))
            offsets[partition] = min(first, offset), max(last, offset)

        for count, message in enumerate(messages):
            self._produce(message, delivered)
            if count % _POLL_EVERY == 0:
                self._producer.poll(0)
            if failed:
                break
        left = self._producer.flush(FLUSH_S)
        if failed or left:
            raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))
        return offsets

    def _produce(self, message: Message, delivered: Callable[..., None]) -> None:
        while True:
            try:
                self._producer.produce(
                    message.topic,
                    key=message.key,
                    value=message.value,
                    timestamp=message.timestamp_ms,
                    headers=list(message.headers),
                    partition=message.partition,
                    on_delivery=delivered,
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    @contextmanager
    def _closed_by_failure(self) -> Iterator[None]:
        done = False
        try:
            with self._brokers.named():
                yield
            done = True
        finally:
            if not done:
                self.close()


def read(
    brokers: Brokers,
    topic: str,
    clock: Clock,
    *,
    starts: Mapping[int, int] | None = None,
    hidden_s: float = 0,
) -> Iterator[Received]:
    """Committed records of the topic, in order within a partition, up to its present end.

    `starts` says where, for partitions that are not read from their beginning. Nothing where there
    is no such topic. What an open transaction hides is waited for so long, if not 0, and raises
    `SinkUnavailable` then.
    """
    with brokers.named():
        consumer: Consumer = brokers.connect(Consumer, _READING)
        try:
            pending = _ends(brokers, topic, hidden_s > 0)
            where = starts or {}
            consumer.assign([TopicPartition(topic, p, where.get(p, 0)) for p in pending])
            until_s = clock.monotonic_s() + (hidden_s or REQUEST_S)
            while pending:
                message = consumer.poll(_POLL_S)
                if message is not None and not _is_past(message, pending):
                    until_s = clock.monotonic_s() + (hidden_s or REQUEST_S)
                    yield message
                elif clock.monotonic_s() > until_s:
                    raise SinkUnavailable(
                        f"The topic {topic} at {brokers.name} cannot be read to its end: nothing "
                        "came for a while.",
                        hint="An open transaction may hide the records; wait until it ends.",
                    )
        finally:
            consumer.close()


def starts_of(brokers: Brokers, topic: str) -> dict[int, int]:
    """Partition → its first offset."""
    with brokers.named():
        return _offsets(brokers, topic, OffsetSpec.earliest(), IsolationLevel.READ_COMMITTED)  # type: ignore[no-untyped-call]


def _ends(brokers: Brokers, topic: str, hidden: bool) -> dict[int, int]:
    """Partition → its end, perhaps including open transactions; without empty partitions."""
    level = IsolationLevel.READ_UNCOMMITTED if hidden else IsolationLevel.READ_COMMITTED
    found = _offsets(brokers, topic, OffsetSpec.latest(), level)  # type: ignore[no-untyped-call]
    return {partition: end for partition, end in found.items() if end > 0}


def _offsets(
    brokers: Brokers, topic: str, which: OffsetSpec, level: IsolationLevel
) -> dict[int, int]:
    found = brokers.admin.list_topics(timeout=REQUEST_S).topics.get(topic)
    if found is None:
        return {}
    answers = brokers.admin.list_offsets(
        {TopicPartition(topic, partition): which for partition in found.partitions},
        isolation_level=level,
        request_timeout=REQUEST_S,
    )
    return {each.partition: answer.result().offset for each, answer in answers.items()}


def _is_past(message: Received, pending: dict[int, int]) -> bool:
    """Whether this message is no record; removes partitions that have been read to the end."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    end = pending.get(partition)
    reached = -1 if offset is None else offset + (0 if error is not None else 1)
    if end is not None and reached >= end:
        del pending[partition]
    return error is not None or end is None
