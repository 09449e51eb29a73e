"""A pipeline's file against its functions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catchwater.config import ConfigError
from catchwater.demo.card_risk import CardRisk
from catchwater.pipeline.calls.policy import Call
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.spec import InputSpec, Poison, TableSpec
from catchwater.pipeline.opened import check_fit, source_of
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.sinks.config import SinkConfig, parse

FIRST = spec_of(CardRisk)
LAST = replace(FIRST, name="last")
INPUT = InputSpec(str, ("card",), "at", None)


def table(name: str, source: str | None = None) -> SinkConfig:
    values = {"kind": "sqlite", "path": "out.db", "table": "t"}
    return parse(name, values | ({"from": source} if source else {}))


def config(*sinks: SinkConfig, **more: Any) -> PipelineConfig:
    return PipelineConfig(
        functions=("m:F",), checkpoint=Path("c"), source={},
        sinks={sink.name: sink for sink in sinks}, **more,
    )  # fmt: skip


def test_a_sink_of_an_unknown_function_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"outputs of 'other'.*card-risk, last"):
        check_fit(config(table("a", "other")), [FIRST, LAST])
    check_fit(config(table("a", "card-risk"), table("b")), [FIRST, LAST])


def test_dead_letters_need_a_sink() -> None:
    spec = replace(FIRST, poison=Poison("dead-letter"))
    with pytest.raises(ConfigError, match="there is none"):
        check_fit(config(table("a")), [spec])
    check_fit(config(table("a"), dead_letter=table("dead-letter")), [spec])
    check_fit(replace(config(table("a")), poison="skip"), [spec])


def test_late_events_need_a_sink_of_their_own() -> None:
    spec = replace(FIRST, late="dead-letter")
    with pytest.raises(ConfigError, match="sends late events to a dead letter sink, and there is"):
        check_fit(config(table("a")), [spec])
    check_fit(config(table("a"), dead_letter=table("dead-letter")), [spec])
    spec = replace(FIRST, late="keep")
    with pytest.raises(
        ConfigError, match=r"late='keep', and there is no \[sink.keep\]; there are a"
    ):
        check_fit(config(table("a")), [spec])
    with pytest.raises(ConfigError, match="cannot take the outputs of 'card-risk' as well"):
        check_fit(config(table("a"), table("keep", "card-risk")), [spec])
    with pytest.raises(ConfigError, match="the outputs would go nowhere"):
        check_fit(config(table("keep")), [spec])
    check_fit(config(table("a"), table("keep")), [spec, LAST])
    assert source_of(table("keep"), [spec, LAST]) is None
    assert source_of(table("a"), [spec, LAST]) is LAST


def test_inputs_and_topics_have_to_match() -> None:
    two = replace(FIRST, inputs={"orders": INPUT, "payments": INPUT})
    check_fit(config(inputs={"orders": "o", "payments": "p"}), [two])
    with pytest.raises(
        ConfigError, match=r"The inputs of .* are orders, payments; .*, lacks payments"
    ):
        check_fit(config(inputs={"orders": "o"}), [two])
    with pytest.raises(ConfigError, match=r"There are no inputs of .*, names orders"):
        check_fit(config(inputs={"orders": "o"}), [FIRST])
    with pytest.raises(ConfigError, match="'last' has several inputs"):
        check_fit(config(), [FIRST, replace(LAST, inputs=two.inputs)])


def test_tables_and_calls_have_to_be_declared() -> None:
    spec = replace(FIRST, tables={"shops": TableSpec(dict)}, calls={"score": Call()})
    check_fit(config(tables={"shops": "s"}, calls={"score": {}}), [LAST, spec])
    check_fit(config(tables={"shops": "s"}), [spec])
    with pytest.raises(ConfigError, match=r"declared tables are shops; .* lacks shops"):
        check_fit(config(), [spec])
    with pytest.raises(ConfigError, match=r"names other"):
        check_fit(config(tables={"shops": "s"}, calls={"other": {}}), [spec])


def test_a_function_stands_in_a_chain_once() -> None:
    with pytest.raises(ConfigError, match="stands twice"):
        check_fit(config(), [FIRST, FIRST])


def test_a_pipeline_does_not_begin_where_no_restore_could_go_back_to() -> None:
    for name, value in (("startingOffsets", "table"), ("startingoffsets", " Table")):
        with pytest.raises(ConfigError, match="A pipeline begins in the log") as refused:
            check_fit(replace(config(table("a")), source={name: value}), [FIRST])
        assert "pipeline backfill" in str(refused.value.hint)
    check_fit(replace(config(table("a")), source={"startingOffsets": "earliest"}), [FIRST])
