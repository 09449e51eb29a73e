"""The one writer: gather, write ahead, commit, answer.

Requests that arrive while a write is under way become one chunk, the batches of a partition side
by side. A thread writes it to the write-ahead log, looks for more, and posts one callback to the
loop for every chunk; no timer, but where the log asks for lingering. Chunks are committed one
after the other in the order in which they were gathered, by a `Committer`: a broker alone has the
one here, over states in memory, one among many that of `shared.py`, over the shared catalog. Only
then they are acknowledged.

Promises: nothing is acknowledged that is not durable and committed. What goes wrong, and the answer
to the producer:

- too much is waiting, the write-ahead log is full or did not confirm, the catalog cannot be
  reached: a retriable error, for all that is in hand: of a new producer any batch may be the first,
  and the ones refused before it could then never follow;
- the session was superseded: NOT_LEADER_OR_FOLLOWER for everything in hand, then a new session
  with a write-ahead log of its own;
- the write-ahead log or the catalog is dead, or another process has this broker's id: nothing is
  taken any more.

A client that is refused sends the batch again, and the log must not hold a later one of its own
before it. So once something did not fit, nothing does before all in hand is answered; and of a
producer with sequences nothing is taken behind a batch that was refused until that one has come
again. (Where the partition knows such a producer the sequencer would see the gap. Of a new one any
batch may be the first, and those it has sent already may arrive when there is room again.)
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from catchwater.catalog.base import EmbeddedCatalog
from catchwater.catalog.errors import CatalogDead, SessionFenced
from catchwater.catalog.rows import (
    Changes,
    GroupRow,
    PartitionKey,
    PartitionRow,
    RunRow,
    Scope,
    ScopeRows,
    Session,
    Snapshot,
    TxnRow,
)
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.log.format.chunk import Chunk, encode, index_bytes
from catchwater.log.write.sequence import (
    PartitionState,
    Result,
    Sequenced,
    decoded,
    partition_row,
    replay,
    states_of,
    take_chunk,
    txns_of,
)
from catchwater.log.write.txn import IDLE
from catchwater.objects.base import Buffer
from catchwater.wal.base import Position, Wal, WalDead
from catchwater.wire.batch import BatchHeader
from catchwater.wire.errors import ErrorCode

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_NO_CHUNK = Chunk(0, [], 0)
_CHUNK_BYTES = 8 * 1024 * 1024
"""What a chunk of a broker among many may hold, unless a single request is larger or the log asks
for more."""


class Held(Protocol):
    """What keeps the bytes of a request in place: a `wire.frames.Frame`."""

    def release(self) -> None:
        """The bytes are no longer needed."""


@dataclass(slots=True)
class Appends:
    """What was appended since the log was opened, for those who look from time to time."""

    size_bytes: int = 0
    last_s: float = 0.0
    """When the last of it was, on a clock that never jumps."""

    def add(self, size_bytes: int, now_s: float) -> None:
        """Count bytes that were appended just now."""
        self.size_bytes += size_bytes
        self.last_s = now_s


@dataclass(slots=True)
class Written:
    """Bytes since the log was opened."""

    batches: int = 0
    """Of the batches in the chunks that were committed."""
    wal: int = 0
    """Of those chunks in the write-ahead log."""


class Submission(NamedTuple):
    """One checked batch for one partition."""

    partition: PartitionKey
    header: BatchHeader
    data: memoryview


class Appended(msgspec.Struct, frozen=True):
    """The answer to one submission; the time is milliseconds since the Unix epoch."""

    error: ErrorCode
    base_offset: int
    log_start: int
    append_ms: int


class Answer(Protocol):
    """Takes the answer to a request: a future, or the object that a broker has in its place."""

    def done(self) -> bool:
        """Whether the answer is no longer wanted."""

    def set_result(self, result: list[Appended], /) -> None:
        """The answers, in the order of the batches; called once, on the event loop."""


RESEND_S = 5.0
"""How long to wait for a refused batch to be sent again; its producer may have given it up, or gone
to another broker."""
_MOST_REFUSED = 10_000
_SEQUENCES = 2**31


class _Refused(NamedTuple):
    """The first batch of a producer that was refused: it has to come again before any later one."""

    epoch: int
    sequence: int
    until_s: float


class Request(msgspec.Struct, frozen=True):
    """What was submitted at once, and is answered at once."""

    batches: Sequence[Submission]
    answer: Answer
    frame: Held | None
    """What the batches lie in; released once, when it is answered."""
    size_bytes: int


class Intake:
    """The requests in hand, and the readers who wait for an append."""

    def __init__(
        self, max_pending_bytes: int, states: Mapping[PartitionKey, PartitionState]
    ) -> None:
        """`states` are the log's: answers name the log start."""
        self._loop = asyncio.get_running_loop()
        self._states = states
        self._max_pending_bytes = max_pending_bytes
        self.pending_bytes = 0
        """Submitted and not answered yet."""
        self._is_overfull = False
        """Something did not fit, and not all that was in hand then is answered."""
        self._refused: dict[tuple[PartitionKey, int], _Refused] = {}
        """By partition and producer id, the oldest refusal first."""
        self._waiters: dict[PartitionKey, dict[asyncio.Future[None], None]] = {}
        """In the order in which they came, so that a simulation can be repeated."""

    def request(
        self, batches: Sequence[Submission], answer: Answer, frame: Held | None
    ) -> tuple[Request, bool]:
        """The batches as a request in hand, and whether it fits: if not, it is to be refused."""
        size = 0
        for batch in batches:
            size += len(batch.data)
        if self.pending_bytes:
            self._is_overfull |= self.pending_bytes + size > self._max_pending_bytes
        fits = not self._is_overfull and (not self._refused or self._may_come_now(batches))
        self.pending_bytes += size
        return Request(batches, answer, frame, size), fits

    def refuse(
        self, requests: Iterable[Request], error: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR
    ) -> None:
        """Answer with an error: nothing of it is known to be appended."""
        refused = Appended(error, -1, -1, -1)
        until_s = self._loop.time() + RESEND_S
        for request in requests:
            for batch in request.batches:
                self._await_again(batch, until_s)
            self._finish(request, [refused] * len(request.batches))

    def _await_again(self, batch: Submission, until_s: float) -> None:
        """Let no later batch of a refused batch's producer pass it.

        Where an earlier one of that producer is waited for already, that is enough.
        """
        header = batch.header
        if header.producer_id < 0:
            return
        key = batch.partition, header.producer_id
        expected = self._refused.get(key)
        if expected is not None and _is_behind(header, expected):
            return
        self._refused.pop(key, None)
        self._refused[key] = _Refused(header.producer_epoch, header.base_sequence, until_s)
        if len(self._refused) > _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    def _may_come_now(self, batches: Sequence[Submission]) -> bool:
        """Whether none of these follows a refused one; forgets those that have come again."""
        now_s = self._loop.time()
        while self._refused and (first := next(iter(self._refused.items())))[1].until_s < now_s:
            del self._refused[first[0]]
        come_again = []
        for batch in batches:
            header, key = batch.header, (batch.partition, batch.header.producer_id)
            expected = self._refused.get(key)
            if expected is None:
                continue
            if _is_behind(header, expected):
                return False
            if header.producer_epoch != expected.epoch or header.base_sequence == expected.sequence:
                come_again.append(key)
        for key in come_again:
            del self._refused[key]
        return True

    def answer(self, write: "Write", results: Sequence[Result]) -> None:
        """Answer every request of a chunk with the results of its entries."""
        states, append_ms = self._states, write.chunk.created_ms
        answers = [_NOTHING] * len(results)
        for index, entry, result in zip(write.order, write.chunk.entries, results, strict=True):
            state = states.get(entry[:2])
            log_start = -1 if state is None else state.log_start
            answers[index] = Appended(result.error, result.base_offset, log_start, append_ms)
        at = 0
        for request in write.requests:
            end = at + len(request.batches)
            self._finish(request, answers[at:end])
            at = end

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
        if not self._waiters:
            return
        for key in keys:
            for waiter in list(self._waiters.get(key, ())):
                if not waiter.done():
                    waiter.set_result(None)

    def _finish(self, request: Request, answers: list[Appended]) -> None:
        self.pending_bytes -= request.size_bytes
        if not self.pending_bytes:
            self._is_overfull = False
        if request.frame is not None:
            request.frame.release()
        if not request.answer.done():
            request.answer.set_result(answers)

    def _forget(self, keys: Iterable[PartitionKey], waiter: asyncio.Future[None]) -> None:
        for key in keys:
            waiters = self._waiters[key]
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiters[key]


_NOTHING = Appended(ErrorCode.NONE, -1, -1, -1)


def _is_behind(header: BatchHeader, expected: _Refused) -> bool:
    """Whether it is a later batch than the refused one; sequences wrap around."""
    distance = (header.base_sequence - expected.sequence) % _SEQUENCES
    return header.producer_epoch == expected.epoch and 0 < distance < _SEQUENCES // 2


# --- the writer --------------------------------------------------------------------------------


class Committed(NamedTuple):
    """The outcome of a chunk."""

    results: Sequence[Result]
    """One for each of its entries."""
    changed: Iterable[PartitionKey] = ()
    """Partitions with something new, if the readers who wait there are still to be woken."""


OnCommitted = Callable[[Sequence[RunRow], int, bytearray], None]


class Committer(Protocol):
    """Gives chunks their offsets and makes them visible, one after the other.

    A broker alone has one over states in memory, a broker among many one over the shared catalog.
    What else differs between the two is asked here, too. Used on the event loop.
    """

    in_memory: bool
    """This broker is alone: `commit` answers at once, and a change of the catalog must lie between
    two chunks."""
    on_committed: OnCommitted
    """Called with every chunk before it is acknowledged: its runs, where it begins in the file they
    point into, and its bytes, which it then owns."""

    def commit(self, write: "Write") -> Committed | Awaitable[Committed]:
        """Commit a chunk that is written. Raises, at once or when awaited, `CatalogDead`,
        `SessionFenced`, or what else of the catalog's errors lets it be sent once more.
        """
        ...

    async def renew(self, ended: Session) -> tuple[Session, Wal]:
        """The session after one that was superseded, and its write-ahead log.

        Raises `CatchwaterError` if there can be none.
        """
        ...

    async def transact(self, scope: Scope, decide: Callable[[ScopeRows], tuple[Changes, T]]) -> T:
        """As `Catalog.transact`, under this broker's session; the states in memory follow.

        Called between two chunks.
        """
        ...

    async def txns(self, *, unfinished: bool = False) -> list[TxnRow]:
        """All transactional ids as they are now, or those whose transaction is not ended."""
        ...

    def partitions(self, keys: Iterable[PartitionKey]) -> list[PartitionRow]:
        """The partitions that exist, as they are now. May block, hence for a thread."""
        ...

    async def take_lease(self, name: str, ttl_ms: int) -> bool:
        """As `SharedCatalog.take_lease`; a broker alone is always granted it."""
        ...

    async def take_group(self, group: str) -> GroupRow:
        """Become a group's coordinator, and see what the last one has left.

        Raises `SessionFenced`, and as every change does.
        """
        ...


@dataclass(eq=False, slots=True)
class Source:
    """A session and its own write-ahead log, which end together; a broker alone has one only."""

    session: Session | None
    wal: Wal
    max_uncommitted: int
    """How many chunks may be under way and not committed yet; 0: any number."""
    threads: ThreadPoolExecutor
    idle_threads: int
    writing: set[asyncio.Future[Any]] = field(default_factory=set)
    has_ended: bool = False
    """The session was superseded; set on the event loop."""


@dataclass(eq=False, slots=True)
class Write:
    """A chunk on its way: requests, then the bytes made of them, then where these lie."""

    number: int
    source: Source
    requests: list[Request]
    order: Sequence[int] = ()
    """Which batch each of the chunk's entries is, counted through all the requests."""
    chunk: Chunk = _NO_CHUNK
    payload: bytearray = field(init=False)
    position: Position | None = None
    """None: not written yet."""
    error: CatchwaterError | None = None
    took_s: float = 0.0

    @property
    def place(self) -> Position:
        """Where it lies, of a chunk that is written."""
        assert self.position is not None, "it is written"
        return self.position

    def gather(self, now_ms: int) -> None:
        """Make the requests one chunk, the batches of a partition side by side."""
        batches = [batch for request in self.requests for batch in request.batches]
        self.order = range(len(batches))
        if len(batches) > 1:
            partitions = [batch.partition for batch in batches]
            self.order = sorted(self.order, key=partitions.__getitem__)
            batches = [batches[index] for index in self.order]
        parts, self.chunk = encode(batches, now_ms)
        # One copy, so that readers at the tail have the bytes when the frames are reused.
        self.payload = bytearray().join(parts)


class EmbeddedCommitter:
    """The states of a broker alone, over its catalog. Used by one thread at a time."""

    in_memory = True

    def __init__(self, catalog: EmbeddedCatalog, snapshot: Snapshot) -> None:
        """`snapshot` is what the catalog holds."""
        self._catalog = catalog
        self.states = states_of(snapshot)
        self.txns_by_producer = txns_of(snapshot)
        self.on_committed: OnCommitted = lambda runs, start, payload: None

    def catch_up(self, frames: Iterable[tuple[Position, Buffer]]) -> int:
        """Take the frames of the WAL that the catalog has not applied; the last one's number.

        Raises `ChunkError` for a frame that is no chunk of a known format.
        """

        def apply(position: Position, _: Chunk, __: Sequenced, changes: Changes) -> None:
            self._catalog.apply(position.sequence, changes)

        return replay(decoded(frames), self.states, self.txns_by_producer, after=apply)

    def commit(self, write: Write) -> Committed:
        """Commit a chunk that is written, at once. Raises `CatalogDead`."""
        position = write.place
        sequenced, changes = take_chunk(write.chunk, position, self.states, self.txns_by_producer)
        self._catalog.apply(position.sequence, changes)
        self.on_committed(changes.runs, position.offset, write.payload)
        return Committed(sequenced.results, sequenced.changed)

    async def renew(self, ended: Session) -> tuple[Session, Wal]:
        """A broker alone has no session."""
        raise AssertionError("a broker alone is never superseded")

    async def transact(self, scope: Scope, decide: Callable[[ScopeRows], tuple[Changes, T]]) -> T:
        """The catalog first, then the transactional ids in memory."""

        def noting(seen: ScopeRows) -> tuple[Changes, tuple[ScopeRows, Changes, T]]:
            changes, result = decide(seen)
            return changes, (seen, changes, result)

        seen, changes, result = await asyncio.wrap_future(self._catalog.transact(scope, noting))
        changed = {row.transactional_id for row in changes.txns}
        for row in seen.txns:
            if row.transactional_id in changed:
                self.txns_by_producer.pop(row.producer_id, None)
        self.txns_by_producer.update({row.producer_id: row for row in changes.txns})
        return result

    async def txns(self, *, unfinished: bool = False) -> list[TxnRow]:
        """Transactional ids as they are in memory; the catalog may not have the newest yet."""
        rows = self.txns_by_producer.values()
        return [row for row in rows if not unfinished or row.state not in IDLE]

    def partitions(self, keys: Iterable[PartitionKey]) -> list[PartitionRow]:
        """From the states, which are ahead of the catalog."""
        return [partition_row(key, self.states[key]) for key in keys if key in self.states]

    async def take_lease(self, name: str, ttl_ms: int) -> bool:
        """Always granted: there is no other broker."""
        return True

    async def take_group(self, group: str) -> GroupRow:
        """The group as this broker has left it."""
        return await asyncio.to_thread(self._catalog.group, group)


class Writer:
    """Created and used on the event loop; its threads end with `close`."""

    def __init__(
        self,
        committer: Committer,
        intake: Intake,
        clock: Clock,
        wal: Wal,
        *,
        session: Session | None = None,
        sequenced: int = 0,
    ) -> None:
        """`sequenced` is the WAL's last frame that is committed already."""
        self._committer = committer
        self._intake = intake
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self.sequenced = sequenced
        """The last frame of the session's WAL that was committed."""
        self.has_failed = False
        """The WAL or the catalog has failed for good: everything is refused from then on."""
        self.on_chunk: Callable[[Write, Sequence[Result]], None] | None = None
        """Called with every chunk that is committed, just before it is acknowledged."""
        self.on_wal_append: Callable[[float], None] = lambda took_s: None
        """Called with the seconds that every append to the write-ahead log took."""
        self.appends = Appends(last_s=clock.monotonic_s())
        self.written = Written()
        self.working: set[asyncio.Future[Any]] = set()
        """Work that goes on when its caller stops waiting; to be waited for before `close`."""
        self._held = asyncio.Lock()
        self._closing = False
        self._all_answered: asyncio.Future[None] = self._loop.create_future()
        self._committing: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        # The thread of a broker alone rests here between two chunks. A condition would do, but
        # costs as much as all else it does for a small chunk.
        self._wake: SimpleQueue[None] = SimpleQueue()
        # What the loop and the threads share; guarded by the lock.
        self._lock = threading.Lock()
        self._is_resting = False
        """A thread waits in `_wake.get`, and was not woken yet."""
        self._source: Source | None = self._open(session, wal)
        """None while a session has ended and the next one has not begun."""
        self._requests: list[Request] = []
        self._waiting_bytes = 0
        """Of these requests."""
        self._linger_until_s = 0.0
        self._has_lingered = False
        self._number = 0
        """Of the last write that was begun."""
        self._refused = 0
        """Writes up to this one are not committed: one before them failed."""
        # Begun and not answered, in order. Threads add at the end, the loop takes from the front.
        self._writes: deque[Write] = deque()

    def submit(
        self, batches: Sequence[Submission], frame: Held | None = None
    ) -> asyncio.Future[list[Appended]]:
        """As `append`, to a future."""
        answer: asyncio.Future[list[Appended]] = self._loop.create_future()
        self.append(batches, answer, frame)
        return answer

    def append(
        self, batches: Sequence[Submission], answer: Answer, frame: Held | None = None
    ) -> None:
        """Append checked batches; the answers come in the same order, once they are committed.

        The batches lie in `frame`, which is released then.
        """
        assert not self._closing, "nothing is submitted to a closed log"
        request, fits = self._intake.request(batches, answer, frame)
        source = self._source
        if source is None:
            self._intake.refuse([request], ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif not fits or self.has_failed:
            self._intake.refuse([request])
        else:
            with self._lock:
                if source.wal.linger_ms and not self._requests:
                    self._linger(source.wal.linger_ms)
                self._requests.append(request)
                self._waiting_bytes += request.size_bytes
                is_resting, self._is_resting = self._is_resting, False
                may_begin = source.idle_threads and self._is_due(source)
            if is_resting:
                self._wake.put(None)
            elif may_begin:
                self._begin_writes()

    async def between_chunks(self, change: Callable[[], Awaitable[T]]) -> T:
        """Make a change that lies between two chunks; never half, even if the caller goes away.

        Holds back committing and acknowledging, not writing. Where the catalog's transactions keep
        chunks and changes apart there is nothing to hold back.
        """
        return await self.to_the_end(self._hold(change))

    async def _hold(self, change: Callable[[], Awaitable[T]]) -> T:
        if not self._committer.in_memory:
            return await change()
        async with self._held:
            try:
                return await change()
            finally:
                self._commit_written()

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work that goes on to its end even if its caller is cancelled."""
        task = asyncio.ensure_future(work)
        self.working.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self.working.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it: the caller raises it

    async def close(self) -> None:
        """Write, commit and answer what was submitted, and end the threads."""
        self._closing = True
        self._begin_writes()
        self._note_all_answered()
        await self._all_answered
        async with self._held:  # a change may still be under way
            pass
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        if self._source is not None:
            await self._retire(self._source)

    # --- gathering -------------------------------------------------------------------------------

    def _linger(self, linger_ms: int) -> None:
        until_s = self._linger_until_s = self._loop.time() + linger_ms / 1000
        self._loop.call_at(until_s, self._linger_is_over, until_s)

    def _linger_is_over(self, until_s: float) -> None:
        with self._lock:
            if self._requests and self._linger_until_s == until_s:
                self._has_lingered = True
        self._begin_writes()

    def _is_due(self, source: Source) -> bool:
        """Whether another chunk is to be written now. Called with the lock held."""
        if not self._requests or 0 < source.max_uncommitted <= len(self._writes):
            return False
        linger_ms, enough = source.wal.linger_ms, source.wal.linger_bytes
        return not linger_ms or self._has_lingered or self._closing or self._waiting_bytes >= enough

    def _begin_writes(self) -> None:
        """Let as many threads write as the write-ahead log takes."""
        source = self._source
        while source is not None:
            with self._lock:
                if not source.idle_threads or not self._is_due(source):
                    return
                source.idle_threads -= 1
            writing = self._loop.run_in_executor(source.threads, self._write_ahead, source)
            source.writing.add(writing)
            writing.add_done_callback(source.writing.discard)
            writing.add_done_callback(self._watch)

    def _take(self, source: Source) -> Write:
        """The oldest requests, as many as make up a chunk, at least one; the lock is held."""
        requests = self._requests
        count = len(requests)
        if source.max_uncommitted:
            count = _fitting(requests, max(_CHUNK_BYTES, source.wal.linger_bytes))
        taken, self._requests = requests[:count], requests[count:]
        for request in taken:
            self._waiting_bytes -= request.size_bytes
        self._has_lingered = bool(self._requests)
        self._number += 1
        write = Write(self._number, source, taken)
        self._writes.append(write)
        return write

    def _take_all(self) -> list[Request]:
        """What is not being written yet; what is, is not to be committed."""
        with self._lock:
            self._refused = self._number
            taken, self._requests = self._requests, []
            self._waiting_bytes = 0
            self._has_lingered = False
            return taken

    # --- in a thread -----------------------------------------------------------------------------

    def _write_ahead(self, source: Source) -> None:
        """Write chunks as long as there is something to be written."""
        clock, loop = self._clock, self._loop
        while (write := self._next(source)) is not None:
            try:
                write.gather(clock.now_ms())
                began_s = clock.monotonic_s()
                position = source.wal.append([write.payload])
                write.took_s = clock.monotonic_s() - began_s
                write.position = position
            except CatchwaterError as error:
                write.error = error
            loop.call_soon_threadsafe(self._written, write, context=self._context)
            if write.error is not None:
                # Still counted as busy: nothing follows before the loop has refused all in hand.
                return

    def _next(self, source: Source) -> Write | None:
        """What is to be written next; None: the thread is to end."""
        while True:
            with self._lock:
                if source is self._source and self._is_due(source):
                    return self._take(source)
                # The one thread of a broker alone stays: to begin it anew for every chunk would
                # cost a lightly loaded one a third more.
                if not self._committer.in_memory or self._closing:
                    source.idle_threads += 1
                    return None
                self._is_resting = True
            self._wake.get()

    def _wake_thread(self) -> None:
        with self._lock:
            is_resting, self._is_resting = self._is_resting, False
        if is_resting:
            self._wake.put(None)

    # --- committing, in order --------------------------------------------------------------------

    def _written(self, write: Write) -> None:
        if write.error is None:
            self.on_wal_append(write.took_s)
        if not self._held.locked():
            self._commit_written()

    def _commit_written(self) -> None:
        """Commit chunks in their order, up to the first that is not written."""
        while self._writes and self._committing is None:
            write = self._writes[0]
            if write.source.has_ended:
                # Even if it was written it does not count, so there is no need to wait for it.
                self._refuse(write, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif write.error is not None:
                self._fail(write, write.error)
                with self._lock:
                    write.source.idle_threads += 1
            elif write.position is None:
                break
            elif self.has_failed or write.number <= self._refused:
                self._refuse(write)
            else:
                self._commit(write)
        if self._requests:  # there may be room for another chunk now
            self._begin_writes()
        if self._closing:
            self._note_all_answered()

    def _commit(self, write: Write) -> None:
        try:
            committed = self._committer.commit(write)
        except CatalogDead as error:
            self._fail(write, error)
            return
        if isinstance(committed, Committed):
            self._acknowledge(write, committed)
        else:
            self._committing = asyncio.ensure_future(self._await_commit(write, committed))
            self._committing.add_done_callback(self._watch)

    async def _await_commit(self, write: Write, committing: Awaitable[Committed]) -> None:
        try:
            committed = await committing
        except CatchwaterError as error:
            self._fail(write, error)
        else:
            self._acknowledge(write, committed)
        self._committing = None
        self._commit_written()

    def _acknowledge(self, write: Write, committed: Committed) -> None:
        if write.source is self._source:
            self.sequenced = max(self.sequenced, write.place.sequence)
        self._writes.popleft()
        self.appends.add(write.place.size, self._clock.monotonic_s())
        self.written.wal += write.place.size
        self.written.batches += len(write.payload) - index_bytes(len(write.chunk.entries))
        if self.on_chunk is not None:
            self.on_chunk(write, committed.results)
        self._intake.answer(write, committed.results)
        self._intake.wake(committed.changed)

    def _refuse(self, write: Write, error: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        self._writes.popleft()
        self._intake.refuse(write.requests, error)

    def _fail(self, write: Write, error: CatchwaterError) -> None:
        """Refuse a chunk that was not written or not committed, and all that came behind it."""
        if write.source.has_ended:
            self._refuse(write, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if isinstance(error, SessionFenced):
            _LOG.warning("%s", error)
            behind = self._end_session()
            self._refuse(write, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._intake.refuse(behind, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if isinstance(error, WalDead | CatalogDead):
            _LOG.critical("%s Nothing is acknowledged any more.", error)
            self.has_failed = True
        else:
            _LOG.error("%s", error)
        behind = self._take_all()
        self._refuse(write)
        self._intake.refuse(behind)

    def _note_all_answered(self) -> None:
        if self._closing and not (self._requests or self._writes or self._all_answered.done()):
            self._all_answered.set_result(None)

    def _watch(self, part: "asyncio.Future[Any]") -> None:
        """A thread or a commit that ends by a defect would leave its requests without an answer."""
        if part.cancelled():
            self.has_failed = True
        elif (defect := part.exception()) is not None:
            self.has_failed = True
            if not self._all_answered.done():
                self._all_answered.set_exception(defect)

    # --- one session after the other -------------------------------------------------------------

    def fenced(self) -> None:
        """The session was superseded: refuse everything, and go on with a new one."""
        if self._source is not None:
            self._intake.refuse(self._end_session(), ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._commit_written()

    def _end_session(self) -> list[Request]:
        ended = self._source
        assert ended is not None, "it ends once"
        with self._lock:
            self._source = None
        ended.has_ended = True
        self._renewing = asyncio.ensure_future(self._renew(ended))
        return self._take_all()

    async def _renew(self, ended: Source) -> None:
        """Go on with a new session, while writes to the old log end."""
        await asyncio.gather(self._retire(ended), self._begin_session(ended))

    async def _retire(self, source: Source) -> None:
        self._wake_thread()
        if source.writing:
            await asyncio.wait(source.writing)
        source.threads.shutdown()
        await asyncio.to_thread(source.wal.close)

    async def _begin_session(self, ended: Source) -> None:
        assert ended.session is not None, "a broker alone is not superseded"
        try:
            session, wal = await self._committer.renew(ended.session)
        except CatchwaterError as error:
            _LOG.critical("%s Nothing is acknowledged any more.", error)
            self.has_failed = True
        else:
            self.sequenced = 0
            self._source = self._open(session, wal)

    def _open(self, session: Session | None, wal: Wal) -> Source:
        threads = ThreadPoolExecutor(wal.max_in_flight, thread_name_prefix="wal")
        # One chunk more than may be written at once: it is committed meanwhile.
        at_once = 0 if self._committer.in_memory else wal.max_in_flight + (not wal.in_commit)
        return Source(session, wal, at_once, threads, wal.max_in_flight)


def _fitting(requests: Sequence[Request], max_bytes: int) -> int:
    """How many of the first requests make up a chunk; at least one."""
    size = 0
    for count, request in enumerate(requests):
        size += request.size_bytes
        if count and size > max_bytes:
            return count
    return len(requests)
