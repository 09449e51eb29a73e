"""All sinks of a pipeline are opened and closed together."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from catchwater.config import ConfigError
from catchwater.demo.card_risk import CardRisk
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.outlets import check_outlets, open_outlets
from catchwater.sinks.config import SinkConfig, parse
from catchwater.sinks.lake.columns import ColumnUnsupported
from catchwater.sinks.open import PackageMissing
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


@dataclass
class Loose:
    card: str
    anything: Any


def test_a_field_that_no_column_takes_is_refused_before_anything_is_opened(
    tmp_path: Path,
) -> None:
    files = parse("files", {"kind": "parquet", "url": "out"})
    wanted = replace(config(files), folder=tmp_path)
    check_outlets(wanted, [FIRST])
    with pytest.raises(ColumnUnsupported, match=r"output\.anything is of a type that no column"):
        check_outlets(wanted, [replace(FIRST, output_type=Loose)])
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_not_installed_is_told_by_the_plan_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "catchwater.sinks.relational.postgres", raising=False)
    rows = parse("rows", {"kind": "postgres", "url": "postgresql://h/d", "table": "t"})
    with pytest.raises(PackageMissing, match="needs the package psycopg"):
        check_outlets(replace(config(rows), folder=tmp_path), [FIRST])


def test_two_sinks_of_a_pipeline_do_not_share_a_table(tmp_path: Path) -> None:
    one, other = table("a"), replace(table("a"), name="b")
    with pytest.raises(ConfigError, match=r"'a' and 'b' would both write to out\.db a"):
        check_outlets(replace(config(one, other), folder=tmp_path), [FIRST])
    topics = [parse(name, {"topic": "t"}) for name in "ab"]
    check_outlets(replace(config(*topics), folder=tmp_path), [FIRST])
