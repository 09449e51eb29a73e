"""Requests of any API and version from plain values.

One dict describes a request in all versions: a version's message takes the fields it knows. A
field that no version knows is a mistake of the case and raises `KeyError`.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from typing import Any, get_args, get_origin

from kio.index import KioIndexError, load_request_schema

NEWEST = 30
"""No API has more versions than this."""

SETTINGS: dict[str, Any] = {"replica_id": -1, "timeout": 5_000, "acks": -1}
"""What a client sends where Kafka's description has no default."""


def request(api_key: int, version: int, values: Mapping[str, Any]) -> Any:
    """The message of this API and version with these values, and defaults for the others."""
    unknown = _names(values) - known_fields(api_key)
    if unknown:
        raise KeyError(f"API {api_key} has no field {', '.join(sorted(unknown))}")
    return _build(load_request_schema(api_key, version), values)


def exists(api_key: int, version: int) -> bool:
    """Whether there is such a message; Kafka announces Produce v0 to v2 and does not serve them."""
    try:
        load_request_schema(api_key, version)
    except KioIndexError:
        return False
    return True


@cache
def known_fields(api_key: int) -> set[str]:
    """The names of all fields, nested ones included, in any version of the API."""
    found: set[str] = set()
    for version in range(NEWEST):
        try:
            found |= _names_of(load_request_schema(api_key, version))
        except KioIndexError:
            continue
    return found


def _names_of(entity: Any) -> set[str]:
    found = set()
    for field in fields(entity):
        found.add(field.name)
        inner = _inner(field.type)
        if inner is not None:
            found |= _names_of(inner)
    return found


def _names(values: Any) -> set[str]:
    if isinstance(values, Mapping):
        return set(values).union(*(_names(value) for value in values.values()))
    if isinstance(values, list | tuple):
        return set().union(*(_names(value) for value in values))
    return set()


def _build(entity: Any, values: Mapping[str, Any]) -> Any:
    return entity(**{f.name: _value(f, values.get(f.name, MISSING)) for f in fields(entity)})


def _value(field: Field[Any], value: Any) -> Any:
    if value is MISSING:
        if field.default is not MISSING:
            return field.default
        value = SETTINGS.get(field.name, MISSING)
    if value is MISSING:
        return _nothing(field)
    inner = _inner(field.type)
    if isinstance(value, list | tuple):
        return tuple(_build(inner, each) if inner and each is not None else each for each in value)
    if inner is not None and value is not None:
        return _build(inner, value)
    if str(field.metadata.get("kafka_type")).startswith("timedelta"):
        return timedelta(milliseconds=value)
    return value


def _nothing(field: Field[Any]) -> Any:
    """The emptiest value of a field without a default."""
    choices = (field.type, *get_args(field.type))
    if any(get_origin(choice) is tuple for choice in choices):
        return ()
    if type(None) in choices:
        return None
    kind = str(field.metadata.get("kafka_type"))
    if kind.startswith("timedelta"):
        return timedelta(0)
    inner = _inner(field.type)
    if inner is not None:
        return _build(inner, {})
    return {"string": "", "bytes": b"", "bool": False, "uuid": None}.get(kind, 0)


def _inner(annotation: Any) -> Any:
    """The dataclass inside a field's type, through arrays and unions with None; or None."""
    if is_dataclass(annotation):
        return annotation
    return next(filter(None, map(_inner, get_args(annotation))), None)
