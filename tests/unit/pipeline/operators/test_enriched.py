"""Stream–table joins: rows that are there, that come late, and that never come."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.unit.pipeline.operators import models
from tests.unit.pipeline.operators.shop import KEYED, InTown, Sale, Shop, Sold
from tests.unit.pipeline.operators.streams import END, SEEDS, Epochs, cut, is_empty, shuffled

from catchwater import Context, Out, function, keyed
from catchwater.operators import Enriched
from catchwater.pipeline.functions.declare import DeclarationError
from catchwater.testing import Harness

declared = function(name="in-town", tables={"shops": Shop}, **KEYED)


def in_town(**members: object) -> type[InTown]:
    return declared(type("Declared", (InTown,), members))


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(("wait_s", "missing"), [(0, "emit"), (10, "emit"), (4, "skip")])
def test_it_gives_what_a_plain_loop_gives(wait_s: int, missing: str, seed: int) -> None:
    draw = random.Random(seed)
    sales = [
        Sale(f"c{draw.randrange(5)}", str(i), i * 300, f"s{draw.randrange(9)}") for i in range(300)
    ]
    h = Harness(in_town(missing=missing, **({"wait": f"{wait_s}s"} if wait_s else {})))
    towns: dict[str, str] = {}
    epochs: Epochs = []
    rows, outputs = [], []
    for part in [*cut(draw, shuffled(draw, sales)), []]:
        if draw.random() < 0.5:
            shop = f"s{draw.randrange(9)}"
            towns[shop] = f"{shop} {draw.randrange(100)}"
            assert h.table("shops", {shop: Shop(towns[shop])}) == []
        epochs.append((h.watermark, part))
        outputs += h.send(*part) if part else h.advance_watermark(END)
        # A send that makes a timer due is followed by an epoch of its own.
        epochs.append((h.watermark, []))
        rows += [dict(towns), dict(towns)]
    assert sorted(outputs) == sorted(models.in_town(epochs, rows, wait_s * 1000, missing))
    h.crash_and_restore(at=draw.randrange(5))
    h.check_replay(orders=2)
    h.table("shops", dict.fromkeys(towns))
    assert is_empty(h)


def test_the_row_is_the_one_of_this_epoch() -> None:
    h = Harness(in_town())
    h.table("shops", {"s": Shop("Ghent")})
    assert h.send(Sale("c", "1", 0, "s")) == [Sold("1", "Ghent")]
    h.table("shops", {"s": Shop("Bruges")})
    assert h.send(Sale("c", "2", 0, "s")) == [Sold("2", "Bruges")]
    h.table("shops", {"s": None})
    assert h.send(Sale("c", "3", 0, "s")) == [Sold("3", "?")]


def test_a_table_of_the_functions_own_key_is_looked_up_by_it() -> None:
    @dataclass
    class Customer:
        name: str

    @function(name="named", key="user", event_time="at", tables={"customers": keyed(Customer)})
    class Named(Enriched[Sale, Customer, str]):
        table = "customers"

        def enrich(self, e: Sale, row: Customer | None, ctx: Context) -> Out[str]:
            return [row.name if row else "?"]

    h = Harness(Named)
    h.table("customers", {"c1": Customer("Ada")})
    assert h.send(Sale("c1", "1", 0, "s"), Sale("c2", "2", 0, "s")) == ["Ada", "?"]


def test_an_event_waits_for_its_row_and_no_longer_than_it_may() -> None:
    h = Harness(in_town(wait="10s", missing="skip"))
    assert h.send(Sale("c", "1", 1_000, "s1"), Sale("c", "2", 2_000, "s2")) == []
    h.table("shops", {"s2": Shop("Ghent")})
    assert h.advance_watermark(5_000) == [Sold("2", "Ghent")]
    assert h.advance_watermark(11_000) == []
    h.table("shops", {"s1": Shop("Bruges")})
    assert h.advance_watermark(20_000) == []


def test_what_is_missing_may_be_left_to_the_poison_policy() -> None:
    refusing = type("Refusing", (InTown,), {"missing": "refuse"})
    h = Harness(
        function(
            name="in-town", key="user", event_time="at", tables={"shops": Shop},
            poison="dead-letter",
        )(refusing)
    )  # fmt: skip
    assert h.send(Sale("c", "1", 1_000, "s1")) == []
    (refused,) = h.poisoned
    assert "The table 'shops' has no row 's1'." in refused.error


def refusals() -> Iterator[tuple[dict[str, object], str]]:
    yield {"table": "towns"}, r"declare tables=\{"
    yield {"missing": "guess"}, "missing='guess' must be"
    yield {"wait": "1m", "missing": "refuse"}, "emitted or skipped, it is not refused"
    yield {"wait": "long"}, "'long' is not a duration"


@pytest.mark.parametrize(("members", "reason"), list(refusals()))
def test_a_declaration_that_could_not_work_is_refused(
    members: dict[str, object], reason: str
) -> None:
    with pytest.raises(DeclarationError, match=reason):
        in_town(**members)
    with pytest.raises(DeclarationError, match=r"write Enriched\[Event, Row, Out\]"):
        declared(type("Untyped", (Enriched,), {"table": "shops"}))
