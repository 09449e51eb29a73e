"""A log asked through its catalog alone, without a broker: what there is, and where it lies.

Of a broker alone the data directory is read. What its write-ahead log holds beyond the catalog is
sequenced in memory, as the broker will when it starts, so that those offsets are known; until then
no run holds them, and a plan names them as missing. Of many brokers the catalog's server is asked,
in transactions that can only read. Chunks that are neither in the data directory nor in the object
store (rows of PostgreSQL, files of another machine) are named as missing, too.

Changes nothing and takes no lock: meant for when the brokers are down. Everything blocks.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from catchwater.catalog.base import Catalog
from catchwater.catalog.rows import PartitionKey, RunRow
from catchwater.catalog.sqlite import ReadOnlyCatalog
from catchwater.catalog.topics import Topics
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.log.core import RangeMissing
from catchwater.log.open import open_catalog
from catchwater.log.read.planner import CommittedPlan, Planner
from catchwater.log.read.reader import PlanRange, Reader
from catchwater.log.read.stable import Stability
from catchwater.log.repair.files import LogFiles
from catchwater.log.storage import WAL
from catchwater.log.write.sequence import decoded, replay, states_of, txns_of
from catchwater.objects.base import ObjectMissing
from catchwater.objects.open import check_seal, open_store
from catchwater.values.policy import FIELDS

CATALOG = "catalog.db"
_ALL = 2**31 - 1
_READ_ONLY = "options=-c%20default_transaction_read_only%3Don"


class NoCatalog(CatchwaterError):
    """There is no catalog, or no object store, where one was named."""

    exit_code = 2


class OfflineLog:
    """What a catalog says, as it was when this was made."""

    def __init__(self, catalog: Catalog, stored: LogFiles, *, is_alone: bool) -> None:
        """Use `opened`; the caller of this calls `close`."""
        seen = catalog.load()
        states = states_of(seen)
        if is_alone:
            frames = stored.own_frames(seen.applied_sequence)
            replay(decoded(frames), states, txns_of(seen))
        self._reader = Reader(catalog, stored, tail_bytes=0, lagging_bytes=0)
        stability = Stability(catalog, states, others_write=False)
        self._planner = Planner(Topics(seen.topics), states, self._reader, stability)
        self._out_of_reach = _out_of_reach(catalog, stored)

    def partitions(self) -> list[tuple[str, int]]:
        """Every partition of every topic, in order."""
        return [(t.name, index) for t in self._planner.topics for index in range(t.partitions)]

    def fields(self, topic: str) -> str:
        """What the topic says becomes of its fields."""
        return self._planner.topics.find(topic).config.get(FIELDS, "")

    def span(self, topic: str, partition: int, *, read_committed: bool) -> tuple[int, int]:
        """Where a partition begins and ends; for committed records, at the last stable offset."""
        state = self._planner.states[self._planner.topics.find(topic).id, partition]
        end = state.last_stable_offset if read_committed else state.high_watermark
        return state.log_start, end

    def first_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first record that is not older, if there is one. Raises `Unreadable`."""
        key = (self._planner.topics.find(topic).id, partition)
        found = asyncio.run(self._reader.offset_for_timestamp(key, timestamp_ms))
        return None if found is None else found[0]

    def plan(self, topic: str, ranges: Sequence[tuple[int, int, int]]) -> list[PlanRange]:
        """As `Planner.plan`."""
        self._check_reach(topic, ranges)
        return asyncio.run(self._planner.plan(topic, ranges))

    def plan_committed(self, topic: str, ranges: Sequence[tuple[int, int, int]]) -> CommittedPlan:
        """As `Planner.plan_committed`."""
        self._check_reach(topic, ranges)
        return asyncio.run(self._planner.plan_committed(topic, ranges))

    def close(self) -> None:
        """End the reader's threads."""
        asyncio.run(self._reader.close())

    def _check_reach(self, topic: str, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Raise `RangeMissing` for what lies in chunks that only brokers can read."""
        topic_id = self._planner.topics.find(topic).id
        missing = [
            (partition, max(start, run.base_offset), min(end, run.last_offset + 1))
            for partition, start, end in ranges
            for run in self._out_of_reach.get((topic_id, partition), ())
            if run.base_offset < end and run.last_offset >= start
        ]
        if missing:
            raise RangeMissing(topic, missing)


@contextmanager
def opened(catalog_url: str, objects_url: str, clock: Clock) -> Iterator[OfflineLog]:
    """The log of this catalog: `postgresql://...`, or the data directory of a broker alone.

    `objects_url` may be empty for a data directory with objects of its own. Raises `NoCatalog`,
    `ConfigError`, a `StoreError` where the objects are sealed with other keys than those of the
    environment, and what opening and loading a catalog raises.
    """
    with ExitStack() as open_now:
        is_alone = not catalog_url.startswith(("postgresql://", "postgres://"))
        if is_alone:
            data_dir = _data_dir(catalog_url)
            stored = LogFiles(open_store(objects_url or _objects_in(data_dir), clock), data_dir)
            catalog: Catalog = ReadOnlyCatalog(data_dir / CATALOG)
            open_now.callback(catalog.close)
        else:
            if not objects_url:
                raise NoCatalog(
                    "A catalog in PostgreSQL does not say where the objects lie.",
                    hint="Name their store, as the brokers' catchwater.objects does.",
                )
            mark = "&" if urlsplit(catalog_url).query else "?"
            catalog = open_catalog(f"{catalog_url}{mark}{_READ_ONLY}", clock)
            open_now.callback(catalog.close)
            stored = LogFiles(open_store(objects_url, clock), None)
        check_seal(stored.objects, may_write=False)
        log = OfflineLog(catalog, stored, is_alone=is_alone)
        open_now.callback(log.close)
        yield log


def _data_dir(place: str) -> Path:
    """The data directory of a path or a `file:` URL, which may name the catalog in it."""
    path = Path(unquote(urlsplit(place).path) if place.startswith("file:") else place)
    path = path.parent if path.name == CATALOG else path
    if not (path / CATALOG).is_file():
        raise NoCatalog(
            f"There is no {CATALOG} in {path.absolute()}.",
            hint="Name a broker's log.dirs as this machine sees it, or postgresql://...",
        )
    return path.absolute()


def _objects_in(data_dir: Path) -> str:
    folder = data_dir / "objects"
    if not folder.is_dir():
        raise NoCatalog(
            f"There are no objects in {data_dir}.",
            hint="Name their store, as the broker's catchwater.objects does.",
        )
    return folder.as_uri()


def _out_of_reach(catalog: Catalog, stored: LogFiles) -> dict[PartitionKey, list[RunRow]]:
    """The runs in chunks of write-ahead logs that cannot be read from here, by partition."""
    there: dict[str, bool] = {}
    found: dict[PartitionKey, list[RunRow]] = {}
    for run in catalog.chunk_runs(_ALL):
        if run.object.startswith(WAL):
            if run.object not in there:
                try:
                    there[run.object] = stored.size(run.object) > 0
                except ObjectMissing:
                    there[run.object] = False
            if not there[run.object]:
                found.setdefault((run.topic_id, run.partition), []).append(run)
    return found
