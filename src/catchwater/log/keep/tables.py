"""When topics' tables are written, by which broker, and what the log keeps for them meanwhile.

The holder of a table's lease is the one that writes it, and keeps the lease as long as it lives. A
pin keeps what is not in the table yet; it is set before the first record is read and moved on after
every commit, and goes when the topic has no table any more.

Used on the log's event loop; the work happens in threads (`tables/writer.py`).
"""

import asyncio
import logging
from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from catchwater.broker_config import LogConfig
from catchwater.catalog.errors import CatalogFailure, SessionFenced
from catchwater.catalog.rows import Pin, Topic
from catchwater.config import CatchwaterError
from catchwater.log.core import Core
from catchwater.log.keep.leases import TTL_MS, Leases
from catchwater.log.read.stable import Stability
from catchwater.log.tables.open import TableRefused, TableUnfit
from catchwater.log.tables.settings import (
    COMMIT_INTERVAL,
    COMMIT_INTERVAL_MS,
    TABLE,
    has_table,
    upserts,
)
from catchwater.log.tables.writer import TableWriter
from catchwater.log.topic_settings import COMPACT, cleanup_policies
from catchwater.objects.base import StoreError

if TYPE_CHECKING:
    from catchwater.log.tables.iceberg import Native

_LOG = logging.getLogger(__name__)

PIN = "table/"
"""How the ids of the pins begin; the topic's name follows."""
_SEE_PINS_S = 10.0
ASK_AGAIN_S = 600.0
"""After so long a table with nothing to come is asked all the same: others may have changed it."""


class TableKeeper:
    """The tables of one broker's log."""

    def __init__(self, core: Core, config: LogConfig, leases: Leases) -> None:
        self._core = core
        self._leases = leases
        self.writer = TableWriter(core, config)
        is_shared = core.cluster is not None
        self._stability = Stability(core.catalog, core.states, others_write=is_shared)
        self._written_s: dict[bytes, float] = {}
        """By topic: when its last turn began that brought it up to the log."""
        self._upto: dict[bytes, tuple[float, Topic, Mapping[int, int]]] = {}
        """By topic that its table is up to: when it was last asked, for which settings and ends."""
        self._pinned: dict[bytes, Mapping[tuple[str, int], int]] = {}
        self._pins_seen_s = -_SEE_PINS_S
        self._may_hold = True
        """Whether there may be pins of ours: an earlier broker may have left some."""

    def due(self, now_s: float) -> list[Topic]:
        """The topics whose tables are to be written now."""
        return [
            topic
            for topic in self._core.topics
            if has_table(topic)
            and now_s - self._written_s.get(topic.id, -1e9) >= _interval_ms(topic) / 1000
        ]

    async def write(
        self, topic: Topic, pack: Callable[[Topic], Awaitable[None]], go_on: Callable[[], bool]
    ) -> bool:
        """One turn for a topic's table; whether it is up to the log, or another broker's.

        A table out of reach is logged, and tried again after its interval. Raises what the catalog
        of the log raises.
        """
        now_s = self._core.clock.monotonic_s()
        if not await self._leases.take(f"table/{topic.id.hex()}", TTL_MS + 2 * _interval_ms(topic)):
            self.writer.forget(topic.id)
            self._upto.pop(topic.id, None)
            self._written_s[topic.id] = now_s
            return True
        if topic.id not in self._pinned:
            await self._pin_first(topic)
        await pack(topic)
        ends = {}
        for partition in range(topic.partitions):
            ends[partition] = await self._stability.last_stable_offset((topic.id, partition))
        asked_s, *upto = self._upto.get(topic.id, (-ASK_AGAIN_S,))
        if upto == [topic, ends] and now_s - asked_s < ASK_AGAIN_S:
            self._written_s[topic.id] = now_s  # nothing new costs no question to the table
            return True
        self._upto.pop(topic.id, None)
        try:
            is_done = await asyncio.to_thread(self.writer.advance, topic, ends, go_on)
            if is_done and not self.writer.counts[topic.name].error:
                self._upto[topic.id] = now_s, topic, ends
        except CatchwaterError as error:
            if isinstance(error, StoreError | CatalogFailure | SessionFenced):
                raise
            _LOG.error("The table of %s has to wait: %s", topic.name, error)
            is_done = True
        await self._move_pin(topic)
        if is_done:
            self._written_s[topic.id] = now_s
        return is_done

    async def see_pins(self) -> None:
        """Have tables written again that another broker has rewound: it has moved their pins."""
        now_s = self._core.clock.monotonic_s()
        if not self._upto or now_s - self._pins_seen_s < _SEE_PINS_S:
            return
        self._pins_seen_s = now_s
        pins = {pin.id: pin for pin in await asyncio.to_thread(self._core.catalog.pins)}
        for topic in [upto[1] for upto in self._upto.values()]:
            pin = pins.get(f"{PIN}{topic.name}")
            if pin is None or pin.positions != self._pinned.get(topic.id):
                self._pinned.pop(topic.id, None)
                self.again(topic)

    async def release(self) -> None:
        """Release the pins of topics that have no table any more."""
        tables = [topic for topic in self._core.topics if has_table(topic)]
        if not tables and not self._may_hold:
            return
        self._may_hold = bool(tables)
        wanted = {f"{PIN}{topic.name}" for topic in tables}
        for pin in await asyncio.to_thread(self._core.catalog.pins):
            if pin.id.startswith(PIN) and pin.id not in wanted:
                await wrap_future(self._core.catalog.release_pin(pin.id))
        for topic_id in self._pinned.keys() - {topic.id for topic in tables}:
            del self._pinned[topic_id]
            self._upto.pop(topic_id, None)
            self.writer.forget(topic_id)

    def again(self, topic: Topic) -> None:
        """Have a table written at the next look, whatever its interval."""
        self._written_s.pop(topic.id, None)
        self._upto.pop(topic.id, None)

    async def status(self, topic: Topic) -> dict[str, Any]:
        """What an operator asks of a topic's table.

        Where it cannot be asked itself, `why` says so, and offsets are those that its pin knows.
        """
        written, facts, why = None, {}, ""
        try:
            table, written = await asyncio.to_thread(self.writer.look, topic)
            facts = table.facts() if written else {}
        except CatchwaterError as error:
            if isinstance(error, StoreError | CatalogFailure | SessionFenced):
                raise
            why = str(error)
        offsets = written.offsets if written else {}
        if why:
            held = self._pinned.get(topic.id, {})
            offsets = {partition: at for (_, partition), at in held.items()}
        partitions = []
        for partition in range(topic.partitions):
            key = (topic.id, partition)
            state = self._core.states[key]
            at, end = offsets.get(partition), await self._stability.last_stable_offset(key)
            behind = end - (state.log_start if at is None else max(at, state.log_start))
            partitions.append(
                {"partition": partition, "next_offset": at, "log_start": state.log_start,
                 "end": end, "behind": max(0, behind)}
            )  # fmt: skip
        counts = self.writer.counts.get(topic.name)
        return {
            "topic": topic.name,
            "table": topic.config[TABLE],
            "is_there": written is not None,
            "why": why,
            **facts,
            "partitions": partitions,
            "gaps": [list(gap) for gap in written.gaps] if written else [],
            "here": asdict(counts) if counts else None,
        }

    async def native(
        self,
        topic: Topic,
        wanted: Mapping[int, tuple[int, int]],
        *,
        as_bytes: bool,
        by_url: bool = False,
    ) -> "Native | None":
        """Files that stand for these offsets as far as the table has them; None: it has none.

        With `by_url` they are named as anybody can read them. Raises as `status`; and `TableUnfit`
        also for a compacted topic, whose table has versions that the log has no more, and for a
        table that has only the newest of each key.
        """
        if COMPACT in cleanup_policies(topic) or upserts(topic):
            raise TableUnfit(
                f"{topic.name} is compacted, or its table has only the newest row of each key."
            )

        def look() -> "Native | None":
            table, written = self.writer.look(topic)
            found = table.native(wanted, as_bytes=as_bytes) if written else None
            return table.by_url(found) if by_url and found is not None else found

        return await asyncio.to_thread(look)

    async def rewind(
        self, topic: Topic, offsets: Mapping[int, int] | None, *, dry_run: bool
    ) -> dict[str, Any]:
        """Delete the table's rows from these offsets on, or from where the log begins; to be called
        where no turn is under way.

        They are written again from the log, which has to have them: raises `TableRefused`
        otherwise, and what `status` raises.
        """
        table, written = await asyncio.to_thread(self.writer.look, topic)
        if written is None:
            raise TableRefused(
                f"The table {table.settings.name} of {topic.name} is not there yet.",
                hint="It is made with its first commit.",
            )
        async with self._leases.pins():
            starts = {p: self._core.states[topic.id, p].log_start for p in range(topic.partitions)}
            wanted = {**starts} if offsets is None else dict(offsets)
            _check_offsets(topic, wanted, starts, written.offsets)
            back = {p: at for p, at in wanted.items() if at < written.offsets.get(p, 0)}
            said = {
                "table": table.settings.name,
                "rows": await asyncio.to_thread(table.behind, back),
                "partitions": [
                    {"partition": p, "from": written.offsets[p], "to": at}
                    for p, at in sorted(back.items())
                ],
            }
            if dry_run or not back:
                return said
            # The pin first: what is deleted from the table is in the log until it is back.
            held = dict(self._pinned.get(topic.id, {}))
            held |= {(topic.name, p): at for p, at in (written.offsets | back).items()}
            await self._pin(topic, held)
        await asyncio.to_thread(table.rewind, back)
        self.again(topic)
        return said

    def close(self) -> None:
        """Let go of the tables' catalog."""
        self.writer.close()

    async def _pin_first(self, topic: Topic) -> None:
        """Know the pin of an earlier broker, or set one where the log begins."""
        name = f"{PIN}{topic.name}"
        async with self._leases.pins():
            pins = await asyncio.to_thread(self._core.catalog.pins)
            found = next((pin for pin in pins if pin.id == name), None)
            if found is None:
                states = {p: self._core.states.get((topic.id, p)) for p in range(topic.partitions)}
                starts = {(topic.name, p): s.log_start for p, s in states.items() if s}
                await self._pin(topic, starts)
            else:
                self._pinned[topic.id] = found.positions

    async def _move_pin(self, topic: Topic) -> None:
        reached = self.writer.positions(topic)
        before = self._pinned.get(topic.id, {})
        wanted = {**before, **{(topic.name, partition): at for partition, at in reached.items()}}
        if wanted != before:
            await self._pin(topic, wanted)

    async def _pin(self, topic: Topic, positions: Mapping[tuple[str, int], int]) -> None:
        owner = f"the table of {topic.name}"
        pin = Pin(f"{PIN}{topic.name}", owner, positions, None, self._core.clock.now_ms())
        await wrap_future(self._core.catalog.set_pin(pin))
        self._pinned[topic.id] = positions


def _check_offsets(
    topic: Topic, wanted: Mapping[int, int], starts: Mapping[int, int], there: Mapping[int, int]
) -> None:
    """Raise `TableRefused` for offsets that the log could not give again, or that are ahead."""
    for partition, at in sorted(wanted.items()):
        if partition not in starts:
            raise TableRefused(f"{topic.name} has no partition {partition}.")
        if at < starts[partition]:
            raise TableRefused(
                f"The log of {topic.name} begins at offset {starts[partition]} of partition "
                f"{partition}: rows from {at} on could not be written again.",
                hint="Name a later offset, or rebuild, which keeps what the log no longer has.",
            )
        if at > there.get(partition, starts[partition]):
            raise TableRefused(
                f"The table stands at offset {there.get(partition, starts[partition])} of "
                f"partition {partition} of {topic.name}, before {at}.",
                hint="A table is only rewound; it moves on by itself.",
            )


def _interval_ms(topic: Topic) -> int:
    return int(topic.config.get(COMMIT_INTERVAL, COMMIT_INTERVAL_MS))
