"""Batches on their way to the log: are their records sound, and what does their topic ask?

Every batch is unfolded and its records are walked (`batch.walk`) before it is appended: what stops
a reader is never acknowledged. The walk also finds what topics ask about keys and times; where one
asks for another compression, the batch is compressed anew. Producer, sequence, transaction and
timestamps stay as they are, so such a batch is to the sequencer and to readers the one that was
sent. Only a largest timestamp in the header that is not the records' is put right, as Kafka does.

What is quick, as most requests are, is done on the event loop and handed to the log at once. For
all else there is one thread, which takes requests as they came; each is handed on before the next
is begun. So a producer's batches keep their order, since a request for a partition that the thread
has batches of goes the same way, and no more than one batch (`MAX_OPENED_BYTES`) is unfolded at a
time. A batch that is refused is answered with its `BatchError` and does not hold back the others.

Nothing is copied: the frame that a request came in is handed to the log with its good batches, and
released here if there are none. What was submitted is appended even if nobody waits for the answer
any more: a producer with acks=0 closes its connection after its last batch.
"""

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import NamedTuple, TypeAlias

from catchwater.catalog.rows import PartitionKey
from catchwater.log.format.chunk import KAFKAS_ATTRIBUTES
from catchwater.log.format.records import Unopened, open_records, values_of
from catchwater.log.topic_settings import EARLIEST_MS, Rules
from catchwater.log.write.writer import Appended, Held, Submission
from catchwater.objects.base import Buffer
from catchwater.wire import batch as wire_batch
from catchwater.wire.batch import (
    COMPRESSION_BITS,
    HEADER_BYTES,
    BatchError,
    BatchHeader,
    assembled,
    load_walk,
    walk_is_compiled,
)
from catchwater.wire.codecs import CodecError, DecompressionBomb, compress, decompress_checked
from catchwater.wire.errors import ErrorCode

_LOG = logging.getLogger(__name__)

MAX_OPENED_BYTES = 32 * 1024 * 1024
"""How large the records of a batch may be when unfolded."""

QUICK_EFFORT = 16 * 1024
"""What may be looked into at once, on the event loop: about 0.1 ms, at most 2 ms."""
PLAIN_FACTOR = 16
_COMPRESSED_EFFORT = 256
"""Of any compressed batch, however small; 1 for each of its bytes comes on top."""
_QUICK_GROWTH, _QUICK_OPENED_BYTES = 16, (16 * 1024, 64 * 1024)
_QUICK_BLAME = 1000

_MOST_NAMED = 100

LOAD_AFTER_RECORDS = 20_000
"""Walked plainly, before the compiled loop is loaded: a broker with little to do stays small."""
_ROOM_BYTES = 4 * 1024 * 1024

Fit: TypeAlias = Callable[[bytes], str | None]
"""Why a value does not fit what its topic says of values; None: it does. Raises `Undecided`."""
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

    def __init__(self, submit: Callable[[Sequence[Submission], Held | None], _Appending]) -> None:
        self._submit = submit
        self._waiting: deque[_Waiting] = deque()
        self._partitions: Counter[PartitionKey] = Counter()
        """Of the batches that the thread has not handed on yet."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._working: asyncio.Task[None] | None = None
        self._room = memoryview(bytearray(_ROOM_BYTES))
        """The thread's own, which costs memory once it is used."""
        self.quick_records = 0
        """How many records of plain batches a caller may walk itself, on the event loop.

        None while batches wait here, which no other may overtake.
        """
        self.load_after_records: float = LOAD_AFTER_RECORDS
        """How many records are walked before the compiled loop is loaded.

        A caller that walks some itself counts them down here, and leaves its request to `submit`
        once there are none left.
        """
        self._see_what_is_quick()

    def submit(self, batches: Sequence[Unprepared], frame: Held | None) -> Outcomes:
        """Append batches; the outcomes come in the same order, once all are durable or refused.

        The batches lie in `frame`, which is released when it is needed no more; not if this raises.
        """
        self.load_after_records -= sum(batch.header.record_count for batch in batches)
        if self.load_after_records <= 0:
            self.load_after_records = inf
            if not walk_is_compiled():
                # No daemon: the process must not end in the midst of a compilation.
                threading.Thread(target=_load, name="load-walk").start()
        try:
            made = self._at_once(batches)
        except NotQuick:
            return self._later(batches, frame)
        self._see_what_is_quick()
        return self._hand_on(batches, made, frame)

    async def close(self) -> None:
        """Hand on what was submitted, and end the thread."""
        if self._working is not None:
            await self._working
        self._worker.shutdown()

    def _see_what_is_quick(self) -> None:
        compiled, plain = QUICK_EFFORT, QUICK_EFFORT // PLAIN_FACTOR
        may_walk = compiled if walk_is_compiled() else plain
        self.quick_records = 0 if self._partitions else may_walk

    def _later(self, batches: Sequence[Unprepared], frame: Held | None) -> Outcomes:
        answer: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(batches, frame, answer))
        self._partitions.update(batch.partition for batch in batches)
        self._see_what_is_quick()
        if self._working is None:
            self._working = asyncio.ensure_future(self._work())
        return answer

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
            self._see_what_is_quick()
        self._working = None

    def _hand_on(
        self, batches: Sequence[Unprepared], made: Sequence[_Made], frame: Held | None
    ) -> Outcomes:
        good = [
            Submission(batch.partition, *new)
            for batch, new in zip(batches, made, strict=True)
            if not isinstance(new, BatchError)
        ]
        if good:
            appended = self._submit(good, frame)
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


# --- one batch, pure -----------------------------------------------------------------------------


class Undecided(Exception):
    """Whether a value fits is not known yet: its batch may be sent again."""


class NotQuick(Exception):
    """It takes more than was foreseen: to be done in a thread."""


def effort(header: BatchHeader, rules: Rules) -> int:
    """What it takes to look into a batch, in compiled steps (of some 6 ns)."""
    if rules.fit is not None:
        return QUICK_EFFORT + 1
    steps = header.record_count * (1 if walk_is_compiled() else PLAIN_FACTOR)
    compression = header.attributes & COMPRESSION_BITS
    if rules.codec is not None and rules.codec != compression:
        return steps + QUICK_EFFORT
    return steps + header.size_bytes + _COMPRESSED_EFFORT if compression else steps


def prepared(
    header: BatchHeader,
    data: memoryview,
    rules: Rules,
    now_ms: int,
    *,
    at_once: bool = False,
    room: memoryview | None = None,
) -> tuple[BatchHeader, memoryview]:
    """The batch as it is to be stored, checked from outside before. Raises `BatchError`.

    INVALID_RECORD for records that are not sound, also when compressed, for one without a key, and
    for a value that does not fit the topic's schema; NOT_ENOUGH_REPLICAS, which is tried again,
    where that is not known yet; INVALID_TIMESTAMP for times that the topic does not take;
    MESSAGE_TOO_LARGE for what unfolds to too much or has become too large. `at_once` gives up with
    `NotQuick` where it takes long.
    Records are unfolded in `room` where they fit.
    """
    count, records = header.record_count, data[HEADER_BYTES:]
    codec = header.attributes & COMPRESSION_BITS
    if codec:
        records = _unfolded(codec, records, at_once, room)
    follow = wire_batch.walk if at_once else wire_batch.walk_beside
    fault, index, newest_delta, oldest_delta, keyless = follow(records.toreadonly(), count)
    if fault:
        raise BatchError(ErrorCode.INVALID_RECORD, *wire_batch.blame(fault, index, count))
    newest_ms = header.base_timestamp + newest_delta
    if (
        newest_ms != header.max_timestamp
        or oldest_delta < 0
        or rules.before_ms != EARLIEST_MS
        or (keyless >= 0 and rules.needs_keys)
    ):
        oldest_ms = header.base_timestamp + oldest_delta
        is_keyless = keyless >= 0 and rules.needs_keys
        if is_keyless or not rules.takes(oldest_ms, newest_ms, now_ms):
            if at_once and count > _QUICK_BLAME:
                raise NotQuick
            _blame(header, data, rules, now_ms)
        if newest_ms != header.max_timestamp and not rules.stamps:
            header, data = _assembled(header._replace(max_timestamp=newest_ms), data[HEADER_BYTES:])
    if rules.fit is not None:
        _check_values(records, count, rules.fit)
    if rules.codec is not None and rules.codec != codec:
        return _compressed(header, records, rules.codec, rules.max_bytes)
    return header, data


def _unfolded(codec: int, packed: memoryview, at_once: bool, room: memoryview | None) -> memoryview:
    max_bytes = MAX_OPENED_BYTES
    if at_once:
        least, most = _QUICK_OPENED_BYTES
        max_bytes = min(max(_QUICK_GROWTH * len(packed), least), most)
    try:
        return decompress_checked(codec, packed, max_bytes=max_bytes, room=room)
    except DecompressionBomb as reason:
        if at_once:
            raise NotQuick from reason
        # On this error Java's producer sends the records again in smaller batches.
        raise BatchError(ErrorCode.MESSAGE_TOO_LARGE, str(reason)) from reason
    except CodecError as reason:
        raise BatchError(ErrorCode.INVALID_RECORD, str(reason)) from reason


def _blame(header: BatchHeader, data: memoryview, rules: Rules, now_ms: int) -> None:
    """Refuse the batch for some of its records, and name them."""
    try:
        records = open_records(header, data, max_bytes=MAX_OPENED_BYTES)
    except Unopened as error:
        raise BatchError(ErrorCode.INVALID_RECORD, str(error)) from error
    if rules.needs_keys:
        keyless = (index for index, record in enumerate(records) if record.key is None)
        reason = "The topic is compacted, so every record needs a key."
        _refuse(ErrorCode.INVALID_RECORD, reason, keyless)
    times = [header.base_timestamp + record.timestamp_delta for record in records]
    wrong = (index for index, ms in enumerate(times) if not rules.takes(ms, ms, now_ms))
    reason = (
        f"The topic takes no record that is older than {rules.before_ms} ms or lies more than "
        f"{rules.after_ms} ms ahead."
    )
    _refuse(ErrorCode.INVALID_TIMESTAMP, reason, wrong)


def _check_values(records: memoryview, count: int, fit: Fit) -> None:
    named: list[tuple[int, str]] = []
    try:
        for index, value in enumerate(values_of(records, count)):
            why = None if value is None else fit(value)
            if why is not None and len(named) < _MOST_NAMED:
                named.append((index, f"Its value does not fit the topic's schema: {why}"))
    except Undecided as reason:
        raise BatchError(ErrorCode.NOT_ENOUGH_REPLICAS, str(reason)) from reason
    if named:
        index, why = named[0]
        raise BatchError(ErrorCode.INVALID_RECORD, f"Record {index} of the batch: {why}", named)


def _refuse(code: ErrorCode, reason: str, blamed: Iterable[int]) -> None:
    named = [(index, reason) for index, _ in zip(blamed, range(_MOST_NAMED), strict=False)]
    if named:
        raise BatchError(code, reason, named)


def _assembled(header: BatchHeader, records: Buffer) -> tuple[BatchHeader, memoryview]:
    """A batch with this header, whose attributes may bear the index's bits, which stay in it."""
    shown = header.attributes & KAFKAS_ATTRIBUTES
    new, data = assembled(header._replace(attributes=shown), records)
    return new._replace(attributes=header.attributes), memoryview(data)


def _compressed(
    header: BatchHeader, records: memoryview, codec: int, max_bytes: int
) -> tuple[BatchHeader, memoryview]:
    attributes = header.attributes & ~COMPRESSION_BITS | codec
    stored = _assembled(header._replace(attributes=attributes), compress(codec, records))
    if stored[0].size_bytes > max_bytes:
        raise BatchError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"The batch has {stored[0].size_bytes} bytes as the topic compresses it; it takes up "
            f"to {max_bytes}.",
        )
    return stored
