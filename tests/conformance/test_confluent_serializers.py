"""What other serializers write is read here, and the other way round.

They are Confluent's own for Python, and over a real registry (Apicurio's, which speaks Confluent's
API) those for Java that come with it.
"""

import base64
import datetime as dt
import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from benchmarks import kafka_jars
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from tests.conftest import START_S, until
from tests.ports import free_port
from tests.schema_registry import FakeRegistry, schema_registry

from catchwater.state.records import from_plain
from catchwater.values import registry as registries
from catchwater.values.events import event_values
from catchwater.values.outputs import OutputValues, offered, output_settings
from catchwater.values.registry import RegistryClient, SchemaRefused
from catchwater.values.settings import Registry, ValueFormat, ValueSettings

pytest.importorskip("fastavro")
confluent = pytest.importorskip("confluent_kafka.schema_registry")

from confluent_kafka.schema_registry import Schema, SchemaReference  # noqa: E402
from confluent_kafka.schema_registry.avro import (  # noqa: E402
    AvroDeserializer,
    AvroSerializer,
)
from confluent_kafka.schema_registry.json_schema import (  # noqa: E402
    JSONDeserializer,
    JSONSerializer,
)
from confluent_kafka.schema_registry.protobuf import (  # noqa: E402
    ProtobufDeserializer,
    ProtobufSerializer,
)
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402

TOPIC = "payments"
MOMENT = dt.datetime(2026, 11, 24, 3, 0, 0, 123000, tzinfo=dt.UTC)
AT_MS = round(MOMENT.timestamp() * 1000)
WITHIN = SerializationContext(TOPIC, MessageField.VALUE)


@dataclass
class Place:
    city: str


@dataclass
class Txn:
    card: str
    at: int
    place: Place | None = None
    tags: dict[str, str] = field(default_factory=dict)


EVENT = Txn("c1", AT_MS, Place("Ghent"), {"a": "b"})
ROW = {"card": "c1", "at": MOMENT, "place": {"city": "Ghent"}, "tags": {"a": "b"}}

PLACE = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
TXN = {
    "type": "record",
    "name": "Txn",
    "fields": [
        {"name": "card", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "place", "type": ["null", "Place"]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(registries, "PATIENCE_S", 0.0)
    with schema_registry() as fake:
        yield fake


@pytest.fixture
def client(registry: FakeRegistry) -> Any:
    return confluent.SchemaRegistryClient({"url": registry.url})


@pytest.fixture
def read(registry: FakeRegistry, tmp_path: Path) -> Callable[..., Any]:
    def read(value: bytes, kind: ValueFormat, declared: type = Txn, **settings: str) -> Any:
        """The event, by a process that asks and then by one that has what that one kept."""
        asked = Registry(registry.url, str(tmp_path / "kept"))
        values = event_values(ValueSettings(kind, **settings), asked)
        assert values is not None
        first = values.decoder(declared, from_plain)(value)
        questions = len(registry.asked)
        assert values.decoder(declared, from_plain)(value) == first
        assert len(registry.asked) == questions
        return first

    return read


def test_avro_of_a_schema_that_refers_to_another(client: Any, read: Callable[..., Any]) -> None:
    client.register_schema("place", Schema(json.dumps(PLACE), "AVRO"))
    refers = [SchemaReference("Place", "place", 1)]
    write = AvroSerializer(client, Schema(json.dumps(TXN), "AVRO", refers))
    assert read(write(ROW, WITHIN), ValueFormat.AVRO) == EVENT


def test_json_of_a_json_schema(client: Any, read: Callable[..., Any]) -> None:
    schema = {
        "title": "Txn",
        "type": "object",
        "properties": {"card": {"type": "string"}, "at": {"type": "integer"}},
        "required": ["card", "at"],
    }
    write = JSONSerializer(json.dumps(schema), client)
    assert read(write({"card": "c1", "at": 5}, WITHIN), ValueFormat.JSON) == Txn("c1", 5)


# --- Protobuf ------------------------------------------------------------------------------------


def files() -> dict[str, descriptor_pb2.FileDescriptorProto]:
    """Files by their names: one imports another, which imports a third, and Google's."""
    label, text, of = 1, descriptor_pb2.FieldDescriptorProto.TYPE_STRING, 11
    names = descriptor_pb2.FileDescriptorProto(name="geo/names.proto", package="geo")
    names.syntax = "proto3"
    names.message_type.add(name="Name").field.add(name="text", number=1, type=text, label=label)
    place = descriptor_pb2.FileDescriptorProto(name="geo/place.proto", package="geo")
    place.syntax = "proto3"
    place.dependency.append("geo/names.proto")
    of_place = place.message_type.add(name="Place").field
    of_place.add(name="city", number=1, type=text, label=label)
    of_place.add(name="other", number=2, type=of, type_name=".geo.Name", label=3)
    txn = descriptor_pb2.FileDescriptorProto(name="pay/txn.proto", package="pay")
    txn.syntax = "proto3"
    txn.dependency.extend(["geo/place.proto", "google/protobuf/timestamp.proto"])
    txn.message_type.add(name="Other").field.add(name="x", number=1, type=text, label=label)
    outer = txn.message_type.add(name="Outer")
    inner = outer.nested_type.add(name="Txn")
    entry = inner.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=text, label=label)
    entry.field.add(name="value", number=2, type=text, label=label)
    stamp, tags = ".google.protobuf.Timestamp", ".pay.Outer.Txn.TagsEntry"
    inner.field.add(name="card", number=1, type=text, label=label)
    inner.field.add(name="at", number=2, type=of, type_name=stamp, label=label)
    inner.field.add(name="place", number=3, type=of, type_name=".geo.Place", label=label)
    inner.field.add(name="tags", number=4, type=of, type_name=tags, label=3)
    return {each.name: each for each in (names, place, txn)}


def messages() -> Callable[[str], Any]:
    """The classes of the files' messages, by full names."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for each in files().values():
        pool.Add(each)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def protobuf_value(client: Any, name: str, **fields: Any) -> bytes:
    made = messages()(name)
    return bytes(ProtobufSerializer(made, client)(made(**fields), WITHIN))


def descriptor_set(folder: Path) -> Path:
    """All files as protoc --include_imports writes them."""
    stamps = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamps)
    whole = descriptor_pb2.FileDescriptorSet(file=[stamps, *files().values()])
    path = folder / "txn.desc"
    path.write_bytes(whole.SerializeToString())
    return path


MESSAGE = {
    "card": "c1",
    "at": {"seconds": AT_MS // 1000, "nanos": AT_MS % 1000 * 1_000_000},
    "place": {"city": "Ghent", "other": [{"text": "Gent"}]},
    "tags": {"a": "b"},
}


def test_protobuf_of_a_nested_message_whose_file_imports_others(
    client: Any, read: Callable[..., Any], registry: FakeRegistry
) -> None:
    value = protobuf_value(client, "pay.Outer.Txn", **MESSAGE)
    assert value[5:8] == b"\x04\x02\x00", "two steps: the second message, and in it the first"
    assert read(value, ValueFormat.PROTOBUF) == EVENT
    assert {*registry.subjects} == {"payments-value", "geo/place.proto", "geo/names.proto"}


def test_a_files_first_message_has_the_short_path_and_another_its_own_class(
    client: Any, read: Callable[..., Any]
) -> None:
    @dataclass
    class Other:
        x: str

    value = protobuf_value(client, "pay.Other", x="y")
    assert value[5:6] == b"\0"
    assert read(value, ValueFormat.PROTOBUF, Other) == Other("y")


def test_a_descriptor_set_stands_in_for_a_registry_that_gives_no_serialized_files(
    client: Any, read: Callable[..., Any], registry: FakeRegistry, tmp_path: Path
) -> None:
    value = protobuf_value(client, "pay.Outer.Txn", **MESSAGE)
    for each in registry.schemas.values():
        each["schema"] = 'syntax = "proto3"; message Txn {}'
    with pytest.raises(ValueError, match="does not give its Protobuf schema as a serialized file"):
        read(value, ValueFormat.PROTOBUF)
    named = {"schema": str(descriptor_set(tmp_path)), "message": "pay.Outer.Txn"}
    assert read(value, ValueFormat.PROTOBUF, **named) == EVENT


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (b"\x02\x06", "leads nowhere"),
        (b"\x04\x02\x08", "leads nowhere"),
        (b"\x01", "has -1 steps"),
        (b"\xfe\x7f", "steps"),
        (b"\x04\x02", "within the path"),
        (b"", "within the path"),
    ],
)
def test_a_path_that_leads_to_no_message_is_the_values_own_fault(
    client: Any, read: Callable[..., Any], path: bytes, why: str
) -> None:
    value = protobuf_value(client, "pay.Other", x="y")
    with pytest.raises(ValueError, match=why):
        read(value[:5] + path, ValueFormat.PROTOBUF)


def test_a_file_whose_imports_are_not_there_is_named(
    client: Any, read: Callable[..., Any], registry: FakeRegistry
) -> None:
    value = protobuf_value(client, "pay.Outer.Txn", **MESSAGE)
    schema_id = int.from_bytes(value[1:5], "big")
    del registry.schemas[schema_id]["references"]
    assert base64.b64decode(registry.schemas[schema_id]["schema"])
    with pytest.raises(ValueError, match=r"geo/place\.proto"):
        read(value, ValueFormat.PROTOBUF)


# --- the other way -------------------------------------------------------------------------------

OUTPUT = {
    "card": "c1",
    "at": AT_MS,
    "place": {"city": "Ghent"},
    "tags": {"a": "b"},
}
FLAT = {
    "type": "record",
    "name": "Txn",
    "fields": [{"name": "card", "type": "string"}, {"name": "at", "type": "long"}],
}
SELF_CONTAINED = json.dumps(TXN).replace('"Place"', json.dumps(PLACE))
JSON_SCHEMA = {"type": "object", "title": "Txn", "required": ["card", "at"]}


def written(registry: FakeRegistry, settings: ValueSettings, output: Any) -> bytes:
    """As a sink writes it: looked up, refused, and then registered because that is asked for."""
    loaded = output_settings(settings)
    asked = RegistryClient(Registry(registry.url))
    schema = offered(loaded, f"{TOPIC}-value")
    with pytest.raises(SchemaRefused, match="does not have the schema"):
        asked.id_of(schema)
    with pytest.raises(SchemaRefused, match="does not have the schema"):
        asked.look(schema)
    asked.look(schema, register=True)
    assert not registry.schemas, "nothing was registered so far"
    schema_id = asked.id_of(schema, register=True)
    assert asked.id_of(schema) == schema_id
    asked.look(schema)
    return OutputValues(loaded, schema_id).encoder()(json.dumps(output).encode())


def test_avro_of_a_sink_is_read(client: Any, registry: FakeRegistry) -> None:
    value = written(registry, ValueSettings(ValueFormat.AVRO, SELF_CONTAINED), OUTPUT)
    assert AvroDeserializer(client)(value, WITHIN) == ROW


def test_a_registry_that_compares_texts_is_asked_what_they_say(registry: FakeRegistry) -> None:
    registry.literal = True
    registry.register(7, json.dumps(FLAT, indent=2), f"{TOPIC}-value")
    schema = offered(
        output_settings(ValueSettings(ValueFormat.AVRO, json.dumps(FLAT))), "payments-value"
    )
    asked = RegistryClient(Registry(registry.url))
    asked.look(schema)
    assert asked.id_of(schema) == asked.id_of(schema, register=True) == 7
    assert len(registry.schemas) == 1, "what is there is not registered again"


def test_json_of_a_sink_is_read(client: Any, registry: FakeRegistry) -> None:
    settings = ValueSettings(ValueFormat.JSON, json.dumps(JSON_SCHEMA))
    value = written(registry, settings, OUTPUT)
    read = JSONDeserializer(json.dumps(JSON_SCHEMA), schema_registry_client=client)
    assert read(value, WITHIN) == OUTPUT


def test_protobuf_of_a_sink_is_read_with_all_that_its_file_imports(
    client: Any, registry: FakeRegistry, tmp_path: Path
) -> None:
    path = descriptor_set(tmp_path)
    settings = ValueSettings(ValueFormat.PROTOBUF, str(path), "pay.Outer.Txn")
    value = written(registry, settings, OUTPUT)
    assert {*registry.subjects} == {"payments-value", "geo/place.proto", "geo/names.proto"}
    made = messages()("pay.Outer.Txn")
    read = ProtobufDeserializer(made, {"use.deprecated.format": False}, client)(value, WITHIN)
    assert (read.card, read.at.ToMilliseconds(), read.place.city) == ("c1", AT_MS, "Ghent")
    assert dict(read.tags) == {"a": "b"}
    # Theirs and ours have the same bytes, and the registry takes them for one schema.
    theirs = protobuf_value(client, "pay.Outer.Txn", **{**MESSAGE, "place": {"city": "Ghent"}})
    assert theirs == value


# --- a real registry -----------------------------------------------------------------------------

_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m")
_OTHER = {"subject.name.strategy": lambda within, name: f"other-{name}"}
"""Subjects beside that of the topic, which has the schema of Java."""


@pytest.fixture(scope="module")
def real_registry() -> Iterator[str]:
    """The address of one that keeps its schemas in memory."""
    jar, port, management = str(kafka_jars.registry()), free_port(), free_port()
    options = [f"-Dquarkus.http.port={port}", f"-Dquarkus.management.port={management}"]
    command = ["java", *_JVM, "-Dquarkus.http.host=127.0.0.1", *options, "-jar", jar]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:

        def is_up() -> bool:
            assert process.poll() is None, "the registry ended"
            try:
                with urllib.request.urlopen(f"{url}/apis/ccompat/v7/subjects", timeout=5) as reply:
                    return bool(reply.status == 200)
            except OSError:
                return False

        try:
            until(is_up, START_S)
            yield url
        finally:
            process.kill()


def by_java(url: str, *arguments: str) -> str:
    """What Serdes.java says."""
    source = Path(__file__).parent / "clients" / "Serdes.java"
    classes = f"{kafka_jars.jars('serdes')}/*"
    command, *more = arguments
    address = f"{url}/apis/registry/v3"
    done = subprocess.run(
        ["java", *_JVM, "-cp", classes, str(source), command, address, *more],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.slow
def test_a_real_registry_stands_between_serializers_of_java_of_python_and_ours(
    real_registry: str, tmp_path: Path
) -> None:
    url = f"{real_registry}/apis/ccompat/v7"
    kept = Registry(url, str(tmp_path / "kept"))

    def event(value: bytes, kind: ValueFormat, declared: type = Txn) -> Any:
        values = event_values(ValueSettings(kind), kept)
        assert values is not None
        return values.decoder(declared, from_plain)(value)

    java = bytes.fromhex(by_java(real_registry, "write", json.dumps(FLAT)))
    assert event(java, ValueFormat.AVRO) == Txn("c1", 5)
    # Ours has the same schema, which the registry knows by now, and the same bytes.
    asked = RegistryClient(Registry(url))
    loaded = output_settings(ValueSettings(ValueFormat.AVRO, json.dumps(FLAT)))
    schema_id = asked.id_of(offered(loaded, f"{TOPIC}-value"))
    ours = OutputValues(loaded, schema_id).encoder()(b'{"card": "c1", "at": 5}')
    assert ours == java
    assert by_java(real_registry, "read", ours.hex()) == '{"card": "c1", "at": 5}'

    with confluent.SchemaRegistryClient({"url": url}) as python:
        python.register_schema("place", Schema(json.dumps(PLACE), "AVRO"))
        refers = [SchemaReference("Place", "place", 1)]
        whole = AvroSerializer(python, Schema(json.dumps(TXN), "AVRO", refers), conf=_OTHER)
        assert event(whole(ROW, WITHIN), ValueFormat.AVRO) == EVENT
        schema = {"title": "Txn", "type": "object", "properties": {"card": {"type": "string"}}}
        value = JSONSerializer(json.dumps(schema), python, conf=_OTHER)(
            {"card": "c1", "at": 5}, WITHIN
        )
        assert event(value, ValueFormat.JSON) == Txn("c1", 5)

        assert list(asked.versions(f"{TOPIC}-value")) == [1], "that of Java and ours are one"
        theirs = protobuf_value(python, "pay.Outer.Txn", **MESSAGE)
        assert event(theirs, ValueFormat.PROTOBUF) == EVENT

    with pytest.raises(SchemaRefused, match="does not have the schema"):
        asked.id_of(offered(loaded, "new-value"))
    registered = asked.id_of(offered(loaded, "new-value"), register=True)
    assert asked.id_of(offered(loaded, "new-value")) == registered
    assert asked.id_of(offered(loaded, "new-value"), register=True) == registered
    assert asked.level(f"{TOPIC}-value") == "NONE"
