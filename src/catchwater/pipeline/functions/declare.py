"""What a user writes: a typed function of one key's events, declared with what it promises.

The declaration says everything a restore must know (name, version, key, times, lifetimes, the
recovery contract's terms), so a wrong one is refused here, when the module is imported, with the
function and the field in the message. The name is the identity of the state: renaming the class
loses nothing.

Imports no Spark. Runs nothing: `process` does.
"""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect as types

from catchwater.config import CatchwaterError, duration_ms
from catchwater.pipeline.calls.answers import answer_decoder
from catchwater.pipeline.calls.policy import Call, check
from catchwater.pipeline.functions.entries import (
    KINDS,
    MAX_FIELD_BYTES,
    Declared,
    EntryField,
    EntryState,
    ListState,
    MapState,
    from_record,
    to_record,
)
from catchwater.pipeline.functions.spec import (
    MAX_FUTURE,
    MIN_HANDLER_TIMEOUT_MS,
    FunctionSpec,
    InputSpec,
    Keyed,
    Late,
    Poison,
    PoisonPolicy,
    TableSpec,
    TargetT,
    is_record,
    json_decoder,
    union_members,
)
from catchwater.state.keys import KEY_TYPES, KeyType
from catchwater.state.records import RecordCodec, StateUnreadable, is_pydantic, new_record

Fields = str | tuple[str, ...]


def function(
    *,
    name: str,
    version: int = 1,
    key: Fields | Mapping[str, Fields],
    event_time: str | Mapping[str, str],
    inputs: Mapping[str, type] | None = None,
    watermark: str = "30s",
    max_future: str | None = MAX_FUTURE,
    dedup: str | Mapping[str, str] | None = None,
    dedup_ttl: str = "1d",
    state_ttl: str | None = None,
    output_id: Fields | None = None,
    needs_history: str | None = None,
    max_restore: str | None = None,
    late: Late = "drop",
    tables: Mapping[str, type | TableSpec] | None = None,
    calls: Mapping[str, Call] | None = None,
    poison: PoisonPolicy = "fail",
    poison_limit: int | None = None,
    handler_timeout: str = "60s",
    headers: bool = False,
) -> Callable[[TargetT], TargetT]:
    """Declare a `Keyed` class, or a plain `f(event, state, ctx)`, as a stateful function.

    What each means stands in docs/functions.md; durations are texts such as "30s" or "7d".
    Raises DeclarationError.
    """

    def declare(target: TargetT) -> TargetT:
        check = Declaration(name)
        event_type, state_type, output_type = check.types_of(target, inputs)
        check.identity(version, late)
        by_input = check.inputs(event_type, inputs, key, event_time, dedup)
        first = next(iter(by_input.values()))
        key_type = check.key_type(by_input)
        output_type = check.output_type(target, output_type, first.key, key_type)
        spec = FunctionSpec(
            name=name,
            version=version,
            key=first.key,
            event_time=first.event_time,
            watermark_ms=check.duration("watermark", watermark),
            dedup=first.dedup,
            dedup_ttl_ms=check.duration("dedup_ttl", dedup_ttl),
            state_ttl_ms=check.optional_duration("state_ttl", state_ttl),
            output_id=check.output_fields(output_type, output_id),
            needs_history_ms=check.optional_duration("needs_history", needs_history),
            max_restore_ms=check.optional_duration("max_restore", max_restore),
            late=late,
            event_type=event_type,
            state_type=state_type,
            output_type=output_type,
            key_type=key_type,
            target=target,
            inputs=by_input if inputs else {},
            tables=check.tables(tables or {}),
            calls=check.calls(target, calls or {}, poison),
            entry_fields=check.state(state_type),
            poison=check.poison(poison, poison_limit),
            handler_timeout_ms=check.handler_timeout(handler_timeout),
            max_future_ms=check.optional_duration("max_future", max_future),
            headers=headers,
        )
        target.__catchwater__ = check.completed(spec)  # type: ignore[attr-defined]
        return target

    return declare


def spec_of(target: Callable[..., Any]) -> FunctionSpec:
    """The declaration of a decorated class or function; DeclarationError if it has none."""
    spec = vars(target).get("__catchwater__")
    if not isinstance(spec, FunctionSpec):
        label = getattr(target, "__qualname__", repr(target))
        raise DeclarationError(f"{label} is not a function of ours: decorate it with @function")
    return spec


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_KEYS = ", ".join(each.__name__ for each in KEY_TYPES) + ", or an Enum or Literal of one of them"


class DeclarationError(CatchwaterError):
    """A function is declared in a way that could not work; nothing has run."""

    exit_code = 2


class Declaration:
    """The checks of one declaration; each says which function and which field is wrong."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise DeclarationError(
                f"The function name {name!r} must be 1 to 100 letters, digits, '.', '_' or '-'."
            )
        self.name = name

    def wrong(self, reason: str) -> DeclarationError:
        return DeclarationError(f"Function {self.name!r}: {reason}.")

    def identity(self, version: int, late: str) -> None:
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 2**16:
            raise self.wrong(f"version={version!r} must be a whole number from 1 to 65535")
        if not isinstance(late, str) or not late.strip():
            raise self.wrong(
                f"late={late!r} must be 'drop', 'process', 'dead-letter' or the name of a sink"
            )

    def mapping(self, role: str, given: Any, value: str) -> None:
        if not isinstance(given, Mapping):
            raise self.wrong(f'{role}={given!r} must be a dict: {role}={{"name": {value}}}')

    def duration(self, field: str, text: str) -> int:
        try:
            return duration_ms(text, field)
        except ValueError as error:
            raise self.wrong(str(error)) from None

    def optional_duration(self, field: str, text: str | None) -> int | None:
        return None if text is None else self.duration(field, text)

    def types_of(
        self, target: Callable[..., Any], inputs: Mapping[str, Any] | None
    ) -> tuple[Any, Any, Any]:
        """(event, state, output) as the annotations say; of several inputs a union of events."""
        if inputs is not None:
            self.mapping("inputs", inputs, "Event")
        event, state, output = self._annotated(target)
        events = union_members(event) if inputs else (event,)
        for each in events:
            self._record("event", each)
        if inputs and set(events) != set(inputs.values()):
            raise self.wrong(
                f"the event type {_label(event)} must be the union of the inputs' types: "
                + " | ".join(_label(each) for each in inputs.values())
            )
        return event, self._record("state", state), output

    def _annotated(self, target: Callable[..., Any]) -> tuple[Any, Any, Any]:
        if not isinstance(target, type):
            return self._types_of_plain(target)
        if not issubclass(target, Keyed):
            raise self.wrong(f"class {target.__name__} must derive from Keyed[Event, State, Out]")
        try:
            types = target.declared_types()
        except ValueError as error:
            raise self.wrong(str(error)) from None
        if types is None:
            raise self.wrong("Keyed needs its types: write Keyed[Event, State, Out]")
        if inspect.isabstract(target):
            lacking = " and ".join(sorted(target.__abstractmethods__))
            raise self.wrong(f"class {target.__name__} must define {lacking}")
        for each in _handler_mistakes(target):
            raise self.wrong(each)
        return types

    def completed(self, spec: FunctionSpec) -> FunctionSpec:
        """With what the class itself has to say of its declaration."""
        for each in union_members(spec.event_type):
            self._codable("event", each)
        if not (isinstance(spec.target, type) and issubclass(spec.target, Keyed)):
            return spec
        try:
            return spec.target.completed(spec)
        except ValueError as error:
            raise self.wrong(str(error)) from None

    def _types_of_plain(self, target: Callable[..., Any]) -> tuple[Any, Any, Any]:
        shape = "write def f(e: Event, s: State, ctx: Context) -> Out[Alert]"
        try:
            hints = typing.get_type_hints(target)
        except NameError as error:
            raise self.wrong(f"an annotation cannot be resolved ({error}); {shape}") from None
        names = list(inspect.signature(target).parameters)
        if len(names) != 3 or not all(name in hints for name in [*names[:2], "return"]):
            raise self.wrong(f"the annotations must give event, state and output: {shape}")
        for each in _handler_mistakes(target):
            raise self.wrong(each)
        outputs = [arg for arg in typing.get_args(hints["return"]) if typing.get_args(arg)]
        yielded = typing.get_args(outputs[0] if outputs else hints["return"])
        if not yielded:
            raise self.wrong(f"the return annotation does not name the output type: {shape}")
        event, state = (hints[name] for name in names[:2])
        return event, state, yielded[0]

    def _record(self, role: str, declared: Any) -> Any:
        if not is_record(declared):
            raise self.wrong(
                f"the {role} type {_label(declared)} must be a dataclass, a msgspec.Struct, "
                "a TypedDict or a pydantic model"
            )
        for field in _loose_fields(declared):
            raise self.wrong(
                f"{field!r} of the {role} type {_label(declared)} has a value but no type, so it "
                f"is not a field and would not be kept: annotate it ({field}: int = …)"
            )
        try:
            typing.get_type_hints(declared)
        except NameError as error:
            raise self.wrong(
                f"an annotation of the {role} type {_label(declared)} cannot be resolved "
                f"({error}): define what it names at the top of its module"
            ) from None
        return declared

    def _codable(self, role: str, declared: Any) -> None:
        """All that its annotations name can be encoded and decoded."""
        try:
            found = [] if is_pydantic(declared) else [*_foreign_types(declared)]
            if role != "state":  # its own codec tries that
                json_decoder(declared)
        except TypeError as error:
            raise self.wrong(
                f"the {role} type {_label(declared)} cannot be read: {error}"
            ) from None
        for place, unknown in found:
            raise self.wrong(
                f"{place}, of the {role} type, is of type {unknown}, which cannot be stored or "
                "sent: use a dataclass, a Struct, or a type that has a text"
            )

    def state(self, state_type: Any) -> dict[str, EntryField]:
        """A key's first event meets `State()`, and what it becomes must be readable again.

        Gives the list, map and value states among its fields.
        """
        found = self._entry_fields(state_type)
        self._codable("state", state_type)
        required: frozenset[str] = getattr(state_type, "__required_keys__", frozenset())
        if required:
            raise self.wrong(
                f"the state {_label(state_type)} must be total=False: a new key starts empty"
            )
        try:
            codec: RecordCodec[Any] = RecordCodec(state_type, 1, {}, to_record, from_record)
            fresh = new_record(state_type())
            stored = codec.decode(codec.encode(fresh))
        except (TypeError, ValueError, StateUnreadable) as error:
            raise self.wrong(
                f"the state {_label(state_type)} must have a default for every field "
                f"and types that can be stored ({error})"
            ) from None
        for changed in _changed_kinds(fresh.state, stored.state):
            raise self.wrong(changed)
        return found

    def field_type(self, owner: Any, role: str, field: str) -> Any:
        fields = typing.get_type_hints(owner)
        if field not in fields:
            known = ", ".join(fields)
            raise self.wrong(f"{role}={field!r} is not a field of {_label(owner)} ({known})")
        return fields[field]

    def inputs(
        self,
        event_type: Any,
        types: Mapping[str, Any] | None,
        key: Any,
        event_time: Any,
        dedup: Any,
    ) -> dict[str, InputSpec]:
        """What is each input's own; the one input of a function with but one has no name."""
        for role, given in (("key", key), ("event_time", event_time), ("dedup", dedup)):
            if isinstance(given, Mapping):
                self._by_input(role, given, types or {})
        found = {}
        for name, each in (types or {"": event_type}).items():
            if name and not _NAME.fullmatch(name):
                raise self.wrong(f"the input {name!r} must be 1 to 64 letters, digits, . _ or -")
            fields = _of_input(key, name)
            if not isinstance(fields, str | tuple | list):
                raise self.wrong(f"key={fields!r} must name a field, or be a tuple of names")
            found[name] = InputSpec(
                event_type=each,
                key=(fields,) if isinstance(fields, str) else tuple(fields),
                event_time=self._time_field(each, _of_input(event_time, name)),
                dedup=self._id_field(each, _of_input(dedup, name)),
            )
        return found

    def _by_input(self, role: str, given: Mapping[str, Any], types: Mapping[str, Any]) -> None:
        if not types:
            raise self.wrong(f"{role} is given by input, but there are no inputs=")
        optional = role == "dedup"
        if not (set(given) <= set(types) if optional else set(given) == set(types)):
            raise self.wrong(
                f"{role} is given for {', '.join(given)}; the inputs are {', '.join(types)}"
            )

    def _time_field(self, event_type: Any, field: str) -> str:
        declared = _unwrapped(self.field_type(event_type, "event_time", field))
        if declared is not int:
            raise self.wrong(
                f"event_time={field!r} of {_label(event_type)} must be int (milliseconds), "
                f"not {_label(declared)}"
            )
        return field

    def _id_field(self, event_type: Any, field: str | None) -> str | None:
        if field is not None:
            self._plain_type(event_type, "dedup", field)
        return field

    def key_type(self, inputs: Mapping[str, InputSpec]) -> KeyType:
        """The type of the key's one field, or of each of its fields; the same in all inputs."""
        found = {}
        for name, each in inputs.items():
            if not each.key:
                raise self.wrong("key names no field")
            found[name] = tuple(
                self._plain_type(each.event_type, "key", field) for field in each.key
            )
        first = next(iter(found.values()))
        for name, of_input in found.items():
            if of_input != first:
                raise self.wrong(
                    f"the key of input {name!r} is {', '.join(map(_label, of_input))}, that of "
                    f"{next(iter(found))!r} {', '.join(map(_label, first))}: they must be equal"
                )
        return first if len(first) > 1 else first[0]

    def _plain_type(self, event_type: Any, role: str, field: str) -> Any:
        declared = _unwrapped(self.field_type(event_type, role, field))
        if not _is_key_type(declared):
            raise self.wrong(
                f"{role}={field!r} of {_label(event_type)} must be {_KEYS}, not {_label(declared)}"
            )
        return declared

    def tables(self, tables: Mapping[str, Any]) -> dict[str, TableSpec]:
        """The tables by name."""
        self.mapping("tables", tables, "Row")
        found = {}
        for name, given in tables.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise self.wrong(f"the table {name!r} must be 1 to 64 letters, digits, . _ or -")
            table = given if isinstance(given, TableSpec) else TableSpec(given)
            role = f"row of table {name!r}:"
            self._codable(role, self._record(role, table.row_type))
            found[name] = table
        return found

    def calls(
        self, target: Any, calls: Mapping[str, Call], policy: PoisonPolicy
    ) -> Mapping[str, Call]:
        """The external calls by name."""
        self.mapping("calls", calls, "Call(…)")
        for wrong in call_mistakes(target, calls):
            raise self.wrong(wrong)
        for name, call in calls.items():
            if call.on_failure == "dead-letter" and policy == "fail":
                raise self.wrong(
                    f"the call {name!r} makes dead letters, but poison='fail' stops at the first: "
                    "declare poison='dead-letter'"
                )
        return calls

    def poison(self, policy: PoisonPolicy, limit: int | None) -> Poison:
        """The policy for records that cannot be handled."""
        if policy not in typing.get_args(PoisonPolicy):
            raise self.wrong(f"poison={policy!r} must be 'fail', 'skip' or 'dead-letter'")
        if limit is not None:
            if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
                raise self.wrong(f"poison_limit={limit!r} must be a whole number")
            if policy == "fail":
                raise self.wrong("poison_limit means nothing with poison='fail'")
        return Poison(policy, limit)

    def handler_timeout(self, text: str) -> int:
        """How long one call of a handler may take, ms."""
        found = self.duration("handler_timeout", text)
        if found < MIN_HANDLER_TIMEOUT_MS:
            raise self.wrong(f"handler_timeout={text!r} must be at least 1s")
        return found

    def _entry_fields(self, state_type: Any) -> dict[str, EntryField]:
        found = {}
        for name, declared in typing.get_type_hints(state_type).items():
            if typing.get_origin(declared) in KINDS or declared in KINDS:
                found[name] = self._entry_field(state_type, name, declared)
            elif any(each in KINDS for each in _parts(declared)):
                raise self.wrong(
                    f"the state's field {name!r} holds a list, map or value state inside another "
                    "type; only a field itself can be one"
                )
            elif isinstance(_default(state_type, name), Declared):
                raise self.wrong(
                    f"the state's field {name!r} must be annotated ListState[…], MapState[…] or "
                    "ValueState[…] to have that default"
                )
        return found

    def _entry_field(self, state_type: Any, name: str, declared: Any) -> EntryField:
        kind = typing.get_origin(declared)
        if kind is None:
            raise self.wrong(
                f"the state's field {name!r} needs its types: write {_label(declared)}[…]"
            )
        default = _default(state_type, name)
        if not isinstance(default, Declared):
            raise self.wrong(
                f"the state's field {name!r} must have list_state(), map_state() or value_state() "
                "as its default, in a dataclass or a msgspec.Struct"
            )
        if default.kind is not kind:
            raise self.wrong(
                f"the state's field {name!r} is a {kind.__name__}, its default makes a "
                f"{default.kind.__name__}"
            )
        if len(name.encode()) > MAX_FIELD_BYTES:
            raise self.wrong(f"the state's field {name!r} has over {MAX_FIELD_BYTES} bytes of name")
        key_type = typing.get_args(declared)[0]
        if kind is MapState and not all(
            _is_key_type(_unwrapped(each)) for each in _key_parts(key_type)
        ):
            raise self.wrong(
                f"the keys of the state's field {name!r} must be {_KEYS}, or tuples, "
                f"not {_label(key_type)}"
            )
        if default.max is not None and (kind is not ListState or default.max < 1):
            raise self.wrong(f"the state's field {name!r}: max={default.max} leaves no element")
        ttl_ms = self.optional_duration(f"ttl of the state's field {name!r}: ", default.ttl)
        field = EntryField(name, declared, ttl_ms, default.max)
        try:
            field.decode, field.encode  # noqa: B018  (both are made when they are asked for)
        except TypeError as error:
            raise self.wrong(f"the state's field {name!r} cannot be stored ({error})") from None
        return field

    def output_type(
        self, target: Any, declared: Any, key: tuple[str, ...], key_type: KeyType
    ) -> Any:
        """What a class puts out, which may depend on its key."""
        if not isinstance(target, type):
            return declared
        kinds = key_type if isinstance(key_type, tuple) else (key_type,)
        try:
            return target.output_type(declared, dict(zip(key, kinds, strict=True)))  # type: ignore[attr-defined]
        except ValueError as error:
            raise self.wrong(str(error)) from None

    def output_fields(
        self, output_type: Any, fields: str | tuple[str, ...] | None
    ) -> tuple[str, ...]:
        if fields is None:
            return ()
        named = (fields,) if isinstance(fields, str) else tuple(fields)
        for member in union_members(output_type):
            for field in named:
                self.field_type(member, "output_id", field)
        return named


def _label(declared: Any) -> str:
    return getattr(declared, "__name__", None) or str(declared)


def _default(owner: Any, field: str) -> Any:
    """The default of a field of a dataclass or a Struct; None if there is none, or no such."""
    found: tuple[Any, ...] = ()
    if dataclasses.is_dataclass(owner):
        found = dataclasses.fields(owner)
    elif isinstance(owner, type) and issubclass(owner, msgspec.Struct):
        found = msgspec.structs.fields(owner)
    return next((each.default for each in found if each.name == field), None)


def _of_input(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else given


def _unwrapped(declared: Any) -> Any:
    """What a NewType stands for."""
    while hasattr(declared, "__supertype__"):
        declared = declared.__supertype__
    return declared


def _is_key_type(declared: Any) -> bool:
    if typing.get_origin(declared) is typing.Literal:
        return len({type(value) for value in typing.get_args(declared)}) == 1
    if isinstance(declared, type) and issubclass(declared, Enum):
        kinds = {type(each.value) for each in declared}
        return len(kinds) == 1 and kinds <= {str, int}
    return declared in KEY_TYPES


def _key_parts(declared: Any) -> tuple[Any, ...]:
    """The types of a tuple's elements; a type that is no tuple, alone."""
    if typing.get_origin(declared) is not tuple:
        return (declared,)
    return tuple(part for each in typing.get_args(declared) for part in _key_parts(each))


def _parts(declared: Any) -> Iterator[Any]:
    """The types that a type is made of, through the fields of records."""
    seen: list[Any] = []
    waiting = list(typing.get_args(declared)) or [declared]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.append(each)
        yield typing.get_origin(each) or each
        waiting += typing.get_args(each)
        if is_record(each):
            waiting += typing.get_type_hints(each).values()


# Mistakes that Python accepts in a class, and that would be met only while events are handled. Each
# function says what is wrong in words that follow "Function 'name': ", or says nothing.

_LIBRARIES = frozenset({"builtins", "typing", "msgspec", "pydantic.main", "abc"})
"""Modules whose classes a record may derive from; their attributes are not the user's."""
_EVENT = "on_event(self, e, s, ctx)"
_TIMER = "on_timer(self, name, at, s, ctx)"


def _loose_fields(record: type) -> Iterator[str]:
    """Names given a value but no type: no fields, so that what is set on them is never kept.

    Constants, by their capitals, methods and what begins with an underscore are left alone.
    """
    bases = [each for each in record.__mro__ if each.__module__ not in _LIBRARIES]
    typed = {name for each in bases for name in vars(each).get("__annotations__", ())}
    for each in bases:
        for name, value in vars(each).items():
            hidden = name.startswith(("_", "model_")) or name.isupper()
            if not (hidden or name in typed or callable(value) or hasattr(value, "__get__")):
                yield name


def _foreign_types(record: Any) -> Iterator[tuple[str, str]]:
    """Where a record has a type that no codec of ours knows, and which: ("Trip.file", "Path")."""
    waiting: list[tuple[str, Any]] = [(_label(record), types.type_info(record))]
    seen: list[Any] = []
    while waiting:
        at, each = waiting.pop()
        match each:
            case types.CustomType():
                kind = typing.get_origin(each.cls) or each.cls
                if not (is_pydantic(kind) or issubclass(kind, EntryState)):
                    yield at, _label(each.cls)
            case (
                types.StructType()
                | types.DataclassType()
                | types.TypedDictType()
                | types.NamedTupleType()
            ) if each.cls not in seen:
                seen.append(each.cls)
                name = _label(each.cls)
                waiting += [(f"{name}.{field.name}", field.type) for field in each.fields]
            case types.Metadata():
                waiting.append((at, each.type))
            case types.UnionType():
                waiting += [(at, part) for part in each.types]
            case types.TupleType():
                waiting += [(at, part) for part in each.item_types]
            case types.DictType():
                waiting += [(at, each.key_type), (at, each.value_type)]
            case _ if hasattr(each, "item_type"):
                waiting.append((at, each.item_type))


def _changed_kinds(before: Any, after: Any) -> Iterator[str]:
    """Fields of a fresh state that come back as a plainer collection than they were."""
    for name in getattr(type(before), "__annotations__", ()):
        kinds = [type(getattr(each, name, None)) for each in (before, after)]
        if kinds[0] is not kinds[1] and kinds[1] in (dict, list, set) and issubclass(*kinds):
            yield (
                f"the state's field {name!r} begins as a {kinds[0].__name__}, but is a "
                f"{kinds[1].__name__} when it has been stored: begin with a {kinds[1].__name__}"
            )


def _handler_mistakes(target: Callable[..., Any]) -> Iterator[str]:
    """Handlers that cannot be called as they will be."""
    if isinstance(target, type):
        yield from _made_without_arguments(target)
        instance: Any = object.__new__(target)
        yield from _uncallable(instance.on_event, 3, f"write {_EVENT}")
        yield from _uncallable(instance.on_timer, 4, f"write {_TIMER}")
    else:
        yield from _uncallable(target, 3, "write def f(e, s, ctx)")


def _made_without_arguments(target: type) -> Iterator[str]:
    try:
        inspect.signature(target).bind()
    except TypeError as error:
        yield (
            f"class {target.__name__} must be made without arguments ({error}): every task makes "
            "its own; what it is to know stands in its module"
        )


def _uncallable(handler: Callable[..., Any], arguments: int, shape: str) -> Iterator[str]:
    """Why a method of the user's cannot be called with so many arguments."""
    name = handler.__name__
    if inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler):
        yield (
            f"{name} must not be async; calls to the outside are declared by calls= "
            "(docs/functions.md)"
        )
    try:
        inspect.signature(handler).bind(*range(arguments))
    except TypeError as error:
        yield f"{name} cannot be called with its {arguments} arguments ({error}): {shape}"


def call_mistakes(target: Any, calls: Mapping[str, Call]) -> Iterator[str]:
    """Calls that cannot be made as they will be."""
    if calls and not isinstance(target, type):
        yield "calls= needs a class with ask_NAME and call_NAME methods"
    for name, call in calls.items():
        if not isinstance(name, str) or not name.isidentifier():
            yield f"the call {name!r} must be named like a variable"
        for method, given in ((f"ask_{name}", "e"), (f"call_{name}", "question")):
            if not callable(getattr(target, method, None)):
                yield f"the call {name!r} needs a method {method}"
            bound = getattr(object.__new__(target), method)
            for wrong in _uncallable(bound, 1, f"write {method}(self, {given})"):
                yield f"the call {name!r}: {wrong}"
        try:
            check(call)
            together = call.batch is not None
            answer_decoder(getattr(target, f"call_{name}"), together=together)
        except (TypeError, ValueError, NameError) as error:
            yield f"the call {name!r}: {error}"
