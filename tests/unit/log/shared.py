"""Brokers of one shared log for tests: a catalog in memory that fails when told, time by hand."""

import asyncio
import filecmp
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from catchwater.broker_config import LogConfig
from catchwater.catalog.errors import CatalogUnavailable, CatalogUncertain
from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase, call_now
from catchwater.catalog.rows import BrokerRow, PartitionKey, Session
from catchwater.clock import ManualClock
from catchwater.config import CatchwaterError
from catchwater.log.log import Log
from catchwater.log.write.writer import Appended, Submission
from catchwater.objects.base import ObjectStore
from catchwater.objects.memory import MemoryStore
from catchwater.wal.base import Wal
from catchwater.wal.object import ObjectWal
from catchwater.wal.open import session_prefix
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header, split
from catchwater.wire.errors import ErrorCode

QUIET = LogConfig(background=False)


def crashed(root: Path, target: Path) -> Path:
    """A data directory in use, as a crash would leave it now: no write falls between two files."""
    while True:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(root, target)
        names = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
        # What SQLite shares between processes is no part of what a crash leaves.
        names = [name for name in names if not name.name.endswith("-shm")]
        _, differing, missing = filecmp.cmpfiles(root, target, names, shallow=False)
        if not differing and not missing:
            return target


class SlowClock(ManualClock):
    """Whoever sleeps sleeps until the clock is moved that far."""

    def __init__(self) -> None:
        super().__init__()
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now_ms() + int(seconds * 1000), wake))
        await wake

    def advance(self, ms: int) -> None:
        super().advance(ms)
        due = [wake for until, wake in self._sleepers if until <= self.now_ms()]
        self._sleepers = [left for left in self._sleepers if left[0] > self.now_ms()]
        for wake in due:
            if not wake.done():
                wake.set_result(None)


class FaultyCatalog(MemoryCatalog):
    """`faults` are met one by one by whatever is asked to change or to be read."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.faults: list[str] = []
        """Each of: unavailable; lost (uncertain, not committed); unanswered (but committed)."""
        self.is_cut = False
        """Nothing is reached until this is unset."""
        self.refusal: CatchwaterError | None = None
        """What every change fails with until this is unset."""

    def transact(self, scope: Any, decide: Any) -> Future[Any]:
        fault = self.faults.pop(0) if self.faults else ""
        if fault in ("", "unanswered"):
            done = super().transact(scope, decide)
            if not fault or done.exception() is not None:
                return done
        failed: Future[Any] = Future()
        error = CatalogUnavailable if fault == "unavailable" else CatalogUncertain
        failed.set_exception(error(f"The commit was {fault}."))
        return failed

    def _commit(self, body: Any) -> Future[Any]:
        cut = CatalogUnavailable("The catalog is cut off.") if self.is_cut else None
        if not (refusal := cut or self.refusal):
            return super()._commit(body)
        failed: Future[Any] = Future()
        failed.set_exception(refusal)
        return failed

    def _query(self, body: Any) -> Any:
        if self.is_cut:
            raise CatalogUnavailable("The catalog is cut off.")
        return super()._query(body)


class World:
    """What outlives the brokers; `log` opens one."""

    def __init__(self) -> None:
        """Called on the loop, whose threads become one: who has had a turn of it comes last."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        self.clock = SlowClock()
        self.database = MemoryDatabase(self.clock, call_now)
        self.store: ObjectStore = MemoryStore(self.clock)
        self.logs: list[Log] = []
        self.wals: list[Wal] = []

    async def log(
        self,
        broker_id: int = 1,
        *,
        host: str = "",
        wal: Callable[[Session], Wal] | None = None,
        **config: Any,
    ) -> Log:
        host = host or f"host{broker_id}"
        row = BrokerRow(broker_id, 0, "", host, 9092, "", "object", True, "live", 0)

        def open_wal(session: Session) -> Wal:
            self.wals.append((wal or self.object_wal)(session))
            return self.wals[-1]

        catalog = FaultyCatalog(self.database)
        settings = replace(QUIET, **config)
        log = await Log.shared(catalog, self.store, open_wal, row, settings, self.clock)
        self.logs.append(log)
        return log

    def object_wal(self, session: Session, linger_ms: int = 0) -> ObjectWal:
        prefix = session_prefix(session)
        return ObjectWal(self.store, self.clock, prefix=prefix, linger_ms=linger_ms)

    async def beat(self, ms: int = 250) -> None:
        """Let the clock go on, and everybody do what is due."""
        self.clock.advance(ms)
        await settled()

    async def close(self) -> None:
        for log in self.logs:
            catalog_of(log).is_cut = False
            await log.close()
        self.database.close()


async def settled() -> None:
    """Give other tasks, and the threads they wait for, their turns."""
    loop = asyncio.get_running_loop()
    for _ in range(10):
        await loop.run_in_executor(None, int)
        await asyncio.sleep(0)


async def until(condition: Callable[[], Any]) -> None:
    """Give others their turns until it is so."""

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0)

    await asyncio.wait_for(wait(), 60)


async def everything(log: Log, key: PartitionKey) -> list[tuple[int, bytes]]:
    """Every batch of a partition: its base offset, and its bytes behind the patched head."""
    state = log.state(key)
    found, offset = [], state.log_start
    while offset < state.high_watermark:
        read = await log.read(key, offset, 1 << 20, at_least_one=True)
        assert read.error == ErrorCode.NONE
        for header, view in split(memoryview(b"".join(read.parts))):
            found.append((header.base_offset, bytes(view[16:])))
            offset = header.last_offset + 1
    return found


def catalog_of(log: Log) -> FaultyCatalog:
    catalog = log._core.catalog
    assert isinstance(catalog, FaultyCatalog)
    return catalog


def batch(
    key: PartitionKey,
    count: int = 1,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    text: str = "v",
) -> Submission:
    records = [(None, f"{text}{n}".encode(), 1000 + n, ()) for n in range(count)]
    pid, epoch, base = producer
    data = encode_batch(records, producer_id=pid, producer_epoch=epoch, base_sequence=base)
    view = memoryview(data)
    return Submission(key, read_header(view), view)


async def append(log: Log, *batches: Submission) -> list[Appended]:
    return await asyncio.wait_for(log.submit(batches), 60)


async def offsets(log: Log, *batches: Submission) -> list[int]:
    """The offsets of batches that are all appended."""
    answers = await append(log, *batches)
    assert {answer.error for answer in answers} == {ErrorCode.NONE}
    return [answer.base_offset for answer in answers]
