"""JSON to events, many at a time, with those set apart that cannot be read."""

from collections.abc import Callable, Iterable
from typing import Any

UNREADABLE = (Exception,)
"""What reading a record may raise: its class is the user's, and so is a `__post_init__` of it."""


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
