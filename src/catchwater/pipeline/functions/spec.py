"""A checked declaration, the classes a user derives from, and their records as JSON.

Events and outputs are decoded by msgspec straight into the declared class. Imports no Spark. Runs
nothing: `process` does.
"""

import dataclasses
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter, itemgetter
from random import Random  # noqa: TID251  (seeded by key and event: a replay draws the same)
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from catchwater.config import duration_ms
from catchwater.pipeline.functions.entries import EntryField, from_record, to_record
from catchwater.state.keys import (
    KeyType,
    KeyValue,
    encode_key,
    key_decoder,
    key_encoder,
    stored_key,
)
from catchwater.state.records import RecordCodec, from_plain, is_pydantic, to_plain
from catchwater.values.events import EventValues

EventT = TypeVar("EventT")
StateT = TypeVar("StateT")
OutT = TypeVar("OutT")
TargetT = TypeVar("TargetT", bound=Callable[..., Any])

Out = Iterable[OutT] | None
"""What a handler gives back: it may yield, return a list (half the cost) or return nothing."""


class Retraction:
    """An output that takes back what was put out before under its `output_id`."""

    __slots__ = ("output",)

    def __init__(self, output: Any) -> None:
        """`output` says by its fields of `output_id` what no longer holds."""
        self.output = output

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Retraction) and other.output == self.output

    def __hash__(self) -> int:
        return hash((Retraction, self.output))

    def __repr__(self) -> str:
        return f"Retraction({self.output!r})"


@dataclass
class Nothing:
    """The state of a function that keeps none: of its keys there is no record."""


Late = Literal["drop", "process", "dead-letter"] | str
"""What becomes of an event before the watermark; any other text is the name of a sink."""

MAX_FUTURE = "1d"
"""How far ahead of its record's timestamp an event may lie, where a function says nothing."""

PoisonPolicy = Literal["fail", "skip", "dead-letter"]


@dataclass(frozen=True)
class Poison:
    """A record is poison if it cannot be decoded, has no usable key, or makes its handler raise."""

    policy: PoisonPolicy = "fail"
    """`fail` stops the pipeline; `skip` counts the record, `dead-letter` also sends it there."""
    limit: int | None = None
    """More poisoned records than this stop the pipeline all the same; None: no limit."""


FAIL = Poison()
"""The policy of a function that declares none."""
HANDLER_TIMEOUT_MS = 60_000
"""How long one call of a handler may take that declares nothing; then its record is poison."""
MIN_HANDLER_TIMEOUT_MS = 1_000

_IDS = (str, int, bytes)
_MIGRATION = re.compile(r"from_v(\d+)")


Headers = tuple[tuple[str, bytes | None], ...]
"""Of a record: name and value; a name may come more than once."""


class Context(Protocol):
    """What a handler may know and do besides its event and its state.

    There is no wall clock here: everything is the same again when the input is replayed.
    """

    @property
    def key(self) -> Any:
        """The key whose event or timer is being handled (a tuple if the key has several fields)."""

    @property
    def topic(self) -> str:
        """Of the event's record. LookupError in a timer, or for a later function of a chain."""

    @property
    def partition(self) -> int:
        """As `topic`."""

    @property
    def offset(self) -> int:
        """As `topic`; the same on every replay."""

    @property
    def timestamp(self) -> int | None:
        """As `topic`: the record's, ms since 1970; None if it has none."""

    @property
    def headers(self) -> Headers:
        """As `topic`: the record's (name, value) pairs in their order.

        LookupError, too, for a function that is not declared with `headers=True`.
        """

    @property
    def watermark(self) -> int:
        """Event time, ms: what is older is late. Stands still within an epoch."""

    @property
    def now(self) -> int:
        """The epoch's processing clock, ms since 1970; stands still within an epoch."""

    @property
    def random(self) -> Random:
        """A random source seeded by function, key and event: a replay draws the same numbers."""

    def timer(self, name: str, at: int, clock: bool = False) -> None:
        """Call `on_timer(name, at, …)` once the watermark reaches `at`; the name replaces.

        With `clock=True` it is the processing clock (`now`) that must reach `at`.
        """

    def cancel_timer(self, name: str) -> None:
        """Forget the timer of this name, if there is one."""

    def table(self, name: str) -> "Rows":
        """A declared table as it is at this epoch."""

    def answer(self, call: str) -> Any:
        """What a declared call answered for this event; None if it asked nothing."""


class Rows(Protocol):
    """A table: the last row that its topic has for a key."""

    def get(self, key: Any) -> Any:
        """The row, or None. Of a `keyed` table only the row of the key that is being handled."""


class Keyed(ABC, Generic[EventT, StateT, OutT]):
    """A function of the events of one key, in log order, and of the state kept for that key."""

    @abstractmethod
    def on_event(self, e: EventT, s: StateT, ctx: Context) -> Out[OutT]:
        """Handle one event; change the state in place."""

    def on_timer(self, name: str, at: int, s: StateT, ctx: Context) -> Out[OutT]:
        """Handle a timer that came due at `at` (ms; event time, or clock if it was set so)."""
        return ()

    @classmethod
    def declared_types(cls) -> tuple[Any, Any, Any] | None:
        """(event, state, output) as the bases say; None if they do not. Operators differ."""
        return type_arguments(cls, Keyed)

    @classmethod
    def output_type(cls, declared: Any, key: Mapping[str, Any]) -> Any:
        """The type of the outputs, by the key's fields and their types. Operators differ."""
        return declared

    @classmethod
    def completed(cls, spec: "FunctionSpec") -> "FunctionSpec":
        """The declaration with what the class itself decides; ValueError says what cannot be."""
        return spec

    @classmethod
    def open_until(cls, at: int) -> int:
        """The last watermark (ms) at which an event of time `at` is not late yet."""
        return at


def type_arguments(cls: type, generic: type) -> tuple[Any, ...] | None:
    """What a class was derived with: (Txn, Risk, Alert) of `class X(Keyed[Txn, Risk, Alert])`."""
    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        origin = typing.get_origin(base)
        found = typing.get_args(base) if origin is generic else None
        if found is None and (origin or base) is not object:
            found = type_arguments(origin or base, generic)
        if found is not None and not any(isinstance(arg, TypeVar) for arg in found):
            return found
    return None


@dataclass(frozen=True)
class InputSpec:
    """What is its own of one of several inputs."""

    event_type: Any
    key: tuple[str, ...]
    event_time: str
    dedup: str | None


@dataclass(frozen=True)
class TableSpec:
    """A table that a function looks rows up in."""

    row_type: Any
    keyed: bool = False
    """Its keys are the function's: each row lies only where its key's state is."""

    @cached_property
    def decode_row(self) -> Callable[[bytes], Any]:
        """One JSON document to one row; raises msgspec.DecodeError."""
        return json_decoder(self.row_type)

    def __getstate__(self) -> dict[str, Any]:
        """Without the decoder, which does not pickle."""
        return {"row_type": self.row_type, "keyed": self.keyed}


def keyed(row_type: Any) -> TableSpec:
    """A table whose keys are the function's keys: `tables={"customers": keyed(Customer)}`."""
    return TableSpec(row_type, keyed=True)


@dataclass(frozen=True)
class FunctionSpec:
    """A checked declaration: durations in ms, types resolved. Pickles with its target.

    Of several inputs the fields about events are the first one's; `input` gives each its own.
    """

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
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    """By name; empty if there is but one."""
    input_name: str = ""
    """The input that this is the declaration for, if there are several."""
    tables: Mapping[str, TableSpec] = field(default_factory=dict)
    calls: Mapping[str, Any] = field(default_factory=dict)
    """By name: a `Call`."""
    entry_fields: Mapping[str, EntryField] = field(default_factory=dict)
    """Fields of the state that are kept entry by entry."""
    poison: Poison = FAIL
    handler_timeout_ms: int = HANDLER_TIMEOUT_MS
    """One call of a handler that takes longer is ended, and its record is poison."""
    max_future_ms: int | None = duration_ms(MAX_FUTURE)
    """An event further ahead of its record's timestamp is poison; None: none is."""
    values: EventValues | None = None
    """How the values are encoded, as the pipeline says; None: in JSON."""
    headers: bool = False
    """Whether its handlers ask for `ctx.headers`: only then are headers read and carried."""
    table_values: Mapping[str, EventValues] = field(default_factory=dict)
    """How those of tables are, by name; in JSON where nothing is said."""

    @property
    def late_sink(self) -> str | None:
        """The sink that takes late events; `dead-letter` is that of the dead letters."""
        return None if self.late in ("drop", "process") else self.late

    def input(self, name: str) -> "FunctionSpec":
        """The declaration as one input's events need it; of a function with but one, itself."""
        return self._by_input[name] if self.inputs else self

    @cached_property
    def _by_input(self) -> dict[str, "FunctionSpec"]:
        return {
            name: replace(
                self,
                event_type=each.event_type,
                key=each.key,
                event_time=each.event_time,
                dedup=each.dedup,
                inputs={},
                input_name=name,
            )
            for name, each in self.inputs.items()
        }

    def handlers(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """A fresh (on_event, on_timer); the instance lives for one run, state is never in it."""
        if isinstance(self.target, type):
            instance = self.target()
            return instance.on_event, instance.on_timer
        return self.target, _no_timer

    @cached_property
    def open_until(self) -> Callable[[int], int]:
        """Event time to the last watermark at which such an event is not late."""
        return getattr(self.target, "open_until", _same)

    @property
    def record_ttl_ms(self) -> int | None:
        """How long a key's record outlives its last write: its state and the ids seen are in it."""
        if self.state_ttl_ms is None:
            return None
        return max(self.state_ttl_ms, self.dedup_ttl_ms if self.dedup else 0)

    @property
    def writes_are_coarse(self) -> bool:
        """Whether nothing expires by when a record was written (see `Record.written`)."""
        return self.state_ttl_ms is None and not self.entry_fields

    @cached_property
    def decode_event(self) -> Callable[[bytes], Any]:
        """One record's value to one event.

        What it returns raises `SchemaUnavailable`, and anything else for a value that is no event.
        """
        return self._decoder(self.event_type)

    @cached_property
    def read_rows(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """By table: from a record's value to the row's JSON, which is what the state keeps.

        What they return raises `SchemaUnavailable`, and anything else for a value that is no row.
        """
        return {name: self._row_reader(name, table) for name, table in self.tables.items()}

    def _row_reader(self, name: str, table: "TableSpec") -> Callable[[bytes], bytes]:
        values = self.table_values.get(name)
        if values is not None:
            decode, encode = values.decoder(table.row_type, from_plain), json_encoder()
            return lambda value: encode(decode(value))

        def checked(value: bytes) -> bytes:
            table.decode_row(value)
            return value

        return checked

    def _decoder(self, declared: Any) -> Callable[[bytes], Any]:
        if self.values is None:
            return json_decoder(declared)
        return self.values.decoder(declared, from_plain)

    @cached_property
    def encode_output(self) -> Callable[[Any], bytes]:
        """One output to one JSON document; of a retraction what it takes back."""
        return json_encoder(_without_retraction)

    def check_outputs(self, outputs: Sequence[Any]) -> None:
        """TypeError naming one that is not of the declared type, where that is of records."""
        kinds = set(map(type, outputs))
        if Retraction in kinds:
            if not self.output_id:
                raise TypeError(
                    "it put out a Retraction, but declares no output_id: nothing says what it "
                    "takes back"
                )
            kinds = {type(_without_retraction(output)) for output in outputs}
        if self._output_types is not None:
            for found in kinds:
                if not issubclass(found, self._output_types):
                    declared = " | ".join(each.__name__ for each in self._output_types)
                    raise TypeError(
                        f"it put out a {found.__name__}, but declares {declared}: yield one by "
                        "one, or return a list"
                    )

    @cached_property
    def _output_types(self) -> tuple[type, ...] | None:
        """Classes of which an output is one; None: it may be anything."""
        members = union_members(self.output_type)
        if not all(map(is_record, members)):
            return None
        return tuple(dict if typing.is_typeddict(each) else each for each in members)

    @cached_property
    def decode_key(self) -> Callable[[bytes], Any]:
        """Key bytes to the key's value."""
        return key_decoder(self.key_type)

    @cached_property
    def record_codec(self) -> RecordCodec[Any]:
        """What is kept for a key, to bytes and back."""
        return RecordCodec(self.state_type, self.version, self.migrations(), to_record, from_record)

    @cached_property
    def key_of(self) -> Callable[[Any], KeyValue]:
        """The key of an event: a value, or a tuple if the key has several fields."""
        return self._getter(*self.key)

    @cached_property
    def decode_key_fields(self) -> Callable[[bytes], Any]:
        """Of one value only the key's fields, as by `decode_event`; `key_of_fields` takes them."""
        return self._decoder(fields_type(self.event_type, self.key, self.key_type))

    @cached_property
    def key_of_fields(self) -> Callable[[Any], KeyValue]:
        """The key that `decode_key_fields` found."""
        return attrgetter(*self.key)

    @cached_property
    def encode_key(self) -> Callable[[Any], bytes]:
        """The key's value to key bytes."""
        return key_encoder(self.key_type)

    @cached_property
    def event_time_of(self) -> Callable[[Any], int]:
        """The event time of an event, ms."""
        return self._getter(self.event_time)

    @cached_property
    def id_of(self) -> Callable[[Any], str | int | bytes]:
        """The identity of an event, by which duplicates are known; only if `dedup` is declared.

        Each input has identities of its own.
        """
        assert self.dedup is not None
        get = self._getter(self.dedup)
        if typing.get_type_hints(self.event_type)[self.dedup] in _IDS and not self.input_name:
            return get
        space = self.input_name.encode() + b"\0"
        return lambda event: space + encode_key(get(event))

    def stored_key_of(self, event: Any) -> bytes:
        """Where the state of this event's key lies (see `keys.stored_key`)."""
        return stored_key(self.encode_key(self.key_of(event)))

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
        return {each.name: getattr(self, each.name) for each in fields(self)}


def _no_timer(name: str, at: int, s: Any, ctx: Context) -> None:
    """A plain function has no timer handler: what it sets comes due and is forgotten."""


def _without_retraction(output: Any) -> Any:
    return output.output if isinstance(output, Retraction) else output


def _same(at: int) -> int:
    return at


# Records as JSON.


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
