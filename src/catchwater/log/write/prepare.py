"""Batches that have to be looked into before they are appended, in their order, off the loop.

One thread takes what was submitted, request by request, and each is handed on to the log before
the next is begun. So a producer's batches keep their order, and no more than one request's batches
are unfolded at a time. A batch that is refused is answered with its `BatchError` and does not hold
back the others. What is ahead of a batch for its partition is always appended before it: ask
`holds` for those that would not have to come this way.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeAlias

from catchwater.catalog.rows import PartitionKey
from catchwater.log.format.chunk import KAFKAS_ATTRIBUTES
from catchwater.log.write.intake import Answer, Appended, Submission
from catchwater.objects.base import Buffer
from catchwater.wire.batch import BatchError, BatchHeader

Outcome: TypeAlias = Appended | BatchError


class Unprepared(NamedTuple):
    """One batch for one partition, checked from outside; `data` is its own copy.

    The attributes of `header` may bear the index's bits, which `prepare` is not shown.
    """

    partition: PartitionKey
    header: BatchHeader
    data: bytes
    prepare: Callable[[BatchHeader, memoryview], tuple[BatchHeader, Buffer]]
    """Makes the batch that is stored; raises `BatchError`. Called in a thread."""


class _Waiting(NamedTuple):
    batches: Sequence[Unprepared]
    answer: "asyncio.Future[list[Outcome]]"


class Preparation:
    """Used on the event loop; its thread begins with the first batch and ends with `close`."""

    def __init__(self, submit: Callable[[Sequence[Submission]], Answer]) -> None:
        self._submit = submit
        self._waiting: deque[_Waiting] = deque()
        self._partitions: Counter[PartitionKey] = Counter()
        """Of the batches that were not handed on yet."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._working: asyncio.Task[None] | None = None

    def holds(self, partition: PartitionKey) -> bool:
        """Whether batches of this partition are still to be handed on."""
        return partition in self._partitions

    def submit(self, batches: Sequence[Unprepared]) -> "asyncio.Future[list[Outcome]]":
        """Append batches; the outcomes come in the same order, once all are durable or refused."""
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(batches, answer))
        self._partitions.update(batch.partition for batch in batches)
        if self._working is None:
            self._working = asyncio.ensure_future(self._work())
        return answer

    async def close(self) -> None:
        """Hand on what was submitted, and end the thread."""
        if self._working is not None:
            await self._working
        self._worker.shutdown()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batches, answer = self._waiting.popleft()
            if not answer.cancelled():
                work = loop.run_in_executor(self._worker, _prepare, batches)
                await asyncio.wait([work])
                error = work.exception()
                if error is None:
                    self._hand_on(batches, work.result(), answer)
                elif not answer.done():
                    answer.set_exception(error)
            for batch in batches:
                self._partitions[batch.partition] -= 1
                if not self._partitions[batch.partition]:
                    del self._partitions[batch.partition]
        self._working = None

    def _hand_on(
        self,
        batches: Sequence[Unprepared],
        made: "Sequence[tuple[BatchHeader, Buffer] | BatchError]",
        answer: "asyncio.Future[list[Outcome]]",
    ) -> None:
        good = [
            Submission(batch.partition, _indexed(batch, new[0]), memoryview(new[1]), None)
            for batch, new in zip(batches, made, strict=True)
            if not isinstance(new, BatchError)
        ]
        refused = [new if isinstance(new, BatchError) else None for new in made]
        if good:
            self._submit(good).add_done_callback(partial(_tell, answer, refused))
        elif not answer.done():
            answer.set_result([error for error in refused if error is not None])


def _prepare(
    batches: Iterable[Unprepared],
) -> "list[tuple[BatchHeader, Buffer] | BatchError]":
    made: list[tuple[BatchHeader, Buffer] | BatchError] = []
    for _, header, data, prepare in batches:
        plain = header._replace(attributes=header.attributes & KAFKAS_ATTRIBUTES)
        try:
            made.append(prepare(plain, memoryview(data)))
        except BatchError as error:
            made.append(error)
    return made


def _indexed(batch: Unprepared, header: BatchHeader) -> BatchHeader:
    bits = batch.header.attributes & ~KAFKAS_ATTRIBUTES
    return header._replace(attributes=header.attributes | bits) if bits else header


def _tell(
    answer: "asyncio.Future[list[Outcome]]", refused: Sequence[BatchError | None], appended: Answer
) -> None:
    if not answer.done():
        appends = iter(appended.result())
        answer.set_result([error or next(appends) for error in refused])
