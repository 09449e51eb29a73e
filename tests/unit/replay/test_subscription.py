"""What a query reads, against a scripted log: partitions, offsets, plans, and what is gone."""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from catchwater.replay import rows
from catchwater.replay import subscription as subscription_module
from catchwater.replay.control import CONTROL_URL, Plan
from catchwater.replay.offsets import HistoryLost
from catchwater.replay.options import BadOption, Position, parse_options
from catchwater.replay.plan import (
    SEGMENT,
    Aborted,
    Missing,
    OffsetRange,
    PlanRange,
    Slice,
    TableFiles,
)
from catchwater.replay.subscription import PartitionsGone, Subscription, TopicUnknown
from catchwater.values.policy import FIELDS, SECRET, SecretMissing
from catchwater.wire.client import EARLIEST, LATEST, Cluster, RequestRefused
from catchwater.wire.errors import ErrorCode

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


class Log:
    """Stands in for client and control API at once."""

    ends: ClassVar[dict[tuple[str, int], tuple[int, int]]] = {}
    config: ClassVar[dict[str, str]] = {}
    by_time: ClassVar[dict[tuple[str, int], int]] = {}
    offsets_at: ClassVar[dict[tuple[tuple[str, int], int], int]] = {}
    asked: ClassVar[list[str]] = []
    gap: ClassVar[tuple[int, int] | None] = None
    """Offsets that no range holds, though the log goes on behind them."""
    refusal: ClassVar[ErrorCode] = ErrorCode.NONE
    """What a question for the configuration is answered."""
    fields: ClassVar[str] = ""
    """What the topics say of their fields."""
    table: ClassVar[TableFiles | None] = None
    """Of topic a."""

    def __init__(self, address: str, **_: object) -> None: ...

    def close(self) -> None: ...

    def metadata(self, topics: Sequence[str] | None) -> Cluster:
        leaders = {key: 1 for key in self.ends if topics is None or key[0] in topics}
        return Cluster("c", {}, leaders)

    def list_offsets(
        self, wanted: Mapping[tuple[str, int], int], *, read_committed: bool
    ) -> dict[tuple[str, int], int]:
        ends = {EARLIEST: 0, LATEST: 1}
        return {
            key: self.ends[key][ends[when]]
            if when in ends
            else self.offsets_at.get((key, when), self.by_time.get(key, -1))
            for key, when in wanted.items()
        }

    def broker_config(self) -> dict[str, str]:
        self.asked.append("config")
        if self.refusal is not ErrorCode.NONE:
            raise RequestRefused("DescribeConfigs was refused.", code=self.refusal)
        return self.config

    def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        self.asked.append("fields")
        if self.refusal is not ErrorCode.NONE:
            raise RequestRefused("DescribeConfigs was refused.", code=self.refusal)
        return {topic: {FIELDS: self.fields} if self.fields else {} for topic in topics}

    def plan(self, wanted: Sequence[OffsetRange], *, read_committed: bool) -> Plan:
        gaps, ranges = [], []
        aborted = (Aborted("a", 0, 7, 25, 35), Aborted("a", 0, 8, 60, 70))
        for topic, partition, start, end in wanted:
            first, last = self.ends[topic, partition]
            if start < first:
                gaps.append(Missing(topic, partition, start, min(end, first)))
            stored = [(first, last)]
            if self.gap:
                stored = [(first, self.gap[0]), (self.gap[1], last)]
            ranges += [
                PlanRange(
                    topic, partition, SEGMENT, "file:///x", 0, 100, base, stop - 1, "file:///y"
                )
                for base, stop in stored
                if base < end and stop > start
            ]
        if gaps:
            return Plan((), tuple(gaps))
        return Plan(tuple(ranges), aborted=aborted if read_committed else (), fields=self.fields)

    def table_files(
        self, topic: str, wanted: Mapping[int, tuple[int, int]], *, as_bytes: bool
    ) -> TableFiles | None:
        self.asked.append(f"table as {'bytes' if as_bytes else 'fields'}")
        if self.table is None or topic != "a":
            return None
        if self.table.why:
            return self.table
        spans = {}
        for partition, (start, end) in wanted.items():
            first, stop = self.table.spans.get(partition, (0, 0))
            if max(first, start) < min(stop, end):
                spans[partition] = max(first, start), min(stop, end)
        return self.table._replace(spans=spans) if spans else None


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> type[Log]:
    monkeypatch.setattr(subscription_module, "Client", Log)
    monkeypatch.setattr(subscription_module, "Control", Log)
    Log.ends = {A0: (10, 100), A1: (0, 50), B0: (0, 7)}
    Log.config = {CONTROL_URL: "http://c"}
    Log.by_time, Log.asked, Log.offsets_at, Log.gap = {}, [], {}, None
    Log.refusal, Log.fields, Log.table = ErrorCode.NONE, "", None
    return Log


def subscribed(**options: str) -> Subscription:
    least = {"kafka.bootstrap.servers": "h:1"}
    if not options.keys() & {"subscribePattern", "assign"}:
        least["subscribe"] = "a"
    return Subscription(parse_options({**least, **options}))


def test_partitions_are_found_by_name_pattern_and_number() -> None:
    assert subscribed().partitions() == [A0, A1]
    assert subscribed(subscribePattern="[ab]").partitions() == [A0, A1, B0]
    assert subscribed(assign='{"a": [1], "b": [0]}').partitions() == [A1, B0]


@pytest.mark.parametrize(
    ("options", "absent"),
    [({"subscribe": "a,c"}, "c"), ({"assign": '{"a": [0, 5]}'}, "a-5")],
)
def test_what_does_not_exist_is_named(options: dict[str, str], absent: str) -> None:
    with pytest.raises(TopicUnknown, match=f"no topic or partition {absent} at h:1"):
        subscribed(**options).partitions()


def test_a_query_begins_and_ends_where_the_options_say() -> None:
    assert subscribed().starting(EARLIEST) == {A0: 10, A1: 0}
    assert subscribed().starting(LATEST) == {A0: 100, A1: 50}
    assert subscribed(startingOffsets="earliest").starting(LATEST) == {A0: 10, A1: 0}
    given = subscribed(startingOffsets='{"a": {"0": 33, "1": -2}}')
    assert given.starting(LATEST) == {A0: 33, A1: 0}
    assert subscribed().ending() == {A0: 100, A1: 50}
    assert subscribed(endingOffsets='{"a": {"0": 33, "1": -1}}').ending() == {A0: 33, A1: 50}


def test_offsets_given_one_by_one_must_be_complete() -> None:
    with pytest.raises(BadOption, match="it differs in a-1, b-0"):
        subscribed(startingOffsets='{"a": {"0": 33}, "b": {"0": 1}}').starting(LATEST)


def test_timestamps_are_looked_up(log: type[Log]) -> None:
    log.by_time = {A0: 40, A1: 41}
    assert subscribed(startingTimestamp="5").starting(LATEST) == {A0: 40, A1: 41}
    log.by_time = {A0: 40, A1: -1}
    assert subscribed(endingTimestamp="5").ending() == {A0: 40, A1: 50}
    with pytest.raises(BadOption, match="is to start: a-1 from 5 ms"):
        subscribed(startingTimestamp="5").starting(LATEST)
    lax = {"startingOffsetsByTimestampStrategy": "latest"}
    assert subscribed(startingTimestamp="5", **lax).starting(EARLIEST) == {A0: 40, A1: 50}


def test_every_partition_can_have_a_timestamp_of_its_own(log: type[Log]) -> None:
    log.offsets_at = {(A0, 5): 40, (A1, 6): 41, (A1, 9): -1}
    given = {"startingOffsetsByTimestamp": '{"a": {"0": 5, "1": 6}}'}
    assert subscribed(**given).starting(LATEST) == {A0: 40, A1: 41}
    late = {
        name: '{"a": {"0": 5, "1": 9}}'
        for name in ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
    }
    assert subscribed(**late).ending() == {A0: 40, A1: 50}
    with pytest.raises(BadOption, match="is to start: a-1 from 9 ms") as caught:
        subscribed(**late).starting(LATEST)
    assert "startingOffsetsByTimestampStrategy" in str(caught.value.hint)
    lax = subscribed(**late, startingOffsetsByTimestampStrategy="latest")
    assert lax.starting(EARLIEST) == {A0: 40, A1: 50}


def test_timestamps_one_by_one_must_be_complete() -> None:
    query = subscribed(startingOffsetsByTimestamp='{"a": {"0": 5}}')
    with pytest.raises(BadOption, match=r"startingOffsetsByTimestamp must name .* in a-1"):
        query.starting(LATEST)


def test_partitions_that_appear_while_running_are_read_from_their_beginning(
    log: type[Log],
) -> None:
    query = subscribed(subscribePattern="[ac]", startingOffsets='{"a": {"0": 90, "1": -1}}')
    start = query.starting(LATEST)
    assert start == {A0: 90, A1: 50}
    log.ends = {**log.ends, ("a", 2): (0, 3), ("c", 0): (0, 4), ("d", 0): (0, 5)}
    latest = query.latest()
    query.check_present(start, latest)
    assert latest == {A0: 100, A1: 50, ("a", 2): 3, ("c", 0): 4}
    slices = [each for task in query.tasks(start, latest) for each in task.slices]
    read = [(each.topic, each.partition, each.first, each.stop) for each in slices]
    assert read == [("a", 0, 90, 100), ("a", 2, 0, 3), ("c", 0, 0, 4)]


def test_a_partition_that_appears_without_its_beginning_has_lost_it(log: type[Log]) -> None:
    log.ends = {A0: (10, 100), A1: (2, 50)}
    with pytest.raises(HistoryLost, match="a-1 offsets 0 to 1"):
        subscribed().tasks({A0: 100}, {A0: 100, A1: 50})
    (task,) = subscribed(failOnDataLoss="false").tasks({A0: 100}, {A0: 100, A1: 50})
    assert [(each.first, each.stop) for each in task.slices] == [(2, 50)]


def test_our_log_is_read_from_storage_and_others_from_their_leaders(log: type[Log]) -> None:
    query = subscribed()
    assert query.control_url() == "http://c"
    (task,) = query.tasks({A0: 20}, {A0: 30})
    assert task.slices[0].range is not None
    log.config = {}
    query = subscribed()
    assert query.control_url() is None and query.control_url() is None
    assert log.asked.count("config") == 2, "each query asks once"
    (task,) = query.tasks({A0: 20}, {A0: 30})
    assert task.slices[0].range is None


@pytest.mark.parametrize("path", ["auto", "kafka"])
def test_what_a_topic_says_of_its_fields_goes_with_every_slice(
    log: type[Log], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    log.fields = "card=hash"
    query = subscribed(**{"catchwater.read": path})
    monkeypatch.setenv(SECRET, "0123456789abcdef")
    for _ in range(2):
        slices = [each for task in query.tasks({A0: 20}, {A0: 90}) for each in task.slices]
        assert {each.fields for each in slices} == {"card=hash"}
        assert not any(each.range and each.range.parquet for each in slices)
    assert log.asked.count("fields") == (path == "kafka"), "not at every epoch"
    monkeypatch.delenv(SECRET)
    with pytest.raises(SecretMissing):
        subscribed(**{"catchwater.read": path}).tasks({A0: 20}, {A0: 90})


def test_who_may_not_ask_for_a_topic_s_settings_reads_as_any_consumer(log: type[Log]) -> None:
    log.refusal = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    (task,) = subscribed(**{"catchwater.read": "kafka"}).tasks({A0: 20}, {A0: 90})
    assert {each.fields for each in task.slices} == {""}
    log.refusal = ErrorCode.INVALID_REQUEST
    with pytest.raises(RequestRefused):
        subscribed(**{"catchwater.read": "kafka"}).tasks({A0: 20}, {A0: 90})


def test_where_the_configuration_is_not_for_us_the_leaders_are_read(log: type[Log]) -> None:
    log.refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert subscribed().control_url() is None
    log.refusal = ErrorCode.INVALID_REQUEST
    with pytest.raises(RequestRefused):
        subscribed().control_url()


def test_the_path_can_be_chosen(log: type[Log]) -> None:
    assert subscribed(**{"catchwater.read": "kafka"}).control_url() is None
    assert subscribed(**{CONTROL_URL: "http://other"}).control_url() == "http://other"
    log.config = {}
    with pytest.raises(BadOption, match=r"catchwater.read is direct, but the broker at h:1"):
        subscribed(**{"catchwater.read": "direct"}).control_url()


def test_committed_records_are_read_from_storage_with_what_was_aborted_among_them() -> None:
    query = subscribed(**{"kafka.isolation.level": "read_committed"})
    assert query.control_url() == "http://c"
    (task,) = query.tasks({A0: 20}, {A0: 30})
    assert [each.aborted for each in task.slices] == [(Aborted("a", 0, 7, 25, 35),)]
    (task,) = subscribed().tasks({A0: 20}, {A0: 30})
    assert task.slices[0].aborted == ()


def test_offsets_that_are_not_there_yet_are_not_said_to_be_gone(log: type[Log]) -> None:
    log.gap = (100, 120)
    with pytest.raises(HistoryLost, match=r"^The log does not hold: a-0 offsets 100 to 119"):
        subscribed().tasks({A0: 90}, {A0: 120})


@pytest.mark.parametrize("path", ["auto", "kafka"])
def test_lost_history_is_an_error_that_names_it(path: str) -> None:
    query = subscribed(**{"catchwater.read": path})
    with pytest.raises(HistoryLost, match="a-0 offsets 3 to 9") as caught:
        query.tasks({A0: 3, A1: 0}, {A0: 100, A1: 50})
    assert caught.value.missing == (Missing("a", 0, 3, 10),)


@pytest.mark.parametrize("path", ["auto", "kafka"])
def test_it_is_left_out_with_a_warning_only_when_allowed(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = subscribed(**{"catchwater.read": path, "failOnDataLoss": "false"})
    tasks = query.tasks({A0: 3, A1: 0}, {A0: 100, A1: 50})
    slices = [each for task in tasks for each in task.slices]
    read = [(each.partition, n) for each in slices for n in range(each.first, each.stop)]
    assert read == [(0, n) for n in range(10, 100)] + [(1, n) for n in range(50)]
    assert "a-0 offsets 3 to 9" in caplog.text


def a_table(first: int, stop: int, *, values: str = "", left_out: bool = False) -> TableFiles:
    return TableFiles("a", {0: (first, stop)}, ["file:///w"], ["file:///p"], values, 0, left_out)


UNFIT = TableFiles("a", {}, [], [], "", 0, False, why="It was renamed.")


def places(query: Subscription, start: int, end: int) -> list[tuple[int, int, tuple[str, ...]]]:
    tasks = query.tasks({A0: start}, {A0: end}, 1)
    return [(each.first, each.stop, each.files) for task in tasks for each in task.slices]


FILES = ("file:///w", "file:///p")


def test_what_the_log_has_deleted_is_read_from_the_topic_s_table(log: type[Log]) -> None:
    log.table = a_table(0, 60)
    assert places(subscribed(), 3, 100) == [(3, 10, FILES), (10, 100, ())]
    assert places(subscribed(), 3, 8) == [(3, 8, FILES)]
    assert places(subscribed(), 9, 11) == [(9, 10, FILES), (10, 11, ())]


def test_a_table_is_not_asked_for_what_the_log_has(log: type[Log]) -> None:
    log.table = a_table(0, 60)
    assert places(subscribed(), 10, 100) == [(10, 100, ())]
    assert subscribed(startingOffsets="table", subscribePattern="b").starting(LATEST) == {B0: 0}
    assert not any(each.startswith("table") for each in log.asked)


def test_a_query_begins_where_the_table_does(log: type[Log]) -> None:
    log.table = a_table(4, 60)
    assert subscribed(startingOffsets="table").starting(LATEST) == {A0: 4, A1: 0}
    log.table = a_table(20, 60)  # it was made when the log had deleted more
    assert subscribed(startingOffsets="table").starting(LATEST) == {A0: 10, A1: 0}
    log.table = None
    assert subscribed(startingOffsets="table").starting(LATEST) == {A0: 10, A1: 0}
    with pytest.raises(BadOption, match="endingOffsets"):
        subscribed(endingOffsets="table")
    log.asked.clear()
    typed = {"valueFormat": "json", "valueSchema": "a long"}
    log.table = a_table(4, 60)
    assert subscribed(startingOffsets="table", **typed).starting(LATEST) == {A0: 4, A1: 0}
    assert [each for each in log.asked if each.startswith("table")] == ["table as fields"]
    log.table = UNFIT
    with pytest.raises(BadOption, match="a cannot be read from where its table begins") as unfit:
        subscribed(startingOffsets="table").starting(LATEST)
    assert unfit.value.hint == "It was renamed. Begin at earliest."
    log.ends = {A0: (0, 100)}  # nothing is deleted
    assert subscribed(startingOffsets="table").starting(LATEST) == {A0: 0}


@pytest.mark.parametrize(
    ("table", "said", "hint"),
    [
        (None, "The log does not hold: a-0 offsets 3 to 9", "Name offsets"),
        (a_table(5, 60), "The log does not hold: a-0 offsets 3 to 4", "Name offsets"),
        (a_table(0, 5), "The log does not hold: a-0 offsets 5 to 9", "Name offsets"),
        (a_table(0, 60, values="x"), "only as fields: a-0 offsets 3 to 9", "value.format"),
        (a_table(0, 60, left_out=True), "without aborted .*: a-0 offsets 3 to 9", "isolation"),
        (UNFIT, "not stand in for: a-0 offsets 3 to 9", "It was renamed."),
    ],
)
def test_what_a_table_does_not_hold_as_it_was_is_named(
    log: type[Log], table: TableFiles | None, said: str, hint: str
) -> None:
    log.table = table
    with pytest.raises(HistoryLost, match=said) as lost:
        places(subscribed(), 3, 100)
    assert hint in str(lost.value.hint)
    rest = places(subscribed(failOnDataLoss="false"), 3, 100)
    covered = [n for first, stop, _ in rest for n in range(first, stop)]
    assert covered == [n for n in range(3, 100) if not any(
        gap.start <= n < gap.end for gap in lost.value.missing
    )]  # fmt: skip


def test_a_reader_of_committed_records_is_given_a_table_without_aborted_ones(
    log: type[Log],
) -> None:
    log.table = a_table(0, 60, left_out=True)
    committed = subscribed(**{"kafka.isolation.level": "read_committed"})
    with pytest.raises(HistoryLost):
        places(subscribed(), 3, 8)
    assert committed.in_tables([Missing("a", 0, 3, 10)])[0][0].files == FILES


def test_a_time_before_the_log_begins_is_where_the_table_has_it(
    log: type[Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def first_since(wanted: Slice, since_ms: int) -> int | None:
        looked.append((wanted.first, wanted.stop, wanted.files))
        return since_ms if since_ms < wanted.stop else None

    monkeypatch.setattr(rows, "first_since", first_since)
    at_5, query = Position(timestamp_ms=5), subscribed()
    begins = {A0: 10, A1: 0}
    assert query.by_tables(begins, at_5) == {}, "there is no table"
    log.table = a_table(2, 60)
    assert query.by_tables(begins, at_5) == {A0: 5}
    assert looked == [(2, 10, FILES)]
    assert query.by_tables(begins, Position(timestamp_ms=11)) == {}
    looked.clear()
    assert query.by_tables({A0: 20, A1: 0}, at_5) == {}, "the log has it"
    assert query.by_tables(begins, Position(EARLIEST)) == {} == query.by_tables(begins, None)
    log.table = a_table(2, 8)
    assert query.by_tables(begins, at_5) == {}, "the table is behind the log"
    assert not looked


def test_what_lies_before_a_gap_is_read_too(log: type[Log]) -> None:
    log.gap = (40, 60)
    with pytest.raises(HistoryLost, match="a-0 offsets 40 to 59"):
        subscribed().tasks({A0: 20}, {A0: 90})
    tasks = subscribed(failOnDataLoss="false").tasks({A0: 20}, {A0: 90})
    slices = [each for task in tasks for each in task.slices]
    assert [(each.first, each.stop) for each in slices] == [(20, 40), (60, 90)]


def test_history_lost_as_a_whole_leaves_no_task() -> None:
    assert subscribed(failOnDataLoss="false").tasks({A0: 3}, {A0: 8}) == []


def test_a_topic_made_anew_is_noticed_and_read_on_only_when_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(HistoryLost, match="a-1 offsets 50 to 69"):
        subscribed().tasks({A0: 90, A1: 70}, {A0: 100, A1: 50})
    (task,) = subscribed(failOnDataLoss="false").tasks({A0: 90, A1: 70}, {A0: 100, A1: 50})
    assert [(each.first, each.stop) for each in task.slices] == [(90, 100)]
    assert "a-1 offsets 50 to 69" in caplog.text


def test_tasks_are_as_many_as_asked() -> None:
    start, end = {A0: 10, A1: 0}, {A0: 100, A1: 50}
    by_leader = {"catchwater.read": "kafka"}
    assert len(subscribed(**by_leader).tasks(start, end)) == 2
    assert len(subscribed(**by_leader, minPartitions="7").tasks(start, end)) == 7
    assert len(subscribed(**by_leader, minPartitions="1").tasks(start, end)) == 2
    assert len(subscribed(**by_leader).tasks(start, end, 1)) == 1
    for path in (by_leader, {}):
        tasks = subscribed(**path, maxRecordsPerPartition="30", minPartitions="3").tasks(start, end)
        sizes = [sum(each.stop - each.first for each in task.slices) for task in tasks]
        assert max(sizes) <= 30 and sum(sizes) == 140
    few = subscribed(**by_leader, maxRecordsPerPartition="80", minPartitions="7")
    assert len(few.tasks(start, end)) == 7, "both bounds hold"
    assert subscribed().tasks(end, end) == []


def test_partitions_that_went_away_are_named(caplog: pytest.LogCaptureFixture) -> None:
    query = subscribed()
    query.check_present([A0], query.latest())
    with pytest.raises(PartitionsGone, match="was reading a-9, b-0") as caught:
        query.check_present([A0, ("a", 9), B0], query.latest())
    assert caught.value.exit_code == 5
    subscribed(failOnDataLoss="false").check_present([B0], query.latest())
    assert "b-0" in caplog.text


def test_a_subscription_travels_without_its_connections() -> None:
    query = subscribed()
    query.latest()
    copy: Any = pickle.loads(pickle.dumps(query))
    assert copy._client is None
    assert copy.latest() == query.latest()
    query.close()
    copy.close()


def test_a_batch_query_reads_between_its_positions_or_exact_ranges() -> None:
    assert subscribed(subscribePattern="[ab]").wanted() == [
        ("a", 0, 10, 100), ("a", 1, 0, 50), ("b", 0, 0, 7),
    ]  # fmt: skip
    options = {"kafka.bootstrap.servers": "h:1"}
    ranges = '{"b": {"0": [[5, 7]]}, "a": {"0": [[20, 30], [40, 41]]}}'
    exact = Subscription(parse_options({**options, "assignRanges": ranges}))
    assert exact.wanted() == [("a", 0, 20, 30), ("a", 0, 40, 41), ("b", 0, 5, 7)]
    places = [(each.first, each.stop) for each in exact.slices(exact.wanted())]
    assert places == [(20, 30), (40, 41), (5, 7)]
    unknown = parse_options({**options, "assignRanges": '{"a": {"5": [[0, 1]]}}'})
    with pytest.raises(TopicUnknown, match="5"):
        Subscription(unknown).wanted()
    with pytest.raises(BadOption, match="for batch queries only"):
        exact.starting(LATEST)
