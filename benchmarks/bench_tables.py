"""Topics as tables: reading them by name beside Spark's own Kafka connector, and what they cost.

The same JSON records lie in our log, where the topic is a table too, and in an Apache Kafka. A
topic read by its name comes from its table; a second query is asked while a tail of a tenth is not
in the table yet. The price is what a broker spends on a producer's records, beside a broker whose
topic is no table: processor time until both are idle, and bytes on disk.
"""

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.kafka_peer import apache_kafka
from benchmarks.load import Connection, frame_of_batch, produce_error
from benchmarks.measure import ROUNDS, Row, alternate, cpu_seconds, publish, row
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
QUERIES = (
    (RAW, "all columns", 3.0),
    (RAW, "count", 20.0),
    (TYPED, "JSON to a typed column", 30.0),
)
TAIL, TAIL_TARGET = "JSON to a typed column", 5.0
FIELDS = {"catchwater.history.value.format": "json", "catchwater.history.value.schema": SCHEMA}
_WRITTEN_S, _IDLE_S = 600.0, 3.0


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


def reads(stack: ExitStack) -> list[Row]:
    """Queries by name beside the connector's."""
    kafka, _ = stack.enter_context(apache_kafka())
    ours = stack.enter_context(catchwater_broker(catchwater_pack_interval_ms="2000"))
    sessions = [Session(ours=is_ours) for is_ours in (True, False)]
    for session in sessions:
        stack.callback(session.close)
    for shape in (RAW, TYPED):
        fill([ours.bootstrap, kafka], shape, settings(shape, 1_000))
        wait_for_table(ours, shape.topic)

    def compare(claim: str, shape: Shape, query: str, target: float) -> Row:
        taken: list[list[float]] = [[], []]
        for turn in range(WARM_UP + ROUNDS):
            answers = [
                sessions[0].ask("named", query, ours.bootstrap, shape.topic),
                sessions[1].ask("tuned", query, kafka, shape.topic),
            ]
            if answers[0]["answer"] != answers[1]["answer"]:
                raise RuntimeError(f"{query} of {shape}: the answers differ: {answers}")
            for index, each in enumerate(answers):
                taken[index] += [shape.records / each["seconds"] / 1e6] * (turn >= WARM_UP)
        return row(claim, "M rows/s", taken[0], f"{PEER}, tuned", taken[1], target=target)

    rows = [
        compare(f"a topic by its name, {shape}, {query}", shape, query, target)
        for shape, query, target in QUERIES
    ]
    with_tail = replace(TYPED, records=TYPED.records + TYPED.records // 10)
    hold(ours, TYPED)
    append_tail([ours.bootstrap, kafka], TYPED)
    claim = f"table and a tail of a tenth together, {TYPED}, {TAIL}"
    return [*rows, compare(claim, with_tail, TAIL, TAIL_TARGET)]


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
    [altered] = (
        AdminClient({"bootstrap.servers": broker.bootstrap})
        .incremental_alter_configs([resource])
        .values()
    )
    altered.result(30)
    time.sleep(3)


def price(shape: Shape, with_table: bool, what: str) -> float:
    """What a broker spends on these records, or what lies on its disk then."""
    with catchwater_broker(catchwater_pack_interval_ms="2000") as broker:
        before = cpu_seconds(broker.pid)
        fill([broker.bootstrap], shape, settings(shape, 5_000) if with_table else None)
        if with_table:
            wait_for_table(broker, shape.topic)
        used = -1.0
        while cpu_seconds(broker.pid) - used > 0.1 * _IDLE_S:  # packing goes on for a while
            used = cpu_seconds(broker.pid)
            time.sleep(_IDLE_S)
        if what == "bytes":
            folders = [broker.data / "tables", broker.data / "objects"]
            return float(sum(size_of(folder) for folder in folders)) / shape.records
        return (cpu_seconds(broker.pid) - before) / shape.records * 1e6


def size_of(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def prices() -> list[Row]:
    """What a table costs its broker."""
    rows = []
    for shape in (RAW, TYPED):
        kind = "typed" if shape == TYPED else "raw"
        for what, unit in (("cpu", "CPU s/M"), ("bytes", "B/record")):
            ours, theirs = alternate(
                partial(price, shape, True, what), partial(price, shape, False, what), rounds=3
            )
            claim = f"keeping a {kind} table, {shape}"
            rows.append(row(claim, unit, ours, "no table", theirs, better="lower"))
    return rows


def main() -> None:
    """The reads, then what they cost."""
    with ExitStack() as stack:
        rows = reads(stack)
    publish("tables", rows)
    publish("tables", rows + prices())


if __name__ == "__main__":
    main()
