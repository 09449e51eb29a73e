"""JSON to events, many at a time, with those set apart that cannot be read."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from catchwater.state.keys import KeyTooLong, KeyUnusable

UNREADABLE = (msgspec.DecodeError, KeyTooLong, KeyUnusable, TypeError, ValueError)
"""What reading a record's value or key may raise."""


def decode_all(
    decode: Callable[[bytes], Any], values: Iterable[bytes]
) -> tuple[list[Any], dict[int, str]]:
    """What could be decoded, in order; and by index, why others could not."""
    decoded: list[Any] = []
    errors: dict[int, str] = {}
    waiting = iter(values)
    while True:
        try:
            decoded.extend(map(decode, waiting))
            return decoded, errors
        except UNREADABLE as error:
            errors[len(decoded) + len(errors)] = f"{type(error).__name__}: {error}"


def unreadable(declared: Any, error: Exception) -> str:
    """Why a record cannot be read as what it should be."""
    return f"it cannot be read as {getattr(declared, '__name__', declared)}: {error}"
