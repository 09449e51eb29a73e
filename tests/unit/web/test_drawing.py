"""What is drawn of a record: trends as lines, and commands that find their broker."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.web.reports import NOW_MS, report

from catchwater.web import of_pipelines
from catchwater.web.pages import drawn, how_started, parts_of, points
from catchwater.web.view import Command, Panel, Trend, View, aimed


def test_a_trend_has_a_gap_where_nothing_is_known_and_its_bound_where_it_is_near() -> None:
    found = points(Trend([None, 0.0, 10.0, None, 5.0, 5.0], most=12.0))
    assert found is not None
    assert found.lines == ["24.0,24.5 48.0,7.8", "96.0,16.2 120.0,16.2"]
    assert found.most == "4.5"
    far = points(Trend([1.0, 2.0, 2.0, 2.0], most=600.0))
    assert far is not None and far.most is None, "what is far away would press the line flat"


@pytest.mark.parametrize("values", [[], [None, 3.0, 3.0, 3.0], [None, None]])
def test_of_a_few_values_there_is_no_trend(values: list[float | None]) -> None:
    assert points(Trend(values)) is None


def test_a_trend_that_stands_at_nothing_is_drawn() -> None:
    found = points(Trend([0.0, 0.0, 0.0, 0.0]))
    assert found is not None
    assert found.lines == ["0.0,24.5 40.0,24.5 80.0,24.5 120.0,24.5"]


def test_a_command_that_asks_the_log_finds_this_broker_wherever_it_is_typed() -> None:
    commands = [Command("catchwater txn abort x", asks_log=True), Command("catchwater drill all")]
    view = aimed(View("x", "overview", 0, panels=[Panel("p", "", commands=commands)]), "[::1]:9092")
    assert [each.text for each in view.panels[0].commands] == [
        "catchwater txn abort x --bootstrap [::1]:9092", "catchwater drill all",
    ]  # fmt: skip


def test_how_a_broker_was_started_is_known_of_a_broker_alone() -> None:
    started = ["/usr/bin/catchwater", "broker", "run", "--data", "my data"]
    assert how_started(started, Path("/srv")) == "cd /srv && catchwater broker run --data 'my data'"
    assert how_started(["/usr/bin/pytest", "-q"], Path("/srv")) == ""


def test_a_page_has_its_trends_and_its_next_commands() -> None:
    trends = {"fresh": Trend([1.0, 2.0, 3.0, 4.0])}
    seen = of_pipelines.PipelinePage(report(), [], [], [], None, trends)
    view = of_pipelines.pipeline(seen, NOW_MS)
    assert parts_of(view)["pipelines"].count("<polyline") == 1
    assert "<dialog" in drawn(view)
    start = "cd /srv && catchwater broker run"
    assert f'data-copy="{start.replace("&", "&amp;")}"' in drawn(replace(view, starts=start))
