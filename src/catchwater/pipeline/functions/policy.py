"""What becomes of a record that cannot be handled."""

from dataclasses import dataclass
from typing import Literal

from catchwater.config import CatchwaterError

PoisonPolicy = Literal["fail", "skip", "dead-letter"]


@dataclass(frozen=True)
class Poison:
    """A record is poison if it cannot be decoded, has no usable key, or makes its handler raise."""

    policy: PoisonPolicy = "fail"
    """`fail` stops the pipeline; `skip` counts the record, `dead-letter` also sends it there."""
    limit: int | None = None
    """More poisoned records than this stop the pipeline all the same; None: no limit."""


HANDLER_TIMEOUT_MS = 60_000
"""How long one call of a handler may take that declares nothing; then its record is poison."""
MIN_HANDLER_TIMEOUT_MS = 1_000

FAIL = Poison()
"""What a function does that declares nothing."""


class EventRefused(CatchwaterError):
    """An event cannot be handled, through no fault of the machinery: the poison policy decides."""
