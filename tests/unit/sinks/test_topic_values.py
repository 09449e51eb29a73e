"""What a sink to a topic may say of its values, and what is refused before it writes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.schema_registry import FakeRegistry, schema_registry

from catchwater.config import ConfigError
from catchwater.sinks.base import OutputRecord, Staged
from catchwater.sinks.config import SinkContext, check_sink, parse
from catchwater.sinks.epochs import Archive, StagedFile
from catchwater.sinks.topic_values import Encoding, look_at_values, open_values
from catchwater.values import registry as registries
from catchwater.values.registry import SchemaRefused, SchemaUnavailable

pytest.importorskip("fastavro")

SCHEMA = {
    "type": "record",
    "name": "Alert",
    "fields": [{"name": "card", "type": "string"}, {"name": "n", "type": "int", "default": 0}],
}


@dataclass
class Alert:
    card: str


@dataclass
class Other:
    card: str
    place: str


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(registries, "PATIENCE_S", 0.0)
    with schema_registry() as fake:
        yield fake


def around(folder: Path, output_type: Any = Alert) -> SinkContext:
    (folder / "alert.avsc").write_text(json.dumps(SCHEMA))
    return SinkContext("cards", folder.as_uri(), folder, output_type=output_type)


def truth(folder: Path) -> Archive:
    return Archive(StagedFile(folder.as_uri(), "staged/alerts"))


def sink(kind: str = "log", **keys: str) -> Any:
    return parse("alerts", {"kind": kind, "topic": "alerts", **keys})


def of_registry(url: str, **more: str) -> Any:
    keys = {"valueFormat": "avro", "valueSchema": "alert.avsc", "schema.registry.url": url}
    return sink(**keys, **more)


AVRO = {"valueFormat": "avro", "valueSchema": "alert.avsc"}


@pytest.mark.parametrize("kind", ["log", "kafka"])
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"valueFormat": "xml"}, "one of json, avro, protobuf"),
        ({"valueFormat": "avro"}, "nothing says with which schema"),
        ({"valueSchema": "alert.avsc"}, "its values are plain JSON"),
        ({"valueFormat": "protobuf", "valueSchema": "a.desc"}, "valueMessage"),
        (AVRO | {"valueMessage": "a.B"}, "valueMessage"),
        (AVRO | {"schema.registry.register": "true"}, r"no schema\.registry\.url"),
        (AVRO | {"schema.registry.register": "yes"}, "true or false"),
        (AVRO | {"schema.registry.url": "registry:8081"}, "URL of a schema registry"),
        (AVRO | {"schema.registry.url": "http://me:x@h"}, "without a login"),
        ({"schema.registry.url": "http://h:1"}, "nothing says with which schema"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    kind: str, keys: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        sink(kind, **keys)


@pytest.mark.parametrize(
    ("output_type", "keys", "message"),
    [
        (Other, AVRO, "The outputs of Other have the field 'place'"),
        (None, AVRO, "takes records as they came"),
        (Alert, AVRO | {"valueSchema": "none.avsc"}, "cannot be read"),
        (Alert, AVRO | {"valueSchema": '{"type": "int"}'}, "not one of a record"),
        (int, AVRO, "needs the field 'card'"),
    ],
)
def test_a_schema_that_outputs_do_not_fit_is_refused_before_a_start(
    tmp_path: Path, output_type: Any, keys: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_sink(sink(**keys), around(tmp_path, output_type))
    check_sink(sink(**AVRO), around(tmp_path))


def test_plain_json_needs_nothing_of_this(tmp_path: Path) -> None:
    assert sink().options.is_plain
    check_sink(sink(), around(tmp_path, None))


def test_a_schema_is_looked_up_once_and_its_id_kept_beside_the_checkpoint(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    registry.register(7, SCHEMA, "alerts-value")
    config, context = of_registry(registry.url), around(tmp_path)
    look_at_values(config, context)
    values = open_values(config, context, truth(tmp_path))
    assert values is not None and values.schema_id == 7
    registry.status = 503
    questions = len(registry.asked)
    assert open_values(config, context, truth(tmp_path)) == values
    assert len(registry.asked) == questions
    assert not [each for each in registry.asked if "versions" in each], "nothing was registered"
    with pytest.raises(SchemaUnavailable, match="'alerts-value': it answers 503"):
        look_at_values(config, context)
    other = of_registry(registry.url, **{"schema.registry.subject": "other"})
    with pytest.raises(SchemaUnavailable, match="'other': it answers 503"):
        open_values(other, context, truth(tmp_path))


def test_an_incompatible_schema_is_refused_with_its_field_whether_or_not_it_may_be_registered(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    registry.register(7, {**SCHEMA, "fields": SCHEMA["fields"][:1]}, "alerts-value")
    registry.incompatible = ["READER_FIELD_MISSING_DEFAULT_VALUE: the field 'n' has no default"]
    for register in ("true", "false"):
        more = {"schema.registry.register": register}
        config, context = of_registry(registry.url, **more), around(tmp_path)
        for look in (
            lambda c=config, a=context: look_at_values(c, a),
            lambda c=config, a=context: open_values(c, a, truth(tmp_path)),
        ):
            with pytest.raises(SchemaRefused, match=r"does not take .* field 'n'") as refused:
                look()
            assert refused.value.exit_code == 2
    assert [*registry.schemas] == [7]


def test_what_is_staged_is_encoded(tmp_path: Path) -> None:
    values = open_values(sink(**AVRO), around(tmp_path), truth(tmp_path))
    assert values is not None
    staged: list[OutputRecord] = []

    class Stager:
        def stage(self, epoch: int, shard: int, records: Any) -> Staged:
            staged.extend(records)
            return Staged(shard, "x", len(records), 0, 0)

    made = Encoding(Stager(), values).stage(1, 2, [OutputRecord(b"k", b'{"card": "a"}', 3)])
    assert (made.shard, staged) == (2, [OutputRecord(b"k", b"\x02a\x00", 3)])


def test_what_a_backfill_writes_elsewhere_has_the_schema_of_the_topic() -> None:
    for kind in ("log", "kafka"):
        config = sink(kind, **AVRO, **{"schema.registry.url": "http://h:1"})
        assert config.renamed("elsewhere").options.subject == "alerts-value"
        assert config.renamed("elsewhere").options.topic == "elsewhere"
        assert sink(kind).renamed("elsewhere").options.subject == ""
