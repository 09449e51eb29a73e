"""Operators in a pipeline give what plain loops give, with its driver or its disk lost on the way.

A pipeline's ledger says which events each epoch held and which watermark they met; the models of
the unit tests take just that. The functions are those of the unit tests, too. On Spark (`slow`) an
event far behind the others ends what is open; without Spark no event does, but time alone.
"""

import os
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e import in_session
from tests.e2e.conftest import PARTITIONS, PATIENCE_S, Pipeline
from tests.unit.pipeline.operators import models, shop
from tests.unit.pipeline.operators.streams import END, Epochs, fresh, shuffled

from catchwater.clock import SYSTEM, Clock
from catchwater.demo.online_retail import read_rows
from catchwater.drill.feeder import Event, Feeder
from catchwater.drill.rows import canonical
from catchwater.wire.arrow import decode, place
from catchwater.wire.client import LATEST, Client

pytestmark = pytest.mark.timeout(1800)

EVENTS = 600
EPOCH_EVENTS = 100
OPEN_MS = 1_000_000
"""Nothing that is open waits for so late an event time; what is known of ids does."""
RETAIL = os.environ.get("CATCHWATER_RETAIL")
"""A file like the UCI "Online Retail" data set, plain or gzipped; it is not in the repository."""

FILE = """\
[pipeline]
name = "{name}"
functions = {functions}
checkpoint = "checkpoint"
local = "local"
trigger = "{trigger}"
{idle}
[source]
kafka.bootstrap.servers = "{bootstrap}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch_events}
{more}
[recovery]
retain = 1000
"""


class Ahead(Clock):
    """The machine's clock, but for what it is put ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return SYSTEM.now_ms() + self.ahead_ms


@dataclass
class Operators(Pipeline):
    """A pipeline of the functions in `shop`."""

    functions: Sequence[str] = ()
    topics: Sequence[str] = ()
    more: str = ""
    epoch_events: int = EPOCH_EVENTS
    on: str = "spark"

    def write_file(self, trigger: str, **changes: object) -> Path:
        if not (self.folder / "shop.py").exists():
            shutil.copy(shop.__file__, self.folder)
        path = self.folder / "pipeline.toml"
        text = FILE.format(
            name=self.name,
            functions=[f"shop:{function}" for function in self.functions],
            trigger=trigger,
            bootstrap=self.cards.bootstrap,
            epoch_events=self.epoch_events,
            idle='idle_timeout = "1s"\n' if self.on == "here" else "",
            more=self.more,
        )
        path.write_text(text)
        return path

    def run_here(self, events: int) -> None:
        """Without Spark, local state lost twice; then nothing comes any more, and time goes on."""
        clock = Ahead()
        file = self.write_file("continuous")
        here = in_session.Pipeline(None, self.folder, file, clock=clock)

        def lose(epoch: int) -> None:
            if epoch in (2, 4):
                shutil.rmtree(self.folder / "local")

        deadline = time.monotonic() + PATIENCE_S

        def is_over() -> bool:
            """Whether nothing is open any more."""
            assert time.monotonic() < deadline, "timers wait for an event"
            shards = [shard for entry in here.epochs for shard in entry.shards]
            if sum(shard.events for shard in shards if shard.stage == 0) < events:
                return False
            clock.ahead_ms = min(clock.ahead_ms + 1_000, OPEN_MS)
            due = map(here.epochs[-1].next_due_ms, range(len(self.functions)))
            return all(at is None or at > OPEN_MS for at in due)

        here.between = lose
        here.run(until=is_over)
        idle = [entry for entry in here.epochs if not entry.total("events")]
        assert sum(entry.total("timers") for entry in idle) > 0, "no timer fired by itself"

    def run_to_end(self, **changes: object) -> int:
        if self.on != "here":
            return super().run_to_end(**changes)
        in_session.Pipeline(None, self.folder, self.write_file("available-now")).run()
        return 0

    def run_killed_once(self, events: int) -> None:
        """kill -9 in the third epoch or so, local state lost; then on to the end."""
        if self.on == "here":
            self.run_here(events)
            return
        self.start()
        self.wait_until(lambda: self.is_written(2))
        self.kill()
        self.lose_local_state()
        assert self.run_to_end() == 0, self.log[-3000:]

    def epochs(self, types: dict[str, Any], stage: int = 0) -> Epochs:
        """What each epoch held of the inputs, by topic and type, and the watermark it met."""
        values = {topic: values_of(self.cards.bootstrap, topic) for topic in types}
        found: Epochs = []
        for number in self.ledger.epochs():
            entry = self.ledger.read(number)
            assert entry is not None
            events = [
                msgspec.json.decode(value, type=event_type)
                for topic, event_type in types.items()
                for partition, end in entry.end.offsets[topic].items()
                for value in values[topic][int(partition)][
                    entry.start.offsets[topic][partition] : end
                ]
            ]
            found.append((entry.end.watermark_of(stage), events))
        return found

    def loaded(self, topic: str) -> list[int]:
        """Up to where each epoch had read a table's one partition."""
        entries = [self.ledger.read(number) for number in self.ledger.epochs()]
        return [entry.end.tables[topic]["0"] for entry in entries if entry]

    def total(self, field: str, stage: int = 0) -> int:
        """The sum of a field over all epochs and a stage's shards."""
        entries = [self.ledger.read(number) for number in self.ledger.epochs()]
        shards = [shard for entry in entries if entry for shard in entry.shards]
        return sum(getattr(shard, field) for shard in shards if shard.stage == stage)


def values_of(bootstrap: str, topic: str) -> list[list[bytes]]:
    """The records' values by partition; their places are their offsets."""
    values: list[list[bytes]] = []
    with Client(bootstrap) as client:
        for number in client.metadata([topic]).partitions(topic):
            key, found = (topic, number), []
            end = client.list_offsets({key: LATEST})[key]
            while len(found) < end:
                fetched = client.fetch({key: len(found)})[key]
                batches = place(fetched.records, partial_tail=True)
                columns = ["value"]
                for table in decode(fetched.records, batches, first=len(found), columns=columns):
                    found += table.column("value").to_pylist()
            values.append(found)
    return values


def counted(outputs: Iterable[Any]) -> Counter[bytes]:
    return Counter(canonical(msgspec.to_builtins(output)) for output in outputs)


@pytest.fixture
def fed(cards: Any, on: str) -> Callable[[str, Sequence[Any]], str]:
    """`fed("visits", events)`: a topic with the events as JSON, keyed by user; its name."""

    def feed(topic: str, events: Sequence[Any]) -> str:
        topic = f"{on}-{topic}"
        with Client(cards.bootstrap) as client:
            client.create_topics({topic: PARTITIONS}, {"retention.ms": "-1"})
            feeder = Feeder(client, topic, PARTITIONS, EPOCH_EVENTS)
            encoded = (Event(e.user.encode(), msgspec.json.encode(e), 0) for e in events)
            feeder.feed(encoded, len(events))
        return topic

    return feed


@pytest.fixture(params=["here", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def on(request: pytest.FixtureRequest) -> str:
    """Where pipelines run."""
    where: str = request.param
    return where


@pytest.fixture
def made(cards: Any, tmp_path: Path, on: str) -> Iterator[Callable[..., Operators]]:
    """`made("name", functions, topics)`: a pipeline with a topic for what it puts out."""
    pipelines: list[Operators] = []

    def make(
        name: str, functions: Sequence[str], topics: dict[str, str], more: str = ""
    ) -> Operators:
        name = f"{on}-{name}"
        if len(topics) > 1:
            inputs = "".join(f'{name} = "{topic}"\n' for name, topic in topics.items())
            source = f"[inputs]\n{inputs}"
        else:
            source = f'subscribe = "{next(iter(topics.values()))}"\n'
        sink = f'[sink.out]\ntopic = "{name}-alerts"\npartitions = 2\n'
        pipelines.append(
            Operators(
                cards, tmp_path, name, functions=functions, topics=list(topics.values()),
                more=source + more + sink, on=on,
            )
        )  # fmt: skip
        return pipelines[-1]

    yield make
    for pipeline in pipelines:
        if pipeline.process is not None:
            pipeline.kill()


def stream(
    make: Callable[[random.Random, str, str, int], Any], seed: int, on: str = "spark"
) -> list[Any]:
    """Events as they arrive, 5 % late and 10 % twice; on Spark one more that ends what is open."""
    draw = random.Random(seed)
    made = [
        make(draw, f"u{draw.randrange(12)}", str(i), draw.randrange(i * 200, i * 200 + 2_000))
        for i in range(EVENTS)
    ]
    end = [make(draw, "last", "last", END)] if on == "spark" else []
    return [*shuffled(draw, made), *end]


def visit(draw: random.Random, user: str, id: str, at: int) -> shop.Visit:
    return shop.Visit(user, id, at, draw.randrange(5))


def letter(draw: random.Random, user: str, id: str, at: int) -> shop.Letter:
    return shop.Letter(user, id, at, draw.choice("aaabbxcd"))


def order_or_payment(draw: random.Random, user: str, id: str, at: int) -> Any:
    return draw.choice((shop.Order, shop.Payment))(user, id, at, draw.randrange(2))


def sale(draw: random.Random, user: str, id: str, at: int) -> shop.Sale:
    return shop.Sale(user, id, at, f"s{draw.randrange(9)}")


@pytest.mark.slow
def test_a_chain_of_distinct_events_in_windows(
    made: Callable[..., Operators], fed: Callable[..., str], on: str
) -> None:
    events = stream(visit, 1, on)
    topic = fed("chained-visits", events)
    between = f'[sink.between]\nfrom = "once"\ntopic = "{on}-chained-once"\n'
    pipeline = made("chained", ["Once", "Tumbling"], {"visits": topic}, between)
    pipeline.run_killed_once(len(events))
    is_new, passed = fresh(set()), []
    for watermark, events in pipeline.epochs({topic: shop.Visit}):
        passed.append([e for e in events if e.at >= watermark and is_new(e)])
    assert pipeline.cards.rows(f"{on}-chained-once") == counted(
        [e for part in passed for e in part]
    )
    met = [watermark for watermark, _ in pipeline.epochs({}, stage=1)]
    epochs = list(zip(met, passed, strict=True))
    expected, late = models.in_fixed_windows(shop.Tumbling, epochs)
    assert pipeline.rows == counted(expected)
    assert (late, pipeline.total("late", stage=1)) == (0, 0)
    assert pipeline.total("late") > 0 and pipeline.total("duplicates") > 0


@pytest.mark.slow
def test_a_join_of_two_topics(
    made: Callable[..., Operators], fed: Callable[..., str], on: str
) -> None:
    events = stream(order_or_payment, 2, on)
    orders = fed("joined-orders", [e for e in events if isinstance(e, shop.Order)])
    payments = fed("joined-payments", [e for e in events if isinstance(e, shop.Payment)])
    pipeline = made("joined", ["PaidOrNot"], {"orders": orders, "payments": payments})
    pipeline.run_killed_once(len(events))
    epochs = pipeline.epochs({orders: shop.Order, payments: shop.Payment})
    assert pipeline.rows == counted(models.all_pairs(epochs, 3_000, 10_000, "outer"))
    assert pipeline.total("late") > 0 and pipeline.total("duplicates") > 0


@pytest.mark.parametrize(
    "windowed",
    [shop.Session, *(pytest.param(w, marks=pytest.mark.slow) for w in (shop.Sliding, shop.Strict))],
)
def test_windows(
    windowed: Any, made: Callable[..., Operators], fed: Callable[..., str], on: str
) -> None:
    name, events = windowed.__name__.lower(), stream(visit, 3, on)
    topic = fed(f"{name}-visits", events)
    pipeline = made(name, [windowed.__name__], {"visits": topic})
    pipeline.run_killed_once(len(events))
    epochs = pipeline.epochs({topic: shop.Visit})
    if windowed is shop.Session:
        expected, late = models.in_sessions(epochs)
    else:
        expected, late = models.in_fixed_windows(windowed, epochs)
    assert pipeline.rows == counted(expected)
    assert pipeline.total("late") == late > 0


def test_patterns(made: Callable[..., Operators], fed: Callable[..., str], on: str) -> None:
    events = stream(letter, 4, on)
    topic = fed("letters", events)
    pipeline = made("letters", ["AThenB"], {"letters": topic})
    pipeline.run_killed_once(len(events))
    words = models.a_then_b(pipeline.epochs({topic: shop.Letter}))
    assert pipeline.rows == counted(words)
    assert {word.complete for word in words} == {True, False}


@pytest.mark.slow
def test_a_table_whose_rows_come_late(
    made: Callable[..., Operators], fed: Callable[..., str], cards: Any, on: str
) -> None:
    events = stream(sale, 5)
    topic = fed("sales", events[: EVENTS // 2])
    shops = f"{on}-shops"
    table = f'[table.shops]\ntopic = "{shops}"\n'
    pipeline = made("sold", ["InTownSoon"], {"sales": topic}, table)
    with Client(cards.bootstrap) as client:
        client.create_topics({shops: 1}, {"cleanup.policy": "compact"})
        feeder = Feeder(client, shops, 1, 10)
        rows = (Event(b"s%d" % n, b'{"town":"T%d"}' % n, 0) for n in range(6))
        feeder.feed(rows, 3)
        assert pipeline.run_to_end() == 0, pipeline.log[-3000:]
        feeder.feed(rows, 3)
    fed("sales", events[EVENTS // 2 :])
    assert pipeline.run_to_end() == 0, pipeline.log[-3000:]
    epochs = pipeline.epochs({topic: shop.Sale})
    rows = [{f"s{n}": f"T{n}" for n in range(loaded)} for loaded in pipeline.loaded(shops)]
    assert pipeline.rows == counted(models.in_town(epochs, rows, 10_000, "emit"))
    towns = {msgspec.json.decode(row)["town"] for row in pipeline.rows}
    assert {"T0", "T5", "?"} <= towns


TAKINGS = """
from dataclasses import dataclass
from catchwater import Context, Out, function
from catchwater.demo.retail import InvoiceLine
from catchwater.operators import Window, Windowed, tumbling

@dataclass
class Sum:
    lines: int = 0
    thousandths: int = 0

@dataclass
class Takings:
    customer: str
    day: int
    lines: int
    thousandths: int

@function(name="takings", key="customer", event_time="at", watermark="1d", dedup="id",
          dedup_ttl="3650d", output_id=("customer", "day"))
class Daily(Windowed[InvoiceLine, Sum, Takings]):
    window = tumbling("1d")

    def add(self, e: InvoiceLine, acc: Sum, ctx: Context) -> None:
        acc.lines += 1
        acc.thousandths += e.quantity * e.price_thousandths

    def result(self, window: Window, acc: Sum, ctx: Context) -> Out[Takings]:
        yield Takings(ctx.key, window.start, acc.lines, acc.thousandths)
"""


@pytest.mark.slow
@pytest.mark.skipif(RETAIL is None, reason="CATCHWATER_RETAIL names no file")
def test_the_daily_takings_of_a_real_shop(
    made: Callable[..., Operators], cards: Any, on: str
) -> None:
    topic = f"{on}-lines"
    lines = [row.line for row in read_rows(Path(RETAIL or ""))]
    end = Event(b"end", msgspec.json.encode(replace(lines[-1], customer="end", at=10**13)), 0)
    events = [Event(e.customer.encode(), msgspec.json.encode(e), 0) for e in lines]
    with Client(cards.bootstrap) as client:
        client.create_topics({topic: PARTITIONS}, {"retention.ms": "-1"})
        Feeder(client, topic, PARTITIONS, 4_000).feed(iter([*events, end]), len(events) + 1)
    pipeline = made("takings", ["Daily"], {"lines": topic})
    (pipeline.folder / "shop.py").write_text(TAKINGS)
    pipeline.epoch_events = 50_000
    assert pipeline.run_to_end() == 0, pipeline.log[-3000:]
    assert pipeline.total("late") == 0
    days: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for line in {(line.customer, line.id): line for line in reversed(lines)}.values():
        days[line.customer, line.at - line.at % 86_400_000].append(line)
    assert pipeline.rows == counted(
        {
            "customer": customer,
            "day": day,
            "lines": len(held),
            "thousandths": sum(e.quantity * e.price_thousandths for e in held),
        }
        for (customer, day), held in days.items()
    )
