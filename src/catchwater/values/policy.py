"""What becomes of a topic's fields wherever they are read by us: dropped, masked or hashed.

    catchwater.fields = card.number=hash, card.holder=mask, cvv=drop

A field is named by its way from the top of a JSON object; of a list every element is meant. It is
declared once, as a setting of the topic, and kept by the source `catchwater`, exports and
pipelines: so functions, their state, sinks and dead letters never see more.

- `drop`: the field is not there.
- `mask`: a text is `***`, anything else null.
- `hash`: 32 hexadecimal digits of an HMAC-SHA-256 of the value under the secret in
  `CATCHWATER_FIELDS_SECRET`: the same value gives the same text, so it can still be joined by, and
  nobody without the secret finds the value by trying.

A value that is no JSON object has no fields to be told apart, and is left out whole: `OPAQUE`
stands in its place. Null, a tombstone, stays. Pure, but for the secret.
"""

import hashlib
import hmac
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from catchwater.config import CatchwaterError

FIELDS = "catchwater.fields"
"""The setting of a topic."""
SECRET = "CATCHWATER_FIELDS_SECRET"
"""A variable of the environment: the secret of `hash`, 16 characters at least."""
MASK = "***"
OPAQUE = b'{"hidden":"no JSON object, in a topic with catchwater.fields"}'
FORM = re.compile(
    r"(\s*[^\s=,.]+(\.[^\s=,.]+)*\s*=\s*(drop|mask|hash)\s*(,(?=.)|$))*", re.ASCII | re.DOTALL
)
_LEAST_SECRET = 16


class SecretMissing(CatchwaterError):
    """A field is to be hashed, and there is no secret to do it with."""

    exit_code = 2


@dataclass(frozen=True)
class FieldPolicy:
    """What a topic's setting says."""

    actions: tuple[tuple[tuple[str, ...], str], ...]
    """Way to the field, and what becomes of it."""

    def apply(self, value: bytes | None) -> bytes | None:
        """The value as it may be seen. Raises `SecretMissing`."""
        if value is None:
            return None
        try:
            found = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return OPAQUE
        if not isinstance(found, dict):
            return OPAQUE
        for way, action in self.actions:
            _change(found, way, _ACTIONS[action])
        return msgspec.json.encode(found)

    def check(self) -> None:
        """Raise `SecretMissing` where it could not be applied."""
        if any(action == "hash" for _, action in self.actions):
            _secret()


@lru_cache(maxsize=256)
def parse_policy(text: str) -> FieldPolicy | None:
    """What the setting says; None: nothing is declared. The broker has checked its form."""
    actions = []
    for each in filter(None, map(str.strip, text.split(","))):
        way, _, action = each.partition("=")
        actions.append((tuple(way.strip().split(".")), action.strip()))
    return FieldPolicy(tuple(actions)) if actions else None


_GONE = object()


def _change(found: Any, way: tuple[str, ...], action: Callable[[Any], Any]) -> None:
    if isinstance(found, list):
        for each in found:
            _change(each, way, action)
    elif isinstance(found, dict) and way[0] in found:
        if way[1:]:
            _change(found[way[0]], way[1:], action)
        elif (now := action(found[way[0]])) is _GONE:
            del found[way[0]]
        else:
            found[way[0]] = now


def _masked(value: Any) -> Any:
    return MASK if isinstance(value, str) else None


def _hashed(value: Any) -> Any:
    if value is None:
        return None
    text = value.encode() if isinstance(value, str) else msgspec.json.encode(value, order="sorted")
    return hmac.new(_secret(), text, hashlib.sha256).hexdigest()[:32]


_ACTIONS: dict[str, Callable[[Any], Any]] = {
    "drop": lambda value: _GONE,
    "mask": _masked,
    "hash": _hashed,
}


def _secret() -> bytes:
    secret = os.environ.get(SECRET, "")
    if len(secret) < _LEAST_SECRET:
        raise SecretMissing(
            f"A topic's {FIELDS} says hash, and {SECRET} "
            f"{'is shorter than 16 characters' if secret else 'is not set'}.",
            hint="Set it to the same random text wherever the topic is read: "
            "openssl rand -base64 32.",
        )
    return secret.encode()
