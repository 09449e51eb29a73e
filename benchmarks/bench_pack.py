"""What packing costs, and what it costs producers.

Packing reads what was appended, verifies every batch, gives it its offset and writes it as one
object. Its peer only reads the same files in pieces of 1 MiB, sums them up with CRC-32C, and writes
and syncs them as one file. Faults are pages of memory that the kernel had to fill.

Producers send requests of 64 KB for 2 s at a time, which packing waits for, and for 10 s at a time,
in which it has to begin; their peer is a broker of the same settings that never packs.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

from crc32c import crc32c

from benchmarks.load import NOW_MS, create_topic, produce_request, pump
from benchmarks.measure import ROUNDS, Row, alternate, publish, row
from benchmarks.our_broker import catchwater_broker
from catchwater.broker_config import LogConfig
from catchwater.clock import Clock
from catchwater.log.log import Log
from catchwater.log.write.writer import Submission
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header

SHAPES = {"100 B": (100, 1, 80, 16), "64 KB": (1000, 64, 8, 96), "900 KB": (1000, 900, 4, 96)}
"""Requests, each of one batch: bytes a value, records, requests a chunk, megabytes to be packed."""
COPY, NEVER = "a copy with a CRC-32C", "never packing"
SECONDS = (2.0, 10.0)
TOPIC = "bench"


class Hasty(Clock):
    """Never rests: what is measured is work."""

    def pause(self, seconds: float, woken: int | None = None) -> None:
        """Go on at once."""


def used() -> tuple[float, float]:
    """CPU seconds and page faults of this process so far."""
    return time.process_time(), getrusage(RUSAGE_SELF).ru_minflt


def copied(root: Path) -> None:
    """Copy the files of the write-ahead log into one."""
    with (root / "copy").open("wb") as copy:
        for path in sorted((root / "wal").rglob("*.wal")):
            with path.open("rb", buffering=0) as file:
                while piece := file.read(1 << 20):
                    crc32c(piece)
                    copy.write(piece)
        copy.flush()
        os.fsync(copy.fileno())


async def costs(shape: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """CPU seconds and faults a GB: of packing and of the copy, in a log that has packed before."""
    value_bytes, records, requests, megabytes = SHAPES[shape]
    data = memoryview(encode_batch([(None, b"x" * value_bytes, NOW_MS, ())] * records))
    chunks = megabytes * 1_000_000 // (requests * len(data))
    gigabytes = chunks * requests * len(data) / 1e9
    with tempfile.TemporaryDirectory(prefix="catchwater-bench-") as folder:
        config = LogConfig(background=False, pending_bytes=1 << 30, pack_min_bytes=1)
        log = await Log.open(Path(folder), config, Hasty())
        for name in ("before", "measured"):
            key = ((await log.create_topic(name, 1)).id, 0)
            for _ in range(chunks):
                await log.submit([Submission(key, read_header(data), data)] * requests)
            await log.storage(name)  # once it returns, the catalog has written what it held
            before = used()
            await log.keeping.pack()
            packed = [(b - a) / gigabytes for a, b in zip(before, used(), strict=True)]
            before = used()
            copied(Path(folder))
            whole = [(b - a) / gigabytes for a, b in zip(before, used(), strict=True)]
            (Path(folder) / "copy").unlink()
        await log.close()
    return tuple(packed), tuple(each / 2 for each in whole)  # both topics' files


def packing(shape: str) -> list[Row]:
    """Rows of one shape."""
    found = [asyncio.run(costs(shape)) for _ in range(ROUNDS)]
    rows = []
    for column, unit in enumerate(("CPU s/GB", "faults/GB")):
        ours, theirs = ([each[who][column] for each in found] for who in (0, 1))
        rows.append(row(f"packing, {shape} requests", unit, ours, COPY, theirs, better="lower"))
    return rows


def rate(bootstrap: str, request: bytes, seconds: float) -> float:
    """MB/s, after a pause in which what was packed is written and a short burst."""
    time.sleep(2)
    result = pump(bootstrap, request, seconds, in_flight=8)
    return result.bytes / result.seconds / 1e6


def beside_packing() -> list[Row]:
    """Producers beside packing and without it."""
    never = {"catchwater_pack_min_bytes": str(1 << 40), "catchwater_pack_interval_ms": str(1 << 30),
             "catchwater_pack_backlog_bytes": str(1 << 40)}  # fmt: skip
    request = produce_request(TOPIC, 0, 1000, 64)
    rows = []
    for seconds in SECONDS:
        with catchwater_broker() as ours, catchwater_broker(**never) as quiet:
            turns: list[Callable[[], float]] = []
            for broker in (ours, quiet):
                create_topic(broker.bootstrap, TOPIC, 1, configs={"retention.bytes": "100000000"})
                turns.append(partial(rate, broker.bootstrap, request, seconds))
            claim = f"produce, 64 KB requests, {seconds:g} s at a time, packing beside"
            mine, theirs = alternate(turns[0], turns[1])
            rows.append(row(claim, "MB/s", mine, NEVER, theirs))
    return rows


def main() -> None:
    """All shapes, then producers beside packing; publish."""
    rows = [found for shape in SHAPES for found in packing(shape)]
    publish("pack", rows + beside_packing())


if __name__ == "__main__":
    main()
