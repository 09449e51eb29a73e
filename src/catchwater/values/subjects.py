"""The subjects of a schema registry: what their schemas mean for the columns and classes that read.

A topic's values have the subject `TOPIC-value`, as Confluent's serializers name it by default.
Imports no Spark.
"""

import json
from collections.abc import Sequence
from typing import Any

from catchwater.config import CatchwaterError
from catchwater.values.events import EventValues, Hook, parsed_avro, refused_sample, required
from catchwater.values.registry import Registered, RegistryClient
from catchwater.values.settings import BadSchema, Registry, ValueFormat, ValueSettings

LOOK_S = 1.0
"""How long a start waits for an answer: it goes on without one, by the schemas that are known."""
_MAY_DROP = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE")
"""What a subject may be whose next schema may lack a field that readers need."""


class EventsUnfit(CatchwaterError):
    """Values of a subject's schema are no events of the class that a function declares."""

    exit_code = 2


def subject_of(topic: str) -> str:
    """The subject of a topic's values."""
    return f"{topic}-value"


def newest(registry: Registry, topic: str) -> str:
    """The newest schema of a topic's values, with all that it refers to in one text.

    Raises `BadSchema` and `SchemaUnavailable`.
    """
    subject = subject_of(topic)
    try:
        _, found = RegistryClient(registry).latest(subject)
    except LookupError as error:
        raise BadSchema(f"{error}.", hint="Name a schema: valueSchema.") from error
    if found.kind != "AVRO":
        raise BadSchema(f"The schema of {subject} is {found.kind}, and valueFormat is avro.")
    return whole(found)


def whole(found: Registered) -> str:
    """An Avro schema with each that it refers to where it is first met. Raises `BadSchema`."""
    named: dict[str, Any] = {}
    for index, each in enumerate(found.needs):
        schema = parsed_avro(each, found.needs[:index], any_type=True)
        named[schema["name"]] = schema
    return json.dumps(_put_in(parsed_avro(found.text, found.needs), named))


def check_subject(
    values: EventValues, topic: str, declared: Any, hook: Hook, *, patience_s: float = LOOK_S
) -> None:
    """Raise `EventsUnfit` unless values of the topic's newest schema are events of the class.

    Only of Avro something is known before a value is there; a subject that is not there says
    nothing. Raises `SchemaUnavailable`.
    """
    registry = values.registry
    if registry is None or values.settings.format is not ValueFormat.AVRO:
        return
    subject = subject_of(topic)
    client = RegistryClient(registry, answer_s=patience_s)
    try:
        schema_id, found = client.latest(subject)
    except LookupError:
        return
    if found.kind != "AVRO":
        raise EventsUnfit(
            f"The newest schema of {subject!r} (id {schema_id}) is {found.kind}, and valueFormat "
            "is avro.",
            hint="Say valueFormat as the producers write.",
        )
    wrong = refused(found, declared, hook, of_type_only=True)
    if wrong is not None:
        raise EventsUnfit(
            f"Values of {subject!r} by its newest schema (id {schema_id}) are no events of "
            f"{declared.__name__}: {wrong}",
            hint="Give the field a default or the type of the schema: catchwater schema pull "
            f"{subject} --registry {registry.url} shows the class.",
        )


def refused(
    found: Registered, declared: Any, hook: Hook, *, of_type_only: bool = False
) -> str | None:
    """Why some value of an Avro schema is no event of the class (see `refused_sample`)."""
    values = EventValues(ValueSettings(ValueFormat.AVRO, whole(found)))
    return refused_sample(values, declared, hook, of_type_only=of_type_only)


def may_drop(level: str, declared: Any) -> Sequence[str]:
    """The fields of a class that a subject of this level lets its next schema leave out."""
    return [*required(declared)] if level.upper() in _MAY_DROP else []


def _put_in(schema: Any, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_put_in(each, named) for each in schema]
    if isinstance(schema, str):
        return _put_in(named.pop(schema), named) if schema in named else schema
    if not isinstance(schema, dict):
        return schema
    return {
        key: _put_in(each, named) if _is_type(key, each) else each
        for key, each in schema.items()
        if not key.startswith("__")
    }


def _is_type(key: str, value: Any) -> bool:
    """Whether a type stands there, and not a name, a default or the word for a kind of type."""
    if key == "type":
        return isinstance(value, dict | list) or value not in _KINDS
    return key in ("items", "values", "fields")


_KINDS = ("record", "enum", "fixed", "error", "array", "map")
