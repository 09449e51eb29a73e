"""Two functions in a row, fed by two inputs and a table, on real Spark: held to plain loops.

Orders and refunds are priced by a compacted topic, and what comes of them is summed by item and
window. What cannot be read becomes a dead letter. The last windows close although no event follows,
and a timer of processing time tells that nothing more is to come.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e.in_session import Pipeline, produce, read

from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ORDERS, ITEMS, WINDOW_MS = 2_000, 7, 100
PRICES = {f"i{n}": 10 + n for n in range(ITEMS)}

FUNCTIONS = '''"""Sales by item and tenth of a second."""
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Order:
    customer: str
    item: str
    at: int
    units: int

@dataclass
class Refund:
    customer: str
    item: str
    at: int
    units: int

@dataclass
class Item:
    cents: int

@dataclass
class Seen:
    events: int = 0

@dataclass
class Sale:
    item: str
    at: int
    cents: int

@function(name="priced", version=1, key="customer", event_time="at", watermark="200ms",
          inputs={"orders": Order, "refunds": Refund}, tables={"items": Item},
          poison="dead-letter")
class Priced(Keyed[Order | Refund, Seen, Sale]):
    def on_event(self, e: Order | Refund, s: Seen, ctx: Context) -> Out[Sale]:
        s.events += 1
        ctx.timer("quiet", ctx.now + 1_000, clock=True)
        cents = ctx.table("items").get(e.item).cents * e.units
        return [Sale(e.item, e.at, -cents if isinstance(e, Refund) else cents)]

    def on_timer(self, name: str, at: int, s: Seen, ctx: Context) -> Out[Sale]:
        return [Sale("quiet", ctx.watermark, s.events)]

@dataclass
class Sums:
    by_window: dict[int, int]

    def __init__(self, by_window: dict[int, int] | None = None) -> None:
        self.by_window = by_window or {}

@dataclass
class Window:
    item: str
    end: int
    cents: int

@function(name="by-window", version=1, key="item", event_time="at", watermark="0s")
class ByWindow(Keyed[Sale, Sums, Window]):
    def on_event(self, e: Sale, s: Sums, ctx: Context) -> Out[Window]:
        end = e.at - e.at % 100 + 100
        s.by_window[end] = s.by_window.get(end, 0) + e.cents
        ctx.timer(str(end), end)
        return ()

    def on_timer(self, name: str, at: int, s: Sums, ctx: Context) -> Out[Window]:
        return [Window(ctx.key, at, s.by_window.pop(at))]
'''

FILE = """\
[pipeline]
name = "shop-{on}"
functions = ["shop_{on}:Priced", "shop_{on}:ByWindow"]
checkpoint = "checkpoint"
local = "local"
idle_timeout = "500ms"
poison_limit = 3
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 400
[inputs]
orders = "shop-orders"
refunds = "shop-refunds"
[table.items]
topic = "shop-items"
[sink.sales]
topic = "{on}-sales"
from = "priced"
[sink.windows]
topic = "{on}-windows"
[dead_letter]
topic = "{on}-dead"
"""


def event_time_of(n: int) -> int:
    return 1_000 + n


@pytest.fixture(scope="module")
def shop(make_broker: Callable[..., Any]) -> Any:
    broker = make_broker({"log.retention.ms": "-1"})
    with Client(broker.bootstrap) as client:
        client.create_topics({"shop-orders": 2, "shop-refunds": 1, "shop-items": 1})
    for item, cents in PRICES.items():
        for price in (1, cents):  # the last one counts
            produce(broker.bootstrap, "shop-items", 0, {"item": item, "cents": price}, key="item")
    for partition in range(2):
        own = [order(n) for n in range(ORDERS) if n % 5 % 2 == partition]
        produce(broker.bootstrap, "shop-orders", partition, *own)
    produce(broker.bootstrap, "shop-orders", 0, b"{not json")
    produce(broker.bootstrap, "shop-refunds", 0, *(order(n) for n in range(0, ORDERS, 50)))
    return broker


def order(n: int) -> dict[str, Any]:
    return {
        "customer": f"c{n % 5}",
        "item": f"i{n % ITEMS}",
        "at": event_time_of(n),
        "units": n % 4,
    }


def expected() -> tuple[Counter[tuple[str, int]], Counter[tuple[str, int]]]:
    """By item and time, and by item and end of window: the cents."""
    sales: Counter[tuple[str, int]] = Counter()
    windows: Counter[tuple[str, int]] = Counter()
    for sign, numbers in ((1, range(ORDERS)), (-1, range(0, ORDERS, 50))):
        for n in numbers:
            event = order(n)
            cents = sign * event["units"] * PRICES[event["item"]]
            sales[event["item"], event["at"]] += cents
            end = event["at"] - event["at"] % WINDOW_MS + WINDOW_MS
            windows[event["item"], end] += cents
    return sales, windows


@pytest.mark.parametrize("on", ["here", "spark"])
def test_a_chain_with_inputs_a_table_and_dead_letters_gives_what_plain_loops_give(
    on: str, shop: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / f"shop_{on}.py").write_text(FUNCTIONS)
    (tmp_path / "pipeline.toml").write_text(FILE.format(bootstrap=shop.bootstrap, on=on))
    spark = request.getfixturevalue("spark") if on == "spark" else None
    pipeline = Pipeline(spark, tmp_path, tmp_path / "pipeline.toml")
    sales, windows = expected()

    def rows(topic: str) -> list[Any]:
        return [msgspec.json.decode(value) for _, value in read(shop.bootstrap, topic)]

    def done() -> bool:
        """Whether no shard waits for anything any more."""
        last = pipeline.epochs[-1:]
        return (
            bool(last)
            and last[0].epoch > 0
            and not any((last[0].next_due_ms(0), last[0].next_due_ms(1), last[0].next_due_clock_ms))
        )

    pipeline.run(until=done)

    told: Counter[tuple[str, int]] = Counter()
    quiet = Counter(row["cents"] for row in rows(f"{on}-sales") if row["item"] == "quiet")
    for row in rows(f"{on}-sales"):
        if row["item"] != "quiet":
            told[row["item"], row["at"]] += row["cents"]
    assert told == sales
    # Each customer's count, told by a timer that no event followed.
    refunded = len(range(0, ORDERS, 50))
    assert quiet[ORDERS // 5 + refunded] == 1 and quiet[ORDERS // 5] >= 4

    closed = Counter((row["item"], row["end"]) for row in rows(f"{on}-windows"))
    assert set(closed.values()) == {1}, "each window closes once"
    found = {(row["item"], row["end"]): row["cents"] for row in rows(f"{on}-windows")}
    assert {key: cents for key, cents in found.items() if key[0] != "quiet"} == windows

    ((headers, value),) = read(shop.bootstrap, f"{on}-dead")
    assert value == b"{not json"
    assert (headers["topic"], headers["partition"]) == (b"shop-orders", b"0")
    assert headers["function"] == b"priced"
    assert pipeline.epochs[-1].poisoned == 1

    # Tables were read before the first event, and every later epoch began where one had ended.
    first = next(entry for entry in pipeline.epochs if entry.total("events"))
    assert first.start.tables == {"shop-items": {"0": 2 * ITEMS}} or first.end.tables
    assert all(entry.total("late") == 0 for entry in pipeline.epochs)
