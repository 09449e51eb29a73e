"""How far consumer groups are behind, in records and in seconds, for metrics, page and commands.

Found out when somebody asks, and once for all who ask within some seconds: commits and appends cost
nothing more. Positions come from the catalog in one query, in a thread; the ends from the broker's
own view of the log. The seconds are the age of the record at the committed position, which is read:
from memory at the tail, where most groups are, and of `COLD` positions a look from storage. A place
that was read is not read again. Control batches at the position are passed over, so that a group
that has read all is not one marker behind for ever.

Bounded: `catchwater.metrics.max.lags` positions, the others are counted.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, NamedTuple

from catchwater.broker_config import group_promises
from catchwater.catalog.rows import PartitionKey, Position
from catchwater.wire.batch import next_record

if TYPE_CHECKING:
    from catchwater.broker.broker import Broker

KEPT_S = 2.0
KEPT_FOR_EACH_S = 0.001
"""A look at many positions is kept for longer, by as much a position: some 0.5 % of a core."""
TAIL = 2_000
"""Places at the tail whose time one look finds out; those left are found by the next ones."""
COLD = 20
_AT_ONCE = 50
"""Places that are looked at in one turn of the event loop."""


class Lag(NamedTuple):
    """How far a group is behind in one partition."""

    group: str
    topic: str
    partition: int
    offset: int
    """The committed position."""
    records: int
    seconds: float | None
    """The age of the record at the position, 0 at the end; None: not known."""


class Lags(NamedTuple):
    """What one look has found."""

    lags: Sequence[Lag] = ()
    """By group, topic and partition."""
    left_out: int = 0
    """Positions beyond the bound."""


_Place = tuple[PartitionKey, int]
_Times = dict[_Place, tuple[int, int | None]]
_Unknown = dict[_Place, tuple[int, list[tuple[int, int]]]]
"""Place → the end of its partition, and of each group that stands there: its lag, its position."""
_NOTHING: tuple[int, int | None] = (0, None)


def _behind(at: Position, end: int, known: tuple[int, int | None], now_ms: int) -> Lag:
    """The lag of a position before this end, by the markers and the time that are known of it."""
    markers, time_ms = known
    records = max(0, end - at.offset - markers)
    late_s = None if time_ms is None else max(0, now_ms - time_ms) / 1000
    return Lag(*at, records, late_s if records else 0.0)


class GroupLags:
    """The lags of all groups of one broker's log. Used on its event loop."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._looking = asyncio.Lock()
        self._lags, self._until_s = Lags(), float("-inf")
        self._times: _Times = {}
        """Place → markers that lie there, and the time of the record behind them, ms."""
        config = broker.config
        self.promises: Mapping[str, float] = group_promises(config.catchwater_group_max_staleness)
        """Group → how old the oldest record may be that it has not read, seconds."""

    async def look(self) -> Lags:
        """The lags as they were within the last `KEPT_S`, or longer where there are many; the same
        object until the next look.
        """
        async with self._looking:  # two that ask at once do not cost twice as much
            clock = self._broker.clock
            if clock.monotonic_s() >= self._until_s:
                self._lags = await self._look()
                kept_s = max(KEPT_S, KEPT_FOR_EACH_S * len(self._lags.lags))
                self._until_s = clock.monotonic_s() + kept_s
            return self._lags

    def forget(self) -> None:
        """Have the next look see what was changed just now."""
        self._until_s = float("-inf")

    async def of(self, group: str) -> Mapping[tuple[str, int], Lag]:
        """Those of one group, by topic and partition; as `look`."""
        lags = (await self.look()).lags
        first = bisect_left(lags, group, key=lambda lag: lag.group)
        behind = takewhile(lambda lag: lag.group == group, islice(lags, first, None))
        return {(lag.topic, lag.partition): lag for lag in behind}

    async def _look(self) -> Lags:
        most = self._broker.config.catchwater_metrics_max_lags
        rows, left_out = await self._broker.log.positions(most)
        lags, self._times, unknown = await asyncio.to_thread(self._counted, rows)
        now_ms = self._broker.clock.now_ms()
        for place in await self._find_times(unknown):
            end, theirs = unknown[place]
            for index, row in theirs:
                lags[index] = _behind(rows[row], end, self._times[place], now_ms)
        return Lags(lags, left_out)

    def _counted(self, rows: Sequence[Position]) -> tuple[list[Lag], _Times, _Unknown]:
        """The lags by what is known; the times that are still of use; places without a time.

        Only looks into what the event loop changes: each look is one step of the interpreter.
        """
        log, now_ms, times = self._broker.log, self._broker.clock.now_ms(), self._times
        topics = {topic.name: topic.id for topic in list(log.topics)}
        lags, kept, unknown = list[Lag](), _Times(), _Unknown()
        for row, at in enumerate(rows):
            group, topic, partition, offset = at
            topic_id = topics.get(topic)
            if topic_id is None:
                continue
            key = topic_id, partition
            state = log.state_if_there(key)
            if state is None:
                continue
            end = state.high_watermark
            if end <= offset:
                lags.append(Lag(group, topic, partition, offset, 0, 0.0))
                continue
            place = key, offset
            known = times.get(place, _NOTHING)
            if known is not _NOTHING:
                kept[place] = known
            if known[1] is None:  # where markers were all there was, a record may have come
                unknown.setdefault(place, (end, []))[1].append((len(lags), row))
            lags.append(_behind(at, end, known, now_ms))
        return lags, kept, unknown

    async def _find_times(self, unknown: _Unknown) -> list[_Place]:
        """Read what lies at these places; those of which something was learnt."""
        cold, learnt = COLD, list[_Place]()
        for at, (place, (end, _)) in enumerate(islice(unknown.items(), TAIL)):
            if at % _AT_ONCE == 0:
                await self._broker.clock.sleep(0)  # the turn of others
            key, offset = place
            markers, time_ms = 0, None
            while time_ms is None and offset + markers < end:
                read = self._broker.log.read_now(key, offset + markers, 1, at_least_one=True)
                if read is None and cold:
                    cold -= 1
                    read = await self._broker.log.read(key, offset + markers, 1, at_least_one=True)
                if read is None or not read.parts:
                    break
                more, time_ms = next_record(memoryview(read.parts[0]), offset + markers)
                if not more and time_ms is None:
                    break
                markers += more
            else:
                found = markers, time_ms
                if self._times.get(place) != found:
                    self._times[place] = found
                    learnt.append(place)
        return learnt
