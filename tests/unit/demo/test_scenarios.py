"""What a demo runs."""

from pathlib import Path

import msgspec
import pytest

from catchwater.demo.online_retail import COLUMNS, BadCsv
from catchwater.demo.scenarios import LEAST_EPOCHS, MAX_EPOCH_EVENTS, card_payments, online_retail


def test_generated_payments_are_keyed_by_card_and_can_be_read_again() -> None:
    scenario = card_payments(500, seed=1)
    events = list(scenario.events())
    assert events == list(scenario.events())
    assert len(events) == scenario.expected.events == 500
    for event in events:
        assert msgspec.json.decode(event.value)["card"] == event.key.decode()


def test_a_scenario_names_the_function_it_was_made_for() -> None:
    scenario = card_payments(10, seed=1)
    assert scenario.function == "catchwater.demo.card_risk:CardRisk"
    assert scenario.spec.name == "card-risk"


@pytest.mark.parametrize("events", [1, 15, 16, 1_000])
def test_a_small_input_is_cut_into_enough_epochs_for_a_kill_in_the_middle(events: int) -> None:
    epoch_events = card_payments(events, seed=1).epoch_events
    assert 1 <= epoch_events <= MAX_EPOCH_EVENTS
    assert events / epoch_events >= min(events, LEAST_EPOCHS)


def test_a_bad_file_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    path = tmp_path / "lines.csv"
    path.write_text(",".join(COLUMNS) + "\n1,A,,many,2010-12-01,1,7,UK\n")
    with pytest.raises(BadCsv, match="line 2, column Quantity"):
        online_retail(path)
