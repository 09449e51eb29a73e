"""What a function keeps, described: the shape of its state as data that outlives its class.

A description is written with every checkpoint's version and every savepoint, so that another
version of the function can be held against it (`compatible`) before it is started, without the
code that wrote it. It says what lies in the bytes: names as they are encoded, kinds, limits,
defaults where an encoder leaves them out.

Relies on msgspec's own view of a class, which is what encodes and decodes it; a pydantic model is
described by its fields. Decides nothing and reads no state.
"""

import typing
from typing import Any

import msgspec
from msgspec import NODEFAULT, inspect

from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.state.records import is_pydantic, to_plain

_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_ARRAYS: dict[type[inspect.Type], str] = {
    inspect.ListType: "list",
    inspect.CollectionType: "list",
    inspect.VarTupleType: "list",
    inspect.SetType: "set",
    inspect.FrozenSetType: "set",
}
_BYTES = (inspect.BytesType, inspect.ByteArrayType, inspect.MemoryViewType)


class Kind(msgspec.Struct, frozen=True, omit_defaults=True):
    """A type as its values are encoded."""

    kind: str
    """`int`, `float`, `str`, …, `list`, `set`, `tuple`, `dict`, `union`, `literal`, `record`."""
    of: list["Kind"] = []
    """What it is made of: elements, key and value, members."""
    values: list[Any] = []
    """Of a literal or an enum: everything it may be."""
    limits: dict[str, Any] = {}
    record: str = ""
    """Of a record: under which name its shape stands."""


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of a record, by its name in the bytes."""

    name: str
    kind: Kind
    required: bool = False
    default: Any = None
    """Plain; decides where an encoder leaves defaults out."""


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record: a map by name, or an array by place."""

    fields: list[Field]
    array: bool = False
    closed: bool = False
    """What it does not know is an error, not passed over."""
    omits: bool = False
    """Fields that hold their default are left out."""
    tag: str = ""
    """What stands for the class in the bytes, with the name of its field."""


class StateSchema(msgspec.Struct, frozen=True):
    """Everything that a function's stored state depends on."""

    key: list[str]
    """The types of the key's fields: stored keys are made of them."""
    state: Kind
    shapes: dict[str, Shape]
    entries: dict[str, Kind] = {}
    """List, map and value states that are kept entry by entry, by field."""


def describe(spec: FunctionSpec) -> StateSchema:
    """The schema of a function's state."""
    shapes: dict[str, Shape] = {}
    state = describe_type(spec.state_type, shapes)
    entries = {name: _entry(each.annotation, shapes) for name, each in spec.entry_fields.items()}
    if entries:
        record = shapes[state.record]
        fields = [field for field in record.fields if field.name not in entries]
        shapes[state.record] = msgspec.structs.replace(record, fields=fields)
    keys = spec.key_type if isinstance(spec.key_type, tuple) else (spec.key_type,)
    return StateSchema([_label(each) for each in keys], state, shapes, entries)


def describe_type(declared: Any, shapes: dict[str, Shape]) -> Kind:
    """The kind of one type; the shapes of its records are added to `shapes`."""
    if isinstance(declared, type) and is_pydantic(declared):
        return _pydantic(declared, shapes)
    try:
        found = inspect.type_info(declared)
    except TypeError:
        return Kind("custom", record=str(declared))
    return _kind(found, shapes)


def _label(declared: Any) -> str:
    return getattr(declared, "__qualname__", None) or str(declared)


def _entry(declared: Any, shapes: dict[str, Shape]) -> Kind:
    """A `ListState[T]`, `MapState[K, V]` or `ValueState[T]`."""
    origin = typing.get_origin(declared) or declared
    parts = [describe_type(each, shapes) for each in typing.get_args(declared)]
    return Kind(origin.__name__, of=parts)


def _kind(found: inspect.Type, shapes: dict[str, Shape]) -> Kind:
    """One type of msgspec's view."""
    match found:
        case inspect.Metadata():
            return _kind(found.type, shapes)
        case inspect.UnionType():
            return Kind("union", of=[_kind(each, shapes) for each in found.types])
        case inspect.LiteralType():
            return Kind("literal", values=list(found.values))
        case inspect.EnumType():
            return Kind("literal", values=[each.value for each in found.cls])
        case inspect.DictType():
            parts = [_kind(found.key_type, shapes), _kind(found.value_type, shapes)]
            return Kind("dict", of=parts, limits=_limits(found))
        case inspect.TupleType():
            return Kind("tuple", of=[_kind(each, shapes) for each in found.item_types])
        case inspect.CustomType():
            return _custom(found.cls, shapes)
    if isinstance(found, _RECORDS):
        return _record(found, shapes)
    if type(found) in _ARRAYS:
        items = [_kind(getattr(found, "item_type"), shapes)]  # noqa: B009  (of five classes)
        return Kind(_ARRAYS[type(found)], of=items, limits=_limits(found))
    name = "bytes" if isinstance(found, _BYTES) else type(found).__name__.removesuffix("Type")
    return Kind(name.lower(), limits=_limits(found))


_RECORDS = (
    inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType
)  # fmt: skip
_Record = (
    inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType
)


def _record(found: _Record, shapes: dict[str, Shape]) -> Kind:
    # Of a generic class with its arguments; a class that holds itself is met again here.
    label = f"{found.cls.__module__}:{found.cls.__qualname__}"
    label += "".join(f"[{_label(each)}]" for each in typing.get_args(found.cls))
    if label in shapes:
        return Kind("record", record=label)
    shapes[label] = Shape([])
    struct = found if isinstance(found, inspect.StructType) else None
    fields = [
        Field(each.encode_name, _kind(each.type, shapes), each.required, _default(each))
        for each in found.fields
    ]
    shapes[label] = Shape(
        fields=fields,
        array=bool(struct and struct.array_like) or isinstance(found, inspect.NamedTupleType),
        closed=bool(struct and struct.forbid_unknown_fields)
        or isinstance(found, inspect.NamedTupleType),
        omits=bool(struct and _class(struct).__struct_config__.omit_defaults),
        tag=f"{struct.tag_field}={struct.tag!r}" if struct and struct.tag is not None else "",
    )
    return Kind("record", record=label)


def _class(struct: inspect.StructType) -> type[msgspec.Struct]:
    return typing.get_origin(struct.cls) or struct.cls


def _custom(declared: Any, shapes: dict[str, Shape]) -> Kind:
    if is_pydantic(declared):
        return _pydantic(declared, shapes)
    return Kind("custom", record=_label(declared))


def _pydantic(model: Any, shapes: dict[str, Shape]) -> Kind:
    label = f"{model.__module__}:{model.__qualname__}"
    if label in shapes:
        return Kind("record", record=label)
    shapes[label] = Shape([])
    fields = []
    for name, info in model.model_fields.items():
        kind = describe_type(info.annotation, shapes)
        if info.metadata:
            kind = msgspec.structs.replace(kind, limits={"rules": str(info.metadata)})
        fields.append(Field(name, kind, info.is_required()))
    shapes[label] = Shape(fields, closed=model.model_config.get("extra") == "forbid")
    return Kind("record", record=label)


def _default(field: inspect.Field) -> Any:
    if field.default is not NODEFAULT:
        value = field.default
    elif field.default_factory is not NODEFAULT:
        value = field.default_factory()
    else:
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=to_plain))
    except TypeError:
        return repr(value)


def _limits(found: inspect.Type) -> dict[str, Any]:
    named = {name: getattr(found, name, None) for name in _LIMITS}
    return {name: value for name, value in named.items() if value is not None}
