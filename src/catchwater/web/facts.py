"""What a broker knows, asked for a page: totals of topics, groups, transactions, times, pins.

Looking at ten thousand partitions takes some milliseconds, so it happens in slices between which
the event loop serves others, and what was found serves every page for `FRESH_S`. The catalog is
asked in threads. Nothing is decided here.
"""

import asyncio
import resource
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from prometheus_client.registry import Collector

from catchwater.audit import Line as AuditLine
from catchwater.audit import files
from catchwater.broker.broker import Broker
from catchwater.broker.lags import Lag, Lags
from catchwater.broker.metrics import SECONDS
from catchwater.broker.metrics import Times as Counted
from catchwater.catalog.errors import CatalogUnavailable
from catchwater.catalog.rows import BrokerRow, OpenTxnRow, Pin, ReportRow, StorageRow, Topic, TxnRow
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.log.tables.settings import has_table
from catchwater.objects.retry import BUCKETS_S, RequestCounts
from catchwater.verdicts import Freshness, PipelineStatus, Verdict, as_seen
from catchwater.verdicts import Lag as PipelineLag
from catchwater.wal.base import WalDescription

T = TypeVar("T")

FRESH_S = 2.0
_SHARE, _LONGEST_FRESH_S = 0.0025, 10.0
"""Looking at all partitions takes at most that share of the time; no look is older than that."""
_NEW_S = 0.2
"""What is not known by its name is looked for again, unless there was a look as lately as that."""
_LATELY_S = 30.0
"""A rate over more than that says nothing of the present."""
MAX_GROUPS = 1_000
_AUDIT_BYTES = 256 * 1024
_TABLE_FRESH_S = 15.0
_MOST_TABLES = 100
_STORED = ("segments", "parquet", "staged")
"""Objects that hold records, by the first part of their keys."""
_GROUPS_AT_ONCE = 100
_AT_ONCE = 500
"""Partitions that are looked at in one turn of the event loop."""


class TopicFact(NamedTuple):
    """A topic and the sums of its partitions."""

    name: str
    partitions: int
    records: int
    """Offsets between log starts and high watermarks."""
    appended: int
    """The sum of the high watermarks: it grows by what is written."""
    size_bytes: int
    earliest_ms: int
    """Timestamp of the oldest batch; -1: it holds nothing."""
    settings: Mapping[str, str]
    per_s: float | None = None
    """Records appended a second, since the look before; None: nobody has looked lately."""


class PartitionFact(NamedTuple):
    """One partition, and where its bytes lie."""

    partition: int
    log_start: int
    high_watermark: int
    stable: int
    size_bytes: int
    earliest_ms: int
    chunk_bytes: int
    segment_bytes: int
    runs: int


class TableFact(NamedTuple):
    """How a topic stands as an Iceberg table; `rows`, `files` and `size_bytes` of the table."""

    name: str
    is_there: bool
    """Whether anything was committed to it."""
    rows: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    committed_ms: int | None = None
    behind: int | None = None
    """Records of the log that it does not have yet; None: not known."""
    gaps: int | None = None
    """Ranges of offsets that it will never have; None: not known."""
    problem: str = ""
    """What it waits for."""


class MemberFact(NamedTuple):
    """A member of a group; partitions as "topic-0"."""

    id: str
    client_id: str
    host: str
    instance_id: str
    partitions: Sequence[str]


class PositionFact(NamedTuple):
    """Where a group stands in a partition."""

    topic: str
    partition: int
    position: int
    end: int
    lag: int
    lag_s: float | None
    """Age of the record that comes next; None: nobody knows."""
    committed_ms: int


class GroupFact(NamedTuple):
    """A group and the sums of its positions."""

    name: str
    state: str
    """As Kafka names it; empty: another broker coordinates it, or nobody does."""
    protocol: str
    members: int
    partitions: int
    topics: int
    lag: int
    lag_s: float | None
    lags: Mapping[str, int] = {}
    """By topic, records."""
    promise_s: float | None = None
    """How old the oldest record may be that it has not read; None: nothing was promised."""


class Times(NamedTuple):
    """A histogram of seconds: upper bounds, and how many were at most that, from the start on."""

    bounds: Sequence[float]
    counts: Sequence[float]

    def since(self, before: "Times | None") -> "Times":
        """Only what came after."""
        if before is None or len(before.counts) != len(self.counts):
            return self
        rest = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        return Times(self.bounds, rest)

    @property
    def total(self) -> float:
        """How many there were."""
        return self.counts[-1] if self.counts else 0

    def quantile(self, share: float) -> float | None:
        """The upper bound of the bucket that this share lies in; None: there was nothing.

        What is above all bounds is the last of them.
        """
        wanted = share * self.total
        if not self.total:
            return None
        at = next(at for at, count in enumerate(self.counts) if count >= wanted)
        return self.bounds[min(at, len(self.bounds) - 2)]


class BrokerFact(NamedTuple):
    """This broker's own numbers, counted from its start."""

    cpu_s: float
    bytes_in: int
    bytes_out: int
    planned_bytes: float
    """Of storage, which Spark reads past the brokers: input of pipelines, and replays."""
    lagging_bytes: float
    """Read from storage for clients that lag behind."""
    connections: int
    unflushed_bytes: int
    produce: Times
    fetch: Times
    queue: Times
    fsync: Times
    loop_lag: Times
    store: Mapping[tuple[str, str], int]
    """(operation, outcome) -> requests to the object store; empty: it is a folder."""
    refused: Mapping[str, float]
    """Error name -> batches that were not appended."""
    txn_open: int
    txn_errors: float
    puts: Times
    """Of objects; nothing, where the store is a folder."""
    tail_reads: int
    storage_reads: int
    appended_bytes: int
    written_bytes: Mapping[str, float]
    """For those, by what they were written to."""


class _Cached(Generic[T]):
    """The outcome of a look, good for a while; those who ask meanwhile wait for the same one.

    With `longest_s` one that takes long is good for longer, up to that.
    """

    def __init__(self, clock: Clock, fresh_s: float, longest_s: float = 0.0) -> None:
        self._clock = clock
        self._fresh_s = fresh_s
        self._longest_s = longest_s
        self._took_s = 0.0
        self._looking = asyncio.Lock()
        self._at_s = -1e9
        self._value: T | None = None

    async def get(
        self, look: Callable[[T | None], Awaitable[T]], fresh_s: float | None = None
    ) -> T:
        async with self._looking:
            if fresh_s is None:
                fresh_s = max(self._fresh_s, min(self._took_s / _SHARE, self._longest_s))
            began_s = self._clock.monotonic_s()
            if self._value is None or began_s - self._at_s >= fresh_s:
                self._value = await look(self._value)
                self._at_s = self._clock.monotonic_s()
                self._took_s = self._at_s - began_s
            return self._value

    def forget(self) -> None:
        """Look again when somebody asks."""
        self._at_s = -1e9


class _Tally(NamedTuple):
    at_s: float
    topics: Mapping[str, TopicFact]


class Facts:
    """Asks one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._log = broker.log
        self._topics: _Cached[_Tally] = _Cached(broker.clock, FRESH_S, _LONGEST_FRESH_S)
        self._reports: _Cached[list[PipelineStatus]] = _Cached(broker.clock, FRESH_S / 2)
        self._groups: _Cached[list[GroupFact]] = _Cached(broker.clock, 2 * FRESH_S)
        self._wal_age: _Cached[float] = _Cached(broker.clock, FRESH_S)
        self._tables: dict[bytes, _Cached[TableFact]] = {}
        self._summed: Lags | None = None
        self._group_sums: Mapping[str, _GroupSum] = {}

    @property
    def now_ms(self) -> int:
        """Now, by the broker's clock."""
        return self.broker.clock.now_ms()

    # --- topics ----------------------------------------------------------------------------------

    async def topics(self) -> Iterable[TopicFact]:
        """Every topic."""
        return (await self._topics.get(self._look_at_topics)).topics.values()

    async def topic(self, name: str) -> TopicFact | None:
        """One topic, also one that was made just now."""
        for fresh_s in (None, _NEW_S):
            found = (await self._topics.get(self._look_at_topics, fresh_s)).topics.get(name)
            if found is not None:
                return found
        return None

    async def _look_at_topics(self, before: _Tally | None) -> _Tally:
        at_s, found, seen = self.broker.clock.monotonic_s(), {}, 0
        for topic in list(self._log.topics):
            found[topic.name] = self._sum(topic)
            seen += topic.partitions
            if seen >= _AT_ONCE:
                seen = 0
                await self.broker.clock.sleep(0)
        if before is not None and at_s - before.at_s <= _LATELY_S:
            over_s = max(0.001, at_s - before.at_s)
            for name, fact in found.items():
                then = before.topics.get(name)
                grown = fact.appended - (then.appended if then else 0)
                found[name] = fact._replace(per_s=max(0.0, grown / over_s))
        return _Tally(at_s, found)

    def _sum(self, topic: Topic) -> TopicFact:
        records = appended = size_bytes = 0
        earliest_ms = -1
        for index in range(topic.partitions):
            try:
                state = self._log.state((topic.id, index))
            except KeyError:  # it was deleted just now
                continue
            records += state.high_watermark - state.log_start
            appended += state.high_watermark
            size_bytes += state.bytes
            oldest = state.earliest_timestamp
            if oldest >= 0 and (oldest < earliest_ms or earliest_ms < 0):
                earliest_ms = oldest
        return TopicFact(
            topic.name, topic.partitions, records, appended, size_bytes, earliest_ms, topic.config
        )

    async def partitions(self, topic: Topic) -> list[PartitionFact]:
        """The partitions of a topic, with where their bytes lie."""
        places = {row.partition: row for row in await self._log.storage(topic.name)}
        found = []
        for index in range(topic.partitions):
            if index % _AT_ONCE == _AT_ONCE - 1:
                await self.broker.clock.sleep(0)
            state = self._log.state((topic.id, index))
            place = places.get(index, StorageRow(index, 0, 0, 0))
            found.append(
                PartitionFact(
                    index, state.log_start, state.high_watermark, state.last_stable_offset,
                    state.bytes, state.earliest_timestamp, place.chunk_bytes, place.segment_bytes,
                    place.runs,
                )
            )  # fmt: skip
        return found

    async def table(self, topic: Topic) -> TableFact | None:
        """How the topic stands as a table; None if it is none. Asks the table's catalog."""
        if not has_table(topic):
            return None
        if topic.id not in self._tables and len(self._tables) >= _MOST_TABLES:
            self._tables.clear()
        kept = self._tables.setdefault(topic.id, _Cached(self.broker.clock, _TABLE_FRESH_S))
        return await kept.get(lambda _: self._look_at_table(topic))

    async def _look_at_table(self, topic: Topic) -> TableFact:
        try:
            found = await self._log.keeping.tables.status(topic)
        except CatchwaterError as error:
            return TableFact("unknown", False, problem=str(error))
        here = found["here"] or {}
        if found["why"]:
            behind = sum(each["behind"] for each in found["partitions"])
            return TableFact(found["table"], False, behind=behind, problem=found["why"])
        return TableFact(
            found["table"], found["is_there"], found.get("rows"), found.get("files"),
            found.get("bytes"), found.get("committed_ms"),
            sum(each["behind"] for each in found["partitions"]), len(found["gaps"]),
            here.get("error", ""),
        )  # fmt: skip

    # --- groups ----------------------------------------------------------------------------------

    async def groups(self) -> list[GroupFact]:
        """Groups with members or positions, `catchwater.metrics.max.groups` at most."""
        return await self._groups.get(self._look_at_groups)

    async def group(self, name: str) -> GroupFact | None:
        """One group, also one that came just now."""
        for fresh_s in (None, _NEW_S):
            for found in await self._groups.get(self._look_at_groups, fresh_s):
                if found.name == name:
                    return found
        return None

    def forget_groups(self) -> None:
        """Have the next look see what was changed just now."""
        self.broker.lags.forget()
        self._groups.forget()

    async def _look_at_groups(self, before: list[GroupFact] | None) -> list[GroupFact]:
        held, promises = self.broker.groups, self.broker.lags.promises
        sums = await self._sums()
        names = {*held.groups, *held.consumer_groups, *sums}
        found = []
        for at, name in enumerate(islice(sorted(names), MAX_GROUPS)):
            if at % _GROUPS_AT_ONCE == _GROUPS_AT_ONCE - 1:
                await self.broker.clock.sleep(0)
            state, protocol, members = self._state(name)
            partitions, by_topic, lag_s = sums.get(name, (0, {}, 0.0))
            promise_s = promises.get(name, promises.get("*"))
            fact = GroupFact(
                name, state, protocol, members, partitions, len(by_topic), sum(by_topic.values()),
                lag_s, by_topic, promise_s,
            )  # fmt: skip
            found.append(fact)
        return found

    async def _sums(self) -> Mapping[str, "_GroupSum"]:
        """By group; of lags that were summed up already, what was found then."""
        found = await self.broker.lags.look()
        if self._summed is not found:
            self._group_sums, self._summed = _sums_of(found.lags), found
        return self._group_sums

    async def positions(self, group: str) -> list[PositionFact]:
        """Where a group stands, partition by partition."""
        found = []
        lags = await self.broker.lags.of(group)
        for (name, partition), commit in sorted((await self._log.committed(group)).items()):
            lag, topic = lags.get((name, partition)), self._log.topics.get(name)
            if lag is not None and topic is not None:
                state = self._log.state_if_there((topic.id, partition))
                end = commit.offset if state is None else state.high_watermark
                found.append(
                    PositionFact(
                        name, partition, commit.offset, end, lag.records, lag.seconds,
                        commit.committed_ms,
                    )
                )  # fmt: skip
        return found

    def _state(self, name: str) -> tuple[str, str, int]:
        classic, consumer = self._held(name)
        if consumer is not None:
            return consumer.state.value, "consumer", len(consumer.members)
        if classic is not None:
            return classic.state.value, classic.protocol_type or "", len(classic.members)
        return ("" if self._log.is_shared else "Empty"), "", 0

    def _held(self, name: str) -> tuple[Any, Any]:
        classic = self.broker.groups.groups.get(name)
        consumer = self.broker.groups.consumer_groups.get(name)
        if classic is not None and classic.members:
            consumer = None
        return classic, consumer

    def members(self, name: str) -> list[MemberFact]:
        """The members of a group that this broker coordinates."""
        classic, consumer = self._held(name)
        if consumer is not None:
            return [
                MemberFact(
                    each.id, each.client_id, each.client_host, each.instance_id or "",
                    sorted(f"{self._log.topics.name_of(topic) or '?'}-{partition}"
                           for topic, partition in each.standing.assigned),
                )
                for each in consumer.members.values()
            ]  # fmt: skip
        members = classic.members.values() if classic is not None else ()
        return [
            MemberFact(each.id, each.client_id, each.client_host, each.instance_id or "", ())
            for each in members
        ]

    # --- pipelines -------------------------------------------------------------------------------

    async def reports(self) -> list[PipelineStatus]:
        """What each pipeline last said of itself, as it may be shown now; by name."""
        return await self._reports.get(self._look_at_reports)

    async def report(self, name: str) -> PipelineStatus | None:
        """What one pipeline last said of itself, also one that has just begun."""
        for fresh_s in (None, _NEW_S):
            for found in await self._reports.get(self._look_at_reports, fresh_s):
                if found.name == name:
                    return found
        return None

    async def _look_at_reports(self, before: object) -> list[PipelineStatus]:
        rows, now_ms = await self._log.reports(), self.now_ms
        return await asyncio.to_thread(lambda: [report_of(row, now_ms) for row in rows])

    # --- transactions, pins, brokers -------------------------------------------------------------

    async def transactions(self) -> list[TxnRow]:
        """All transactional ids."""
        return await self._log.txns.rows()

    async def open_on(self, producer_id: int) -> list[OpenTxnRow]:
        """Where a producer's transaction is open."""
        return await self._log.txns.open_on(producer_id)

    async def pins(self) -> list[Pin]:
        """What keeps the log from deleting."""
        return await self._log.pins()

    async def audit(self) -> list[AuditLine] | None:
        """The newest lines of this broker's audit trail, newest first; None: it keeps none."""
        folder = self.broker.config.audit_folder
        return None if folder is None else await asyncio.to_thread(newest_lines, folder)

    def brokers(self) -> Sequence[BrokerRow]:
        """The live brokers."""
        return self.broker.brokers

    def wal(self) -> WalDescription:
        """The write-ahead log."""
        return self._log.describe_wal()

    async def wal_age_s(self) -> float | None:
        """For how long the oldest bytes wait to be packed; None: the catalog is away."""
        try:
            return await self._wal_age.get(lambda _: self._log.keeping.wal_age_s())
        except CatalogUnavailable:
            return None

    def objects_url(self) -> str:
        """Where objects lie."""
        return self._log.objects.url()

    def broker_now(self) -> BrokerFact:
        """This broker's own numbers."""
        metrics = self.broker.metrics
        used = resource.getrusage(resource.RUSAGE_SELF)
        requests = metrics.request_seconds
        store: RequestCounts | None = getattr(self._log.objects, "requests", None)
        written = self._log.written
        stored = {} if store is None else {kind: store.stored[kind] for kind in _STORED}
        return BrokerFact(
            cpu_s=used.ru_utime + used.ru_stime,
            bytes_in=metrics.bytes_in.total,
            bytes_out=metrics.bytes_out.total,
            planned_bytes=sum(_labelled(metrics.planned_bytes).values()),
            lagging_bytes=sum(_labelled(metrics.lagging_bytes).values()),
            connections=round(sum(_values(metrics.connections))),
            unflushed_bytes=self._log.unflushed_bytes,
            produce=_times(requests.of("Produce")),
            fetch=_times(requests.of("Fetch")),
            queue=_times(metrics.request_queue_seconds),
            fsync=_times(metrics.wal_fsync_seconds),
            loop_lag=_times(metrics.loop_lag_seconds),
            store={} if store is None else store.snapshot(),
            refused=_labelled(metrics.batches_refused),
            txn_open=self._log.txns.open_count,
            txn_errors=sum(_labelled(metrics.txn_errors).values()),
            puts=_puts(store),
            tail_reads=self._log.reads.tail,
            storage_reads=self._log.reads.storage,
            appended_bytes=written.batches,
            written_bytes={"WAL": written.wal, **stored},
        )


def newest_lines(folder: Path) -> list[AuditLine]:
    """The end of a trail's newest file, newest first; a line that is cut short is left out."""
    found: list[AuditLine] = []
    for path in files(folder)[-1:]:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _AUDIT_BYTES))
            for data in file.read().splitlines():
                with suppress(msgspec.DecodeError, UnicodeDecodeError):
                    found.append(msgspec.json.decode(data, type=AuditLine))
    return found[::-1]


def report_of(row: ReportRow, now_ms: int) -> PipelineStatus:
    """A report that was kept; of one that cannot be read all is unknown."""
    age_s = max(0, now_ms - row.received_ms) / 1000
    try:
        seen = as_seen(msgspec.json.decode(row.report, type=dict[str, Any]), age_s)
        report = msgspec.convert(seen, PipelineStatus)
        # By the clock of the broker that took it, as ages on the page are.
        return msgspec.structs.replace(report, reported_ms=row.received_ms)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        unknown = Verdict("unknown", f"Its report cannot be read: {problem}.", "")
        return PipelineStatus(
            row.name, "unknown", unknown, unknown, unknown, row.received_ms, "",
            PipelineLag(unknown="its report cannot be read"), Freshness(0.0, False),
        )  # fmt: skip


class _GroupSum(NamedTuple):
    partitions: int
    by_topic: dict[str, int]
    """Records behind."""
    lag_s: float | None
    """The largest; None where that of a partition is not known."""


def _sums_of(lags: Iterable[Lag]) -> dict[str, _GroupSum]:
    """`lags` are in the order of their groups."""
    found = {}
    for name, group in groupby(lags, key=lambda lag: lag.group):
        partitions, by_topic, oldest_s = 0, dict[str, int](), 0.0
        is_known = True
        for _, topic, _, _, records, late_s in group:
            partitions += 1
            by_topic[topic] = by_topic.get(topic, 0) + records
            if late_s is None:
                is_known = False
            elif late_s > oldest_s:
                oldest_s = late_s
        found[name] = _GroupSum(partitions, by_topic, oldest_s if is_known else None)
    return found


def _times(kept: Counted | Collector) -> Times:
    """What a histogram has counted, whichever of the two kinds it is."""
    if isinstance(kept, Counted):
        return Times([*SECONDS, float("inf")], list(accumulate(kept.counts)))
    samples = [
        sample
        for family in kept.collect()
        for sample in family.samples
        if sample.name.endswith("_bucket")
    ]
    return Times([float(s.labels["le"]) for s in samples], [s.value for s in samples])


def _puts(store: RequestCounts | None) -> Times:
    counts = store.times().get("put", ((), 0.0))[0] if store is not None else ()
    return Times([*BUCKETS_S, float("inf")], list(accumulate(counts)))


def _values(collector: Collector) -> list[float]:
    return [sample.value for family in collector.collect() for sample in family.samples]


def _labelled(counter: Collector) -> Mapping[str, float]:
    found: Counter[str] = Counter()
    for family in counter.collect():
        for sample in family.samples:
            if sample.name.endswith("_total") and sample.value:
                found["/".join(sample.labels.values())] += sample.value  # type: ignore[assignment]
    return found
