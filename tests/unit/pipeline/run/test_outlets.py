"""All sinks of a pipeline are opened and closed together."""

from dataclasses import replace
from pathlib import Path

from catchwater.demo.card_risk import CardRisk
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.outlets import open_outlets
from catchwater.sinks.config import SinkConfig, parse
from catchwater.sinks.surroundings import Surroundings

FIRST = spec_of(CardRisk)
LAST = replace(FIRST, name="last")


def table(name: str, source: str | None = None) -> SinkConfig:
    values = {"kind": "sqlite", "path": "out.db", "table": name.replace("-", "_")}
    return parse(name, values | ({"from": source} if source else {}))


def config(*sinks: SinkConfig, dead_letter: SinkConfig | None = None) -> PipelineConfig:
    return PipelineConfig(
        functions=("m:F",), checkpoint=Path("c"), source={},
        sinks={sink.name: sink for sink in sinks}, dead_letter=dead_letter,
    )  # fmt: skip


def test_all_are_opened_and_closed_together(tmp_path: Path) -> None:
    around = Surroundings("p", (tmp_path / "home").as_uri(), tmp_path)
    wanted = config(table("a", "card-risk"), table("b"), dead_letter=table("dead-letter"))
    outlets = open_outlets(wanted, [FIRST, LAST], around)
    assert list(outlets.sinks) == ["a", "b"]
    assert list(outlets.all) == ["a", "b", "dead-letter"]
    assert outlets.dead_letters is outlets.all["dead-letter"]
    outlets.close()
