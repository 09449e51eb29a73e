"""What a topic declares its values to be, so that its Parquet can have them as columns.

`catchwater.history.value.format` is `binary`, `json` or `avro`; `catchwater.history.value.schema`
is the text that the Spark source takes as `valueSchema`: DDL for JSON, a schema for Avro. The two
are judged each by itself, for a topic's settings may be changed one by one; a topic whose schema is
not of its format has declared nothing.

Relies on what decodes values, and like it needs the extra `spark`, and `avro` for Avro.
"""

from importlib.util import find_spec

from catchwater.catalog.rows import Topic
from catchwater.values.settings import BadSchema, ValueFormat, ValueSettings

VALUE_FORMAT = "catchwater.history.value.format"
VALUE_SCHEMA = "catchwater.history.value.schema"
FORMATS = (ValueFormat.BINARY, ValueFormat.JSON, ValueFormat.AVRO)
"""Protobuf's descriptors are bytes, which a setting cannot hold."""

_PACKAGES = {ValueFormat.JSON: ("pyspark", "pandas"), ValueFormat.AVRO: ("pyspark", "fastavro")}


def declared(topic: Topic) -> ValueSettings | None:
    """How the topic's values are to be decoded; None where it does not say."""
    kind = ValueFormat(topic.config.get(VALUE_FORMAT, ValueFormat.BINARY.value))
    text = topic.config.get(VALUE_SCHEMA, "").strip()
    if not text or kind is not _format_of(text):
        return None
    return ValueSettings(kind, text)


def refused_schema(text: str) -> str | None:
    """Why this cannot be a topic's schema, as a sentence; None where it can."""
    if not text.strip():
        return None
    kind = _format_of(text)
    missing = [name for name in _PACKAGES[kind] if find_spec(name) is None]
    if missing:
        return (
            f"A schema for {kind.value} needs {' and '.join(missing)} on every broker "
            "(pip install 'catchwater[spark,avro]')."
        )
    # Loads Spark's Python package: only brokers whose topics declare something pay for that.
    from catchwater.values.typed import open_decoder

    try:
        open_decoder(ValueSettings(kind, text.strip()))
    except BadSchema as error:
        return str(error)
    return None


def _format_of(schema: str) -> ValueFormat:
    """An Avro schema with fields is a JSON object; DDL never begins like one."""
    return ValueFormat.AVRO if schema.lstrip().startswith("{") else ValueFormat.JSON
