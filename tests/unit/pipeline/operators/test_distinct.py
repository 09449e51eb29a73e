"""The first of each, against a plain loop."""

import random

import pytest
from tests.unit.pipeline.operators.models import once
from tests.unit.pipeline.operators.shop import Once, Visit
from tests.unit.pipeline.operators.streams import SEEDS, is_empty, play, shuffled
from tests.unit.pipeline.operators.test_windowed import visits

from catchwater import function
from catchwater.operators import Distinct
from catchwater.pipeline.functions.declare import DeclarationError
from catchwater.testing import Harness


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_event_that_is_not_late_passes_once(seed: int) -> None:
    draw = random.Random(seed)
    harness = Harness(Once)
    epochs, outputs = play(harness, draw, shuffled(draw, visits(draw)))
    assert outputs == once(epochs)
    assert harness.duplicates > 20
    assert is_empty(harness)


def test_an_id_is_forgotten_after_its_time() -> None:
    h = Harness(Once)
    assert h.send(Visit("u", "1", 0), Visit("u", "1", 0)) == [Visit("u", "1", 0)]
    h.advance_time("1h")
    again = Visit("u", "1", 3_600_000)
    assert h.send(again) == [again]


def test_a_declaration_that_could_not_work_is_refused() -> None:
    class Unnamed(Distinct[Visit]):
        pass

    with pytest.raises(DeclarationError, match="Distinct knows events by their id"):
        function(name="once", key="user", event_time="at")(Unnamed)
    with pytest.raises(DeclarationError, match="ids end by dedup_ttl"):
        function(name="once", key="user", event_time="at", dedup="id", state_ttl="1h")(Unnamed)
    with pytest.raises(DeclarationError, match=r"write Distinct\[Event\]"):
        function(name="once", key="user", event_time="at")(type("Untyped", (Distinct,), {}))
