"""Another Kafka: one transaction for each epoch, with the epoch's mark.

The driver writes the epoch's rows and then the pipeline's marks into the compacted topic
`catchwater-sink-epochs` (key `<pipeline>/<sink>`), all in one transaction: readers of committed
records see both or neither. The transactional id is the sink's, so a new driver fences an old one,
and waits until the brokers have ended the old one's transaction. Then it reads the marks, as it
does after a commit whose outcome is unknown.

Every row has the headers `catchwater-row` (epoch/shard/row) and `catchwater-sink`. A log cannot
delete: a row that is withdrawn, or replaced by a repair, is followed by a *retraction*, the same
key and value with the header `catchwater-retracts`. With `delivery = "at-least-once"` there are no
transactions and no marks; readers recognise a repeated row by its header.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from catchwater.clock import SYSTEM, Clock
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    RETRACTS_HEADER,
    RETRACTS_OFFSET_HEADER,
    ROW_HEADER,
    SINK_HEADER,
    Fix,
    Headers,
    OutputRecord,
    RowId,
    RowsUnreadable,
    SinkRow,
    SinkUnavailable,
    Staged,
    Stager,
    Superseded,
    TargetState,
    patiently,
    record_digest,
)
from catchwater.sinks.config import (
    RETRY,
    RETRY_MS,
    Guarantee,
    Kind,
    SinkConfig,
    TopicOptions,
    anything,
    check_together,
    check_values,
    duration,
    option,
    options,
)
from catchwater.sinks.epochs import Mark, Marks, Owner, decode_marks
from catchwater.sinks.topic_values import Encoding, kept_subject, look_at_values, open_values
from catchwater.wire.security.settings import (
    OAUTHBEARER,
    PREFIXES,
    UNSECURED,
    Pem,
    Security,
    is_ours,
    parse_security,
)

if TYPE_CHECKING:
    from confluent_kafka import Message as Received

    from catchwater.sinks.config import SinkContext
    from catchwater.sinks.epochs import Archive
    from catchwater.sinks.kafka_client import Brokers, Message, Offsets, Writer
    from catchwater.values.outputs import OutputValues
    from catchwater.wire.security.oauth import OAuth

LEDGER_TOPIC = "catchwater-sink-epochs"

_PREFIX = "kafka."
_BOOTSTRAP = "kafka.bootstrap.servers"
_LEDGER_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
_HIDDEN_S = 30.0
_EVER = 2**62

T = TypeVar("T")


class Terms(NamedTuple):
    """The writer of a topic, and the topic."""

    owner: Owner
    topic: str
    partitions: int = -1
    """Partitions of a topic to be created; -1: the brokers' default."""
    exactly_once: bool = True
    retry_ms: int = 60_000


class _Held(NamedTuple):
    """A record of the topic that was not retracted."""

    id: RowId
    record: OutputRecord
    partition: int
    offset: int


class KafkaSink:
    """See `base.Sink`."""

    def __init__(
        self,
        brokers: "Brokers",
        terms: Terms,
        truth: "Archive",
        clock: Clock = SYSTEM,
        values: "OutputValues | None" = None,
    ) -> None:
        """Create the topics that are missing."""
        self.name = terms.owner.sink
        self.retracts = True
        self.truth = truth
        self._brokers = brokers
        self._terms = terms
        self._clock = clock
        self._values = values
        self._who = str(terms.owner).encode()
        self._writer: Writer | None = None
        self._marks = Marks(*terms.owner.name, 0)
        """The ledger's marks; while there is a writer no other process can change them."""
        self._oldest = 0
        self._patiently(self._create_topics)
        if terms.exactly_once and terms.owner.claim is not None:
            self._patiently(self._claim)

    def stager(self) -> Stager:
        stager = self.truth.stager()
        return stager if self._values is None else Encoding(stager, self._values)

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        pieces = sorted(staged, key=lambda piece: piece.shard)
        mark = Mark.of(epoch, self._terms.owner.generation, pieces)
        return self._patiently(lambda: self._commit(mark, pieces)).sink_epoch(self._terms.topic)

    def last_epoch(self) -> int | None:
        """The newest epoch of the ledger; None with at-least-once."""
        return self._patiently(self._read_marks).newest

    def withdraw(self, after: int) -> None:
        """Retract what older generations wrote in epochs after this one."""
        if self._patiently(lambda: self._withdraw(after)):
            self.truth.withdraw(after)

    def identity(self, record: OutputRecord) -> None:
        return None

    def digest(self, record: OutputRecord) -> bytes:
        return record_digest(record)

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        """The records that were not retracted; those that retention deleted count as present."""
        from catchwater.sinks.kafka_client import starts_of

        try:
            held = self._held(first, last)
            starts = starts_of(self._brokers, self._terms.topic)
            marks = self._read_marks()
        except SinkUnavailable as error:
            raise RowsUnreadable(str(error), hint=error.hint) from error
        for row in held:
            yield SinkRow(row.id, row.record.key, record_digest(row.record))
        there = {row.id for row in held}
        for mark in marks.epochs:
            if first <= mark.epoch <= last:
                yield from self._expired(mark, starts, there)

    def repair(self, fixes: Iterable[Fix]) -> list[Fix]:
        """Retract wrong records and write missing ones, in one transaction.

        Under a transactional id of its own, so that a running pipeline is not fenced.
        """
        wanted = {fix.id: fix for fix in fixes}
        if wanted:
            self._patiently(lambda: self._repair(wanted))
        return []

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Drop marks and staged pieces before this epoch."""
        self._oldest = oldest
        self.truth.sweep(oldest, now_ms)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _create_topics(self) -> None:
        self._brokers.create_topic(self._terms.topic, self._terms.partitions, {})
        self._brokers.create_topic(LEDGER_TOPIC, 1, _LEDGER_CONFIG)

    def _commit(self, mark: Mark, pieces: list[Staged]) -> Mark:
        marks = self._open()
        if self._terms.exactly_once:
            found = marks.admit(mark)
            if found is not None:
                return found
        self.truth.record(mark.epoch, pieces, self._clock.now_ms())
        rows = (self._row(id, record) for id, record in self.truth.rows(mark.epoch))
        if not self._terms.exactly_once:
            offsets = self._write(rows, None)
            return Mark(mark.epoch, mark.generation, mark.records, mark.checksum, offsets)
        return self._write_marked(rows, mark, marks)

    def _write_marked(self, rows: "Iterable[Message]", mark: Mark, marks: Marks) -> Mark:
        written = [mark]

        def marked(offsets: "Offsets") -> Marks:
            written[0] = Mark(mark.epoch, mark.generation, mark.records, mark.checksum, offsets)
            return marks.written(written[0], self._oldest)

        self._write(rows, marked)
        return written[0]

    def _withdraw(self, after: int) -> bool:
        before = self._open()
        marks, _ = before.withdrawn(after, self._terms.owner.generation)
        if before.generation == self._terms.owner.generation:
            return False  # all records are this generation's own
        self._write(map(self._retraction, self._held(after + 1, _EVER)), lambda offsets: marks)
        return True

    def _repair(self, wanted: Mapping[RowId, Fix]) -> None:
        from catchwater.sinks.kafka_client import Writer

        epochs = [id.epoch for id in wanted]
        right: set[RowId] = set()
        messages: list[Message] = []
        for held in self._held(min(epochs), max(epochs)):
            fix = wanted.get(held.id)
            if fix is None:
                continue
            due = None if fix.record is None else record_digest(fix.record)
            if due == record_digest(held.record) and held.id not in right:
                right.add(held.id)
            else:
                messages.append(self._retraction(held))
        messages += [
            self._row(fix.id, fix.record)
            for fix in wanted.values()
            if fix.record is not None and fix.id not in right
        ]
        id_of_repair = f"{self._transactional_id()}.repair" if self._terms.exactly_once else None
        writer = Writer(self._brokers, id_of_repair, {})
        writer.write(messages, None)
        writer.close()

    # The producer and its ledger

    def _open(self) -> Marks:
        """The marks, once only this driver can change them."""
        from catchwater.sinks.kafka_client import Writer

        if self._writer is None:
            owner = self._terms.owner
            if owner.claim is not None:
                # Before a writer is opened, which would end the transaction of a later driver.
                self._read_marks().claimed(owner)
            id_of_sink = self._transactional_id() if self._terms.exactly_once else None
            self._writer = Writer(self._brokers, id_of_sink, {})
            self._marks = self._read_marks(_HIDDEN_S).claimed(owner)
        return self._marks

    def _claim(self) -> None:
        """Let no earlier driver of the checkpoint write any more. Raises `Superseded`."""
        marks = self._open()
        self._write((), lambda offsets: marks)

    def _write(
        self, messages: "Iterable[Message]", marked: "Callable[[Offsets], Marks] | None"
    ) -> "Offsets":
        """Write messages and then the marks; after a failure everything is opened again."""
        from catchwater.sinks.kafka_client import Message

        writer, self._writer = self._writer, None
        assert writer is not None, "opened before anything is written"
        marks = self._marks

        def ledger_record(offsets: "Offsets") -> Message:
            nonlocal marks
            assert marked is not None
            marks = marked(offsets)
            now_ms = self._clock.now_ms()
            return Message(LEDGER_TOPIC, self._who, marks.encode(), now_ms)

        try:
            offsets = writer.write(messages, ledger_record if marked else None)
        except Superseded as fenced:
            if self._terms.owner.claim is None:
                raise
            # By an earlier driver that woke, perhaps: the marks say which of the two is the later.
            raise SinkUnavailable(str(fenced), hint=fenced.hint) from fenced
        self._writer, self._marks = writer, marks
        return offsets

    def _read_marks(self, hidden_s: float = 0) -> Marks:
        """The ledger's marks; up to its very end if it waits for open transactions."""
        return read_marks(self._brokers, self._terms.owner, self._clock, hidden_s)

    def _transactional_id(self) -> str:
        return "catchwater.{}.{}".format(*self._terms.owner.name)

    # The topic

    def _row(self, id: RowId, record: OutputRecord) -> "Message":
        return self._message(record, ((ROW_HEADER, str(id).encode()),))

    def _retraction(self, held: _Held) -> "Message":
        """In the same partition, so that it follows the record that it retracts."""
        own = (
            (RETRACTS_HEADER, str(held.id).encode()),
            (RETRACTS_OFFSET_HEADER, b"%d" % held.offset),
        )
        return self._message(held.record, own, held.partition)

    def _message(self, record: OutputRecord, own: Headers, partition: int = -1) -> "Message":
        from catchwater.sinks.kafka_client import Message

        headers = (*own, (SINK_HEADER, self._who), *record.headers)
        return Message(
            self._terms.topic, record.key, record.value, record.timestamp_ms, headers, partition
        )

    def _held(self, first: int, last: int) -> list[_Held]:
        """The rows of these epochs that exist and were not retracted, in the log's order."""
        from catchwater.sinks.kafka_client import read

        held: dict[tuple[int, int], _Held] = {}
        topic, starts = self._terms.topic, self._starts(first)
        for message in read(self._brokers, topic, self._clock, starts=starts, hidden_s=_HIDDEN_S):
            headers = _headers(message)
            named = dict(headers)
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            if named.get(SINK_HEADER) != self._who:
                continue
            if RETRACTS_OFFSET_HEADER in named:
                held.pop((partition, int(named[RETRACTS_OFFSET_HEADER])), None)
            elif ROW_HEADER in named:
                epoch, shard, row = map(int, named[ROW_HEADER].split(b"/"))
                if first <= epoch <= last:
                    own = tuple(h for h in headers if h[0] not in (ROW_HEADER, SINK_HEADER))
                    key, value = _bytes(message.key()), _bytes(message.value())
                    record = OutputRecord(key, value, message.timestamp()[1], own)
                    id = RowId(epoch, shard, row)
                    held[partition, offset] = _Held(id, record, partition, offset)
        return list(held.values())

    def _expired(
        self, mark: Mark, starts: Mapping[int, int], there: Collection[RowId]
    ) -> Iterator[SinkRow]:
        """The epoch's missing rows, in partitions of which retention deleted a part."""
        from catchwater.sinks.log_stager import partition_of

        cut = {int(p) for p, (offset, _) in mark.offsets.items() if offset < starts.get(int(p), 0)}
        for id, record in self.truth.rows(mark.epoch) if cut else ():
            if id not in there and partition_of(record.key, len(starts)) in cut:
                yield SinkRow(id, record.key, None)

    def _starts(self, first: int) -> dict[int, int]:
        """The first offsets that rows of these epochs can have, by their marks."""
        marks = self._read_marks()
        starts: dict[int, int] = {}
        for mark in marks.epochs if marks.mark(first) else ():
            if mark.epoch >= first:
                for partition, (offset, _) in mark.offsets.items():
                    starts.setdefault(int(partition), offset)
        return starts

    def _patiently(self, call: Callable[[], T]) -> T:
        return patiently(call, self._clock, self._terms.retry_ms)


def read_marks(brokers: "Brokers", owner: Owner, clock: Clock, hidden_s: float = 0) -> Marks:
    """This sink's marks in the ledger topic; up to its very end if it waits for that."""
    from catchwater.sinks.kafka_client import read

    newest = Marks(*owner.name, 0)
    for message in read(brokers, LEDGER_TOPIC, clock, hidden_s=hidden_s):
        value = message.value()
        if message.key() == str(owner).encode() and value is not None:
            newest = decode_marks(value, f"{owner} in {LEDGER_TOPIC}")
    return newest


def _headers(message: "Received") -> list[tuple[str, bytes]]:
    found = message.headers() or []
    assert isinstance(found, list), "librdkafka gives a list"
    return [(name, _bytes(value)) for name, value in found]


def _bytes(value: str | bytes | None) -> bytes:
    """A part of a record as bytes; None becomes empty."""
    return value.encode() if isinstance(value, str) else value or b""


# The client's options from a section
#
# Keys under `kafka.` are librdkafka's properties; Java's names of security settings are accepted
# too. A section without brokers means those of the source, and without security settings uses the
# source's: secrets are never sent to other brokers.


def librdkafka_options(
    section: Mapping[str, str], bootstrap: str, security: Security
) -> dict[str, str]:
    """The options of a client; `bootstrap` and `security` are the source's.

    Raises `ConfigError` for options on security that contradict each other.
    """
    given = {name: value for name, value in section.items() if name.startswith(_PREFIX)}
    own = {name for name in given if name.startswith(PREFIXES)}
    if not own and not given.get(_BOOTSTRAP):
        secured = _translated(security)
    elif is_ours(given):
        secured = _translated(parse_security(given))
        given = {name: value for name, value in given.items() if name not in own}
    else:
        secured = {}  # librdkafka supports more security settings than we do
    named = {name.removeprefix(_PREFIX): value for name, value in given.items() if value}
    return {"bootstrap.servers": bootstrap, **secured, **named}


def _translated(security: Security) -> dict[str, str]:
    if security == UNSECURED:
        return {}
    options = {"security.protocol": security.protocol}
    if security.oauth is not None:
        options |= _oauth(security.oauth)
    elif security.sasl:
        options["sasl.mechanism"] = security.mechanism
        options["sasl.username"] = security.username
        options["sasl.password"] = security.password
    if security.tls:
        checked = "https" if security.check_hostname else "none"
        options["ssl.endpoint.identification.algorithm"] = checked
        options |= _pem("ca", security.ca) | _pem("certificate", security.certificate)
        options |= _pem("key", security.key or security.certificate)
        if security.key_password:
            options["ssl.key.password"] = security.key_password
    return options


def _oauth(oauth: "OAuth") -> dict[str, str]:
    options = {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": oauth.endpoint,
        "sasl.oauthbearer.client.id": oauth.client_id,
        "sasl.oauthbearer.client.secret": oauth.client_secret,
        "sasl.oauthbearer.scope": oauth.scope,
        "sasl.oauthbearer.extensions": ",".join(f"{k}={v}" for k, v in oauth.extensions),
    }
    return {name: value for name, value in options.items() if value}


def _pem(part: str, given: Pem | None) -> dict[str, str]:
    if given is None:
        return {}
    if given.location is not None:
        return {f"ssl.{part}.location": given.location}
    return {f"ssl.{part}.pem": given.text or ""}


# The declaration


@dataclass(frozen=True)
class KafkaOptions(TopicOptions):
    """The keys of a Kafka sink."""

    retry_ms: int = option(duration, RETRY_MS, key="retry", doc=RETRY)
    kafka: Mapping[str, str] = options(anything, key="kafka.*", doc="librdkafka's properties")


def _guarantee(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    if config.exactly_once:
        return Guarantee(
            "exactly-once", "one Kafka transaction per epoch with a record of it in a ledger topic"
        )
    return Guarantee(
        "at-least-once", "records are produced without a transaction, under a header catchwater-row"
    )


def _target(config: SinkConfig, folder: Path) -> str:
    """See `Kind.target`; the source's brokers, without others, are no part of the name."""
    options: KafkaOptions = config.options
    brokers = options.kafka.get(_BOOTSTRAP, "")
    named = ",".join(sorted(each.strip() for each in brokers.split(",")))
    return f"{options.topic} at {named}" if named else options.topic


def _brokers(config: SinkConfig, context: "SinkContext") -> "Brokers":
    from catchwater.sinks.kafka_client import Brokers

    return Brokers(librdkafka_options(config.options.kafka, context.bootstrap, context.security))


def _open(config: SinkConfig, context: "SinkContext", truth: "Archive") -> KafkaSink:
    options: KafkaOptions = config.options
    terms = Terms(
        context.owner(config.name),
        options.topic,
        options.partitions or -1,
        config.exactly_once,
        options.retry_ms,
    )
    values = None if options.is_plain else open_values(config, context, truth)
    return KafkaSink(_brokers(config, context), terms, truth, context.clock, values)


def _look(config: SinkConfig, context: "SinkContext") -> TargetState:
    """See `Kind.look`; opening creates a missing topic."""
    brokers = _brokers(config, context)
    brokers.check_there()
    newest = None
    if config.exactly_once:
        newest = read_marks(brokers, context.owner(config.name), context.clock).newest
    return TargetState(newest is not None, newest)


def _cannot_be(was: str, now: str) -> str:
    """See `Kind.cannot_be`; the marks in the brokers' ledger do not identify the topic."""
    topics = [target.split()[1] for target in (was, now)]
    return "" if topics[0] == topics[1] else "which is another topic"


KIND = Kind(
    name="kafka",
    options=KafkaOptions,
    guarantee=_guarantee,
    target=_target,
    place=lambda options: options.topic,
    named_by="topic",
    keeps=kept_subject,
    cannot_be=_cannot_be,
    open=_open,
    look=_look,
    ask=look_at_values,
    check=check_values,
    check_options=check_together,
    modules=("catchwater.sinks.kafka_client", "catchwater.sinks.log_stager"),
    extra="kafka",
)
