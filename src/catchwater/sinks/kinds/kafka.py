"""Kafka that is not ours: one transaction an epoch, with a record of the epoch.

The driver writes the epoch's rows and, behind them, the pipeline's marks into the compacted topic
`catchwater-sink-epochs` (key `<pipeline>/<sink>`), all in one transaction: committed readers see
both or neither. The transactional id is the sink's, so a new driver fences an old one, and waits
until what that one left open is ended. Marks are read back after that, at the start and whenever
it is not clear what a commit came to.

Every row carries the headers `catchwater-row` (epoch/shard/row) and `catchwater-sink`. A log takes
nothing back: a row that is withdrawn, or that repair replaces, is followed by a *retraction*, the
same key and value under `catchwater-retracts`. With `delivery = "at-least-once"` there are no
transactions and no marks of epochs; a reader knows a repeated row by its header.
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
    anything,
    count,
    duration,
    option,
    options,
    topic,
)
from catchwater.sinks.marks import Mark, Marks, Owner, decode_marks
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

    from catchwater.sinks.kafka_client import Brokers, Message, Offsets, Writer
    from catchwater.sinks.open import SinkContext
    from catchwater.sinks.staged import Archive, StagedFile
    from catchwater.wire.security.oauth import OAuth

LEDGER_TOPIC = "catchwater-sink-epochs"

_PREFIX = "kafka."
_BOOTSTRAP = "kafka.bootstrap.servers"
_LEDGER_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
_HIDDEN_S = 30.0
_EVER = 2**62

T = TypeVar("T")


class Terms(NamedTuple):
    """Who writes where, and how."""

    owner: Owner
    topic: str
    partitions: int = -1
    """Of a topic that has to be created; -1: the brokers' default."""
    exactly_once: bool = True
    retry_ms: int = 60_000


class _Held(NamedTuple):
    """A row that the topic holds and nothing has taken back."""

    id: RowId
    record: OutputRecord
    partition: int
    offset: int


class KafkaSink:
    """See `base.Sink`."""

    def __init__(
        self, brokers: "Brokers", terms: Terms, truth: "Archive", clock: Clock = SYSTEM
    ) -> None:
        """Create the topics that are missing."""
        self.name = terms.owner.sink
        self.retracts = True
        self.truth = truth
        self._brokers = brokers
        self._terms = terms
        self._clock = clock
        self._who = str(terms.owner).encode()
        self._writer: Writer | None = None
        self._marks = Marks(*terms.owner.name, 0)
        """What the ledger says; as long as there is a writer, no other process can change it."""
        self._oldest = 0
        self._patiently(self._create_topics)

    def stager(self) -> "StagedFile":
        return self.truth.stager()

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        """Write the epoch's rows and its mark in one transaction, once."""
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
        """A log keeps every record."""
        return None

    def digest(self, record: OutputRecord) -> bytes:
        """Of key, value and headers."""
        return record_digest(record)

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        """What the topic holds and nothing has taken back; what retention took counts as held."""
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
        """Retract what is wrong and write what is missing, in one transaction.

        Under a transactional id of its own, so that a running pipeline is not fenced.
        """
        wanted = {fix.id: fix for fix in fixes}
        if wanted:
            self._patiently(lambda: self._repair(wanted))
        return []

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Forget marks and staged pieces before this epoch."""
        self._oldest = oldest
        self.truth.sweep(oldest, now_ms)

    def close(self) -> None:
        """End the producer."""
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
            return False  # what is there now is this generation's own
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
            id_of_sink = self._transactional_id() if self._terms.exactly_once else None
            self._writer = Writer(self._brokers, id_of_sink, {})
            self._marks = self._read_marks(_HIDDEN_S)
        return self._marks

    def _write(
        self, messages: "Iterable[Message]", marked: "Callable[[Offsets], Marks] | None"
    ) -> "Offsets":
        """Write messages and the marks behind them; after a failure all is opened anew."""
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

        offsets = writer.write(messages, ledger_record if marked else None)
        self._writer, self._marks = writer, marks
        return offsets

    def _read_marks(self, hidden_s: float = 0) -> Marks:
        """What the ledger says; up to its very end if what is hidden is waited for."""
        return read_marks(self._brokers, self._terms.owner, self._clock, hidden_s)

    def _transactional_id(self) -> str:
        return "catchwater.{}.{}".format(*self._terms.owner.name)

    # The topic

    def _row(self, id: RowId, record: OutputRecord) -> "Message":
        return self._message(record, ((ROW_HEADER, str(id).encode()),))

    def _retraction(self, held: _Held) -> "Message":
        """Into the same partition, where it comes behind what it takes back."""
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
        """The rows of these epochs that are there and were not taken back, in the log's order."""
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
        """The epoch's rows that are not there, in partitions where retention took some of it."""
        from catchwater.sinks.log_stager import partition_of

        cut = {int(p) for p, (offset, _) in mark.offsets.items() if offset < starts.get(int(p), 0)}
        for id, record in self.truth.rows(mark.epoch) if cut else ():
            if id not in there and partition_of(record.key, len(starts)) in cut:
                yield SinkRow(id, record.key, None)

    def _starts(self, first: int) -> dict[int, int]:
        """From where on the rows of these epochs can lie, as far as their marks are known."""
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
    """What the ledger topic says of this owner's sink; up to its very end if it waits for it."""
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
    """A part of a record, as bytes; nothing is none."""
    return value.encode() if isinstance(value, str) else value or b""


# How a section says to reach its Kafka
#
# What stands under `kafka.` are librdkafka's properties, with Java's names of those on security
# taken too. A section that names no brokers means those of the source, and unless it says something
# on security of its own, reaches them as the source does: secrets are never sent to other brokers.


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
        secured = {}  # librdkafka knows more ways to be secured than we do
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


# What it declares


@dataclass(frozen=True)
class KafkaOptions:
    """The keys of a Kafka sink."""

    topic: str = option(topic, doc="the topic, which is made if it is missing")
    partitions: int | None = option(count, None, doc="of a topic that has to be made")
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
    """A section without brokers means those of the source: they are no part of the target."""
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
    return KafkaSink(_brokers(config, context), terms, truth, context.clock)


def _look(config: SinkConfig, context: "SinkContext") -> TargetState:
    """A topic that is not there is made when the sink is opened."""
    brokers = _brokers(config, context)
    brokers.check_there()
    newest = None
    if config.exactly_once:
        newest = read_marks(brokers, context.owner(config.name), context.clock).newest
    return TargetState(newest is not None, newest)


def _cannot_be(was: str, now: str) -> str:
    """Marks lie in the brokers' ledger topic: they tell of other brokers, not of another topic."""
    topics = [target.split()[1] for target in (was, now)]
    return "" if topics[0] == topics[1] else "which is another topic"


KIND = Kind(
    name="kafka",
    options=KafkaOptions,
    guarantee=_guarantee,
    target=_target,
    place=lambda options: options.topic,
    named_by="topic",
    cannot_be=_cannot_be,
    open=_open,
    look=_look,
    modules=("catchwater.sinks.kafka_client", "catchwater.sinks.log_stager"),
    extra="kafka",
)
