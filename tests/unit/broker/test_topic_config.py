"""Which settings a topic may have, where it depends on more than the value."""

import pytest

from catchwater.broker.topic_config import refusal
from catchwater.config import BrokerConfig
from catchwater.log.keep import parquet
from catchwater.log.keep.parquet import PARQUET
from catchwater.log.topic_settings import VALUE_FORMAT, VALUE_SCHEMA


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
