"""What lies in the database and the bucket, looked at directly, and held against what was seen.

An independent reading: the catalog's rows by plain queries, the bytes by the tests' own decoder.
"""

import struct
from collections.abc import Container, Iterable, Mapping

from tests.simulation.clients import Place
from tests.simulation.records import parse
from tests.simulation.txns import Copier
from tests.simulation.world import World

from catchwater.catalog.memory import MemoryCatalog
from catchwater.catalog.rows import RunRow, Session
from catchwater.objects.base import StoreError
from catchwater.wal.open import session_prefix

Seen = Mapping[Place, Mapping[int, str | None]]


class Truth:
    """The state of things at the end of a run; what is wrong is told to the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._catalog = MemoryCatalog(world.database)
        self._topics = {topic.name: topic for topic in self._catalog.load().topics}

    def compare(self, seen: Seen, places: Iterable[Place], compacted: Container[str]) -> None:
        """Every run is readable, offsets have no holes, and readers saw exactly what is there.

        Of compacted topics more may have gone since they were read.
        """
        for place in places:
            stored = self.stored(place)
            there = {offset: value for offset, value in stored.items() if value != MARKER}
            read = seen.get(place, {})
            if place[0] in compacted:
                read = {offset: value for offset, value in read.items() if offset in there}
            if there != read:
                odd = sorted(there.items() ^ read.items())[:4]
                self._world.fail(f"{place}: storage and final polls differ at {odd}")

    def stored(self, place: Place) -> dict[int, str | None]:
        """Offset -> value of a partition, from its objects; markers are `MARKER`."""
        topic = self._topics[place[0]]
        (row,) = self._catalog.partitions([(topic.id, place[1])])
        records: dict[int, str | None] = {}
        expected = row.log_start
        while expected < row.high_watermark:
            runs = self._catalog.runs((topic.id, place[1]), expected)
            if not runs or runs[0].base_offset > expected:
                self._world.fail(f"{place}: no run holds offset {expected}")
                break
            for run in runs:
                if run.base_offset > expected:
                    break
                records |= self._read(place, run)
                expected = run.last_offset + 1
        if expected != row.high_watermark:
            self._world.fail(f"{place}: runs end at {expected}, not at {row.high_watermark}")
        return {offset: value for offset, value in records.items() if offset >= row.log_start}

    def _read(self, place: Place, run: RunRow) -> dict[int, str | None]:
        try:
            data = self._world.bucket.get_range(run.object, run.byte_offset, run.byte_size)
            batches = parse(data)
        except (AssertionError, StoreError, struct.error) as error:
            self._world.fail(f"{place}: run {run.base_offset} in {run.object}: {error!r}")
            return {}
        is_placed = run.object.startswith("segments/")
        found: dict[int, str | None] = {}
        base = run.base_offset
        for batch in batches:
            by = 0 if is_placed else base - batch.base_offset
            if batch.marker is not None:
                found[batch.base_offset + by] = MARKER
            found |= {record.offset + by: record.value for record in batch.records}
            base = batch.last_offset + by + 1
        if not is_placed and base != run.last_offset + 1:
            self._world.fail(f"{place}: run {run.base_offset} holds other offsets than it says")
        return found

    def compare_copies(self, copiers: Iterable[Copier], seen: Seen) -> None:
        """Every record below a copier's committed position was copied exactly once, in order."""
        for copier in copiers:
            commit = self._catalog.committed(copier.group).get(copier.source)
            position = commit.offset if commit else 0
            source = sorted(seen.get(copier.source, {}).items())
            wanted = [value for offset, value in source if offset < position]
            copies = sorted(seen.get(copier.target, {}).items())
            copied = [(value or "").partition(" copied ")[0] for _, value in copies]
            if wanted != copied:
                self._world.fail(
                    f"copier {copier.process} is at {position}: {len(wanted)} records read, "
                    f"{len(copied)} copied"
                )

    def judge_transactions(self) -> None:
        """No transaction is open or half ended."""
        snapshot = self._catalog.load()
        for row in snapshot.open_txns:
            self._world.fail(f"a transaction is still open: {row}")
        for txn in snapshot.txns:
            if txn.state in ("ongoing", "prepare_commit", "prepare_abort"):
                self._world.fail(f"a transaction has not ended: {txn}")

    def judge_objects(self, session: Session | None) -> None:
        """Every object has a row, and every row has its object.

        A session that has committed nothing since its chunks were packed keeps those it wrote in
        vain, for it cannot be told whether they are on their way.
        """
        own = f"wal/{session_prefix(session)}" if session else "none"
        there = {info.key for info in self._world.bucket.list("") if is_data(info.key)}
        there = {key for key in there if not key.startswith(own)}
        known = self._catalog.known_objects(there)
        for key in sorted(there - known)[:3]:
            self._world.fail(f"nobody knows the object {key}, and nobody has swept it")
        rows = {row.key for row in self._catalog.objects("live")}
        for key in sorted(key for key in rows - there if not key.startswith(own))[:3]:
            self._world.fail(f"the catalog has a row for {key}, which is not there")


MARKER = "<marker>"


def is_data(key: str) -> bool:
    return key.startswith(("wal/", "segments/", "parquet/", "staged/"))
