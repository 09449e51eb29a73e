"""A pipeline whose driver half is put together in the test's own process.

On a shared Spark session, since starting Spark costs more than everything a small pipeline does; or
without Spark at all, in the order in which Spark does things. A test can stand between two epochs.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline import workers
from catchwater.pipeline.epochs import EpochWriter
from catchwater.pipeline.opened import OpenPipeline as Opened
from catchwater.pipeline.rows import from_arrow
from catchwater.pipeline.run import config, driver, run
from catchwater.pipeline.run.backfill import backfill_of
from catchwater.pipeline.run.run import source_settings, stages, start_query
from catchwater.pipeline.shard_epoch import run_stage
from catchwater.pipeline.spark.failure import Traces, cause
from catchwater.pipeline.spark.source import PackedReader
from catchwater.recovery import checkpoint
from catchwater.recovery.ledger import EpochEntry, Ledger, numbered, write_whole
from catchwater.wire.arrow import decode, encode_batch, place
from catchwater.wire.client import LATEST, Client

WRITTEN_MS = 1_700_000_000_000


@dataclass
class Pipeline:
    """One pipeline in a shared session, or in none."""

    spark: Any | None
    folder: Path
    file: Path
    between: Callable[[int], None] = lambda epoch: None
    """Called when an epoch is in the ledger and not yet committed by Spark."""
    epochs: list[EpochEntry] = field(default_factory=list)
    """What the runs have committed."""
    clock: Clock = SYSTEM
    """By which epochs are planned, where the pipeline runs without Spark."""
    label: str | None = None
    """Not the pipeline itself runs, but a backfill of it, with this process's environment."""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until the condition holds or the query ends. Raises what `pipeline run` would."""
        settings = config.load(self.file, os.environ if self.label else {})
        if self.label:
            settings = backfill_of(settings, self.label)
        opened = run.look_before(settings, SYSTEM.monotonic_s(), SYSTEM)
        shards = settings.shard_count * len(opened.specs)
        writer = EpochWriter(
            Ledger(settings.checkpoint), opened.sinks, shards, SYSTEM,
            poison_limit=run.poison_limit(opened),
        )  # fmt: skip
        chain = stages(opened)
        upkeep = run.upkeep_of(opened, chain, SYSTEM)

        def write(rows: Any, epoch: int) -> None:
            writer(rows, epoch)
            self.between(epoch)

        query: Any
        since_ms = SYSTEM.now_ms()
        if self.spark is None:
            query = HereQuery(opened, write, self.clock)
        else:
            for key, value in driver.settings_of(settings).items():
                self.spark.conf.set(key, value)
            query = start_query(self.spark, opened, chain, write)
        try:
            while query.isActive and not until():
                self.epochs += upkeep.look()
                time.sleep(0.01)
            failure = None if query.isActive else query.exception()
        finally:
            query.stop()
        self.epochs += upkeep.look(at_once=True)
        upkeep.sweep()
        opened.close()
        if failure is not None:
            raise writer.failure or cause(str(failure), self._traces(since_ms))

    def _traces(self, since_ms: int) -> Traces:
        """Where the shared session's processes note what happens to them: none are this one's
        where it runs without Spark.
        """
        scratch = os.environ.get(workers.FOLDER) if self.spark else None
        return Traces(self.folder / "spark.log", Path(scratch) if scratch else None, since_ms)

    @property
    def committed(self) -> int:
        return checkpoint.last_commit(self.checkpoint)

    def objects(self) -> list[Path]:
        """The objects of its state logs, by name."""
        found = (self.checkpoint / "catchwater" / "state").rglob("*")
        return sorted((p for p in found if p.is_file()), key=lambda p: p.name)


class HereQuery:
    """What Spark does with a query, in a thread: plan, write down, run, commit."""

    def __init__(
        self, opened: Opened, write: Callable[[Any, int], None], clock: Clock = SYSTEM
    ) -> None:
        self._folder = opened.config.checkpoint
        settings = msgspec.structs.replace(source_settings(opened), waits=False)
        self._reader = PackedReader(settings, clock)
        self._now = opened.config.trigger == config.AVAILABLE_NOW
        self._stages = stages(opened)
        self._write = write
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def isActive(self) -> bool:
        return self._thread.is_alive()

    def awaitTermination(self) -> None:
        self._thread.join()

    def exception(self) -> Exception | None:
        return self._failure

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._reader.stop()

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # noqa: BLE001  (Spark tells of any)
            self._failure = error

    def _loop(self) -> None:
        found = checkpoint.read(self._folder)
        at = json.dumps(self._reader.initialOffset())
        if found.last is not None:
            at = self._text(found.last.epoch)
        if self._now:
            self._reader.prepareForTriggerAvailableNow()
        if found.planned is not None:
            # As Spark: where it was planned to begin, whichever commits are there.
            epoch = found.planned.epoch
            begin = self._text(epoch - 1) if epoch else json.dumps(self._reader.initialOffset())
            at = self._epoch(epoch, begin, self._text(epoch))
        while not self._stopped.is_set():
            limit = self._reader.getDefaultReadLimit()
            end = json.dumps(self._reader.latestOffset(json.loads(at), limit))
            if end != at:  # Spark compares what is written, and so plans what is spelled otherwise
                epoch = max(numbered(self._folder / "offsets"), default=-1) + 1
                path = self._folder / "offsets" / str(epoch)
                told = f'{{"batchTimestampMs":{SYSTEM.now_ms()}}}'
                write_whole(path, f"v1\n{told}\n{end}".encode())
                at = self._epoch(epoch, at, end)
            elif self._now:
                return
            else:
                time.sleep(0.02)

    def _text(self, epoch: int) -> str:
        """What Spark's log of offsets says of our source."""
        return (self._folder / "offsets" / str(epoch)).read_text().splitlines()[2]

    def _epoch(self, epoch: int, begin: str, end: str) -> str:
        batches = [
            batch
            for part in self._reader.partitions(json.loads(begin), json.loads(end))
            for batch in self._reader.read(part)
        ]
        rows = [row for batch in batches for row in from_arrow(batch)]
        for stage in self._stages:
            rows = list(run_stage(stage, rows))
        self._write(SimpleNamespace(collect=lambda: rows), epoch)
        write_whole(self._folder / "commits" / str(epoch), b"v1\n{}")
        return end


def produce(bootstrap: str, topic: str, partition: int, *events: Any, key: str = "") -> None:
    """Append events as JSON, raw bytes as they are, under the value of the field `key`."""
    records = []
    for event in events:
        raw = isinstance(event, bytes)
        name = b"" if raw or not key else str(event[key]).encode()
        records.append((name, event if raw else msgspec.json.encode(event), WRITTEN_MS, ()))
    with Client(bootstrap) as client:
        client.produce([((topic, partition), encode_batch(records))])


def read(bootstrap: str, topic: str) -> list[tuple[dict[str, bytes], bytes]]:
    """Headers and value of every record of a topic, by partition."""
    found = []
    with Client(bootstrap) as client:
        keys = [(topic, number) for number in client.metadata([topic]).partitions(topic)]
        for key, end in client.list_offsets(dict.fromkeys(keys, LATEST)).items():
            offset = 0
            while offset < end:
                fetched = client.fetch({key: offset})[key]
                batches = place(fetched.records, partial_tail=True)
                for table in decode(
                    fetched.records, batches, first=offset, columns=["headers", "value"]
                ):
                    headers = table.column("headers").to_pylist()
                    values = table.column("value").to_pylist()
                    for told, value in zip(headers, values, strict=True):
                        pairs = [(h["key"], h["value"]) for h in told or ()]
                        found.append((dict(pairs), value))
                offset = batches[-1].next_offset
    return found
