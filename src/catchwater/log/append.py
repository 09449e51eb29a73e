"""Many batches, one WAL write, then their offsets and acknowledgements. (interface first)"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from catchwater.catalog.base import PartitionKey
from catchwater.wire.batch import BatchHeader
from catchwater.wire.errors import ErrorCode


class Held(Protocol):
    """What keeps a submission's bytes in place until the WAL has them: a `wire.frames.Frame`."""

    def release(self) -> None:
        """Let go; called once per submission."""


class Submission(NamedTuple):
    """One checked batch for one partition. `frame` may be None when nothing is to be released."""

    partition: PartitionKey
    header: BatchHeader
    data: memoryview
    frame: Held | None


class Appended(NamedTuple):
    """The answer to one submission; times are milliseconds."""

    error: ErrorCode
    base_offset: int
    log_start: int
    append_ms: int


class Appender:
    def submit(self, batches: Sequence[Submission]) -> asyncio.Future[list[Appended]]: ...
