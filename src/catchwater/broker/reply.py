"""A reply's plain fields to the message of the version that was asked for.

A handler describes its reply once, as nested dicts with the fields of the newest version it
serves; here the asked version's message takes the fields it knows. A field that a handler left
out must have a default in Kafka's description, or be an array (empty) or the throttle time (zero).
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, get_args, get_origin
from uuid import UUID

from catchwater.wire.errors import ErrorCode
from catchwater.wire.messages import reply_type

Build = Callable[[Any], Any]


def reply(api_key: int, version: int, values: Mapping[str, Any]) -> Any:
    """The message of this API and version, made of nested dicts."""
    return _struct(reply_type(api_key, version))(values)


@cache
def _struct(entity: Any) -> Build:
    builders = [(f.name, _field(f), _default(f)) for f in fields(entity)]

    def build(values: Any) -> Any:
        return entity(
            **{
                name: build_field(values[name]) if name in values else default
                for name, build_field, default in builders
            }
        )

    return build


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    if get_origin(field.type) is tuple:
        return ()
    # Kafka describes no default for these, yet there is only one thing to say.
    return timedelta(0) if field.name == "throttle_time" else None


def _field(field: Field[Any]) -> Build:
    inner = _inner_struct(field.type)
    if inner is not None:
        build = _struct(inner)
        if any(get_origin(t) is tuple for t in (field.type, *get_args(field.type))):
            return lambda values: None if values is None else tuple(map(build, values))
        return lambda values: None if values is None else build(values)
    match field.metadata.get("kafka_type"):
        case "uuid":
            return _uuid
        case "timedelta_i32" | "timedelta_i64":
            return lambda milliseconds: timedelta(milliseconds=milliseconds)
        case _:
            return lambda value: tuple(value) if isinstance(value, list) else value


def _inner_struct(annotation: Any) -> Any:
    """The dataclass inside a field's type, through arrays and unions with None; or None."""
    if is_dataclass(annotation):
        return annotation
    return next(filter(None, map(_inner_struct, get_args(annotation))), None)


def _uuid(value: bytes | UUID | None) -> UUID | None:
    return UUID(bytes=value) if isinstance(value, bytes) else value


def errors_by_partition(
    request: Any, errors: Mapping[tuple[str, int], ErrorCode]
) -> dict[str, Any]:
    """The fields of a reply that answers every (topic, partition) asked for with an error alone."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": p.partition_index,
                        "error_code": errors[topic.name, p.partition_index],
                    }
                    for p in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }
