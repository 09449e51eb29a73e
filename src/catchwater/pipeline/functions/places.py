"""Where the entries of list, map and value states lie: in the shard's ENTRY table, one by one.

A `Place` is one field of one key, bound for one epoch. An entry is written at the latest event
time that its key has seen. Nothing is cached, so that a change that is undone leaves no trace.
"""

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from catchwater.state.entries import ShardState, Table, pack_time, unpack_time
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
        """In order: tails and values; what is changed meanwhile is told as it is then."""
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
