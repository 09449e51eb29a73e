"""What a function keeps, described: the shape of its state as data that outlives its class.

A description is written with every checkpoint's version and every savepoint, so that another
version of the function can be held against it (`compare`) before it is started, without the
code that wrote it. It says what lies in the bytes: names as they are encoded, kinds, limits,
defaults where an encoder leaves them out. Relies on msgspec's own view of a class, which is what
encodes and decodes it; a pydantic model is described by its fields.

`compare` says whether one version reads what another has stored, and if not, which field bars it.
Its rules are those of the encoding (msgpack by msgspec): an unknown field of a map is skipped, a
missing one takes its default, an array is read by place, an integer is read as a float, most things
are read by nothing but their own kind. Added to them is what would be read without an error and
still be wrong: a renamed field (its values would be lost), a default that was left out of the bytes
and has changed since, a list that becomes a set. An integer beyond 2**53 that is read as a float is
rounded, as everywhere.

Pure: reads no state.
"""

import typing
from collections.abc import Iterator
from typing import Annotated, Any

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


# Whether one version reads what another has stored.

_AS_TEXT = {"str", "uuid", "decimal", "date", "time", "timedelta"}
_READ_AS = {
    "int": {"int", "float", "decimal"},
    "float": {"float", "decimal"},
    **{kind: {kind, "str"} for kind in _AS_TEXT},
}
"""What else reads a plain kind; all others are read by themselves alone."""

_LOWER = ("gt", "ge", "min_length")
_UPPER = ("lt", "le", "max_length")


class Problem(msgspec.Struct, frozen=True):
    """A field that bars the way, and why."""

    field: str
    reason: str
    migratable: bool = True
    """`from_vN` can mend it; only a key, or a state kept entry by entry, it cannot."""

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


def compare(old: StateSchema, new: StateSchema) -> list[Problem]:
    """Why state stored under `old` cannot be read under `new`; empty: it can, with its values."""
    problems = []
    if old.key != new.key:
        was, now = ", ".join(old.key), ", ".join(new.key)
        problems.append(Problem("key", f"its type was {was} and is {now}", migratable=False))
    reader = _Reader(old, new)
    problems += [Problem(*each) for each in reader.kinds("state", old.state, new.state)]
    for name, kind in old.entries.items():
        if name in new.entries:
            found = reader.kinds(f"state.{name}", kind, new.entries[name])
            problems += [Problem(*each, migratable=False) for each in found]
    problems += [Problem(*each, migratable=False) for each in _moved_in(old, new, reader)]
    problems += [Problem(*each) for each in _renamed(old, new, reader)]
    return problems + list(_moved_out(old, new))


_TAKES_OVER = {"MapState": "dict", "ListState": "list"}
"""What a state that is kept entry by entry takes over from a record; a `ValueState`: its value."""


def _moved_in(old: StateSchema, new: StateSchema, reader: "_Reader") -> "_Findings":
    """A field of the record that is a state of its own now is taken over when it is next met."""
    for field in _root(old).fields:
        kept = new.entries.get(field.name)
        if kept is None:
            continue
        yield from reader.kinds(f"state.{field.name}", field.kind, _in_record(kept))


def _in_record(kept: Kind) -> Kind:
    """What a state that is kept entry by entry is in a record."""
    taken = _TAKES_OVER.get(kept.kind)
    return Kind(taken, of=kept.of) if taken else kept.of[0]


def _renamed(old: StateSchema, new: StateSchema, reader: "_Reader") -> "_Findings":
    """A state of its own that may be another one, or a field of the record, under a new name."""
    fields = {field.name: field.kind for field in _root(old).fields}
    before = fields | old.entries
    fresh = {name: kind for name, kind in new.entries.items() if name not in before}
    stay = {*new.entries, *(field.name for field in _root(new).fields)}
    for name, was in before.items():
        if name in stay:
            continue
        apart = name in old.entries
        could_be = (
            each for each, now in fresh.items()
            if reader.could_be(was, now if apart else _in_record(now))
        )  # fmt: skip
        if (taken := next(could_be, None)) is not None:
            yield (
                f"state.{name}",
                f"it is gone and {taken} is new: its values would be lost if it was renamed",
            )


def _moved_out(old: StateSchema, new: StateSchema) -> Iterator[Problem]:
    """The other way round nobody would look for the entries."""
    for field in _root(new).fields:
        if field.name in old.entries:
            reason = "its entries were kept each by itself, and would not be found in the record"
            yield Problem(f"state.{field.name}", reason, migratable=False)


def _root(schema: StateSchema) -> Shape:
    return schema.shapes.get(schema.state.record, Shape([]))


_Findings = Iterator[tuple[str, str]]


class _Reader:
    """One pair of schemas; a pair of records that is being compared is not compared again."""

    def __init__(self, old: StateSchema, new: StateSchema) -> None:
        self._old = old
        self._new = new
        self._met: set[tuple[str, str]] = set()

    def kinds(self, path: str, old: Kind, new: Kind) -> _Findings:
        """Problems of reading `old` as `new`."""
        if new.kind == "any":
            return
        if old.kind == "union" or new.kind == "union":
            yield from self._unions(path, old, new)
        elif old.kind == new.kind == "record":
            yield from self._records(path, old.record, new.record)
        elif old.kind == new.kind and old.of:
            yield from self._made_of(path, old, new)
        elif old.kind in ("tuple", "set") and new.kind == "list":
            for each in old.of:
                yield from self.kinds(f"{path}[]", each, new.of[0])
            yield from _tightened(path, old, new)
        elif not _reads(old, new):
            yield path, f"it was {_said(old)} and is {_said(new)}"
        else:
            yield from _tightened(path, old, new)

    def _unions(self, path: str, old: Kind, new: Kind) -> _Findings:
        members = new.of if new.kind == "union" else [new]
        records = sum(member.kind == "record" for member in members) > 1
        for each in old.of if old.kind == "union" else [old]:
            attempts = [list(self._member(path, each, member, records)) for member in members]
            if [] not in attempts:
                near = [found for found, m in zip(attempts, members, strict=True)
                        if m.kind == each.kind]  # fmt: skip
                if near:
                    yield from near[0]
                else:
                    yield path, f"it could be {_said(each)} and is {_said(new)}"

    def _member(self, path: str, old: Kind, new: Kind, tagged: bool) -> _Findings:
        """One member of a union; among several records only the tag tells them apart."""
        if tagged and old.kind == new.kind == "record":
            tags = self._old.shapes[old.record].tag, self._new.shapes[new.record].tag
            if not tags[0] or tags[0] != tags[1]:
                yield path, f"nothing says that a stored {_said(old)} is a {_said(new)}"
                return
        # What was met on the way of an attempt that fails is not known to be readable.
        met = set(self._met)
        found = list(self.kinds(path, old, new))
        if found:
            self._met = met
        yield from found

    def _made_of(self, path: str, old: Kind, new: Kind) -> _Findings:
        if len(old.of) != len(new.of):
            yield path, f"it had {len(old.of)} elements and has {len(new.of)}"
            return
        yield from _tightened(path, old, new)
        names = ["[key]", "[]"] if len(old.of) == 2 and old.kind != "tuple" else None
        for place, (was, now) in enumerate(zip(old.of, new.of, strict=True)):
            part = names[place] if names else f"[{place}]" if old.kind == "tuple" else "[]"
            yield from self.kinds(path + part, was, now)

    def _records(self, path: str, old_name: str, new_name: str) -> _Findings:
        if (old_name, new_name) in self._met:
            return
        self._met.add((old_name, new_name))
        old, new = self._old.shapes[old_name], self._new.shapes[new_name]
        if old.array != new.array:
            ways = ("by name", "by place")
            yield path, f"it was written {ways[old.array]} and is read {ways[new.array]}"
            return
        yield from _tags(path, old, new)
        yield from self._places(path, old, new) if old.array else self._names(path, old, new)

    def _names(self, path: str, old: Shape, new: Shape) -> _Findings:
        """A map: fields find each other by name."""
        was = {field.name: field for field in old.fields}
        now = {field.name: field for field in new.fields}
        for name, field in now.items():
            if name in was:
                yield from self.kinds(f"{path}.{name}", was[name].kind, field.kind)
                yield from _left_out(f"{path}.{name}", old, was[name], field)
            elif field.required:
                yield f"{path}.{name}", "it is new and has no default"
        added = [field for name, field in now.items() if name not in was]
        for name in was.keys() - now.keys():
            if new.closed:
                yield f"{path}.{name}", "it is gone, and the class forbids unknown fields"
            taken = next((f for f in added if self.could_be(was[name].kind, f.kind)), None)
            if taken:
                yield (
                    f"{path}.{name}",
                    f"it is gone and {taken.name} is new: its values would be lost if it was "
                    "renamed",
                )

    def _places(self, path: str, old: Shape, new: Shape) -> _Findings:
        """An array: the n-th field is read by the n-th."""
        for was, now in zip(old.fields, new.fields, strict=False):
            if was.name != now.name:
                yield (
                    f"{path}.{was.name}",
                    f"{now.name} stands in its place, and the class is read by place",
                )
                return
            yield from self.kinds(f"{path}.{was.name}", was.kind, now.kind)
        for field in new.fields[len(old.fields) :]:
            if field.required:
                yield f"{path}.{field.name}", "it is new and has no default"
        for field in old.fields[len(new.fields) :]:
            if new.closed:
                yield f"{path}.{field.name}", "it is gone, and the class forbids unknown fields"

    def could_be(self, old: Kind, new: Kind) -> bool:
        """Whether all values of the one could be read as the other."""
        return not list(self._member("", old, new, False))


def _reads(old: Kind, new: Kind) -> bool:
    """Whether a plain kind is read by another."""
    if old.kind == "literal":
        if new.kind == "literal":
            return all(value in new.values for value in old.values)
        return all(new.kind in _READ_AS.get(type(v).__name__, ()) for v in old.values)
    if old.kind == "datetime":
        naive = old.limits.get("tz") is False
        return new.kind == "datetime" or (new.kind == "str" and naive)
    return old.record == new.record and new.kind in _READ_AS.get(old.kind, {old.kind})


def _tightened(path: str, old: Kind, new: Kind) -> _Findings:
    """A limit that is new, or tighter than it was, may exclude what is stored."""
    for name, limit in new.limits.items():
        was = old.limits.get(name)
        looser = was is not None and (
            was == limit
            or (name in _LOWER and limit <= was)
            or (name in _UPPER and limit >= was)
        )  # fmt: skip
        if not looser and not _literals_keep(old, name, limit):
            now = f"{name}={limit!r}"
            yield path, f"{now} is new" if was is None else f"{name} was {was!r}, is {limit!r}"


def _literals_keep(old: Kind, name: str, limit: Any) -> bool:
    """Whether only values were allowed that a limit allows, too."""
    try:
        for value in old.values:
            msgspec.convert(value, Annotated[type(value), msgspec.Meta(**{name: limit})])
    except (msgspec.ValidationError, TypeError):
        return False
    return old.kind == "literal"


def _left_out(path: str, shape: Shape, was: Field, now: Field) -> _Findings:
    if shape.omits and not was.required and (now.required or now.default != was.default):
        default = "none" if now.required else repr(now.default)
        yield path, f"its default was {was.default!r}, which was left out, and is {default}"


def _tags(path: str, old: Shape, new: Shape) -> _Findings:
    """In a map a tag may be missing, or be a field that nobody knows; in an array it may not."""
    if old.tag == new.tag or not (old.array or new.closed or (old.tag and new.tag)):
        return
    yield path, f"its tag was {old.tag or 'none'} and is {new.tag or 'none'}"


def _said(kind: Kind) -> str:
    match kind.kind:
        case "union":
            return " or ".join(map(_said, kind.of))
        case "literal":
            return "one of " + ", ".join(map(repr, kind.values))
        case "record" | "custom":
            return kind.record.rpartition(":")[2]
        case "nonetype" | "none":
            return "None"
    inner = ", ".join(map(_said, kind.of))
    return f"{kind.kind}[{inner}]" if inner else kind.kind
