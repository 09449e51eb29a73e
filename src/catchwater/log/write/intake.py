"""What is common to the ways of appending: who asked for what, who waits, and their answers.

Submissions become a chunk (`gather`); once it has its offsets every one gets its answer, in the
order it was made. `Intake` counts the bytes in hand, so that more than the limit is refused with a
retriable error, and knows who waits for the next append. Used on the event loop, except `gather`.

Whoever is refused sends the batch again, and must not find a later one of its own before it. So
once something did not fit, nothing does before all in hand is answered; and of a producer with
sequences nothing is taken behind a batch that was refused until that one has come again. (Where
the partition knows such a producer the sequencer would see the gap. Of a new one any batch may be
the first, and those it has sent already may arrive when there is room again.)
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

TURN_S = 5.0
"""How long a refused batch is waited for; its producer may have given it up, or gone elsewhere."""
_MOST_TURNS = 10_000
_SEQUENCES = 2**31


class _Turn(NamedTuple):
    """The batch of a producer that has to come next."""

    epoch: int
    sequence: int
    until_s: float


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
        self._is_overfull = False
        """Something did not fit, and not all that was in hand then is answered."""
        self._turns: dict[tuple[PartitionKey, int], _Turn] = {}
        """Of producers of which a batch was refused, the oldest refusal first."""
        self._waiters: dict[PartitionKey, dict[asyncio.Future[None], None]] = {}
        """In the order in which they came, so that a simulation can be repeated."""

    def request(self, batches: Sequence[Submission]) -> tuple[Request, bool]:
        """The batches as a request in hand, and whether it fits: if not, it is to be refused."""
        size = sum(len(batch.data) for batch in batches)
        if self.pending_bytes:
            self._is_overfull |= self.pending_bytes + size > self._max_pending_bytes
        fits = not self._is_overfull and (not self._turns or self._is_their_turn(batches))
        self.pending_bytes += size
        return Request(batches, self._loop.create_future(), size), fits

    def refuse(
        self, requests: Iterable[Request], error: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR
    ) -> None:
        """Answer with an error: nothing of it is known to be appended."""
        refused = Appended(error, -1, -1, -1)
        until_s = self._loop.time() + TURN_S
        for request in requests:
            for batch in request.batches:
                self._wait_for_again(batch, until_s)
            self._finish(request, [refused] * len(request.batches))

    def _wait_for_again(self, batch: Submission, until_s: float) -> None:
        """Let nothing of a refused batch's producer pass it, unless it is behind one itself."""
        header = batch.header
        if header.producer_id < 0:
            return
        key = batch.partition, header.producer_id
        turn = self._turns.get(key)
        if turn is not None and _is_behind(header, turn):
            return
        self._turns.pop(key, None)
        self._turns[key] = _Turn(header.producer_epoch, header.base_sequence, until_s)
        if len(self._turns) > _MOST_TURNS:
            del self._turns[next(iter(self._turns))]

    def _is_their_turn(self, batches: Sequence[Submission]) -> bool:
        """Whether none of these is behind one that was refused; forgets what has come again."""
        now_s = self._loop.time()
        while self._turns and (first := next(iter(self._turns.items())))[1].until_s < now_s:
            del self._turns[first[0]]
        come_again = []
        for batch in batches:
            header, key = batch.header, (batch.partition, batch.header.producer_id)
            turn = self._turns.get(key)
            if turn is None:
                continue
            if _is_behind(header, turn):
                return False
            if header.producer_epoch != turn.epoch or header.base_sequence == turn.sequence:
                come_again.append(key)
        for key in come_again:
            del self._turns[key]
        return True

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
        if not self.pending_bytes:
            self._is_overfull = False
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


def _is_behind(header: BatchHeader, turn: _Turn) -> bool:
    """Whether it is a later batch than the one whose turn it is; sequences go round."""
    distance = (header.base_sequence - turn.sequence) % _SEQUENCES
    return header.producer_epoch == turn.epoch and 0 < distance < _SEQUENCES // 2
