"""Shows state as plain values: that of a key, or the differences between two places.

Reads a checkpoint's or a savepoint's state log without Spark, without the user's class and without
a running pipeline; changes nothing. A record is msgpack with the names of its fields, so the plain
values are those that were stored, without the class: a time is a time, a record is a dict. One
shard's entries are in memory at a time (two shards' to compare).

A key is shown as a user types it: one field as its text, several as a JSON list; bytes that are no
text as `0x` and hex. The types of the fields are in the schema in the version ledger; without a
ledger a key is text or a list of JSON values.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, nearest
from catchwater.objects.base import ObjectStore
from catchwater.recovery.folder import hold
from catchwater.recovery.ledger import EpochEntry
from catchwater.recovery.savepoint.create import Source, state_log
from catchwater.recovery.savepoint.format import Savepoint, SavepointDamaged
from catchwater.state.entries import Changes, Table, prefix_of
from catchwater.state.keys import HASH_BYTES, encode_key, shard_of, stored_key
from catchwater.state.log import StateLog
from catchwater.state.parts import ShardDamaged
from catchwater.state.records import Record
from catchwater.state.roll import Position

_VERSION_BYTES = 2
_TIME_BYTES = 8
_decode_record = msgspec.msgpack.Decoder(Record[Any]).decode
_decode = msgspec.msgpack.Decoder().decode

Tables = dict[Table, dict[bytes, bytes]]


class NoSuchFunction(CatchwaterError):
    """The pipeline has no function of this name."""

    exit_code = 2


class Plain(msgspec.Struct, frozen=True):
    """The state of one key."""

    function: str
    """The function whose state it is."""
    version: int
    """The function's version that wrote it."""
    written_ms: int
    """Event time of the last event or timer; see `Record.written`."""
    state: Any
    entries: dict[str, list[tuple[Any, Any]]] = {}
    """Of list, map and value states, by field: entry key and value."""
    timers: dict[str, int] = {}
    clock_timers: dict[str, int] = {}

    def is_like(self, other: "Plain") -> bool:
        """Whether a function would see the same state."""
        return (self.state, self.entries, self.timers, self.clock_timers) == (
            other.state, other.entries, other.timers, other.clock_timers,
        )  # fmt: skip


class Difference(msgspec.Struct, frozen=True):
    """A key whose state differs between two places."""

    key: str
    what: Literal["added", "removed", "changed"]
    before: Plain | None
    after: Plain | None


@dataclass(frozen=True)
class View:
    """One state of a pipeline: of a checkpoint's epoch, or of a savepoint."""

    functions: list[str]
    shards: int
    entry: EpochEntry
    log: Callable[[int, int], StateLog]
    """(stage, shard) → its log."""
    versions: Mapping[str, Any] = field(default_factory=dict)
    """The version ledger, as its file has it."""
    is_savepoint: bool = False

    @classmethod
    def of_checkpoint(cls, source: Source, epoch: int | None) -> "View":
        """A retained epoch; the last one by default."""
        entry = source.entry(epoch)
        return cls(source.functions, source.shards, entry, source.log, source.versions())

    @classmethod
    @contextmanager
    def held(cls, checkpoint: Path, epoch: int | None, clock: Clock) -> "Iterator[View]":
        """As `of_checkpoint`; the epoch is held, so that a running pipeline does not sweep it."""
        source = Source.at(checkpoint, clock)
        chosen = source.entry(epoch).epoch
        with hold(checkpoint, chosen, clock):
            yield cls.of_checkpoint(source, chosen)

    @classmethod
    def of_savepoint(cls, store: ObjectStore, savepoint: Savepoint) -> "View":
        """The state of a savepoint."""

        def log(stage: int, shard: int) -> StateLog:
            return state_log(store, savepoint.name, savepoint.functions[stage], shard)

        return cls(
            savepoint.functions, savepoint.shards, savepoint.entry, log, savepoint.versions, True
        )

    def stage(self, function: str | None) -> int:
        """A function's place in the chain; the first one's if none is named."""
        if function is None:
            return 0
        if function not in self.functions:
            there = ", ".join(self.functions)
            raise NoSuchFunction(
                f"The pipeline has no function {function!r}; it has {there}.",
                hint=f"The nearest is {nearest(function, self.functions)}.",
            )
        return self.functions.index(function)

    def key_types(self, stage: int) -> list[str]:
        """The names of the types of a function's key fields; empty if no ledger says."""
        return types_of(self.versions, self.functions[stage])

    def position(self, stage: int, shard: int) -> Position:
        """Where a shard's state stands."""
        return self.entry.positions(stage)[shard]

    def tables(self, stage: int, shard: int, key: bytes | None = None) -> Tables:
        """A shard's records and entries, of one stored key if it is given.

        Raises `ShardDamaged`, `SavepointDamaged`.
        """
        found: Tables = {Table.RECORD: {}, Table.ENTRY: {}}
        for changes in self._changes(stage, shard, key):
            for table, kept in found.items():
                start = key if key is None or table is Table.RECORD else prefix_of(key)
                for entry, value in changes[table].items():
                    if start is not None and not entry.startswith(start):
                        continue
                    if value is None:
                        kept.pop(entry, None)
                    else:
                        kept[entry] = value
        return found

    def _changes(self, stage: int, shard: int, key: bytes | None) -> Iterator[Changes]:
        log, at = self.log(stage, shard), self.position(stage, shard)
        try:
            yield from log.read(at) if key is None else log.read_key(key, at)
        except ShardDamaged as error:
            if not self.is_savepoint:
                raise
            raise SavepointDamaged(
                str(error), hint="catchwater savepoint verify tells everything that is damaged."
            ) from error


def get(view: View, key: bytes, function: str | None = None) -> Plain | None:
    """The state of a key (`encode_key`), None if there is none. Raises `ShardDamaged`."""
    stored = stored_key(key)
    stage = view.stage(function)
    tables = view.tables(stage, shard_of(stored, view.shards), stored)
    record = tables[Table.RECORD].get(stored)
    if record is None:
        return None
    return _plain(view.functions[stage], record, _entries_of(tables)(stored))


def find(view: View, text: str, function: str | None = None) -> Plain | None:
    """The state of a key as a user types it. Raises `NotAKey`, `ShardDamaged`."""
    keys = typed(text, view.key_types(view.stage(function)))
    return next((plain for key in keys if (plain := get(view, key, function))), None)


def keepers(view: View, text: str) -> list[str]:
    """The functions of the chain that have state for a key as a user types it."""
    found = []
    for function in view.functions:
        with suppress(NotAKey):
            if find(view, text, function) is not None:
                found.append(function)
    return found


def diff(before: View, after: View, function: str | None = None) -> Iterator[Difference]:
    """The keys that differ, in the order of their hash within a shard. Raises `ShardDamaged`."""
    stages = before.stage(function), after.stage(function)
    for old_shards, new_shards in _slices(before.shards, after.shards):
        if before.shards == after.shards:
            (shard,) = old_shards
            if before.position(stages[0], shard) == after.position(stages[1], shard):
                continue
        yield from _compared(
            after.functions[stages[1]],
            _together(before, stages[0], old_shards),
            _together(after, stages[1], new_shards),
            after.key_types(stages[1]),
        )


def _slices(old: int, new: int) -> Iterator[tuple[range, range]]:
    """The smallest ranges of shards that hold the same keys in both."""
    least, most = min(old, new), max(old, new)
    parts = least if most % least == 0 else 1
    for part in range(parts):
        yield (
            range(part * old // parts, (part + 1) * old // parts),
            range(part * new // parts, (part + 1) * new // parts),
        )


def _together(view: View, stage: int, shards: range) -> Tables:
    found: Tables = {Table.RECORD: {}, Table.ENTRY: {}}
    for shard in shards:
        for table, entries in view.tables(stage, shard).items():
            found[table].update(entries)
    return found


def _compared(
    function: str, before: Tables, after: Tables, types: Sequence[str]
) -> Iterator[Difference]:
    old_records, new_records = before[Table.RECORD], after[Table.RECORD]
    old_entries, new_entries = _entries_of(before), _entries_of(after)
    for key in sorted(old_records.keys() | new_records.keys()):
        old = _plain(function, old_records[key], old_entries(key)) if key in old_records else None
        new = _plain(function, new_records[key], new_entries(key)) if key in new_records else None
        name = shown(key[HASH_BYTES:], types)
        if old is None:
            yield Difference(name, "added", None, new)
        elif new is None:
            yield Difference(name, "removed", old, None)
        elif not old.is_like(new):
            yield Difference(name, "changed", old, new)


def _entries_of(tables: Tables) -> Callable[[bytes], dict[bytes, bytes]]:
    """Stored key → its entries of list, map and value states, without their prefix."""
    by_key: dict[bytes, dict[bytes, bytes]] = {}
    for entry, value in sorted(tables[Table.ENTRY].items()):
        size = HASH_BYTES + 1 + entry[HASH_BYTES]
        by_key.setdefault(entry[:size], {})[entry[size:]] = value
    return lambda key: by_key.get(prefix_of(key), {})


def _plain(function: str, record: bytes, entries: dict[bytes, bytes]) -> Plain:
    decoded = _decode_record(record[_VERSION_BYTES:])
    return Plain(
        function=function,
        version=int.from_bytes(record[:_VERSION_BYTES], "big"),
        written_ms=decoded.written,
        state=_json_value(decoded.state),
        entries=_fields(entries),
        timers=decoded.timers,
        clock_timers=decoded.clock_timers or {},
    )


def _json_value(value: Any) -> Any:
    """A stored value as JSON can hold it: the keys of a dict that are no text or number as text."""
    if isinstance(value, dict):
        return {_json_key(key): _json_value(each) for key, each in value.items()}
    return [_json_value(each) for each in value] if isinstance(value, list | tuple) else value


def _json_key(key: Any) -> Any:
    if isinstance(key, bool) or key is None or isinstance(key, tuple):
        return msgspec.json.encode(key).decode()
    return key


def _fields(entries: dict[bytes, bytes]) -> dict[str, list[tuple[Any, Any]]]:
    """By field. An entry without a key is a value state, or what a list or map knows of itself."""
    fields: dict[str, list[tuple[Any, Any]]] = {}
    for entry, value in entries.items():
        field, _, key = entry.partition(b"\0")
        found = fields.setdefault(field.decode(), [])
        if key and found and found[0][0] is None:
            found.clear()
        found.append((_decode(key) if key else None, _json_value(_decode(value[_TIME_BYTES:]))))
    return fields


# Keys, as they are typed and shown.


_BYTES = "bytes"
_TYPES: Mapping[str, type] = {
    each.__name__: each for each in (int, float, bool, UUID, datetime, date, time, Decimal)
}
"""Types whose values have several spellings, and one that is stored, by the schema's name."""


class NotAKey(CatchwaterError):
    """A text cannot be a key of this function."""

    exit_code = 2


def types_of(versions: Mapping[str, Any], function: str) -> list[str]:
    """The names of the types of the key's fields, by `versions.json`; empty: it does not say."""
    of = [each for each in versions.get("history", ()) if each["function"] == function]
    return list(of[-1]["schema"]["key"]) if of else []


def shown(key: bytes, types: Sequence[str]) -> str:
    """A key (`encode_key`) for people."""
    if len(types) > 1:
        with suppress(msgspec.DecodeError, TypeError):
            parts = [_shown_part(each) for each in msgspec.msgpack.decode(key)]
            return json.dumps(parts, ensure_ascii=False)
    return _shown_bytes(key)


def typed(text: str, types: Sequence[str]) -> list[bytes]:
    """The keys that a text may mean, the likeliest first.

    Raises `NotAKey` for a key of several fields that is not typed as a list of them.
    """
    if len(types) == 1:
        return list(dict.fromkeys(encode_key(each) for each in _spelled(text, types[0])))
    parts = _list(text)
    if not types:
        listed = [encode_key(tuple(parts))] if parts is not None and _are_plain(parts) else []
        return [*listed, text.encode()]
    if parts is None or len(parts) != len(types) or not _are_plain(parts):
        example = json.dumps([1 if each in ("int", "float") else "a" for each in types])
        raise NotAKey(
            f"{text[:60]!r} is no key of the {len(types)} fields {', '.join(types)}.",
            hint=f"Type them as a JSON list: '{example}'.",
        )
    spelled = [list(_spelled(part, of)) for part, of in zip(parts, types, strict=True)]
    return [encode_key(each) for each in product(*spelled)]


def _list(text: str) -> list[Any] | None:
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        return found if isinstance(found, list) else None
    return None


def _are_plain(parts: Sequence[Any]) -> bool:
    return all(isinstance(each, str | int | float) for each in parts)


def _spelled(part: Any, of: str) -> Iterator[Any]:
    """The values that a text may mean for one field."""
    if of in _TYPES:
        with suppress(msgspec.ValidationError):
            yield msgspec.convert(part, _TYPES[of], strict=False)
    elif of == _BYTES and isinstance(part, str):
        yield part.encode()
        with suppress(ValueError):
            yield bytes.fromhex(part.removeprefix("0x"))
        return
    yield part


def _shown_part(part: Any) -> Any:
    return _shown_bytes(part) if isinstance(part, bytes) else msgspec.to_builtins(part)


def _shown_bytes(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
