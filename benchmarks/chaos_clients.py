"""Clients of the chaos run that write down what they asked and what they were told.

Each runs in a thread until it is stopped, on a real client library (librdkafka), and gives its
lines to one `Recorder` in the order in which things happen to it. What a client cannot know is
`info`; only an error that proves that nothing was written would be `fail`.
"""

import itertools
import random
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from kio.schema.list_offsets.v1.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kio.static.primitive import i64

from benchmarks.load import Connection, encode, frame
from catchwater.drill.history import (
    AssignLine,
    Line,
    PollLine,
    RebalanceLine,
    Send,
    SendLine,
    TxnLine,
    Value,
    WatermarkLine,
    write_line,
)
from catchwater.wire.client import LATEST
from catchwater.wire.messages import decode_reply

PATIENCE_MS = 120_000
"""How long librdkafka repeats a send before it gives up: longer than any fault lasts."""


class Recorder:
    """Appends lines to a history file, and counts them."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._lock = threading.Lock()
        self._processes = itertools.count(1)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def process(self) -> int:
        """A number for a new client."""
        with self._lock:
            return next(self._processes)

    def write(self, line: Line) -> None:
        """Add a line; its place is the moment of the call."""
        with self._lock:
            self._file.write(write_line(line))
            self.counts[f"{type(line).__name__.removesuffix('Line').lower()} {line.type}"] += 1

    def problem(self, text: str) -> None:
        """Something no client should meet."""
        with self._lock:
            self.problems.append(text)

    def close(self) -> None:
        """Everything is in the file."""
        with self._lock:
            self._file.close()


class Place:
    """Where to write and read: the brokers, the topic, its partitions."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions

    def settings(self, **more: object) -> dict[str, object]:
        """A librdkafka configuration for these brokers."""
        base: dict[str, object] = {
            "bootstrap.servers": self.bootstrap,
            "log_level": 0,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 5000,
        }
        return base | {name.replace("_", "."): value for name, value in more.items()}


def produce(place: Place, recorder: Recorder, stop: threading.Event, rate: float) -> None:
    """An idempotent producer; a new one when it has failed for good."""
    numbers = itertools.count()
    while not stop.is_set():
        process = recorder.process()
        producer = Producer(
            place.settings(enable_idempotence=True, message_timeout_ms=PATIENCE_MS, linger_ms=5)
        )
        noise = random.Random(process)
        failed = threading.Event()
        while not stop.is_set() and not failed.is_set():
            value = f"{process}-{next(numbers)}"
            partition = noise.randrange(place.partitions)
            _send(place, recorder, producer, process, partition, value, failed)
            producer.poll(noise.expovariate(rate))
        producer.flush(PATIENCE_MS / 1000)


def _send(
    place: Place, recorder: Recorder, producer: Producer, process: int, partition: int,
    value: str, failed: threading.Event,
) -> None:  # fmt: skip
    def answered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            line.type, line.offset = "ok", message.offset()
        else:
            line.type = "info"
            recorder.counts[f"send error {error.name()}"] += 1
            failed.set()
        recorder.write(line)

    line = SendLine(place.topic, partition, value, process=process, type="invoke")
    recorder.write(line)
    producer.produce(place.topic, value, partition=partition, on_delivery=answered)


def transact(
    place: Place, recorder: Recorder, stop: threading.Event, rate: float, name: str
) -> None:
    """A transactional producer: commits most, aborts some; a new one when it has failed."""
    numbers = itertools.count()
    while not stop.is_set():
        process = recorder.process()
        producer = Producer(
            place.settings(
                transactional_id=name, transaction_timeout_ms=30_000,
                message_timeout_ms=30_000, linger_ms=5,
            )
        )  # fmt: skip
        noise = random.Random(process)
        if not _until_done(lambda p=producer: p.init_transactions(30.0), recorder, stop):
            continue
        is_good = True
        while is_good and not stop.is_set():
            steps = [
                Send(place.topic, noise.randrange(place.partitions), f"{process}-{next(numbers)}")
                for _ in range(noise.randint(1, 5))
            ]
            is_good = _transaction(recorder, producer, process, steps, noise.random() < 0.8)
            stop.wait(noise.expovariate(rate))


def _transaction(
    recorder: Recorder, producer: Producer, process: int, steps: list[Send], commits: bool
) -> bool:
    """One transaction; False when the producer cannot go on."""

    def write(kind: str) -> None:
        recorder.write(TxnLine(process=process, type=kind, steps=list(steps)))  # type: ignore[arg-type]

    write("invoke")
    try:
        producer.begin_transaction()
        for step in steps:
            producer.produce(step.topic, str(step.value), partition=step.partition)
            producer.poll(0)
        if commits:
            _repeated(lambda: producer.commit_transaction(30.0))
            write("ok")
        else:
            _repeated(lambda: producer.abort_transaction(30.0))
            write("fail")
        return True
    except (KafkaException, BufferError) as problem:
        return _recover(recorder, producer, problem, write)


def _recover(
    recorder: Recorder, producer: Producer, problem: Exception, write: Callable[[str], None]
) -> bool:
    error = problem.args[0] if isinstance(problem, KafkaException) else None
    recorder.counts[f"txn error {error.name() if error else problem}"] += 1
    if error is not None and error.txn_requires_abort():
        try:
            _repeated(lambda: producer.abort_transaction(30.0))
        except KafkaException:
            write("info")
            return False
        write("fail")
        return True
    write("info")
    return False


def _repeated(call: Callable[[], None]) -> None:
    """Call again while the client library says that this is safe."""
    while True:
        try:
            call()
            return
        except KafkaException as problem:
            if not problem.args[0].retriable():
                raise


def _until_done(call: Callable[[], None], recorder: Recorder, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            call()
            return True
        except KafkaException as problem:
            recorder.counts[f"txn error {problem.args[0].name()}"] += 1
            if not problem.args[0].retriable():
                return False
    return False


def consume_all(
    place: Place, recorder: Recorder, stop: threading.Event, *, committed: bool
) -> None:
    """A consumer with all partitions assigned, from their beginning."""
    process = recorder.process()
    level = "read_committed" if committed else "read_uncommitted"
    consumer = Consumer(
        place.settings(group_id=f"all-{process}", isolation_level=level, auto_offset_reset="error")
    )
    consumer.assign([TopicPartition(place.topic, p, 0) for p in range(place.partitions)])
    recorder.write(AssignLine(process=process, type="ok"))
    while not stop.is_set():
        _poll(place, recorder, consumer, process, committed=committed)
    consumer.close()


def consume_as_group(place: Place, recorder: Recorder, stop: threading.Event, group: str) -> None:
    """A member of a group, which commits as it goes."""
    process = recorder.process()
    consumer = Consumer(
        place.settings(
            group_id=group, isolation_level="read_committed", auto_offset_reset="earliest",
            session_timeout_ms=10_000, auto_commit_interval_ms=500,
        )
    )  # fmt: skip

    def rebalanced(_: Consumer, __: list[TopicPartition]) -> None:
        recorder.write(RebalanceLine(process=process, type="ok"))

    consumer.subscribe([place.topic], on_assign=rebalanced, on_revoke=rebalanced)
    while not stop.is_set():
        _poll(place, recorder, consumer, process, committed=True)
    consumer.close()


def _poll(
    place: Place, recorder: Recorder, consumer: Consumer, process: int, *, committed: bool
) -> None:
    for partition, records in _by_partition(recorder, consumer.consume(200, 0.3)).items():
        recorder.write(
            PollLine(
                place.topic, partition, records, committed=committed, process=process, type="ok"
            )
        )


def _by_partition(
    recorder: Recorder, messages: Iterable[Message]
) -> dict[int, list[tuple[int, Value]]]:
    records: dict[int, list[tuple[int, Value]]] = defaultdict(list)
    for message in messages:
        error = message.error()
        if error is None:
            records[message.partition()].append((message.offset(), message.value().decode()))
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            recorder.problem(f"a consumer's position was refused: {error.str()}")
        else:
            recorder.counts[f"poll error {error.name()}"] += 1
    return records


def watch(place: Place, recorder: Recorder, stop: threading.Event, address: str) -> None:
    """Ask one broker over and over where the partitions end."""
    process = recorder.process()
    connection = None
    for partition in itertools.cycle(range(place.partitions)):
        if stop.wait(0.1):
            break
        line = WatermarkLine(topic=place.topic, partition=partition, process=process, type="invoke")
        recorder.write(line)
        line.type = "info"
        try:
            connection = connection or Connection(address, timeout_s=3.0)
            offset = _end(connection, place.topic, partition)
            if offset is not None:
                line.type, line.offset = "ok", offset
        except (OSError, struct.error):
            connection = None
        recorder.write(line)


def _end(connection: Connection, topic: str, partition: int) -> int | None:
    """What this very broker says; None for an error."""
    asked = ListOffsetsPartition(partition_index=partition, timestamp=i64(LATEST))
    request = ListOffsetsRequest(
        replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),)
    )
    answer = connection.call(frame(2, 1, False, encode(request)))
    reply = decode_reply(2, 1, memoryview(answer))[1].topics[0].partitions[0]
    return int(reply.offset) if reply.error_code.value == 0 else None


def read_to_the_end(place: Place, recorder: Recorder, longest_s: float) -> None:
    """The final polls: every partition from its beginning to its end, committed records only."""
    process = recorder.process()
    consumer = Consumer(
        place.settings(
            group_id="final", isolation_level="read_committed", auto_offset_reset="error",
            enable_partition_eof=True,
        )
    )  # fmt: skip
    consumer.assign([TopicPartition(place.topic, p, 0) for p in range(place.partitions)])
    recorder.write(AssignLine(process=process, type="ok"))
    ended: set[int] = set()
    deadline_s = time.monotonic() + longest_s
    while len(ended) < place.partitions and time.monotonic() < deadline_s:
        messages = consumer.consume(500, 0.5)
        ends = {
            message.partition()
            for message in messages
            if message.error() and message.error().code() == KafkaError._PARTITION_EOF
        }
        data = [message for message in messages if message.error() is None]
        for partition, records in _by_partition(recorder, data).items():
            _final(place, recorder, process, partition, records)
        for partition in ends - ended:
            _final(place, recorder, process, partition, [])
        ended |= ends
    consumer.close()
    if len(ended) < place.partitions:
        missing = sorted(set(range(place.partitions)) - ended)
        recorder.problem(f"partitions {missing} could not be read to their end")


def _final(
    place: Place, recorder: Recorder, process: int, partition: int,
    records: list[tuple[int, Value]],
) -> None:  # fmt: skip
    recorder.write(
        PollLine(place.topic, partition, records, final=True, process=process, type="ok")
    )
