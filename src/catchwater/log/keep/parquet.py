"""Segments get their records as Parquet beside them, for topics that ask for it.

A topic asks with `catchwater.history.parquet`. What is asked for is written when there is time, so
it makes no packing slower, and a topic may ask for it later. For each segment: read and verify it,
write the object, and only then let the catalog name it. A crash before that commit leaves an object
nobody knows (swept later), and the segment without Parquet; a segment that is gone meanwhile makes
the commit fail, and the object is deleted.

Only *settled* segments get Parquet, those that will stay as they are: more than half of a full one,
too old to wait for more, or written by compaction; a compacted topic's others will be. The packer
leaves a segment alone that has Parquet, so what a plan names stays for as long as its segment.

Values become columns where the topic declares them and every one in the segment is as declared.

Everything here blocks and runs in one thread. It rests as long as it works.
"""

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from catchwater.broker_config import LogConfig
from catchwater.catalog.errors import RunsChanged
from catchwater.catalog.rows import ObjectRow, ParquetRow, PartitionKey, RunRow, Topic
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.log.core import Core
from catchwater.log.format.batches import DamagedObject
from catchwater.log.format.segment import (
    Footer,
    SegmentTooNew,
    batches_of,
    is_cleaned,
    read_footer,
)
from catchwater.log.storage import UNREADABLE
from catchwater.log.topic_settings import COMPACT, cleanup_policies, declared
from catchwater.values.settings import BadSchema, identity

if TYPE_CHECKING:
    from catchwater.log.format.parquet import Written

_LOG = logging.getLogger(__name__)

PARQUET = "catchwater.history.parquet"
"""The topic setting: `true` or `false`."""

_PACKAGES = ("numba", "pyarrow")
_SEGMENTS_A_LOOK = 100
_STRETCH_S = 0.002
"""After so much work it rests as long: a request that comes meanwhile changes threads several
times, and waits for this one at each until it rests."""

GoOn = Callable[[], bool]


def wants_parquet(topic: Topic) -> bool:
    """Whether the topic's history is also written as Parquet."""
    return topic.config.get(PARQUET) == "true"


def missing_packages() -> list[str]:
    """What must be installed before Parquet can be written, and is not."""
    return [name for name in _PACKAGES if find_spec(name) is None]


def is_settled(run: RunRow, written_ms: int, topic: Topic, now_ms: int, config: LogConfig) -> bool:
    """Whether a segment will stay as it is until it is deleted or compacted. Pure."""
    if is_cleaned(run.object):
        return True
    if COMPACT in cleanup_policies(topic):
        return False
    return run.byte_size * 2 > config.segment_bytes or (
        written_ms <= now_ms - config.parquet_after_ms
    )


class Stopped(Exception):
    """The thread is wanted back; what was begun is given up."""


class ParquetWriter:
    """Writes what is missing, one segment at a time."""

    def __init__(self, core: Core, config: LogConfig) -> None:
        self._core = core
        self._config = config
        self._failed: set[str] = set()
        self._warned = False

    def can_write(self) -> bool:
        """Whether the packages are there; says so once if they are not."""
        missing = missing_packages()
        if missing and not self._warned:
            self._warned = True
            _LOG.warning(
                "No Parquet is written, though topics ask for it: %s not installed here. Install "
                "catchwater[history] on every broker.", " and ".join(missing),
            )  # fmt: skip
        return not missing

    def next_segment(self, topic: Topic, partition: int) -> RunRow | None:
        """The first settled segment of a partition without Parquet."""
        key: PartitionKey = (topic.id, partition)
        now_ms = self._core.clock.now_ms()
        offset = 0
        while found := self._core.catalog.without_parquet(key, offset, _SEGMENTS_A_LOOK):
            for run, written_ms in found:
                if run.object not in self._failed and is_settled(
                    run, written_ms, topic, now_ms, self._config
                ):
                    return run
            offset = found[-1][0].last_offset + 1
        return None

    def write(self, run: RunRow, topic: Topic, go_on: GoOn) -> bool:
        """Write the Parquet of a segment; False if it was not to be.

        Given up when `go_on` says no. A segment that cannot be read, or not be put into Parquet, is
        logged and left alone from then on. Raises `StoreError` and what the catalog raises.
        """
        try:
            return self._write(run, topic, go_on)
        except Stopped:
            return False
        except (DamagedObject, SegmentTooNew, *UNREADABLE) as error:
            return self._give_up(run, error)

    def _write(self, run: RunRow, topic: Topic, go_on: GoOn) -> bool:
        # Loaded where it is needed: it takes memory that other brokers need not spend.
        from catchwater.log.format import parquet

        core = self._core
        footer = read_footer(core.storage.objects, run.object)
        data = core.storage.read(run.object, run.byte_offset, run.byte_size)
        try:
            written, schema = self._as_parquet(run, footer, data, topic, resting(core.clock, go_on))
        except parquet.NotParquet as error:
            return self._give_up(run, error)
        key = parquet.parquet_key(footer, core.clock.token())
        size = core.storage.objects.put_if_absent(key, [written.data])
        row = ObjectRow(key, "parquet", "live", size, core.clock.now_ms())
        copy = ParquetRow(run.object, key, written.records, written.crc, schema)
        try:
            core.catalog.add_parquet(run, copy, row).result()
        except RunsChanged:
            core.storage.objects.delete(key)  # packed, trimmed or deleted while it was written
            return False
        return True

    def _as_parquet(
        self, run: RunRow, footer: Footer, data: bytes, topic: Topic, step: Callable[[], None]
    ) -> tuple["Written", str]:
        """The object's bytes and the schema of its columns of values, empty if it has none."""
        from catchwater.log.format import parquet

        settings = declared(topic)
        if settings is not None:
            try:
                from catchwater.values.typed import StructOfFields

                fields = StructOfFields(settings)
                batches = batches_of(footer, run.object, data)
                written = parquet.write(data, batches, footer, step, fields)
                return written, identity(settings)
            except (BadSchema, ModuleNotFoundError, parquet.NotAsDeclared) as error:
                _LOG.warning("The Parquet of offsets %d to %d of partition %d of %s has no typed "
                             "columns: %s", run.base_offset, run.last_offset, run.partition,
                             topic.name, error)  # fmt: skip
        batches = batches_of(footer, run.object, data)
        return parquet.write(data, batches, footer, step), ""

    def _give_up(self, run: RunRow, error: CatchwaterError) -> bool:
        self._failed.add(run.object)
        _LOG.error(
            "Offsets %d to %d get no Parquet, and are read from their segment: %s",
            run.base_offset, run.last_offset, error,
        )  # fmt: skip
        return False


def resting(clock: Clock, go_on: GoOn) -> Callable[[], None]:
    """What to call between pieces of work: it rests as long as that took, or raises `Stopped`."""
    began_s = clock.monotonic_s()

    def step() -> None:
        nonlocal began_s
        worked_s = clock.monotonic_s() - began_s
        if worked_s < _STRETCH_S:
            return
        if not go_on():
            raise Stopped
        clock.pause(worked_s)
        began_s = clock.monotonic_s()

    return step
