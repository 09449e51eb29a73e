"""What topics declare of their values, and what is refused."""

import json

import pytest

from catchwater.catalog.rows import Topic
from catchwater.log import topic_settings as module
from catchwater.log.topic_settings import VALUE_FORMAT, VALUE_SCHEMA, declared, refused_schema
from catchwater.values.settings import ValueFormat, ValueSettings

AVRO = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]})


def topic(kind: str, schema: str) -> Topic:
    return Topic(b"t" * 16, "t", 1, {VALUE_FORMAT: kind, VALUE_SCHEMA: schema})


def test_a_format_and_a_schema_of_it_are_declared() -> None:
    assert declared(topic("json", " id long\n")) == ValueSettings(ValueFormat.JSON, "id long")
    assert declared(topic("avro", AVRO)) == ValueSettings(ValueFormat.AVRO, AVRO)
    for kind, schema in (("binary", "id long"), ("json", ""), ("json", AVRO), ("avro", "id long")):
        assert declared(topic(kind, schema)) is None
    assert declared(Topic(b"", "t", 1)) is None


def test_a_schema_is_refused_with_the_place_where_it_is_wrong() -> None:
    assert refused_schema("id long") is refused_schema(AVRO) is refused_schema("") is None
    assert "character 4: 'lng' is no type (did you mean long?)" in str(refused_schema("id lng"))
    assert refused_schema("{") is not None


def test_a_broker_that_could_not_decode_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "fastavro" else object())
    assert refused_schema("id long") is None
    assert "A schema for avro needs fastavro on every broker" in str(refused_schema(AVRO))
