"""Which settings a topic may have, where it depends on more than the value."""

import pytest

from catchwater.broker.topic_config import refusal
from catchwater.broker_config import BrokerConfig
from catchwater.log.keep import parquet
from catchwater.log.keep.parquet import PARQUET
from catchwater.log.topic_settings import VALIDATION, VALUE_FORMAT, VALUE_SCHEMA


def test_parquet_is_a_switch_that_needs_what_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = BrokerConfig()
    assert refusal(PARQUET, "true", config) is refusal(PARQUET, "false", config) is None
    assert "true, false, not 'yes'" in str(refusal(PARQUET, "yes", config))
    monkeypatch.setattr(parquet, "find_spec", lambda name: None)
    assert refusal(PARQUET, "false", config) is None
    said = str(refusal(PARQUET, "true", config))
    assert "numba and pyarrow" in said and "catchwater[history]" in said


def test_a_schema_of_values_is_judged_where_it_is_set() -> None:
    config = BrokerConfig()
    assert refusal(VALUE_FORMAT, "json", config) is refusal(VALUE_SCHEMA, "a int", config) is None
    assert "is one of binary, json, avro" in str(refusal(VALUE_FORMAT, "xml", config))
    assert "is no type" in str(refusal(VALUE_SCHEMA, "a of", config))
    assert "at most 20000 characters" in str(refusal(VALUE_SCHEMA, "a" * 20_001, config))


def test_values_are_held_against_a_registry_that_the_broker_knows() -> None:
    alone, config = BrokerConfig(), BrokerConfig(catchwater_schema_registry_url="http://r:8081")
    for value in ("id", "schema"):
        assert "has no catchwater.schema.registry.url" in str(refusal(VALIDATION, value, alone))
        assert refusal(VALIDATION, value, config) is None
    assert refusal(VALIDATION, "declared", alone) is refusal(VALIDATION, "none", alone) is None
    assert "is one of none, id, schema, declared" in str(refusal(VALIDATION, "yes", config))
