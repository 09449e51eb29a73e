"""What is common to the ways of appending: who asked for what, who waits, and their answers.

Submissions become a chunk (`gather`); once it has its offsets every one gets its answer, in the
order it was made. `Intake` counts the bytes in hand, so that more than the limit is refused with a
retriable error, and knows who waits for the next append. Used on the event loop, except `gather`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from catchwater.catalog.rows import PartitionKey
from catchwater.log.format.chunk import Chunk, encode
from catchwater.log.write.producers import Result
from catchwater.log.write.sequence import PartitionState
from catchwater.wire.batch import BatchHeader
from catchwater.wire.errors import ErrorCode


class Held(Protocol):
    """What keeps a submission's bytes in place: a `wire.frames.Frame`."""

    def release(self) -> None:
        """The bytes are no longer needed."""


class Submission(NamedTuple):
    """One checked batch for one partition.

    A `frame` is released once, after the write; of several batches in one frame only one bears it.
    """

    partition: PartitionKey
    header: BatchHeader
    data: memoryview
    frame: Held | None


class Appended(NamedTuple):
    """The answer to one submission; the time is milliseconds since the Unix epoch."""

    error: ErrorCode
    base_offset: int
    log_start: int
    append_ms: int


Answer = asyncio.Future[list[Appended]]


class Request(NamedTuple):
    """What was submitted at once, and is answered at once."""

    batches: Sequence[Submission]
    answer: Answer
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """A chunk made of requests; `order` says which batch of which request each entry is."""

    requests: list[Request]
    order: list[tuple[int, int]]
    chunk: Chunk
    payload: bytearray


def gather(requests: list[Request], now_ms: int) -> Gathered:
    """Make everything one chunk, the batches of a partition side by side."""
    order = [
        (request, batch)
        for request in range(len(requests))
        for batch in range(len(requests[request].batches))
    ]
    order.sort(key=lambda place: requests[place[0]].batches[place[1]].partition)
    submissions = [requests[request].batches[batch] for request, batch in order]
    parts, chunk = encode([batch[:3] for batch in submissions], now_ms)
    # One copy, so that readers at the tail have the bytes when the frames are reused.
    return Gathered(requests, order, chunk, bytearray().join(parts))


class Intake:
    """The submissions in hand and those who wait for them."""

    def __init__(self, max_pending_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_pending_bytes = max_pending_bytes
        self.pending_bytes = 0
        """Submitted and not answered yet."""
        self._waiters: dict[PartitionKey, dict[asyncio.Future[None], None]] = {}
        """In the order in which they came, so that a simulation can be repeated."""

    def request(self, batches: Sequence[Submission]) -> tuple[Request, bool]:
        """The batches as a request in hand, and whether it fits: if not, it is to be refused."""
        size = sum(len(batch.data) for batch in batches)
        fits = not self.pending_bytes or self.pending_bytes + size <= self._max_pending_bytes
        self.pending_bytes += size
        return Request(batches, self._loop.create_future(), size), fits

    def refuse(
        self, requests: Iterable[Request], error: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR
    ) -> None:
        """Answer with an error: nothing of it is known to be appended."""
        refused = Appended(error, -1, -1, -1)
        for request in requests:
            self._finish(request, [refused] * len(request.batches))

    def answer(
        self,
        gathered: Gathered,
        results: Iterable[Result],
        states: Mapping[PartitionKey, PartitionState],
    ) -> None:
        """Answer every request of a chunk whose entries came to these results."""
        chunk = gathered.chunk
        answers: list[list[Appended]] = [[_NONE] * len(r.batches) for r in gathered.requests]
        for (request, batch), entry, result in zip(
            gathered.order, chunk.entries, results, strict=True
        ):
            state = states.get((entry.topic_id, entry.partition))
            log_start = -1 if state is None else state.log_start
            answers[request][batch] = Appended(
                result.error, result.base_offset, log_start, chunk.created_ms
            )
        for request_, answer in zip(gathered.requests, answers, strict=True):
            self._finish(request_, answer)

    def wait_for(self, keys: Iterable[PartitionKey]) -> asyncio.Future[None]:
        """Done at the next append to one of the partitions; cancel it when no longer wanted."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        wanted = list(keys)
        for key in wanted:
            self._waiters.setdefault(key, {})[waiter] = None
        waiter.add_done_callback(lambda done: self._forget(wanted, done))
        return waiter

    def wake(self, keys: Iterable[PartitionKey]) -> None:
        """Something was appended to these partitions."""
        for key in keys:
            for waiter in list(self._waiters.get(key, ())):
                if not waiter.done():
                    waiter.set_result(None)

    def _finish(self, request: Request, answers: list[Appended]) -> None:
        self.pending_bytes -= request.size_bytes
        for batch in request.batches:
            if batch.frame is not None:
                batch.frame.release()
        if not request.answer.done():
            request.answer.set_result(answers)

    def _forget(self, keys: Iterable[PartitionKey], waiter: asyncio.Future[None]) -> None:
        for key in keys:
            waiters = self._waiters[key]
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiters[key]


_NONE = Appended(ErrorCode.NONE, -1, -1, -1)
