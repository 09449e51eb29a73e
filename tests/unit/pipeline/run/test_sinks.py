"""All sinks of a pipeline are opened and closed together."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from catchwater.config import ConfigError
from catchwater.demo.card_risk import CardRisk
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.opened import OpenPipeline, check_sinks
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.sinks.arrow_columns import ColumnUnsupported
from catchwater.sinks.config import PackageMissing, SinkConfig, parse

FIRST = spec_of(CardRisk)
LAST = replace(FIRST, name="last")


def table(name: str, source: str | None = None) -> SinkConfig:
    values = {"kind": "sqlite", "path": "out.db", "table": name.replace("-", "_")}
    return parse(name, values | ({"from": source} if source else {}))


def config(*sinks: SinkConfig, dead_letter: SinkConfig | None = None) -> PipelineConfig:
    return PipelineConfig(
        functions=("m:F",), checkpoint=Path("c"),
        source={"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "payments"},
        sinks={sink.name: sink for sink in sinks}, dead_letter=dead_letter,
    )  # fmt: skip


def test_all_are_opened_and_closed_together(tmp_path: Path) -> None:
    wanted = config(table("a", "card-risk"), table("b"), dead_letter=table("dead-letter"))
    wanted = replace(wanted, folder=tmp_path, checkpoint=tmp_path / "checkpoint")
    pipeline = OpenPipeline(wanted, [FIRST, LAST])
    pipeline.control = None
    assert list(pipeline.sinks) == ["a", "b", "dead-letter"]
    pipeline.close()


@dataclass
class Loose:
    card: str
    anything: Any


def test_a_field_that_no_column_takes_is_refused_before_anything_is_opened(
    tmp_path: Path,
) -> None:
    files = parse("files", {"kind": "parquet", "url": "out"})
    wanted = replace(config(files), folder=tmp_path)
    check_sinks(wanted, [FIRST])
    with pytest.raises(ColumnUnsupported, match=r"output\.anything is of a type that no column"):
        check_sinks(wanted, [replace(FIRST, output_type=Loose)])
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_not_installed_is_told_by_the_plan_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "catchwater.sinks.kinds.postgres", raising=False)
    rows = parse("rows", {"kind": "postgres", "url": "postgresql://h/d", "table": "t"})
    with pytest.raises(PackageMissing, match="needs the package psycopg"):
        check_sinks(replace(config(rows), folder=tmp_path), [FIRST])


def test_two_sinks_of_a_pipeline_do_not_share_a_table(tmp_path: Path) -> None:
    one, other = table("a"), replace(table("a"), name="b")
    with pytest.raises(ConfigError, match=r"'a' and 'b' would both write to out\.db a"):
        check_sinks(replace(config(one, other), folder=tmp_path), [FIRST])
    topics = [parse(name, {"topic": "t"}) for name in "ab"]
    check_sinks(replace(config(*topics), folder=tmp_path), [FIRST])
