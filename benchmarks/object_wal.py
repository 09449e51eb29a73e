"""What lingering and several writes in flight bring the object WAL: the figures of decision 7.

`python -m benchmarks.object_wal` prints them (two minutes). Nothing is compared with a peer.

The gathering is the broker's (`log.write.writer`): a chunk is closed `linger` after its first
request or at 8 MiB, and as many chunks are written at once as the WAL allows. Requests of 10 kB
arrive evenly; each is acknowledged with its chunk, in order. The store is a moto server as it is,
with 40 ms added to every PUT as S3 takes them on a good day, or with 300 ms; or a local directory.
"""

import asyncio
import itertools
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.s3 import CREDENTIALS, make_bucket, moto

from catchwater.clock import Clock
from catchwater.objects.base import Buffer, ObjectStore
from catchwater.objects.local import LocalStore
from catchwater.objects.open import open_store
from catchwater.objects.retry import RetryingStore
from catchwater.wal.object import LINGER_BYTES, ObjectWal

REQUEST = bytes(10_000)
SECONDS = 3.0
REQUESTS_S = (100, 2_000)
SETTINGS = [(0, 1), (0, 4), (150, 1), (150, 2), (150, 4), (150, 8), (250, 4)]
"""(linger in ms, writes in flight)"""


class Distant(RetryingStore):
    """A store that takes its time: log-normal around a median, as S3 does."""

    def __init__(self, store: ObjectStore, median_s: float) -> None:
        super().__init__(store, Clock())
        self._median_s = median_s

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        self._clock.pause(math.exp(self._clock.random.gauss(math.log(self._median_s), 0.5)))
        return super().put_if_absent(key, parts)


@dataclass(frozen=True)
class Outcome:
    """Milliseconds from a request to its acknowledgement, and what it took."""

    p50_ms: float
    p99_ms: float
    puts_s: float
    acked_mib_s: float


class Broker:
    """The gathering of a shared broker, and nothing else of it."""

    def __init__(self, store: ObjectStore, linger_ms: int, in_flight: int, prefix: str) -> None:
        self.wal = ObjectWal(store, Clock(), prefix=prefix, linger_ms=linger_ms)
        self.in_flight = in_flight
        self.waiting: list[float] = []
        self.took_s: list[float] = []
        self.puts = 0
        self.arrived = asyncio.Event()

    async def run(self, requests_s: int) -> Outcome:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        gathering = asyncio.ensure_future(self._gather())
        for n in range(int(requests_s * SECONDS)):
            await asyncio.sleep(max(0.0, began_s + n / requests_s - loop.time()))
            self.waiting.append(loop.time())
            self.arrived.set()
        # What was not acknowledged in the time does not count: a queue may have built up.
        acked = len(self.took_s)
        gathering.cancel()
        await asyncio.wait([gathering])
        cuts = statistics.quantiles(self.took_s, n=100)
        mib_s = acked * len(REQUEST) / SECONDS / 2**20
        return Outcome(cuts[49] * 1e3, cuts[98] * 1e3, self.puts / SECONDS, mib_s)

    async def _gather(self) -> None:
        loop = asyncio.get_running_loop()
        slots = asyncio.Semaphore(self.in_flight)
        most = LINGER_BYTES // len(REQUEST)
        before: asyncio.Future[None] | None = None
        with ThreadPoolExecutor(self.in_flight) as threads:
            while True:
                await self.arrived.wait()
                closes_s = self.waiting[0] + self.wal.linger_ms / 1000
                while loop.time() < closes_s and len(self.waiting) < most:
                    await asyncio.sleep(min(0.01, max(0.0, closes_s - loop.time())))
                await slots.acquire()
                taken, self.waiting = self.waiting[:most], self.waiting[most:]
                if not self.waiting:
                    self.arrived.clear()
                before = asyncio.ensure_future(self._write(taken, threads, slots, before))

    async def _write(
        self,
        taken: list[float],
        threads: ThreadPoolExecutor,
        slots: asyncio.Semaphore,
        before: "asyncio.Future[None] | None",
    ) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(threads, self.wal.append, [REQUEST] * len(taken))
        self.puts += 1
        slots.release()
        if before is not None:
            await before
        self.took_s += [loop.time() - arrived_s for arrived_s in taken]


def main() -> None:
    """Print a row for every store, rate and setting."""
    os.environ.update(CREDENTIALS)
    table = Table("store", "MB/s", "linger ms", "in flight", "p50 ms", "p99 ms", "PUT/s", "MiB/s")
    with moto() as endpoint, tempfile.TemporaryDirectory() as folder:
        near = open_store(make_bucket(endpoint, "wal"), Clock())
        stores = {
            "local": LocalStore(Path(folder)),
            "moto": near,
            "+ 40 ms": Distant(near, 0.040),
            "+ 300 ms": Distant(near, 0.300),
        }
        tried = itertools.product(stores, REQUESTS_S, SETTINGS)
        for number, (name, requests_s, (linger_ms, in_flight)) in enumerate(tried):
            broker = Broker(stores[name], linger_ms, in_flight, f"{number}-1/")
            found = asyncio.run(broker.run(requests_s))
            rate = requests_s * len(REQUEST) / 1e6
            row = [rate, linger_ms, in_flight, *astuple(found)]
            table.add_row(name, *(f"{cell:.0f}" if cell >= 10 else f"{cell:.2g}" for cell in row))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
