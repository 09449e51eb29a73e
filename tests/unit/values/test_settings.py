"""The options on values, alone and among the source's others."""

from pathlib import Path

import pytest

from catchwater.replay.options import BadOption, parse_values
from catchwater.values.settings import BadSchema, OnMalformed, ValueFormat, ValueSettings, load

JSON = {"valueformat": "JSON", "valueschema": "a int"}
PROTOBUF = {"valueformat": "protobuf", "valueschema": "m.pb"}


def test_values_stay_binary_unless_asked() -> None:
    assert parse_values({}, ("key", "value")).format is ValueFormat.BINARY
    assert parse_values({"valueformat": "binary"}, ("key",)).format is ValueFormat.BINARY


def test_every_option_arrives() -> None:
    given = {**PROTOBUF, "valuemessage": "p.M", "valuefields": " b, a ", "onmalformed": "null"}
    assert parse_values(given, ("value",)) == ValueSettings(
        ValueFormat.PROTOBUF, "m.pb", "p.M", ("b", "a"), OnMalformed.NULL
    )
    assert parse_values(JSON, ("value",)) == ValueSettings(ValueFormat.JSON, "a int")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"valueformat": "xml"}, "valueFormat is 'xml', but takes one of: binary, json, avro"),
        ({"valueschema": "a int"}, "valueSchema is given, but valueFormat is binary"),
        ({"onmalformed": "null"}, "onMalformed is given, but valueFormat is binary"),
        ({"valueformat": "avro"}, "valueFormat avro needs the option valueSchema"),
        ({**JSON, "onmalformed": "skip"}, "onMalformed is 'skip', but takes one of: fail, null"),
        ({**JSON, "valuemessage": "p.M"}, "valueMessage names the message where"),
        (PROTOBUF, "valueMessage names the message where"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(given: dict[str, str], what: str) -> None:
    with pytest.raises((BadOption, BadSchema)) as caught:
        parse_values(given, ("value",))
    assert what in str(caught.value)


def test_a_column_that_is_left_out_cannot_be_decoded() -> None:
    with pytest.raises(BadSchema, match="columns leaves out value, which valueFormat json"):
        parse_values(JSON, ("key", "offset"))


def test_files_are_read_once_and_travel_with_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'{"type": "record"}')
    avro = load(ValueSettings(ValueFormat.AVRO, str(path)))
    protobuf = load(ValueSettings(ValueFormat.PROTOBUF, str(path), "p.M"))
    path.unlink()
    assert (avro.schema, protobuf.descriptors) == ('{"type": "record"}', b'{"type": "record"}')
    assert load(avro) == avro and load(protobuf) == protobuf
    for format in (ValueFormat.AVRO, ValueFormat.PROTOBUF):
        with pytest.raises(BadSchema, match="which cannot be read: No such file"):
            load(ValueSettings(format, str(path)))


def test_an_avro_schema_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xff")
    with pytest.raises(BadSchema, match="which is no text"):
        load(ValueSettings(ValueFormat.AVRO, str(path)))
