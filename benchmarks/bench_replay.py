"""Replay into Spark: ours straight from storage, beside Spark's own Kafka connector.

The same JSON records lie in our log and in an Apache Kafka. The connector runs in an environment
of its own, with the pyspark release that has one, both with its default and its tuned settings.
Quote against the tuned one. One shape of record is asked everything; of the others, what all
columns and the values alone cost. Spark does not say to a Python source which columns a query
needs: the option `columns` names them. An export is fsynced, Spark's own write of Parquet is not.
SHAPES=main leaves out the other sizes and codecs, QUERIES="count,value only" some of the questions.
"""

import os
import time
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.kafka_peer import apache_kafka
from benchmarks.measure import Row, publish, row
from benchmarks.our_broker import catchwater_broker
from benchmarks.replay.records import SCHEMA, Shape, fill
from benchmarks.replay.sessions import PEER, Session
from catchwater.replay.control import Control
from catchwater.replay.plan import OffsetRange
from catchwater.wire.client import EARLIEST, LATEST, Client
from catchwater.wire.codecs import Codec

SHAPES = os.environ.get("SHAPES", "all")
ROUNDS = int(os.environ.get("ROUNDS", "3"))
WARM_UP = int(os.environ.get("WARM_UP", "4"))
"""Turns that do not count: for so long both JVMs compile what they will run."""
MAIN = Shape(200, Codec.NONE, 4_000_000)
OTHERS = [
    Shape(size, codec, 800_000_000 // (size + 100))
    for size in (100, 200, 1000)
    for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD)
    if (size, codec) != (200, Codec.NONE)
]
CONNECTOR = ("tuned", "default")
ALL, VALUE, COUNT = "all columns", "value only", "count"
SUM = "sum(length(value))"
"""As `value only`, but nobody told the source that no other column is needed."""
TYPED, WRITE = "JSON to a typed column", "write to Parquet"
QUERIES = (ALL, VALUE, SUM, COUNT, TYPED, WRITE)
CHOSEN = [each.strip() for each in os.environ.get("QUERIES", "").split(",") if each.strip()]
IS_WHOLE = SHAPES == "all" and not CHOSEN
HISTORY = {
    "catchwater.history.parquet": "true",
    "catchwater.history.value.format": "json",
    "catchwater.history.value.schema": SCHEMA,
}
_PARQUET_S = 300.0


class Kind(NamedTuple):
    """A way of ours to read, how a claim names it, and what it is held to against the peer."""

    name: str
    title: str
    targets: dict[str, float | None]


KINDS = (
    Kind("cut", "replay by catchwater.spark", {ALL: 2.3, VALUE: 2.4, SUM: 2.4}),
    Kind(
        "ours", "replay", {ALL: None, VALUE: None, SUM: None, COUNT: 4.0, TYPED: 4.0, WRITE: None}
    ),
    Kind("export", "export by the tasks", {WRITE: 1.6}),
    Kind("history", "replay of Parquet history", {ALL: None, VALUE: 3.0, COUNT: 20.0, TYPED: 10.0}),
    Kind("foreign cut", "replay of Apache Kafka by catchwater.spark", {ALL: None, VALUE: None}),
    Kind("foreign", "replay of Apache Kafka", {ALL: None, VALUE: None, TYPED: 4.0}),
)


class Bench:
    """Both brokers and both sessions, and what they have answered."""

    def __init__(self, stack: ExitStack) -> None:
        settings = {
            "catchwater_pack_interval_ms": "2000",
            "catchwater_history_parquet_after_ms": "1000",
        }
        self.ours = stack.enter_context(catchwater_broker(**settings))
        self.kafka, _ = stack.enter_context(apache_kafka())
        self._sessions = {ours: Session(ours=ours) for ours in (True, False)}
        for session in self._sessions.values():
            stack.callback(session.close)

    def ask(self, kind: str, query: str, topic: str) -> dict[str, float]:
        session = self._sessions[kind not in CONNECTOR]
        is_theirs = kind in CONNECTOR or kind.startswith("foreign")
        bootstrap = self.kafka if is_theirs else self.ours.bootstrap
        return session.ask(kind, query, bootstrap, topic)

    def compare(self, shape: Shape, query: str, kinds: list[Kind], peers: list[str]) -> list[Row]:
        """All of them in turn; a row of speed and one of processor time for each pair."""
        names = [*(kind.name for kind in kinds), *peers]
        taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for turn in range(WARM_UP + ROUNDS):
            answers = {name: self.ask(name, query, shape.topic) for name in names}
            if len({each["answer"] for each in answers.values()}) != 1:
                raise RuntimeError(f"{query} of {shape}: the answers differ: {answers}")
            for name, each in answers.items():
                if turn >= WARM_UP:
                    taken[name].append(each)
        return [
            each
            for kind in kinds
            for peer in peers
            for each in rows_of(shape, query, kind, peer, taken)
        ]


def rows_of(
    shape: Shape, query: str, kind: Kind, peer: str, taken: dict[str, list[dict[str, float]]]
) -> list[Row]:
    """Rows a second and CPU seconds per million rows, of one of ours beside the peer."""
    claim = f"{kind.title}, {shape}, {query}"
    title = f"{PEER}, {peer}"
    target = kind.targets.get(query) if peer == "tuned" else None
    if shape != MAIN and target:
        target = 1.5 if shape.value_bytes == 1000 else None
    millions = shape.records / 1e6
    ours, theirs = taken[kind.name], taken[peer]
    return [
        row(
            claim, "M rows/s", [millions / each["seconds"] for each in ours],
            title, [millions / each["seconds"] for each in theirs], target=target,
        ),
        row(
            claim, "CPU s/M", [each["cpu"] / millions for each in ours],
            title, [each["cpu"] / millions for each in theirs], better="lower",
        ),
    ]  # fmt: skip


def wait_for_parquet(bootstrap: str, control_url: str, topic: str) -> None:
    """Until all but a last piece of each partition lies as Parquet."""
    control = Control(control_url)
    with Client(bootstrap) as client:
        parts = list(client.metadata([topic]).leaders)
        first = client.list_offsets({part: EARLIEST for part in parts})
        end = client.list_offsets({part: LATEST for part in parts})
    wanted = [OffsetRange(*part, first[part], end[part]) for part in parts]
    deadline = time.monotonic() + _PARQUET_S
    while not all(each.parquet for each in control.plan(wanted).ranges):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} was not written as Parquet within {_PARQUET_S:.0f} s")
        time.sleep(1.0)


def main() -> None:
    """Fill both logs, start both sessions, let all ways take turns."""
    rows: list[Row] = []
    with ExitStack() as stack:
        bench = Bench(stack)
        fill([bench.ours.bootstrap, bench.kafka], MAIN, HISTORY)
        wait_for_parquet(bench.ours.bootstrap, bench.ours.control, MAIN.topic)
        for query in CHOSEN or QUERIES:
            kinds = [kind for kind in KINDS if query in kind.targets]
            rows += bench.compare(MAIN, query, kinds, list(CONNECTOR))
            publish(
                "replay", rows, is_whole=IS_WHOLE
            )  # the whole takes long: what there is outlives its end
        for shape in OTHERS if SHAPES == "all" else ():
            fill([bench.ours.bootstrap, bench.kafka], shape)
            for query in (ALL, VALUE):
                rows += bench.compare(shape, query, [KINDS[0]], ["tuned"])
                publish("replay", rows, is_whole=IS_WHOLE)


if __name__ == "__main__":
    main()
