"""A key as a person types it, and as it is shown: what is shown can be typed.

A key of one field is its text, one of several a JSON list of them; bytes that are no text are `0x`
and hex. What types the fields have is taken from the schema in the version ledger, so the
function's class is not needed; where no ledger says it, a key is text or a list of JSON values.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID

import msgspec

from catchwater.config import CatchwaterError
from catchwater.state.keys import encode_key

_BYTES = "bytes"
_TYPES: Mapping[str, type] = {
    each.__name__: each for each in (int, float, bool, UUID, datetime, date, time, Decimal)
}
"""Types whose values have several spellings, and one that is stored, by the schema's name."""


class NotAKey(CatchwaterError):
    """What was typed cannot be a key of this function."""

    exit_code = 2


def types_of(versions: Mapping[str, Any], function: str) -> list[str]:
    """The names of the types of the key's fields, by `versions.json`; empty: nobody says."""
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
    """The keys that somebody may mean by a text, the likeliest first.

    Raises `NotAKey` for a key of several fields that is not typed as a list of them.
    """
    if len(types) == 1:
        return list(dict.fromkeys(encode_key(each) for each in _spelled(text, types[0])))
    parts = _list(text)
    if not types:
        listed = [encode_key(tuple(parts))] if parts is not None and _plain(parts) else []
        return [*listed, text.encode()]
    if parts is None or len(parts) != len(types) or not _plain(parts):
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


def _plain(parts: Sequence[Any]) -> bool:
    return all(isinstance(each, str | int | float) for each in parts)


def _spelled(part: Any, of: str) -> Iterator[Any]:
    """The values that one field may have by what was typed for it."""
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
