"""Batches on their way to the log: looked into first (`inside`), in their order.

What is looked into quickly, as most requests are, is handed to the log at once. For all else there
is one thread, which takes requests as they came; each is handed on before the next is begun. So a
producer's batches keep their order, since a request for a partition that the thread has batches of
goes the same way, and no more than one batch is unfolded at a time. A batch that is refused is
answered with its `BatchError` and does not hold back the others.

Nothing is copied: the frame that a request came in is handed to the log with the first of its good
batches, and released here if there are none. What was submitted is appended even if nobody waits
for the answer any more: a producer with acks=0 closes its connection behind its last batch.
"""

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeAlias

from catchwater.catalog.rows import PartitionKey
from catchwater.log.topic_settings import Rules
from catchwater.log.write.inside import PLAIN_FACTOR, QUICK_EFFORT, NotQuick, effort, prepared
from catchwater.log.write.writer import Appended, Held, Submission
from catchwater.wire.batch import BatchError, BatchHeader, load_walk, walk_is_compiled

_LOG = logging.getLogger(__name__)

LOAD_AFTER_RECORDS = 20_000
"""Walked plainly, before the compiled loop is loaded: a broker with little to do stays small."""
_ROOM_BYTES = 4 * 1024 * 1024

Outcome: TypeAlias = Appended | BatchError
Outcomes: TypeAlias = "asyncio.Future[list[Appended]] | asyncio.Future[list[Outcome]]"
_Appending: TypeAlias = "asyncio.Future[list[Appended]]"
_Made: TypeAlias = tuple[BatchHeader, memoryview] | BatchError


class Unprepared(NamedTuple):
    """One batch for one partition, checked from outside.

    The attributes of `header` may bear the index's bits.
    """

    partition: PartitionKey
    header: BatchHeader
    data: memoryview
    rules: Rules
    now_ms: int
    """When it was received."""


class _Waiting(NamedTuple):
    batches: Sequence[Unprepared]
    frame: Held | None
    answer: "asyncio.Future[list[Outcome]]"


class Preparation:
    """Used on the event loop; its thread begins with the first batch for it, ends with `close`."""

    def __init__(self, submit: Callable[[Sequence[Submission]], _Appending]) -> None:
        self._submit = submit
        self._waiting: deque[_Waiting] = deque()
        self._partitions: Counter[PartitionKey] = Counter()
        """Of the batches that the thread has not handed on yet."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._working: asyncio.Task[None] | None = None
        self._room = memoryview(bytearray(_ROOM_BYTES))
        """The thread's own, which costs memory once it is used."""
        self._plain_left = LOAD_AFTER_RECORDS
        """Records to be walked before the compiled loop is loaded."""

    def quick_records(self) -> int:
        """How many records of plain batches a caller may walk itself, on the event loop.

        None while batches wait here, which no other may overtake.
        """
        if self._partitions:
            return 0
        return QUICK_EFFORT if walk_is_compiled() else QUICK_EFFORT // PLAIN_FACTOR

    def walked(self, records: int) -> None:
        """Count what was walked; have the compiled loop loaded once there is work for it."""
        if self._plain_left > 0:
            self._plain_left -= records
            if self._plain_left <= 0 and not walk_is_compiled():
                # No daemon: the process must not end in the midst of a compilation.
                threading.Thread(target=_load, name="load-walk").start()

    def submit(self, batches: Sequence[Unprepared], frame: Held | None) -> Outcomes:
        """Append batches; the outcomes come in the same order, once all are durable or refused.

        The batches lie in `frame`, which is released when it is needed no more; not if this raises.
        """
        self.walked(sum(batch.header.record_count for batch in batches))
        try:
            return self._hand_on(batches, self._at_once(batches), frame)
        except NotQuick:
            pass
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(batches, frame, answer))
        self._partitions.update(batch.partition for batch in batches)
        if self._working is None:
            self._working = asyncio.ensure_future(self._work())
        return answer

    async def close(self) -> None:
        """Hand on what was submitted, and end the thread."""
        if self._working is not None:
            await self._working
        self._worker.shutdown()

    def _at_once(self, batches: Sequence[Unprepared]) -> list[_Made]:
        """What becomes of the batches. Raises `NotQuick`: then nothing was done."""
        held, left = self._partitions, QUICK_EFFORT
        made: list[_Made] = []
        for partition, header, data, rules, now_ms in batches:
            left -= effort(header, rules)
            if left < 0 or (held and partition in held):
                raise NotQuick
            try:
                made.append(prepared(header, data, rules, now_ms, at_once=True))
            except BatchError as error:
                made.append(_freed(error))
        return made

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batches, frame, answer = self._waiting.popleft()
            work = loop.run_in_executor(self._worker, _prepare, batches, self._room)
            await asyncio.wait([work])
            error = work.exception()
            if error is None:
                appended = self._hand_on(batches, work.result(), frame)
                appended.add_done_callback(partial(_pass_on, answer))
            else:
                if frame is not None:
                    frame.release()
                if not answer.done():
                    answer.set_exception(error)
            for batch in batches:
                self._partitions[batch.partition] -= 1
                if not self._partitions[batch.partition]:
                    del self._partitions[batch.partition]
        self._working = None

    def _hand_on(
        self, batches: Sequence[Unprepared], made: Sequence[_Made], frame: Held | None
    ) -> Outcomes:
        good: list[Submission] = []
        bears = frame
        for batch, new in zip(batches, made, strict=True):
            if not isinstance(new, BatchError):
                good.append(Submission(batch.partition, *new, bears))
                bears = None
        if good:
            appended = self._submit(good)
            if len(good) == len(made):
                return appended
        elif frame is not None:
            frame.release()
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        refused = [new if isinstance(new, BatchError) else None for new in made]
        if good:
            appended.add_done_callback(partial(_answer_all, answer, refused))
        else:
            answer.set_result([error for error in refused if error is not None])
        return answer


def _load() -> None:
    try:
        is_loaded = load_walk()
    except (AttributeError, OSError, RuntimeError, SystemError) as problem:
        # numba is installed and does not fit its NumPy or LLVM, or its cache's disk is full.
        _LOG.warning(
            "Records are walked by plain Python, at 1 to 2 µs each: numba fails with %r.", problem
        )
        return
    if not is_loaded:
        _LOG.info(
            "Records are walked by plain Python, at 1 to 2 µs each: install 'catchwater[fast]'."
        )


def _freed(error: BatchError) -> BatchError:
    """The error alone: its frames hold up to 32 MiB of unfolded records until a collector comes."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _prepare(batches: Sequence[Unprepared], room: memoryview) -> list[_Made]:
    made: list[_Made] = []
    for _, header, data, rules, now_ms in batches:
        try:
            made.append(prepared(header, data, rules, now_ms, room=room))
        except BatchError as error:
            made.append(_freed(error))
    return made


def _answer_all(
    answer: "asyncio.Future[list[Outcome]]",
    refused: Sequence[BatchError | None],
    appended: _Appending,
) -> None:
    if not answer.done():
        appends = iter(appended.result())
        answer.set_result([error or next(appends) for error in refused])


def _pass_on(answer: "asyncio.Future[list[Outcome]]", outcomes: Outcomes) -> None:
    if not answer.done():
        answer.set_result([*outcomes.result()])
