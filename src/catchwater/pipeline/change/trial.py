"""Trying a function on everything that is stored, before it is let at any of it.

What the schema promises in general is done here in particular: each record is read, brought over by
its `from_vN` where it has one, written and read again; each entry of a list, map or value state is
read. The first key that fails is named, with the reason. Nothing is changed.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.run.versions import StateIncompatible
from catchwater.recovery.savepoint.keys import shown
from catchwater.recovery.savepoint.look import View
from catchwater.state.entries import Table, key_of
from catchwater.state.keys import HASH_BYTES


def try_state(view: View, spec: FunctionSpec, stage: int) -> int:
    """How many keys the function can read: all of them. Raises `StateIncompatible`."""
    keys, types = 0, view.key_types(stage)
    for shard in range(view.shards):
        tables = view.tables(stage, shard)
        for key, data in tables[Table.RECORD].items():
            _try(spec, key, types, lambda data=data: _again(spec, data))
            keys += 1
        for entry, data in tables[Table.ENTRY].items():
            _try(
                spec,
                key_of(Table.ENTRY, entry) or entry,
                types,
                lambda e=entry, d=data: _entry(spec, e, d),
            )
    return keys


def _try(spec: FunctionSpec, key: bytes, types: Sequence[str], read: Any) -> None:
    try:
        read()
    except Exception as error:  # from_vN is the user's, and may raise anything
        said = str(error).rstrip(".") if isinstance(error, CatchwaterError) else repr(error)
        raise StateIncompatible(
            f"Version {spec.version} of {spec.name!r} cannot take over the state of the key "
            f"{shown(key[HASH_BYTES:], types)!r}: {said}. Nothing was changed.",
            hint="Mend the function, and try again: the version before goes on as it is.",
        ) from error


def _again(spec: FunctionSpec, data: bytes) -> None:
    codec = spec.record_codec
    codec.decode(codec.encode(codec.decode(data)))


def _entry(spec: FunctionSpec, entry: bytes, data: bytes) -> None:
    """An entry as its field's declared type; one of a field that is gone is nobody's."""
    head = HASH_BYTES + 1 + entry[HASH_BYTES]
    field, _, key = entry[head:].partition(b"\0")
    declared = spec.entry_fields.get(field.decode())
    if declared is None or (not key and declared.kind.__name__ != "ValueState"):
        return
    value = data[8:]
    try:
        declared.decode(value)
        if declared.kind.__name__ == "MapState":
            declared.decode_key(key)
    except msgspec.DecodeError as error:
        raise StateIncompatible(f"{declared.name}: {error}") from error
