"""One function over one shard's events of one epoch. Pure: bytes and events in, outputs out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from catchwater.pipeline.function import FunctionSpec
from catchwater.pipeline.state import ShardState

Batch = tuple[Sequence[bytes], Sequence[Any]]
"""Stored keys and, side by side with them, decoded events; in log order."""


@dataclass
class Processed:
    """What an epoch of one shard gave."""

    outputs: list[Any] = field(default_factory=list)
    output_keys: list[bytes] = field(default_factory=list)
    """The stored key that each output came from."""
    events: int = 0
    late: int = 0
    duplicates: int = 0
    timers: int = 0
    max_event_time_ms: int | None = None
    next_due_ms: int | None = None
    """The watermark at which the shard wants a tick even without input; None: never."""


def process(
    spec: FunctionSpec,
    state: ShardState,
    batches: Iterable[Batch],
    watermark_ms: int,
    clock_ms: int,
) -> Processed:
    """Fire what is due at the watermark, handle the events in order, put changes in `state`."""
