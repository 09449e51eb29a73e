"""The demo's function on the demo's events, without Spark: what the plain loop says, it says."""

from dataclasses import asdict

import pytest

from catchwater.demo import reference
from catchwater.demo.card_risk import Alert, CardRisk, Txn
from catchwater.demo.reference import Expected
from catchwater.drill.workload import Recipe, payments
from catchwater.testing import Harness


def test_the_documentations_example_holds() -> None:
    h = Harness(CardRisk)
    small, large = Txn("c1", "1", 1000, 0.5), Txn("c1", "2", 2000, 900.0)
    assert h.send(small, large, large) == [Alert("c1", "2", "small-then-large")]
    h.advance_watermark(70_000)
    h.advance_time("31d")
    h.crash_and_restore(at=1)
    h.check_replay(orders=50)


@pytest.mark.parametrize("epoch_events", [1_237, 6_000])
def test_the_function_equals_the_plain_loop_however_its_input_is_batched(
    epoch_events: int,
) -> None:
    recipe = Recipe(events=100_000, seed=5, epoch_events=6_000)
    expected = reference.card_risk(payments(recipe))
    actual = Expected()
    h = Harness(CardRisk)
    for alert in h.run(payments(recipe), batch=epoch_events):
        actual.add(asdict(alert))
    assert actual.rows == expected.rows
    assert (h.duplicates, h.late) == (expected.duplicates, expected.late)
    assert expected.rows.total() > 200
    assert expected.late > 50
