"""Topics as tables: reading them by name beside Spark's own Kafka connector, and what they cost.

The same JSON records lie in our log, where the topic is a table too, and in an Apache Kafka. A
topic read by its name comes from its table; a second query is asked while a tail of a tenth is not
in the table yet. The price is what a broker spends on a producer's records, beside a broker whose
topic is no table: processor time until both are idle, and bytes on disk. Last, a producer that
sends a million records a minute feels whether its topic is a table, and the table is asked how far
it is behind. What the producer feels counts from behind the table's first commit on, for a broker's
first table loads its libraries for some seconds.
"""

import os
import statistics
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.kafka_peer import apache_kafka
from benchmarks.load import Connection, create_topic, frame_of_batch, produce_error
from benchmarks.measure import ROUNDS, Row, alternate, chosen_parts, cpu_seconds, publish, row
from benchmarks.our_broker import Broker, catchwater_broker
from benchmarks.replay.records import NOW_MS, PARTITIONS, SCHEMA, Shape, fill, value
from benchmarks.replay.sessions import PEER, Session
from catchwater.replay.control import Control
from catchwater.wire.arrow import encode_batch
from catchwater.wire.codecs import Codec

RECORDS = int(os.environ.get("RECORDS", "4000000"))
"""A tiny run: RECORDS=20000."""
WARM_UP = 4
RAW = Shape(200, Codec.LZ4, RECORDS)
TYPED = Shape(200, Codec.NONE, RECORDS)
PRICED = 8
"""Of the records that part is counted what they cost."""
FIELDS = {"catchwater.history.value.format": "json", "catchwater.history.value.schema": SCHEMA}
_WRITTEN_S, _IDLE_S = 600.0, 3.0

A_MINUTE, BATCH = 1_000_000, 256
LIVE_S = float(os.environ.get("SECONDS", "45"))
FIRST_S = 20.0
"""Until the first commit is over, and what it loads is there; not counted."""
INTERVAL_MS, LATE_S = 10_000, 5.0
MOVES = 1.2
"""How much of a producer's p99 a table may be."""


def settings(shape: Shape, interval_ms: int) -> dict[str, str]:
    """Of a topic that is a table."""
    name = f"lake.{shape.topic.replace('-', '_')}"
    table = {
        "catchwater.table": name,
        "catchwater.table.commit.interval.ms": str(interval_ms),
    }
    return table | (FIELDS if shape == TYPED else {})


def wait_for_table(broker: Broker, topic: str) -> float:
    """Until the table has all that the log has; seconds."""
    control, began = Control(broker.control), time.monotonic()
    while True:
        found = control.request("GET", f"/api/v1/topics/{topic}/table")
        if found["is_there"] and not any(each["behind"] for each in found["partitions"]):
            return time.monotonic() - began
        if time.monotonic() - began > _WRITTEN_S:
            raise TimeoutError(f"{topic} was not in its table within {_WRITTEN_S:.0f} s: {found}")
        time.sleep(0.2)


def append_tail(bootstraps: list[str], shape: Shape) -> None:
    """A tenth more of the same records, the same everywhere."""
    count = shape.records // 10
    records = [
        (b"card-%06d" % n, value(n, shape.value_bytes), NOW_MS + n, ()) for n in range(count)
    ]
    for at in range(0, count, 4_000):
        batch = encode_batch(records[at : at + 4_000])
        request = frame_of_batch(shape.topic, at // 4_000 % PARTITIONS, batch)
        for bootstrap in bootstraps:
            connection = Connection(bootstrap)
            if error := produce_error(connection.call(request)):
                raise RuntimeError(f"{bootstrap} answered error {error}")
            connection.close()


def raw() -> list[Row]:
    """Queries of values as bytes by name, beside the connector's."""
    with Peers(RAW) as peers:
        return [peers.compare("all columns", 3.0), peers.compare("count", 20.0)]


def typed() -> list[Row]:
    """A query of declared values by name beside the connector's; also with a tail of a tenth."""
    query = "JSON to a typed column"
    with Peers(TYPED) as peers:
        rows = [peers.compare(query, 30.0)]
        peers.append_tail()
        return [*rows, peers.compare(query, 5.0)]


class Peers(ExitStack):
    """The same records in our log, where the topic is a table too, and in an Apache Kafka."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._shape = shape
        self._tail = ""

    def __enter__(self) -> "Peers":
        super().__enter__()
        self._kafka, _ = self.enter_context(apache_kafka())
        self._ours = self.enter_context(catchwater_broker(catchwater_pack_interval_ms="2000"))
        self._sessions = [Session(ours=is_ours) for is_ours in (True, False)]
        for session in self._sessions:
            self.callback(session.close)
        shape = self._shape
        fill([self._ours.bootstrap, self._kafka], shape, settings(shape, 1_000))
        wait_for_table(self._ours, shape.topic)
        return self

    def compare(self, query: str, target: float) -> Row:
        """Both asked in turns; a row of millions of records a second."""
        shape = self._shape
        taken: tuple[list[float], list[float]] = [], []
        for turn in range(WARM_UP + ROUNDS):
            answers = [
                self._sessions[0].ask("named", query, self._ours.bootstrap, shape.topic),
                self._sessions[1].ask("tuned", query, self._kafka, shape.topic),
            ]
            if answers[0]["answer"] != answers[1]["answer"]:
                raise RuntimeError(f"{query} of {shape}: the answers differ: {answers}")
            for index, each in enumerate(answers):
                taken[index].extend([shape.records / each["seconds"] / 1e6] * (turn >= WARM_UP))
        claim = f"a topic by its name{self._tail}, {shape}, {query}"
        return row(claim, "M rows/s", taken[0], f"{PEER}, tuned", taken[1], target=target)

    def append_tail(self) -> None:
        """Commit to the table no more, and append a tenth of the records."""
        hold(self._ours, self._shape)
        append_tail([self._ours.bootstrap, self._kafka], self._shape)
        self._shape = replace(self._shape, records=self._shape.records * 11 // 10)
        self._tail = ", table and a tail of a tenth together"


def hold(broker: Broker, shape: Shape) -> None:
    """Commit to the table no more."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    entry = ConfigEntry(
        "catchwater.table.commit.interval.ms", "86400000",
        incremental_operation=AlterConfigOpType.SET,
    )  # fmt: skip
    resource = ConfigResource(ResourceType.TOPIC, shape.topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})  # lives until it is answered
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result(30)
    time.sleep(3)


def price(shape: Shape, with_table: bool) -> tuple[float, float]:
    """What a broker spends on these records, CPU seconds a million; and bytes a record on disk."""
    with catchwater_broker(catchwater_pack_interval_ms="2000") as broker:
        before = cpu_seconds(broker.pid)
        fill([broker.bootstrap], shape, settings(shape, 5_000) if with_table else None)
        if with_table:
            wait_for_table(broker, shape.topic)
        used = -1.0
        while cpu_seconds(broker.pid) - used > 0.1 * _IDLE_S:  # packing goes on for a while
            used = cpu_seconds(broker.pid)
            time.sleep(_IDLE_S)
        size = sum(size_of(broker.data / folder) for folder in ("tables", "objects"))
        spent = cpu_seconds(broker.pid) - before
        return spent / shape.records * 1e6, size / shape.records


def size_of(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def prices() -> list[Row]:
    """What a table costs its broker."""
    rows = []
    for shape in (RAW, TYPED):
        shape = replace(shape, records=max(1, shape.records // PRICED))
        kind = "typed" if shape.codec is TYPED.codec else "raw"
        price(shape, True), price(shape, False)
        pairs = [(price(shape, True), price(shape, False)) for _ in range(3)]
        for index, unit in enumerate(("CPU s/M", "B/record")):
            ours, theirs = ([pair[side][index] for pair in pairs] for side in (0, 1))
            claim = f"keeping a {kind} table, {shape}"
            rows.append(row(claim, unit, ours, "no table", theirs, better="lower"))
    return rows


# --- beside a producer -------------------------------------------------------------------------


class Paced:
    """A producer of so many records a minute; when each was due, and when acknowledged."""

    def __init__(self, broker: Broker, topic: str) -> None:
        records = [(b"card-%06d" % n, value(n, 200), NOW_MS, ()) for n in range(BATCH)]
        self._request = frame_of_batch(topic, 0, encode_batch(records))
        self._connection = Connection(broker.bootstrap)
        self._took_s: list[float] = []
        self.sent_s: list[float] = []

    def run(self, seconds: float) -> None:
        """Send for so long; a late answer delays the next request, whose time counts from when it
        was due."""
        every_s = BATCH * 60 / A_MINUTE
        began = due = time.perf_counter()
        while due - began < seconds:
            due += every_s
            time.sleep(max(due - time.perf_counter(), 0))
            self.sent_s.append(time.perf_counter())
            if error := produce_error(self._connection.call(self._request)):
                raise RuntimeError(f"the broker answered error {error}")
            self._took_s.append(time.perf_counter() - due)
        self._connection.close()

    @property
    def p99_ms(self) -> float:
        counted_s = self._took_s[round(FIRST_S * A_MINUTE / 60 / BATCH) :]
        return statistics.quantiles(counted_s, n=100)[98] * 1000


def lived(*, with_table: bool, is_asked: bool = False) -> tuple[float, float]:
    """The producer's p99, ms, and how far the table was behind at most, seconds.

    The second where the table is asked every second, which costs the producer, too.
    """
    with catchwater_broker(catchwater_pack_interval_ms="2000") as broker:
        configs = settings(TYPED, INTERVAL_MS) if with_table else None
        create_topic(broker.bootstrap, TYPED.topic, 1, configs=configs)
        producer = Paced(broker, TYPED.topic)
        thread = threading.Thread(target=producer.run, args=(FIRST_S + LIVE_S,))
        thread.start()
        late_s = 0.0
        control = Control(broker.control)
        while thread.is_alive():
            time.sleep(1)
            if not is_asked or len(producer.sent_s) < 2:
                continue
            found = control.request("GET", f"/api/v1/topics/{TYPED.topic}/table")
            now_s = time.perf_counter()
            reached = (found["partitions"][0]["next_offset"] or 0) // BATCH
            if reached < len(producer.sent_s):
                late_s = max(late_s, now_s - producer.sent_s[reached])
        thread.join()
        return producer.p99_ms, late_s


def beside() -> list[Row]:
    """What a producer feels of its topic's table, and how late the table is."""
    ours, theirs = alternate(
        lambda: lived(with_table=True)[0], lambda: lived(with_table=False)[0], rounds=3
    )
    late = [lived(with_table=True, is_asked=True)[1] for _ in range(3)]
    claim = f"a producer's p99 beside a typed table, {A_MINUTE:,} records a minute"
    bound_s = INTERVAL_MS / 1000 + LATE_S
    return [
        row(claim, "ms", ours, "no table", theirs, target=MOVES, better="lower"),
        row(
            f"how late a typed table is at most, {A_MINUTE:,} records a minute", "s", late,
            f"an interval of {INTERVAL_MS // 1000} s and {LATE_S:.0f} s", [bound_s] * len(late),
            target=1.0, better="lower",
        ),
    ]  # fmt: skip


PARTS = {"raw": raw, "typed": typed, "prices": prices, "beside": beside}


def main() -> None:
    """All parts, or those that PARTS names: then the rows of the others stay as they were."""
    parts = chosen_parts(PARTS)
    rows: list[Row] = []
    for measured in parts.values():
        rows += measured()
        publish("tables", rows, is_whole=len(parts) == len(PARTS))


if __name__ == "__main__":
    main()
