"""What may be deleted, and its deletion.

Retention moves a partition's log start up over whole runs that are too old or too many, and never
past a pin that is in force. Deletion then follows in two steps, so that a reader who looked an
object up just before still finds it: an object no run lies in is marked in the catalog, and its
bytes go after a grace. The same sweep takes what packing and deleted topics leave behind, and
objects that a crash left without a row.

`log_start_after` and `pinned_offsets` are pure. The rest blocks, and runs in threads.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from catchwater.catalog.base import (
    Catalog,
)
from catchwater.catalog.rows import (
    PartitionKey,
    Pin,
    RunRow,
    Topic,
)
from catchwater.clock import Clock
from catchwater.log.storage import SEGMENTS, STAGED, WAL, Storage
from catchwater.log.write.sequence import PartitionState

_KEYS_A_LOOKUP = 500


@dataclass(frozen=True, slots=True)
class Policy:
    """How long and how much a topic keeps; -1 = without limit."""

    retention_ms: int
    retention_bytes: int
    """Of each partition, as in Kafka."""

    def of(self, topic: Topic) -> "Policy":
        """This policy with what the topic's own `retention.ms` and `retention.bytes` say."""
        return Policy(
            int(topic.config.get("retention.ms", self.retention_ms)),
            int(topic.config.get("retention.bytes", self.retention_bytes)),
        )

    def deletes_nothing(self, state: PartitionState, now_ms: int) -> bool:
        """Whether the partition's totals alone tell that every run stays."""
        return not self._too_old(state.earliest_timestamp, now_ms) and (
            self.retention_bytes < 0 or state.bytes <= self.retention_bytes
        )

    def deletes(self, run: RunRow, partition_bytes: int, now_ms: int) -> bool:
        """Whether the oldest run goes from a partition that holds so many bytes with it.

        By age once its newest record is too old (never, if it bears no time); by size as long
        as what stays is not less than the limit.
        """
        too_many = 0 <= self.retention_bytes <= partition_bytes - run.byte_size
        return too_many or self._too_old(run.max_timestamp, now_ms)

    def _too_old(self, timestamp_ms: int, now_ms: int) -> bool:
        return self.retention_ms >= 0 and 0 <= timestamp_ms < now_ms - self.retention_ms


def log_start_after(
    runs: Iterable[RunRow], state: PartitionState, policy: Policy, pinned: int | None, now_ms: int
) -> int:
    """Where a partition begins once retention has been applied to its runs, oldest first.

    The run that holds the `pinned` offset stays, and all after it.
    """
    log_start, kept_bytes = state.log_start, state.bytes
    for run in runs:
        held = pinned is not None and run.last_offset >= pinned
        if held or not policy.deletes(run, kept_bytes, now_ms):
            break
        log_start = run.last_offset + 1
        kept_bytes -= run.byte_size
    return log_start


def pinned_offsets(pins: Iterable[Pin], now_ms: int) -> dict[tuple[str, int], int]:
    """The lowest offset per (topic name, partition) that a pin in force holds.

    A pin is in force until its lease ends; one without a lease until it is released.
    """
    lowest: dict[tuple[str, int], int] = {}
    for pin in pins:
        if pin.lease_until_ms is None or pin.lease_until_ms > now_ms:
            for place, offset in pin.positions.items():
                lowest[place] = min(offset, lowest.get(place, offset))
    return lowest


class Retention:
    """Applies the topics' policies. Used on the log's event loop.

    `pins_change` is held from the look at the pins until the log starts have moved; whoever sets
    a pin holds it too, so a pin is either seen here or set after, against the new log start.
    """

    def __init__(
        self,
        catalog: Catalog,
        topics: Iterable[Topic],
        state: Callable[[PartitionKey], PartitionState],
        trim: Callable[[Mapping[PartitionKey, int]], Awaitable[None]],
        pins_change: asyncio.Lock,
        clock: Clock,
        default: Policy,
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._state = state
        self._trim = trim
        self._pins_change = pins_change
        self._clock = clock
        self._default = default

    async def apply(self) -> int:
        """Trim every partition that has something to delete; return how many were trimmed."""
        now_ms = self._clock.now_ms()
        async with self._pins_change:
            work = [
                (topic, key, self._state(key))
                for topic in self._topics
                for key in ((topic.id, partition) for partition in range(topic.partitions))
                if not self._default.of(topic).deletes_nothing(self._state(key), now_ms)
            ]
            if not work:
                return 0
            log_starts = await asyncio.to_thread(self._choose, work, now_ms)
            if log_starts:
                await self._trim(log_starts)
            return len(log_starts)

    def _choose(
        self, work: list[tuple[Topic, PartitionKey, PartitionState]], now_ms: int
    ) -> dict[PartitionKey, int]:
        pinned = pinned_offsets(self._catalog.pins(), now_ms)
        log_starts = {}
        for topic, key, state in work:
            log_start = log_start_after(
                self._runs(key), state, self._default.of(topic), pinned.get((topic.name, key[1])),
                now_ms,
            )  # fmt: skip
            if log_start > state.log_start:
                log_starts[key] = log_start
        return log_starts

    def _runs(self, key: PartitionKey) -> Iterator[RunRow]:
        """All runs of the partition, a few at a time: most often only the first is looked at."""
        offset = 0
        while runs := self._catalog.runs(key, offset, limit=100):
            yield from runs
            offset = runs[-1].last_offset + 1


class Sweeper:
    """Deletes the bytes of what nobody refers to any more. Blocks; used in one thread."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        clock: Clock,
        *,
        grace_ms: int,
        orphan_grace_ms: int,
        applied_sequence: Callable[[], int],
    ) -> None:
        """`grace_ms` is how long bytes stay after their object was marked.

        `orphan_grace_ms` is how old an object without a row may be: longer than any sink epoch
        takes from its first staged chunk to its commit. `applied_sequence` is the last WAL frame
        whose runs were handed to the catalog.
        """
        self._catalog = catalog
        self._storage = storage
        self._clock = clock
        self._grace_ms = grace_ms
        self._orphan_grace_ms = orphan_grace_ms
        self._applied_sequence = applied_sequence
        # Since when we know that an object is marked; after a restart the grace begins anew.
        self._marked_ms: dict[str, int] = {}

    def sweep(self) -> int:
        """Mark what no run lies in and delete what was marked a grace ago; return how many.

        Raises `StoreError`, `CatalogFull` or `CatalogDead`; what is left is found the next time.
        """
        finished = self._finished_wal_files()
        unused = {row.key for row in self._catalog.objects("live", unreferenced=True)}
        unused = {key for key in unused if not key.startswith(WAL) or key in finished}
        self._catalog.mark_deleting(unused).result()
        self._catalog.flush().result()  # from here on no restart needs the finished files
        for key in finished - self._known(finished):
            self._storage.delete(key)  # nothing in it was ever appended to a partition
        return self._delete_marked()

    def sweep_orphans(self) -> int:
        """Delete objects without a row that are older than the grace; return how many.

        They are segments and staged chunks that a crash left before their commit.
        """
        before_ms = self._clock.now_ms() - self._orphan_grace_ms
        old = {
            info.key
            for prefix in (SEGMENTS, STAGED)
            for info in self._storage.objects.list(prefix)
            if info.modified_ms < before_ms
        }
        orphans = old - self._known(old)
        for key in orphans:
            self._storage.delete(key)
        return len(orphans)

    def _finished_wal_files(self) -> set[str]:
        """WAL files that are not written to any more and whose every frame was applied."""
        applied = self._applied_sequence()
        files = self._storage.wal.files()
        return {
            file.name
            for file, following in pairwise(files)
            if following.first_sequence <= applied + 1
        }

    def _delete_marked(self) -> int:
        now_ms = self._clock.now_ms()
        marked = {row.key for row in self._catalog.objects("deleting")}
        self._marked_ms = {key: self._marked_ms.get(key, now_ms) for key in marked}
        due = [
            key for key, since_ms in self._marked_ms.items() if now_ms - since_ms >= self._grace_ms
        ]
        for key in due:
            self._storage.delete(key)
        if due:
            self._catalog.forget_objects(due).result()
        return len(due)

    def _known(self, keys: Iterable[str]) -> set[str]:
        wanted = sorted(keys)
        found: set[str] = set()
        for first in range(0, len(wanted), _KEYS_A_LOOKUP):
            found |= self._catalog.known_objects(wanted[first : first + _KEYS_A_LOOKUP])
        return found
