"""Tables looked rows up in: the last row of a key, at the epoch, after restores too."""

from dataclasses import dataclass
from random import Random

import pytest

from catchwater import Context, Keyed, Out, function, keyed
from catchwater.objects.memory import MemoryStore
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.process.batch import TableRows
from catchwater.pipeline.process.poison import EventFailed
from catchwater.state.log import StateLog
from catchwater.state.roll import EMPTY
from catchwater.state.store import ShardStore
from catchwater.testing import Harness


@dataclass
class Sale:
    customer: int
    at: int
    shop: str = "s"


@dataclass
class Shop:
    town: str


@dataclass
class Customer:
    name: str


@dataclass
class State:
    n: int = 0


@function(
    name="sales", key="customer", event_time="at",
    tables={"shops": Shop, "customers": keyed(Customer)},
)  # fmt: skip
class Sales(Keyed[Sale, State, str]):
    def on_event(self, e: Sale, s: State, ctx: Context) -> Out[str]:
        if e.shop == "wrong":
            ctx.table("customers").get(e.customer + 1)
        shop, customer = ctx.table("shops").get(e.shop), ctx.table("customers").get(e.customer)
        ctx.timer("later", e.at + 10)
        return [f"{customer and customer.name} in {shop and shop.town}"]

    def on_timer(self, name: str, at: int, s: State, ctx: Context) -> Out[str]:
        return [f"timer {ctx.table('customers').get(ctx.key)}"]


def test_a_row_is_the_last_one_given_and_none_when_deleted():
    h = Harness(Sales)
    assert h.send(Sale(1, 5)) == ["None in None"]
    h.table("shops", {"s": Shop("Ghent")})
    h.table("customers", {1: Customer("Ada"), 2: Customer("Bob")})
    assert h.send(Sale(1, 5), Sale(2, 5), Sale(3, 5)) == [
        "Ada in Ghent", "Bob in Ghent", "None in Ghent",
    ]  # fmt: skip
    h.table("customers", {1: None})
    assert h.send(Sale(1, 5)) == ["None in Ghent"]
    for at in range(4):
        h.crash_and_restore(at=at)
    h.check_replay(orders=10)


def test_a_timer_sees_the_rows_that_came_with_its_epoch():
    h = Harness(Sales)
    h.send(Sale(1, 5), Sale(1, 40_000))
    assert h.table("customers", {1: Customer("Ada")}) == []
    assert h.advance_watermark(50_000) == ["timer Customer(name='Ada')"]


@pytest.mark.parametrize(
    ("event", "words"),
    [(Sale(1, 5, "wrong"), "the table 'customers' is keyed: beside the key's own row 2")],
)
def test_another_keys_row_of_a_keyed_table_is_refused(event, words):
    with pytest.raises(EventFailed, match=words):
        Harness(Sales).send(event)


def test_a_table_that_is_not_declared_is_refused():
    @function(name="f", key="customer", event_time="at")
    def asks(e: Sale, s: State, ctx: Context) -> Out[str]:
        return [ctx.table("towns").get("x")]

    with pytest.raises(EventFailed, match="there is no table 'towns'; declared: none"):
        Harness(asks).send(Sale(1, 5))
    with pytest.raises(LookupError, match="declares no table 'towns'"):
        Harness(asks).table("towns", {})


def test_a_key_that_no_row_can_have_has_none_and_the_local_store_is_not_asked(tmp_path):
    store = ShardStore.open(tmp_path / "0", "sales", 0, "boot")
    log = StateLog(MemoryStore(), "state", "sales", 0)
    rows = TableRows(spec_of(Sales), store.begin(EMPTY, log))
    assert rows.row("shops", "x" * 300, b"") is None
    assert rows.row("shops", "x" * 600, b"") is None
    store.close()


def test_lookups_equal_a_dict_under_random_changes():
    draw = Random(3)
    h, shops, customers = Harness(Sales), {}, {}
    for i in range(60):
        name, key = f"s{draw.randrange(3)}", draw.randrange(4)
        shops[name] = draw.choice([None, Shop(f"t{i}")])
        customers[key] = draw.choice([None, Customer(f"c{i}")])
        h.table("shops", {name: shops[name]})
        h.table("customers", {key: customers[key]})
        shop, customer = shops.get("s1"), customers.get(2)
        expected = f"{customer and customer.name} in {shop and shop.town}"
        assert h.send(Sale(2, 5, "s1")) == [expected] * 1
        if draw.random() < 0.3:
            h.crash_and_restore(at=draw.randrange(i + 1))
