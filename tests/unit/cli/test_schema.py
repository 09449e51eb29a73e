"""`catchwater schema`: from a file and from a registry."""

import json
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from tests.schema_registry import schema_registry
from typer.testing import CliRunner

from catchwater.cli.schema import app
from catchwater.config import ConfigError
from catchwater.values.settings import BadSchema

pytest.importorskip("fastavro")

SCHEMA = {
    "type": "record",
    "name": "Txn",
    "fields": [
        {"name": "card", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
EVENTS = """
from dataclasses import dataclass

@dataclass
class Txn:
    card: str
    at: int

@dataclass
class More(Txn):
    place: str
"""


def run(*arguments: object) -> tuple[int, str]:
    ended = CliRunner().invoke(app, [str(each) for each in arguments])
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return ended.exit_code, ended.output


def test_classes_of_a_subject_are_printed_or_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with schema_registry() as registry:
        registry.login = "me:secret"
        registry.register(7, SCHEMA, "payments-value")
        monkeypatch.setenv("CATCHWATER_SCHEMA_REGISTRY_LOGIN", "me:secret")
        code, output = run("pull", "payments-value", "--registry", registry.url)
        assert code == 0 and "class Txn:\n    card: str\n    at: int\n" in output
        path = tmp_path / "events.py"
        named = ("pull", "payments-value", "--registry", registry.url, "--class", "Payment")
        assert run(*named, "--output", path)[0] == 0
        assert "class Payment:" in path.read_text()
        with pytest.raises(Exception, match="is there already"):
            run(*named, "--output", path)
        with pytest.raises(ConfigError, match="no subject 'payments'"):
            run("pull", "payments", "--registry", registry.url)


def test_a_class_is_held_against_a_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held_events.py").write_text(EVENTS)
    (tmp_path / "txn.avsc").write_text(json.dumps(SCHEMA))
    assert run("check", "txn.avsc", "held_events:Txn")[0] == 0
    code, output = run("check", "txn.avsc", "held_events:More")
    assert code == 4 and "must have the field 'place'" in output
    with pytest.raises(ConfigError, match=r"none\.avsc cannot be read"):
        run("check", "none.avsc", "held_events:Txn")


def test_the_kind_of_a_file_is_told_from_what_is_in_it(tmp_path: Path) -> None:
    json_schema = {"properties": {"n": {"type": "integer"}}, "required": ["n"], "title": "Order"}
    (tmp_path / "order.json").write_text(json.dumps(json_schema))
    assert run("pull", tmp_path / "order.json")[1].endswith("class Order:\n    n: int\n")
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="pay", syntax="proto3")
    file.message_type.add(name="Txn")
    file.message_type.add(name="Other").field.add(name="n", number=1, type="TYPE_INT64", label=1)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    (tmp_path / "a.desc").write_bytes(files.SerializeToString())
    named = (tmp_path / "a.desc", "--message", "pay.Other")
    assert run("pull", *named)[1].endswith("class Other:\n    n: int\n")
    (tmp_path / "a.proto").write_text('syntax = "proto3"; message Txn {}')
    with pytest.raises(ConfigError, match="source of a Protobuf file"):
        run("pull", tmp_path / "a.proto")
    with pytest.raises(BadSchema, match="has no messages"):
        run("pull", tmp_path / "order.json", "--message", "Order")


def test_every_version_of_a_subject_is_held_against_the_class_and_what_may_come_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "versioned_events.py").write_text(EVENTS)
    place = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
    refers = {"name": "home", "type": ["null", "Place"], "default": None}
    newer = {**SCHEMA, "fields": [*SCHEMA["fields"], refers, {"name": "place", "type": "string"}]}
    with schema_registry() as registry:
        registry.register(3, place, "place")
        registry.register(7, SCHEMA, "payments-value")
        references = [{"name": "Place", "subject": "place", "version": 1}]
        registry.register(8, newer, "payments-value", 2, references=references)
        at = ("payments-value", "--registry", registry.url)
        code, output = run("check", at[0], "versioned_events:More", *at[1:])
        assert code == 4
        assert "Values of payments-value version 2 are events of More." in output
        assert "version 1 are not all events of More: " in output
        assert "payments-value is BACKWARD: its next schema may leave out card, at, place" in output
        registry.levels["payments-value"] = "FULL_TRANSITIVE"
        code, output = run("check", at[0], "versioned_events:Txn", *at[1:])
        assert code == 0 and "leave out" not in output
