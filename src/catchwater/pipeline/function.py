"""What a user writes: a typed function of one key's events, declared with what it promises.

The declaration says everything a restore must know (name, version, key, times, lifetimes, the
recovery contract's terms), so a wrong one is refused here, when the module is imported, with the
function and the field in the message. The name is the identity of the state: renaming the class
loses nothing.

Relies on `encoding` for the types. Imports no Spark. Runs nothing: `process` does.
"""

import inspect
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from operator import attrgetter, itemgetter
from random import Random  # noqa: TID251  (seeded by key and event: a replay draws the same)
from typing import Any, Generic, Literal, Protocol, TypeVar

from catchwater.config import CatchwaterError
from catchwater.pipeline import encoding
from catchwater.pipeline.encoding import KeyType, KeyValue, RecordCodec

EventT = TypeVar("EventT")
StateT = TypeVar("StateT")
OutT = TypeVar("OutT")
TargetT = TypeVar("TargetT", bound=Callable[..., Any])

Out = Iterable[OutT] | None
"""What a handler gives back: it may yield, return a list (half the cost) or return nothing."""

Late = Literal["drop", "process"]

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d|w)")
_MIGRATION = re.compile(r"from_v(\d+)")
_KEY_TYPES: tuple[type, ...] = (str, int, bytes)


class DeclarationError(CatchwaterError):
    """A function is declared in a way that could not work; nothing has run."""

    exit_code = 2


def duration_ms(text: str) -> int:
    """Milliseconds of a duration such as "500ms", "30s", "10m", "1d"; ValueError if it is none."""
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration: write a number and ms, s, m, h, d or w")
    return int(match[1]) * _UNITS_MS[match[2]]


class Context(Protocol):
    """What a handler may know and do besides its event and its state.

    There is no wall clock here: everything is the same again when the input is replayed.
    """

    @property
    def key(self) -> Any:
        """The key whose event or timer is being handled (a tuple if the key has several fields)."""

    @property
    def watermark(self) -> int:
        """Event time, ms: what is older is late. Stands still within an epoch."""

    @property
    def now(self) -> int:
        """The epoch's processing clock, ms since 1970; stands still within an epoch."""

    @property
    def random(self) -> Random:
        """A random source seeded by function, key and event: a replay draws the same numbers."""

    def timer(self, name: str, at: int) -> None:
        """Call `on_timer(name, at, …)` once the watermark reaches `at`; the name replaces."""

    def cancel_timer(self, name: str) -> None:
        """Forget the timer of this name, if there is one."""


class Keyed(ABC, Generic[EventT, StateT, OutT]):
    """A function of the events of one key, in log order, and of the state kept for that key."""

    @abstractmethod
    def on_event(self, e: EventT, s: StateT, ctx: Context) -> Out[OutT]:
        """Handle one event; change the state in place."""

    def on_timer(self, name: str, at: int, s: StateT, ctx: Context) -> Out[OutT]:
        """Handle a timer that came due at event time `at` (ms)."""
        return ()


@dataclass(frozen=True)
class FunctionSpec:
    """A checked declaration: durations in ms, types resolved. Pickles with its target."""

    name: str
    version: int
    key: tuple[str, ...]
    event_time: str
    watermark_ms: int
    dedup: str | None
    dedup_ttl_ms: int
    state_ttl_ms: int | None
    output_id: tuple[str, ...]
    needs_history_ms: int | None
    max_restore_ms: int | None
    late: Late
    event_type: Any
    state_type: Any
    output_type: Any
    key_type: KeyType
    target: Callable[..., Any]

    def handlers(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """A fresh (on_event, on_timer); the instance lives for one run, state is never in it."""
        if isinstance(self.target, type):
            instance = self.target()
            return instance.on_event, instance.on_timer
        return self.target, _no_timer

    @property
    def record_ttl_ms(self) -> int | None:
        """How long a key's record outlives its last write: its state and the ids seen are in it."""
        if self.state_ttl_ms is None:
            return None
        return max(self.state_ttl_ms, self.dedup_ttl_ms if self.dedup else 0)

    @cached_property
    def decode_event(self) -> Callable[[bytes], Any]:
        """One JSON document to one event; raises msgspec.DecodeError."""
        return encoding.json_decoder(self.event_type)

    @cached_property
    def encode_output(self) -> Callable[[Any], bytes]:
        """One output to one JSON document."""
        return encoding.json_encoder()

    @cached_property
    def decode_key(self) -> Callable[[bytes], Any]:
        """Key bytes to the key's value."""
        return encoding.key_decoder(self.key_type)

    @cached_property
    def record_codec(self) -> RecordCodec[Any]:
        """What is kept for a key, to bytes and back."""
        return RecordCodec(self.state_type, self.version, self.migrations())

    @cached_property
    def key_of(self) -> Callable[[Any], KeyValue]:
        """The key of an event: a value, or a tuple if the key has several fields."""
        return self._getter(*self.key)

    @cached_property
    def decode_key_fields(self) -> Callable[[bytes], Any]:
        """Of one JSON document only the key's fields; `key_of_fields` takes them."""
        return encoding.json_decoder(encoding.fields_type(self.event_type, self.key, self.key_type))

    @cached_property
    def key_of_fields(self) -> Callable[[Any], KeyValue]:
        """The key that `decode_key_fields` found."""
        return attrgetter(*self.key)

    @cached_property
    def event_time_of(self) -> Callable[[Any], int]:
        """The event time of an event, ms."""
        return self._getter(self.event_time)

    @cached_property
    def id_of(self) -> Callable[[Any], str | int | bytes]:
        """The identity of an event, by which duplicates are known; only if `dedup` is declared."""
        assert self.dedup is not None
        return self._getter(self.dedup)

    @cached_property
    def encode_id(self) -> Callable[[Any], bytes]:
        """An event's identity as bytes."""
        return encoding.id_encoder(typing.get_type_hints(self.event_type)[self.dedup or ""])

    def stored_key_of(self, event: Any) -> bytes:
        """Where the state of this event's key lies (see `encoding.stored_key`)."""
        return encoding.stored_key(encoding.encode_key(self.key_of(event)))

    def migrations(self) -> dict[int, Callable[[dict[str, Any]], Any]]:
        """The `from_vN` methods: older state, as a plain dict, to this version's state."""
        return {
            int(match[1]): getattr(self.target, name)
            for name in dir(self.target)
            if (match := _MIGRATION.fullmatch(name))
        }

    def _getter(self, *fields: str) -> Callable[[Any], Any]:
        by_item = typing.is_typeddict(self.event_type)
        return itemgetter(*fields) if by_item else attrgetter(*fields)

    def __getstate__(self) -> dict[str, Any]:
        """Without the cached decoders, which do not pickle and are cheap to make again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def function(
    *,
    name: str,
    version: int = 1,
    key: str | tuple[str, ...],
    event_time: str,
    watermark: str = "30s",
    dedup: str | None = None,
    dedup_ttl: str = "1d",
    state_ttl: str | None = None,
    output_id: str | tuple[str, ...] | None = None,
    needs_history: str | None = None,
    max_restore: str | None = None,
    late: Late = "drop",
) -> Callable[[TargetT], TargetT]:
    """Declare a `Keyed` class, or a plain `f(event, state, ctx)`, as a stateful function.

    Durations are texts such as "30s" or "7d". `watermark` is how long events may come out of
    order; `dedup` names the event's identity and `dedup_ttl` how long it is remembered;
    `state_ttl` how long a key's state outlives its last event (event time). `output_id` names the
    output's identity, on which idempotent sinks and reconciliation rest. `needs_history` and
    `max_restore` are the recovery contract's terms. Raises DeclarationError.
    """

    def declare(target: TargetT) -> TargetT:
        check = _Declaration(name)
        event_type, state_type, output_type = check.types_of(target)
        key_fields = (key,) if isinstance(key, str) else tuple(key)
        check.identity(version, late)
        spec = FunctionSpec(
            name=name,
            version=version,
            key=key_fields,
            event_time=check.time_field(event_type, event_time),
            watermark_ms=check.duration("watermark", watermark),
            dedup=check.id_field(event_type, dedup),
            dedup_ttl_ms=check.duration("dedup_ttl", dedup_ttl),
            state_ttl_ms=check.optional_duration("state_ttl", state_ttl),
            output_id=check.output_fields(output_type, output_id),
            needs_history_ms=check.optional_duration("needs_history", needs_history),
            max_restore_ms=check.optional_duration("max_restore", max_restore),
            late=late,
            event_type=event_type,
            state_type=check.state(state_type),
            output_type=output_type,
            key_type=check.key_type(event_type, key_fields),
            target=target,
        )
        target.__catchwater__ = spec  # type: ignore[attr-defined]
        return target

    return declare


def spec_of(target: Callable[..., Any]) -> FunctionSpec:
    """The declaration of a decorated class or function; DeclarationError if it has none."""
    spec = vars(target).get("__catchwater__")
    if not isinstance(spec, FunctionSpec):
        label = getattr(target, "__qualname__", repr(target))
        raise DeclarationError(f"{label} is not a function of ours: decorate it with @function")
    return spec


def _no_timer(name: str, at: int, s: Any, ctx: Context) -> None:
    """A plain function has no timer handler: what it sets comes due and is forgotten."""


class _Declaration:
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
        if late not in typing.get_args(Late):
            raise self.wrong(f"late={late!r} must be 'drop' or 'process'")

    def duration(self, field: str, text: str) -> int:
        try:
            return duration_ms(text)
        except ValueError as error:
            raise self.wrong(f"{field}={error}") from None

    def optional_duration(self, field: str, text: str | None) -> int | None:
        return None if text is None else self.duration(field, text)

    def types_of(self, target: Callable[..., Any]) -> tuple[Any, Any, Any]:
        """(event, state, output) as the annotations say."""
        if not isinstance(target, type):
            return self._types_of_plain(target)
        if not issubclass(target, Keyed):
            raise self.wrong(f"class {target.__name__} must derive from Keyed[Event, State, Out]")
        for base in getattr(target, "__orig_bases__", ()):
            if typing.get_origin(base) is Keyed:
                event, state, output = typing.get_args(base)
                break
        else:
            raise self.wrong("Keyed needs its types: write Keyed[Event, State, Out]")
        if inspect.isabstract(target):
            raise self.wrong(f"class {target.__name__} must define on_event")
        return self._record("event", event), self._record("state", state), output

    def _types_of_plain(self, target: Callable[..., Any]) -> tuple[Any, Any, Any]:
        shape = "write def f(e: Event, s: State, ctx: Context) -> Out[Alert]"
        try:
            hints = typing.get_type_hints(target)
        except NameError as error:
            raise self.wrong(f"an annotation cannot be resolved ({error}); {shape}") from None
        names = list(inspect.signature(target).parameters)
        if len(names) != 3 or not all(name in hints for name in [*names[:2], "return"]):
            raise self.wrong(f"the annotations must give event, state and output: {shape}")
        outputs = [arg for arg in typing.get_args(hints["return"]) if typing.get_args(arg)]
        yielded = typing.get_args(outputs[0] if outputs else hints["return"])
        if not yielded:
            raise self.wrong(f"the return annotation does not name the output type: {shape}")
        event, state = (hints[name] for name in names[:2])
        return self._record("event", event), self._record("state", state), yielded[0]

    def _record(self, role: str, declared: Any) -> Any:
        if not encoding.is_record(declared):
            raise self.wrong(
                f"the {role} type {_label(declared)} must be a dataclass, a msgspec.Struct, "
                "a TypedDict or a pydantic model"
            )
        return declared

    def state(self, state_type: Any) -> Any:
        """A key's first event meets `State()`, and what it becomes must be readable again."""
        required: frozenset[str] = getattr(state_type, "__required_keys__", frozenset())
        if required:
            raise self.wrong(
                f"the state {_label(state_type)} must be total=False: a new key starts empty"
            )
        try:
            codec: RecordCodec[Any] = RecordCodec(state_type, 1, {})
            codec.decode(codec.encode(encoding.new_record(state_type())))
        except (TypeError, ValueError) as error:
            raise self.wrong(
                f"the state {_label(state_type)} must have a default for every field "
                f"and types that can be stored ({error})"
            ) from None
        return state_type

    def field_type(self, owner: Any, role: str, field: str) -> Any:
        fields = typing.get_type_hints(owner)
        if field not in fields:
            known = ", ".join(fields)
            raise self.wrong(f"{role}={field!r} is not a field of {_label(owner)} ({known})")
        return fields[field]

    def time_field(self, event_type: Any, field: str) -> str:
        declared = self.field_type(event_type, "event_time", field)
        if declared is not int:
            raise self.wrong(
                f"event_time={field!r} of {_label(event_type)} must be int (milliseconds), "
                f"not {_label(declared)}"
            )
        return field

    def id_field(self, event_type: Any, field: str | None) -> str | None:
        if field is not None:
            self._plain_type(event_type, "dedup", field)
        return field

    def key_type(self, event_type: Any, fields: tuple[str, ...]) -> KeyType:
        if not fields:
            raise self.wrong("key names no field")
        declared = tuple(self._plain_type(event_type, "key", field) for field in fields)
        return declared if len(declared) > 1 else declared[0]

    def _plain_type(self, event_type: Any, role: str, field: str) -> type:
        declared = self.field_type(event_type, role, field)
        if declared not in _KEY_TYPES:
            raise self.wrong(
                f"{role}={field!r} of {_label(event_type)} must be str, int or bytes, "
                f"not {_label(declared)}"
            )
        return typing.cast(type, declared)

    def output_fields(
        self, output_type: Any, fields: str | tuple[str, ...] | None
    ) -> tuple[str, ...]:
        if fields is None:
            return ()
        named = (fields,) if isinstance(fields, str) else tuple(fields)
        for member in encoding.union_members(output_type):
            for field in named:
                self.field_type(member, "output_id", field)
        return named


def _label(declared: Any) -> str:
    return getattr(declared, "__name__", None) or str(declared)
