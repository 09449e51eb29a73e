"""State that is kept entry by entry, so that a large list or map costs only what is touched.

`ListState`, `MapState` and `ValueState` are fields of a state class, declared by `list_state`,
`map_state` and `value_state`. Everything else of a key's state lies in its record, which is read
and written whole; their entries lie in the shard's ENTRY table, one by one.

An entry is written at the latest event time that its key has seen, and is gone once the watermark
(in a timer: the timer's time) is its `ttl` beyond that. What is read is a fresh object: a change
to it is kept only if it is set again.

`process` binds them to their places; nothing but a count is kept outside of these.

Where the entries of list, map and value states lie: in the shard's ENTRY table, one by one.

A `Place` is one field of one key, bound for one epoch. An entry is written at the latest event
time that its key has seen. Nothing is cached, so that a change that is undone leaves no trace.
"""

import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, overload

import msgspec

from catchwater.state.entries import ShardState, Table, pack_time, unpack_time
from catchwater.state.keys import EventRefused, canonical
from catchwater.state.records import Record, from_plain, to_plain

OWN = b""
"""The tail of a value's one entry, and of what a list or map knows of itself."""

_TIME_BYTES = 8


@dataclass(frozen=True)
class EntryField:
    """One such field as it is declared."""

    name: str
    annotation: Any
    """`ListState[T]`, `MapState[K, V]` or `ValueState[T]`."""
    ttl_ms: int | None
    max: int | None

    @property
    def kind(self) -> Any:
        """The class."""
        return typing.get_origin(self.annotation)

    @cached_property
    def encode(self) -> Any:
        """A value to bytes; TypeError if it could not be read again as what is declared."""
        encode, decode = msgspec.msgpack.Encoder(enc_hook=to_plain).encode, self.decode

        def checked(value: Any) -> bytes:
            try:
                data: bytes = encode(value)
                decode(data)
            except (TypeError, msgspec.ValidationError) as error:
                raise TypeError(
                    f"the state's field {self.name!r} cannot keep it: {error}"
                ) from None
            return data

        return checked

    @cached_property
    def decode(self) -> Any:
        """Bytes to a value of the declared type."""
        value_type = typing.get_args(self.annotation)[-1]
        return msgspec.msgpack.Decoder(value_type, dec_hook=from_plain).decode

    @cached_property
    def decode_key(self) -> Any:
        """Bytes to a map's key."""
        return msgspec.msgpack.Decoder(typing.get_args(self.annotation)[0]).decode

    def check_key(self, tail: bytes) -> None:
        """TypeError if a map's key could not be read again as what is declared."""
        try:
            self.decode_key(tail)
        except msgspec.ValidationError as error:
            raise TypeError(f"it is no key of the state's field {self.name!r}: {error}") from None

    def __getstate__(self) -> dict[str, Any]:
        """Without the coders, which do not pickle."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class EpochEntries:
    """The ENTRY table as one epoch sees it: what all places have in common."""

    def __init__(self, state: ShardState) -> None:
        self.state = state
        self.now = 0
        """Event time, ms, by which entries expire: the watermark, or the time of a timer."""
        self.changed: dict[bytes, dict[bytes, None]] = {}
        """By place: the tails of entries changed in this epoch, perhaps undone since."""


class Place:
    """Where the entries of one field of one key lie."""

    __slots__ = ("_changed", "_epoch", "_prefix", "_record", "_state", "field")

    def __init__(
        self, epoch: EpochEntries, prefix: bytes, field: EntryField, record: Record[Any]
    ) -> None:
        self.field = field
        self._epoch = epoch
        self._state = epoch.state
        self._prefix = prefix
        self._record = record
        self._changed = epoch.changed.get(prefix)

    @property
    def now(self) -> int:
        """By which time entries expire, ms."""
        return self._epoch.now

    def get(self, tail: bytes) -> bytes | None:
        """The value under this tail, if there is one and it has not expired."""
        entry = self._state.get(Table.ENTRY, self._prefix + tail)
        return None if entry is None or self._expired(entry) else entry[_TIME_BYTES:]

    def put(self, tail: bytes, value: bytes) -> None:
        """Set the value under this tail, written now."""
        self._touch(tail)
        entry = pack_time(self._record.written) + value
        self._state.put(Table.ENTRY, self._prefix + tail, entry)

    def delete(self, tail: bytes) -> None:
        """Forget what is under this tail."""
        self._touch(tail)
        self._state.delete(Table.ENTRY, self._prefix + tail)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """In order: tails and values; an entry that changes meanwhile is given as it is then."""
        fresh = sorted(self._changed or (), reverse=True)
        until = self._prefix[:-1] + b"\x01"
        for entry, _ in self._state.committed.scan(Table.ENTRY, self._prefix, until):
            tail = entry[len(self._prefix) :]
            while fresh and fresh[-1] < tail:
                yield from self._present(fresh.pop())
            if fresh and fresh[-1] == tail:
                fresh.pop()
            yield from self._present(tail)
        while fresh:
            yield from self._present(fresh.pop())

    def clear(self) -> None:
        """Forget everything."""
        for tail in list(self._stored()):
            self.delete(tail)

    def expire(self) -> None:
        """Delete what has expired, and what a list or map knows of itself if it is empty."""
        left = False
        for tail in list(self._stored()):
            entry = self._state.get(Table.ENTRY, self._prefix + tail)
            if entry is not None and (tail != OWN or self.field.kind.own_is_value):
                if self._expired(entry):
                    self.delete(tail)
                else:
                    left = True
        if not left:
            self.delete(OWN)

    def _stored(self) -> Iterator[bytes]:
        """Every tail there may be an entry under, expired or not."""
        until = self._prefix[:-1] + b"\x01"
        for entry, _ in self._state.committed.scan(Table.ENTRY, self._prefix, until):
            yield entry[len(self._prefix) :]
        yield from self._changed or ()

    def _present(self, tail: bytes) -> Iterator[tuple[bytes, bytes]]:
        data = None if tail == OWN else self.get(tail)
        if data is not None:
            yield tail, data

    def _touch(self, tail: bytes) -> None:
        if self._changed is None:
            self._changed = self._epoch.changed.setdefault(self._prefix, {})
        self._changed[tail] = None

    def _expired(self, entry: bytes) -> bool:
        ttl_ms = self.field.ttl_ms
        return ttl_ms is not None and unpack_time(entry) + ttl_ms <= self._epoch.now


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

MAX_FIELD_BYTES = 64
MAX_ENTRY_KEY_BYTES = 180
"""With a stored key and a field's name before it, what the embedded store takes as one key."""


_NOTHING: Any = object()


class EntryKeyTooLong(EventRefused):
    """A key of a map that the embedded store cannot hold."""


class EntryState:
    """A list, map or value state: bound to its place for an epoch, or not yet."""

    __slots__ = ("_place", "given")

    own_is_value: ClassVar[bool] = False
    """Whether its own entry is its value, and not what it knows of the others."""

    def __init__(self, place: Place | None = None, given: Any = None) -> None:
        self._place = place
        self.given = given
        """What an older version kept in the record, or `from_vN` gave, until it is bound."""

    @property
    def _at(self) -> Place:
        if self._place is None:
            raise RuntimeError(
                "A list, map or value state can be used only where a handler is given its state; "
                "in a test, by a Harness."
            )
        return self._place

    def clear(self) -> None:
        """Forget all."""
        self._at.clear()

    def fill(self, given: Any) -> None:
        """Take over what was a plain list, dict or value."""
        raise AssertionError("each kind has its own")


class ListState(EntryState, Generic[T]):
    """A list that grows at its end; beyond `max` elements the oldest give way."""

    __slots__ = ()

    def append(self, value: T) -> None:
        """Add one element."""
        self.extend((value,))

    def extend(self, values: Iterable[T]) -> None:
        """Add elements."""
        place, most = self._at, self._at.field.max
        first, end = self._bounds()
        for value in values:
            place.put(_pack(end), place.field.encode(value))
            end += 1
            if most is not None and end - first > most:
                place.delete(_pack(first))
                first += 1
        if end > first:
            place.put(OWN, _pack((first, end)))

    def fill(self, given: Any) -> None:
        """Take over a plain list."""
        self.extend(given)

    def __iter__(self) -> Iterator[T]:
        """The elements, the oldest first."""
        place = self._at
        for number in range(*self._bounds()):
            data = place.get(_pack(number))
            if data is not None:
                yield place.field.decode(data)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        """An element, counted from either end, or a slice; IndexError as of a list."""
        if isinstance(index, slice):
            return list(self)[index]
        data = self._at.get(_pack(range(*self._bounds())[index]))
        assert data is not None, "elements expire from the oldest on"
        found: T = self._at.field.decode(data)
        return found

    def __len__(self) -> int:
        """How many elements there are; costs no more than those that expired since."""
        first, end = self._bounds()
        return end - first

    def __eq__(self, other: object) -> bool:
        """Compares as a list of the elements."""
        return list(self) == (list(other) if isinstance(other, ListState) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "ListState()" if self._place is None else f"ListState({list(self)!r})"

    def _bounds(self) -> tuple[int, int]:
        """The number of the first element, and that behind the last."""
        place = self._at
        own = place.get(OWN)
        if own is None:
            return 0, 0
        known, end = msgspec.msgpack.decode(own)
        first = known
        if place.field.ttl_ms is not None:
            while first < end and place.get(_pack(first)) is None:
                place.delete(_pack(first))
                first += 1
            if first > known:
                place.put(OWN, _pack((first, end)))
        return first, end


class MapState(EntryState, Generic[K, V]):
    """A map, in the order of its keys' bytes.

    Its length is known without a `ttl`; with one it is counted once an epoch, when it is asked.
    """

    __slots__ = ("_count", "_counted_at")

    def __init__(self, place: Place | None = None, given: Any = None) -> None:
        super().__init__(place, given)
        self._count = 0
        self._counted_at: int | None = None

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or the default."""
        data = self._at.get(_tail(key))
        return default if data is None else self._at.field.decode(data)

    def __getitem__(self, key: K) -> V:
        """The value of a key; KeyError if it has none."""
        data = self._at.get(_tail(key))
        if data is None:
            raise KeyError(key)
        found: V = self._at.field.decode(data)
        return found

    def __contains__(self, key: K) -> bool:
        """Whether the key has a value."""
        return self._at.get(_tail(key)) is not None

    def __setitem__(self, key: K, value: V) -> None:
        """Set the value of a key; its time to live begins anew."""
        place, tail = self._at, _tail(key)
        is_new = place.get(tail) is None
        if is_new:
            place.field.check_key(tail)
        place.put(tail, place.field.encode(value))
        if is_new:
            self._grow(1)

    def __delitem__(self, key: K) -> None:
        """Forget a key; KeyError if it has no value."""
        tail = _tail(key)
        if self._at.get(tail) is None:
            raise KeyError(key)
        self._at.delete(tail)
        self._grow(-1)

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: D) -> V | D: ...
    def pop(self, key: K, default: Any = _NOTHING) -> Any:
        """The value of a key, which is forgotten; the default or KeyError if it has none."""
        if default is not _NOTHING and key not in self:
            return default
        found = self[key]
        del self[key]
        return found

    def setdefault(self, key: K, default: V) -> V:
        """The value of a key, which is set to the default if it has none."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, values: Mapping[K, V]) -> None:
        """Set many."""
        for key, value in values.items():
            self[key] = value

    def fill(self, given: Any) -> None:
        """Take over a plain dict."""
        self.update(given)

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self._counted_at = None

    def items(self) -> Iterator[tuple[K, V]]:
        """Keys and values, in the order of the keys' bytes."""
        field = self._at.field
        return ((field.decode_key(tail), field.decode(data)) for tail, data in self._at.items())

    def keys(self) -> Iterator[K]:
        """The keys, in the order of their bytes."""
        decode_key = self._at.field.decode_key
        return (decode_key(tail) for tail, _ in self._at.items())

    __iter__ = keys

    def values(self) -> Iterator[V]:
        """The values, in the order of the keys' bytes."""
        return (value for _, value in self.items())

    def __len__(self) -> int:
        """How many keys there are."""
        place = self._at
        if place.field.ttl_ms is None:
            own = place.get(OWN)
            return 0 if own is None else int(msgspec.msgpack.decode(own))
        if self._counted_at != place.now:
            self._count, self._counted_at = sum(1 for _ in place.items()), place.now
        return self._count

    def __eq__(self, other: object) -> bool:
        """Compares as a dict of the entries."""
        return dict(self.items()) == (dict(other.items()) if isinstance(other, MapState) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "MapState()" if self._place is None else f"MapState({dict(self.items())!r})"

    def _grow(self, by: int) -> None:
        place = self._at
        if place.field.ttl_ms is not None:
            self._count += by
            return
        count = len(self) + by
        if count:
            place.put(OWN, _pack(count))
        else:
            place.delete(OWN)


class ValueState(EntryState, Generic[T]):
    """One value with a time to live of its own."""

    __slots__ = ()
    own_is_value = True

    def get(self) -> T | None:
        """The value; None if none is set."""
        data = self._at.get(OWN)
        return None if data is None else self._at.field.decode(data)

    def set(self, value: T) -> None:
        """Set the value; its time to live begins anew."""
        self._at.put(OWN, self._at.field.encode(value))

    def fill(self, given: Any) -> None:
        """Take over a plain value."""
        self.set(given)

    def __bool__(self) -> bool:
        """Whether a value is set, be it None or 0."""
        return self._at.get(OWN) is not None

    def __eq__(self, other: object) -> bool:
        """Compares as the value."""
        return self.get() == (other.get() if isinstance(other, ValueState) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "ValueState()" if self._place is None else f"ValueState({self.get()!r})"


KINDS: tuple[type[EntryState], ...] = (ListState, MapState, ValueState)


class Declared:
    """The default of such a field in the class; what a handler sees in its place is bound."""

    def __init__(self, kind: type[EntryState], ttl: str | None, most: int | None) -> None:
        self.kind = kind
        self.ttl = ttl
        self.max = most


def list_state(*, ttl: str | None = None, max: int | None = None) -> Any:
    """A `ListState` of a state class: `recent: ListState[Txn] = list_state(ttl="1h", max=100)`."""
    return Declared(ListState, ttl, max)


def map_state(*, ttl: str | None = None) -> Any:
    """A `MapState` of a state class: `spent: MapState[str, float] = map_state(ttl="30d")`."""
    return Declared(MapState, ttl, None)


def value_state(*, ttl: str | None = None) -> Any:
    """A `ValueState` of a state class: `last: ValueState[Txn] = value_state(ttl="10m")`."""
    return Declared(ValueState, ttl, None)


def to_record(value: Any) -> Any:
    """What msgspec asks for a value it does not know: of what is kept elsewhere, nothing."""
    return None if isinstance(value, EntryState | Declared) else to_plain(value)


def from_record(declared: Any, value: Any) -> Any:
    """The way back from `to_record`; what an older version kept in the record is held."""
    kind = typing.get_origin(declared)
    if kind in KINDS:
        return kind(given=value)
    return from_plain(declared, value)


def _tail(key: Any) -> bytes:
    tail = _pack(canonical(key))
    if len(tail) > MAX_ENTRY_KEY_BYTES:
        raise EntryKeyTooLong(
            f"The key {key!r:.40}… of a map state has {len(tail)} bytes; it may have at most "
            f"{MAX_ENTRY_KEY_BYTES}.",
            hint="Use a digest of it as the key, and keep it in the value.",
        )
    return tail


_pack = msgspec.msgpack.Encoder().encode
