"""Events and outputs as JSON, decoded by msgspec straight into the declared class."""

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from catchwater.state.records import from_plain, is_pydantic, to_plain


def is_record(declared: Any) -> bool:
    """Whether a type is one of those an event or a state may be."""
    if not isinstance(declared, type):
        return typing.is_typeddict(declared)
    return (
        dataclasses.is_dataclass(declared)
        or issubclass(declared, msgspec.Struct)
        or typing.is_typeddict(declared)
        or is_pydantic(declared)
    )


def union_members(declared: Any) -> tuple[Any, ...]:
    """The members of `A | B`, or the type alone."""
    if isinstance(declared, type) or typing.get_origin(declared) is None:
        return (declared,)
    return typing.get_args(declared)


def fields_type(declared: Any, fields: tuple[str, ...], types: Any) -> type[msgspec.Struct]:
    """A struct of some fields of a record type, to decode only these out of its JSON."""
    names = {}
    if isinstance(declared, type) and issubclass(declared, msgspec.Struct):
        names = {field.name: field.encode_name for field in msgspec.structs.fields(declared)}
    typed = zip(fields, types if isinstance(types, tuple) else (types,), strict=True)
    return msgspec.defstruct("KeyFields", list(typed), rename=names)


def json_decoder(declared: Any) -> Callable[[bytes], Any]:
    """JSON to a value of the type; raises msgspec.DecodeError."""
    return msgspec.json.Decoder(declared, dec_hook=from_plain).decode


def json_encoder(unwrap: Callable[[Any], Any] | None = None) -> Callable[[Any], bytes]:
    """A value of any declared type to JSON; `unwrap` is asked for what is of no known type."""
    if unwrap is None:
        return msgspec.json.Encoder(enc_hook=to_plain).encode

    def plain(value: Any) -> Any:
        inner = unwrap(value)
        return to_plain(value) if inner is value else inner

    return msgspec.json.Encoder(enc_hook=plain).encode


def encode_named(encode: Callable[[Any], Any], record: Any, role: str) -> None:
    """TypeError naming the field if a record cannot be encoded."""
    try:
        encode(record)
    except TypeError as error:
        named, kind = f"{role} {type(record).__name__}", type(record)
        names = getattr(kind, "__dataclass_fields__", getattr(kind, "__struct_fields__", ()))
        for name in names:
            try:
                encode(getattr(record, name))
            except TypeError:
                named = f"{role}'s field {name!r}"
        raise TypeError(f"the {named} cannot be encoded: {error}") from None
