"""What a query reads: its partitions, their offsets, and the tasks that bring them. No Spark.

Names, offsets and timestamps come over the Kafka protocol from any Kafka. Where the bytes lie comes
from the control API if the log is ours and storage is to be read; else every slice is left to be
fetched from its leader. Where a catalog is named, it answers both, and no broker is needed. What
the log has deleted comes from the topic's table, where that holds the records' own bytes.

Relies on `options` for what is wanted. Promises that a partition or a range that is gone is an
error that names it, unless the options allow to go on; then it is a warning in the log. Opens no
connection before it is asked something, so that it can be sent to another process. Not thread-safe.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.replay import plan
from catchwater.replay.control import CONTROL_URL, Control, check_host, logged_in
from catchwater.replay.offsets import HistoryLost, at_most, wanted
from catchwater.replay.options import BadOption, Offsets, Position, ReadPath, SourceOptions
from catchwater.replay.plan import Missing, OffsetRange, Quota, Slice, TableFiles, Task
from catchwater.values.policy import FIELDS, parse_policy
from catchwater.values.settings import ValueFormat
from catchwater.wire.client import EARLIEST, LATEST, Client, RequestRefused
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fields import TopicPartition

if TYPE_CHECKING:
    from catchwater.replay.archive import Archive

_LOG = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""Longer than a broker takes to come back from kill -9, shorter than anyone's patience."""

COMMAND_S = 10.0
"""How long a command asks brokers that do not answer; a query is more patient."""

CATALOG_WAIT_S = 0.5
"""A catalog follows its log within a second, and is opened anew for every question."""

_ABSENT = "The log does not hold"
_UNFIT = "The log does not hold, and the topic's table does not stand in for"
_AS_FIELDS = "The log does not hold, and the topic's table has only as fields"
_NOT_ABORTED = "The log does not hold, and the topic's table has without aborted records"
_READ_FIELDS = (
    "catchwater.spark.read gives them, with the topic's valueFormat and valueSchema. A table that "
    "stands in for the log has bytes: that of a topic without catchwater.history.value.format, or "
    "with catchwater.table.value.bytes."
)
_READ_COMMITTED = "Read committed records: kafka.isolation.level = read_committed."
_FIELDS_S = 30.0
_NO_BROKER = "No broker is asked, and what can be read without one does not hold"


class Subscription:
    """The partitions that the options name, as they are in the log now."""

    def __init__(
        self, options: SourceOptions, clock: Clock = SYSTEM, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.options = options
        self._clock = clock
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._control_url: str | None = None
        self._control_asked = False
        self._told: dict[str, tuple[str, float]] = {}
        """Topic → what it says of its fields, and until when that is believed."""
        self.quota: Quota | None = None
        """What the last plan said tasks must keep to."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def close(self) -> None:
        """Close the connections; the next question opens them anew."""
        if self._client is not None:
            self._client.close()

    def partitions(self) -> list[TopicPartition]:
        """The partitions that exist and are wanted. Raises `TopicUnknown` if a named one is not."""
        options = self.options
        names = options.topics or tuple({topic for topic, _ in options.assigned})
        cluster = self._asked().metadata(None if options.pattern else names)
        found = sorted(key for key in cluster.leaders if options.wants(*key))
        absent = {*options.topics} - {topic for topic, _ in found} or {*options.assigned} - {*found}
        if absent:
            missing = (each if isinstance(each, str) else "{}-{}".format(*each) for each in absent)
            raise TopicUnknown(
                f"There is no topic or partition {', '.join(sorted(missing))} "
                f"{'in the catalog' if options.catalog else f'at {options.bootstrap}'}.",
                hint="Is the name right? Topics are not created by reading them.",
            )
        return found

    def topics(self, names: Sequence[str]) -> set[str]:
        """Which of these topics, wanted or not, are there."""
        return {*self._connected().metadata(names).topics()}

    def settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Topic → its settings, those of the broker where it has none. Raises `RequestRefused`."""
        return self._connected().topic_configs(topics)

    def starting(self, default: int) -> Offsets:
        """Where a new query begins; `default` is EARLIEST or LATEST. Not with exact ranges."""
        if self.options.ranges:
            raise BadOption(
                "assignRanges names all that a query reads, so it is for batch queries only.",
                hint="Use assign with startingOffsets.",
            )
        return self._resolve(self.options.starting or Position(default), "starting")

    def ending(self) -> Offsets:
        """Where a batch query ends."""
        return self._resolve(self.options.ending or Position(LATEST), "ending")

    def earliest(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        """The offsets at which these partitions begin now; all of them, if none are named."""
        return self._list(
            dict.fromkeys(self.partitions() if partitions is None else partitions, EARLIEST)
        )

    def latest(self) -> Offsets:
        """The ends of all partitions now, new ones among them."""
        return self._list(dict.fromkeys(self.partitions(), LATEST))

    def since(self, at_ms: int) -> Offsets:
        """The first offsets of all partitions whose records are not older; the end if none is."""
        return self._resolve(Position(timestamp_ms=at_ms, or_latest=True), "starting")

    def wait(self, ends: Mapping[TopicPartition, int], timeout_s: float) -> bool:
        """Wait until there may be a record at one of these ends; False if not after `timeout_s`.

        Without brokers to ask, the wait is short and the answer True.
        """
        if self.options.catalog is not None:
            self._clock.pause(min(timeout_s, CATALOG_WAIT_S))
            return True
        committed = self.options.read_committed
        return self._connected().wait(ends, timeout_s, read_committed=committed)

    def check_present(self, start: Iterable[TopicPartition], now: Mapping[Any, int]) -> None:
        """Raise `PartitionsGone`, or warn, if a partition that was being read is not there."""
        gone = sorted(f"{topic}-{number}" for topic, number in set(start) - set(now))
        if gone:
            text = f"The query was reading {', '.join(gone)}, which is not in the log any more."
            if self.options.fail_on_data_loss:
                raise PartitionsGone(text, hint="Set failOnDataLoss to false to go on without it.")
            _LOG.warning(text)

    def control_url(self) -> str | None:
        """Where brokers give plans; None if they are not asked, or records come from leaders."""
        if self.options.read_path is ReadPath.KAFKA or self.options.catalog is not None:
            return None
        if self.log_control_url() is None and self.options.read_path is ReadPath.DIRECT:
            raise BadOption(
                f"catchwater.read is direct, but the broker at {self.options.bootstrap} names no "
                f"{CONTROL_URL}.",
                hint="Only a Catchwater log can be read from storage; others need auto or kafka.",
            )
        return self._control_url

    def log_control_url(self) -> str | None:
        """Where the log's control API is, read from or not; None if it is another Kafka."""
        if not self._control_asked:
            url = self.options.control_url or self._advertised_control_url()
            security = self.options.security
            by_password = security.username if security.oauth is None else ""
            self._control_url = url and logged_in(url, by_password, security.password)
            self._control_asked = True
        return self._control_url

    def _advertised_control_url(self) -> str | None:
        try:
            url = self._connected().broker_config().get(CONTROL_URL)
        except RequestRefused as refused:
            # Who may read topics need not be allowed this; then the leaders are read.
            if refused.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                return None
            raise
        if url:
            first = self.options.bootstrap.partition(",")[0].strip()
            check_host(urlsplit(url).hostname, f"kafka://{first}")
        return url

    def tasks(
        self,
        start: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
        count: int | None = None,
    ) -> list[Task]:
        """The offsets between, cut into about `count` tasks; raises `HistoryLost`.

        Without a count: as many as `minPartitions` says, or one a partition, or more if large;
        and none with more offsets than `maxRecordsPerPartition`.
        """
        return self.cut(self.slices(self._between(start, end)), count)

    def cut(self, slices: Sequence[Slice], count: int | None = None) -> list[Task]:
        """The slices in tasks, which know the account they pay from; `tasks` says how many."""
        tasks = plan.cut(slices, count)
        if count is None:
            least = self.options.min_partitions or 0
            tasks = tasks if len(tasks) >= least else plan.cut(slices, least)
            tasks = at_most(tasks, self.options.max_records_per_partition)
        if self.quota is None:
            return tasks
        quota = replace(self.quota, tasks=len(tasks))
        return [replace(task, quota=quota) for task in tasks]

    def wanted(self) -> list[OffsetRange]:
        """What a batch query reads, in order; raises `HistoryLost`."""
        if self.options.ranges:
            self.partitions()  # one that does not exist is named
            return list(self.options.ranges)
        return self._between(self.starting(EARLIEST), self.ending())

    def _between(
        self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        try:
            return wanted(start, end)
        except HistoryLost as lost:
            self.go_on_without(lost)
        return wanted(
            {key: min(offset, end.get(key, offset)) for key, offset in start.items()}, end
        )

    def go_on_without(self, lost: HistoryLost) -> None:
        """Raise it, unless the options allow to go on; that is a warning in the log."""
        if self.options.fail_on_data_loss:
            raise lost
        _LOG.warning("failOnDataLoss is false, so the query goes on without. %s", lost)

    @property
    def absence(self) -> str:
        """How an error begins that names offsets which are not there."""
        return _NO_BROKER if self.options.catalog else _ABSENT

    def slices(self, wanted: Sequence[OffsetRange]) -> list[Slice]:
        """Where these offsets, in order, lie; raises `HistoryLost`."""
        left = wanted
        self.quota = None
        older: list[Slice] = []
        while True:
            slices, missing = self._plan(left)
            if not missing:
                return sorted([*older, *slices], key=_place) if older else slices
            found, lost = self.in_tables(missing)
            if lost is not None:
                self.go_on_without(lost)
            older += found
            left = excluding(left, missing)

    def in_tables(self, missing: Sequence[Missing]) -> tuple[list[Slice], HistoryLost | None]:
        """Where offsets that the log has deleted lie in the topics' tables, and which do not.

        A table serves whose rows are the records: not the fields of their values.
        """
        missing = sorted(missing)
        found: list[Slice] = []
        unfit: list[tuple[str, str]] = []
        for table in self.tables([Slice(*gap) for gap in missing], as_bytes=True):
            if table.why:
                unfit.append((_UNFIT, table.why))
            elif table.values:
                unfit.append((_AS_FIELDS, _READ_FIELDS))
            elif table.left_out and not self.options.read_committed:
                unfit.append((_NOT_ABORTED, _READ_COMMITTED))
            else:
                found += _in_table(table, missing)
        gone = plan.uncovered([OffsetRange(*gap) for gap in missing], found)
        if not gone:
            return found, None
        return found, HistoryLost(gone, *(unfit[0] if unfit else (self.absence,)))

    def by_tables(self, by_log: Offsets, position: Position | None) -> Offsets:
        """The same place, which is a time before the log begins, as topics' tables have it.

        Of partitions whose tables have all records from there to where the log begins, and one
        that is not older; raises what reading them raises.
        """
        since_ms = position.timestamp_ms if position else None
        if since_ms is None:
            return {}
        # Here, because nothing else that plans needs Arrow.
        from catchwater.replay.rows import first_since

        begins = self.earliest(by_log)
        deleted = [Missing(*key, 0, at) for key, at in begins.items() if 0 < at == by_log[key]]
        found = {}
        for each in self.in_tables(deleted)[0]:
            key = each.topic, each.partition
            first = first_since(each, since_ms) if each.stop == begins[key] else None
            if first is not None:
                found[key] = first
        return found

    def before_start(self, wanted: Sequence[OffsetRange]) -> list[Missing]:
        """What of these offsets lies before where the log begins now."""
        firsts = self.earliest((each.topic, each.partition) for each in wanted)
        return [
            Missing(*each[:3], min(each.end, firsts[each.topic, each.partition]))
            for each in wanted
            if each.start < firsts[each.topic, each.partition]
        ]

    def _plan(self, left: Sequence[OffsetRange]) -> tuple[list[Slice], list[Missing]]:
        """The slices that bring these offsets, and what is missing for good."""
        planner = self._planner() if left else None
        if planner is None:
            fetched = [Slice(*each, fields=self._fields(each.topic)) for each in left]
            return fetched, self.before_start(left)
        slices: list[Slice] = []
        missing: list[Missing] = []
        for _, group in groupby(left, key=lambda each: each.topic):
            of_topic = list(group)
            answer = planner.plan(of_topic, read_committed=self.options.read_committed)
            self.quota = answer.quota or self.quota
            found = plan.slices_of(of_topic, answer.ranges, answer.aborted)
            missing += answer.missing or plan.uncovered(of_topic, found)
            slices += governed(found, answer.fields) if answer.fields else found
        return slices, missing

    def _fields(self, topic: str) -> str:
        """What a topic of our log says of its fields, where no plan tells; asked now and then."""
        now_s = self._clock.monotonic_s()
        known, until_s = self._told.get(topic, ("", 0.0))
        if now_s < until_s:
            return known
        try:
            known = self._connected().topic_configs([topic])[topic].get(FIELDS, "")
        except RequestRefused as refused:
            # Who may read need not be allowed to ask, and sees by Kafka's protocol what all see.
            if refused.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
        check_fields(known)
        self._told[topic] = known, now_s + _FIELDS_S
        return known

    def tables(self, slices: Iterable[Slice], *, as_bytes: bool = False) -> list[TableFiles]:
        """Files of the topics' tables that stand for some of these slices.

        With `as_bytes` those that have the values' bytes, where tables have both.
        """
        planner = self._planner()
        if not isinstance(planner, Control):
            return []
        found = []
        for topic, group in groupby(slices, key=lambda each: each.topic):
            spans: dict[int, tuple[int, int]] = {}
            for each in group:
                first, stop = spans.get(each.partition, (each.first, each.stop))
                spans[each.partition] = min(first, each.first), max(stop, each.stop)
            files = planner.table_files(topic, spans, as_bytes=as_bytes)
            found += [files] if files else []
        return found

    def _planner(self) -> "Control | Archive | None":
        """Who knows where the bytes lie; None if records are to be fetched from the leaders."""
        if self.options.catalog is not None:
            return self._archive(self.options.catalog)
        control_url = self.control_url()
        if control_url is None:
            return None
        client_id = self.options.client_id
        return Control(
            control_url,
            timeout_s=self._timeout_s,
            clock=self._clock,
            client_id=client_id,
            locations=self.options.locations,
        )

    def _resolve(self, position: Position, which: str) -> Offsets:
        partitions = self.partitions()
        if position.of_table:
            return self._beginnings(partitions)
        if position.timestamp_ms is not None:
            return self._by_timestamp(
                dict.fromkeys(partitions, position.timestamp_ms), position.or_latest
            )
        if position.each_timestamp_ms is not None:
            hint = "A time of 0 begins at the first record."
            _check_complete(
                position.each_timestamp_ms, partitions, f"{which}OffsetsByTimestamp", hint
            )
            return self._by_timestamp(position.each_timestamp_ms, position.or_latest)
        if position.each is not None:
            hint = "Use -2 for earliest and -1 for latest."
            _check_complete(position.each, partitions, f"{which}Offsets", hint)
            symbolic = {key: offset for key, offset in position.each.items() if offset < 0}
            return {**position.each, **self._list(symbolic)}
        return self._list(dict.fromkeys(partitions, position.everywhere))

    def _beginnings(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Where tables begin that begin before the log, and elsewhere the log.

        Raises `BadOption` for a topic's table that does not say.
        """
        starts = self.earliest(partitions)
        deleted = [Slice(*key, 0, first) for key, first in sorted(starts.items()) if first]
        as_bytes = self.options.values.format is ValueFormat.BINARY
        for table in self.tables(deleted, as_bytes=as_bytes):
            if table.why:
                raise BadOption(
                    f"{table.topic} cannot be read from where its table begins: the table does "
                    "not stand in for the log.",
                    hint=f"{table.why} Begin at earliest.",
                )
            for partition, (first, _) in table.spans.items():
                starts[table.topic, partition] = first
        return starts

    def _by_timestamp(
        self, timestamps_ms: Mapping[TopicPartition, int], or_latest: bool
    ) -> Offsets:
        found = self._list(timestamps_ms)
        later = {key: LATEST for key, offset in found.items() if offset < 0}
        if later and not or_latest:
            names = (f"{topic}-{number} from {timestamps_ms[topic, number]} ms"
                     for topic, number in sorted(later))  # fmt: skip
            raise BadOption(
                f"No record is as new as where the query is to start: {', '.join(names)}.",
                hint="Choose an earlier time, or set startingOffsetsByTimestampStrategy to latest.",
            )
        return {**found, **self._list(later)}

    def _list(self, positions: Mapping[TopicPartition, int]) -> Offsets:
        if not positions:
            return {}
        committed = self.options.read_committed
        return self._asked().list_offsets(positions, read_committed=committed)

    def _asked(self) -> "Client | Archive":
        """Who knows the partitions and their offsets."""
        if self.options.catalog is not None:
            return self._archive(self.options.catalog)
        return self._connected()

    def _archive(self, catalog: str) -> "Archive":
        # Here, because no other query needs the log's own code.
        from catchwater.replay.archive import Archive

        return Archive(catalog, self.options.objects, self._clock)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(
                self.options.bootstrap,
                client_id=self.options.client_id,
                timeout_s=self._timeout_s,
                clock=self._clock,
                security=self.options.security,
            )
        return self._client


def _place(each: Slice) -> tuple[str, int, int]:
    return each.topic, each.partition, each.first


def _in_table(table: TableFiles, missing: Iterable[Missing]) -> Iterator[Slice]:
    """What the table has of these offsets, in order."""
    files = (*table.whole, *table.partly)
    for topic, partition, start, end in missing:
        first, stop = table.spans.get(partition, (0, 0))
        first, stop = max(first, start), min(stop, end)
        if topic == table.topic and first < stop:
            yield Slice(topic, partition, first, stop, files=files)


def governed(slices: Iterable[Slice], fields: str) -> list[Slice]:
    """The slices with what is declared of the topic's fields; nothing is read around that.

    Raises `SecretMissing`.
    """
    check_fields(fields)
    return [
        replace(each, fields=fields, range=replace(each.range, parquet="") if each.range else None)
        for each in slices
    ]


def check_fields(fields: str) -> None:
    """Raise `SecretMissing` where what is declared could not be done."""
    policy = parse_policy(fields)
    if policy is not None:
        policy.check()


class TopicUnknown(CatchwaterError):
    """A topic or partition that the query names does not exist."""


class PartitionsGone(CatchwaterError):
    """A partition that the query was reading has been deleted."""

    exit_code = 5


def _check_complete(
    given: Mapping[TopicPartition, int],
    partitions: Iterable[TopicPartition],
    option: str,
    hint: str,
) -> None:
    differing = sorted(set(given) ^ set(partitions))
    if differing:
        raise BadOption(
            f"{option} must name exactly the partitions that are read; it differs in "
            f"{', '.join(f'{topic}-{number}' for topic, number in differing)}.",
            hint=hint,
        )


def excluding(left: Iterable[OffsetRange], missing: Iterable[Missing]) -> list[OffsetRange]:
    """What is wanted before, between and after the gaps."""
    gaps: dict[TopicPartition, list[Missing]] = {}
    for gap in sorted(missing):
        gaps.setdefault((gap.topic, gap.partition), []).append(gap)
    rest = []
    for topic, partition, start, end in left:
        at = start
        for gap in gaps.get((topic, partition), ()):
            rest.append(OffsetRange(topic, partition, at, gap.start))
            at = gap.end
        rest.append(OffsetRange(topic, partition, at, end))
    return [each for each in rest if each.start < each.end]
