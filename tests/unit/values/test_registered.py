"""Values behind the ids of a schema registry as columns."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.schema_registry import FakeRegistry, schema_registry

from catchwater.replay.options import parse_options
from catchwater.replay.source import loaded
from catchwater.values import registry as registries
from catchwater.values.registry import SchemaUnavailable
from catchwater.values.settings import (
    BadSchema,
    OnMalformed,
    Registry,
    ValueFormat,
    ValueSettings,
    identity,
)
from catchwater.values.subjects import newest
from catchwater.values.typed import ValueMalformed, open_decoder, typed

fastavro = pytest.importorskip("fastavro")

FIELDS: list[dict[str, Any]] = [
    {"name": "card", "type": "string"},
    {"name": "n", "type": "int"},
]
OLD = {"type": "record", "name": "Txn", "fields": FIELDS}
NEW = {
    "type": "record",
    "name": "Txn",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "card", "type": "string"},
        {"name": "place", "type": ["null", "string"], "default": None},
    ],
}


def value(schema_id: int, schema: Any, **fields: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), fields)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(registries, "PATIENCE_S", 0.0)
    with schema_registry() as fake:
        yield fake


def columns(settings: ValueSettings, *values: bytes | None) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.binary()),
            "topic": ["t"] * len(values),
            "partition": [0] * len(values),
            "offset": [*range(len(values))],
        }
    )
    (done,) = typed([batch], settings, ["value", "offset"])
    return [{k: v for k, v in row.items() if k != "offset"} for row in done.to_pylist()]


def avro(registry: FakeRegistry, schema: Any = NEW, **more: Any) -> ValueSettings:
    asked = Registry(registry.url)
    return ValueSettings(ValueFormat.AVRO, json.dumps(schema), registry=asked, **more)


def test_old_and_new_values_have_the_columns_of_one_schema(registry: FakeRegistry) -> None:
    registry.register(1, OLD)
    registry.register(2, NEW)
    old, new = value(1, OLD, card="a", n=1), value(2, NEW, card="b", n=2**40, place="here")
    assert columns(avro(registry), old, None, new, old) == [
        {"n": 1, "card": "a", "place": None},
        {"n": None, "card": None, "place": None},
        {"n": 2**40, "card": "b", "place": "here"},
        {"n": 1, "card": "a", "place": None},
    ]
    columns(avro(registry), old, new)
    assert len(registry.asked) == 2, "a process asks once"


def test_values_that_cannot_be_resolved_are_malformed_with_their_place(
    registry: FakeRegistry,
) -> None:
    registry.register(1, OLD)
    registry.register(3, {**OLD, "fields": FIELDS[:1]})
    registry.register(4, {"type": "nonsense"})
    registry.register(5, {}, schemaType="JSON")
    good = value(1, OLD, card="a", n=1)
    bad = [
        value(3, registry_schema(registry, 3), card="a"),
        value(9, OLD, card="a", n=1),
        value(4, OLD, card="a", n=1),
        value(5, OLD, card="a", n=1),
        good[:-1],
        good[:3],
        b'{"card": "a"}',
        good + b"x",
    ]
    for each in bad:
        with pytest.raises(ValueMalformed, match="t-0 at offset 1 is not avro"):
            columns(avro(registry), good, each)
    rows = columns(avro(registry, on_malformed=OnMalformed.NULL), good, *bad)
    assert [row["_malformed"] for row in rows] == [None, *bad]


def registry_schema(registry: FakeRegistry, schema_id: int) -> Any:
    return json.loads(registry.schemas[schema_id]["schema"])


def test_a_registry_that_is_away_makes_no_value_malformed(registry: FakeRegistry) -> None:
    registry.register(1, OLD)
    settings = avro(registry, on_malformed=OnMalformed.NULL)
    good = value(1, OLD, card="a", n=1)
    assert len(columns(settings, good)) == 1
    registry.status = 500
    assert len(columns(settings, good)) == 1
    with pytest.raises(SchemaUnavailable, match="schema id 2: it answers 500"):
        columns(settings, good, value(2, NEW, card="a", n=1, place=None))


def test_json_and_protobuf_are_read_behind_the_id(registry: FakeRegistry, tmp_path: Path) -> None:
    settings = ValueSettings(ValueFormat.JSON, "card string", registry=Registry(registry.url))
    assert columns(settings, b'\0\0\0\0\1{"card": "a"}') == [{"card": "a"}]
    with pytest.raises(ValueMalformed, match="magic byte"):
        columns(settings, b'{"card": "a"}')
    assert not registry.asked


INNER = {
    "type": "record",
    "name": "Place",
    "namespace": "geo",
    "fields": [{"name": "city", "type": "string"}],
}
KIND = {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}
OUTER = {
    "type": "record",
    "name": "Txn",
    "fields": [
        {"name": "at", "type": "geo.Place"},
        {"name": "then", "type": ["null", "geo.Place"]},
        {"name": "kinds", "type": {"type": "array", "items": "Kind"}},
    ],
}


def test_the_newest_schema_of_a_topic_gives_the_columns_with_what_it_refers_to(
    registry: FakeRegistry,
) -> None:
    registry.register(1, OLD, "payments-value")
    registry.register(2, INNER, "place")
    registry.register(3, KIND, "kind")
    refers = [
        {"name": "geo.Place", "subject": "place", "version": 1},
        {"name": "Kind", "subject": "kind", "version": 1},
    ]
    registry.register(4, OUTER, "payments-value", 2, references=refers)
    options = {
        "kafka.bootstrap.servers": "h:1",
        "subscribe": "payments",
        "valueFormat": "avro",
        "schema.registry.url": registry.url,
    }
    settings = loaded(options).values
    names = [field.name for field in open_decoder(settings).fields]
    assert names == ["at", "then", "kinds"]
    out = BytesIO()
    row = {"at": {"city": "Ghent"}, "then": None, "kinds": ["B"]}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(settings.schema)), row)
    assert columns(settings, b"\0\0\0\0\4" + out.getvalue()) == [row]
    with pytest.raises(BadSchema, match="no subject 'other-value'"):
        newest(Registry(registry.url), "other")
    with pytest.raises(BadSchema, match="with one topic only"):
        loaded(options | {"subscribe": "payments,other"})


def test_options_of_a_registry_need_one_and_a_format() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "valueFormat": "avro"}
    with pytest.raises(BadSchema, match=r"no schema\.registry\.url"):
        parse_options(given | {"valueSchema": "{}", "schema.registry.folder": "x"})
    with pytest.raises(BadSchema, match="nothing is decoded"):
        parse_options(given | {"valueFormat": "binary", "schema.registry.url": "http://h"})
    with pytest.raises(BadSchema, match="needs the option valueSchema"):
        parse_options(given | {"valueFormat": "json", "schema.registry.url": "http://h"})
    login = {"schema.registry.url": "http://h", "schema.registry.basic.auth.user.info": "me:x5"}
    assert "x5" not in repr(parse_options(given | login))


def test_what_stands_behind_an_id_is_not_what_stands_alone() -> None:
    alone = ValueSettings(ValueFormat.AVRO, "{}")
    behind = ValueSettings(ValueFormat.AVRO, "{}", registry=Registry("http://h"))
    assert identity(alone) != identity(behind)
