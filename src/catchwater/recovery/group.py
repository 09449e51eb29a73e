"""The contract of a job that is not ours: a consumer group of any Kafka, as its positions tell.

Flink, Kafka Streams, Connect and every other consumer leave no more behind than the offsets they
have committed. Whether they can go on from there is up to the log: it may have deleted what comes
next, or be about to. `observe` asks the brokers; `judge`, which is pure, says what follows.

Timestamps are those of the batches at the positions, which producers may set to anything. A batch
is deleted with its segment, so what is said to be left is the least.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from catchwater.config import CatchwaterError, duration_ms
from catchwater.recovery.contract import HistoryGone, Verdict
from catchwater.wire.batch import BatchError, read_header
from catchwater.wire.client import EARLIEST, LATEST, Client, OpenTransaction, RequestRefused
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fields import TopicPartition

_CHANGELOG = "-changelog"
_AGO = re.compile(r"(.+?)\s*ago")
_PARTITION_BYTES, _FETCH_BYTES = 2**20, 2**26
_BUSY = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
)
_HOLDS = ("reserved", "extended")
"""States of a pin that keeps the log."""
_HANGS_S = 900.0
"""What brokers let a transaction last, unless transaction.max.timeout.ms says otherwise."""


class NoPositions(CatchwaterError):
    """The group has committed nothing in a topic that is there."""


class GroupBusy(CatchwaterError):
    """The group has members, which would go on from where they are."""


class NoSuchPosition(CatchwaterError):
    """A group cannot be reset to there: the log does not have it."""

    exit_code = 5


class BadGoal(CatchwaterError):
    """Nobody knows what is meant by where a group is to be reset to."""

    exit_code = 2


class NoPins(CatchwaterError):
    """The log is another Kafka, which keeps nothing for anybody."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What brokers say of one group."""

    group: str
    state: str
    """As Kafka names it."""
    protocol_type: str
    committed: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    written_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    """When the batch at the position was written, where there is one."""
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Bytes of each partition, where a broker tells them."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Topic -> its settings."""
    pins: Sequence[Mapping[str, Any]] = ()
    """As the control API lists them; another Kafka has none."""
    unsettled: Collection[TopicPartition] = ()
    """Where an open transaction holds a new position."""
    transactions: Sequence[OpenTransaction] = ()
    """Open on what the group reads, and on its changelogs."""
    producers: Mapping[int, str] = field(default_factory=dict)
    """Producer id -> its transactional id, where brokers tell it."""


class GroupPosition(msgspec.Struct, frozen=True):
    """Where a group goes on in one partition, and for how long it can."""

    topic: str
    partition: int
    offset: int
    log_start: int
    log_end: int
    lag_records: int
    lag_s: float | None
    """Age of the batch that comes next; None: nobody knows."""
    replay_bytes: int | None
    """To the end of the log, in proportion to records; None: no broker tells sizes."""
    retention_left_s: float | None
    """Goal retention may delete what comes next; None: it does not, or nothing comes next."""
    pin: str
    """Which of the log's pins keeps it; empty: none."""
    verdict: Verdict
    why: str
    unsettled: bool = False
    """An open transaction of the job's holds a newer position: committed, or else gone, it ends."""


class GroupTransaction(msgspec.Struct, frozen=True):
    """What a producer has open on a topic that the job reads, or restores from."""

    topic: str
    partition: int
    first_offset: int
    producer_id: int
    transactional_id: str
    """Empty: no broker tells it."""
    idle_s: float
    """Since its last batch, by the batch's timestamp."""
    verdict: Verdict
    why: str


class Changelog(msgspec.Struct, frozen=True):
    """A topic that Kafka Streams keeps a store of this application in."""

    topic: str
    partitions: int
    bytes: int | None
    cleanup_policy: str


class GroupContract(msgspec.Struct, frozen=True):
    """What going on from a group's positions needs, and whether it is there."""

    group: str
    state: str
    protocol_type: str
    written_ms: int
    lag_records: int
    lag_s: float | None
    """Of the partition that is farthest behind."""
    replay_bytes: int | None
    retention_left_s: float | None
    """Of the position that is lost first; None: none will be."""
    positions: list[GroupPosition]
    changelogs: list[Changelog] = []
    transactions: list[GroupTransaction] = []

    @property
    def verdicts(self) -> list[Verdict]:
        """Of all that was looked at."""
        of_positions = [each.verdict for each in self.positions]
        return of_positions + [each.verdict for each in self.transactions]


def observe(client: Client, group: str, pins: Sequence[Mapping[str, Any]] = ()) -> Observed:
    """Ask the brokers. Positions in topics that are gone are left out.

    Raises `NoPositions`, and what the client raises.
    """
    state, protocol_type = client.group_state(group) or ("Unknown", "")
    cluster = client.metadata()
    committed = {
        key: offset for key, offset in client.committed(group).items() if key in cluster.leaders
    }
    if not committed:
        raise NoPositions(
            f"Group {group} has no committed position in a topic that is there.",
            hint="Is the name right? A job that keeps its positions elsewhere has to commit them, "
            "too: Flink does so with checkpoints on, Spark's Kafka source never.",
        )
    topics = sorted({topic for topic, _ in committed})
    own = [t for t in cluster.topics() if t.startswith(f"{group}-") and t.endswith(_CHANGELOG)]
    known = sorted({*topics, *own})
    starts = client.list_offsets(dict.fromkeys(committed, EARLIEST))
    ends = client.list_offsets(dict.fromkeys(committed, LATEST))
    behind = {key: at for key, at in committed.items() if starts[key] <= at < ends[key]}
    transactions = client.open_transactions(committed)
    with suppress(RequestRefused):  # READ on changelogs is the job's alone, perhaps
        transactions += client.open_transactions(k for k in cluster.leaders if k[0] in own)
    return Observed(
        group=group,
        state=state,
        protocol_type=protocol_type,
        committed=committed,
        starts=starts,
        ends=ends,
        written_ms=_written_ms(client, behind),
        sizes=client.sizes(known) if known else {},
        settings=client.topic_configs(known) if known else {},
        pins=pins,
        unsettled=client.unsettled(group),
        transactions=transactions,
        producers=_names(client) if transactions else {},
    )


def _names(client: Client) -> dict[int, str]:
    """Producer id -> transactional id; nothing where no broker tells it, as before Kafka 3.0."""
    with suppress(CatchwaterError):
        return {producer_id: name for name, (producer_id, _) in client.transactions().items()}
    return {}


def _written_ms(client: Client, behind: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """When the batch at each position was written, by the log's clock where that has the time."""
    found: dict[TopicPartition, int] = {}
    left = dict(behind)
    while left:
        answers = client.fetch(
            left, max_bytes=_FETCH_BYTES, max_partition_bytes=_PARTITION_BYTES, max_wait_ms=0
        )
        for key, answer in answers.items():
            with suppress(BatchError):  # none, or one that is cut short: asked for again
                header = read_header(answer.records)
                own = header.log_append_time
                found[key] = header.max_timestamp if own else header.base_timestamp
        if not found.keys() & left.keys():
            break  # nobody has one for us: it was deleted meanwhile
        left = {key: at for key, at in left.items() if key not in found}
    return found


def judge(seen: Observed, now_ms: int, max_restore_s: float | None = None) -> GroupContract:
    """What follows from what was observed.

    `max_restore_s` is how long the job may take to come back: what retention leaves should be more.
    """
    positions = [
        _judged(seen, key, offset, now_ms, max_restore_s)
        for key, offset in sorted(seen.committed.items())
    ]
    sizes = [each.replay_bytes for each in positions]
    known_bytes = [size for size in sizes if size is not None]
    lags = [each.lag_s for each in positions if each.lag_s is not None]
    left = [each.retention_left_s for each in positions if each.retention_left_s is not None]
    return GroupContract(
        group=seen.group,
        state=seen.state,
        protocol_type=seen.protocol_type,
        written_ms=now_ms,
        lag_records=sum(each.lag_records for each in positions),
        lag_s=max(lags, default=None),
        replay_bytes=sum(known_bytes) if len(known_bytes) == len(sizes) else None,
        retention_left_s=min(left, default=None),
        positions=positions,
        changelogs=_changelogs(seen),
        transactions=[_transaction(seen, each, now_ms) for each in seen.transactions],
    )


def _transaction(seen: Observed, found: OpenTransaction, now_ms: int) -> GroupTransaction:
    name, idle_s = seen.producers.get(found.producer_id, ""), (now_ms - found.last_ms) / 1000
    verdict: Verdict = "pass"
    why = f"who reads what is committed waits at {found.first_offset} until it ends"
    if idle_s > _HANGS_S:
        verdict = "warn"
        why = f"it hangs: nothing came for {idle_s:.0f} s, and {why}"
    return GroupTransaction(
        topic=found.topic,
        partition=found.partition,
        first_offset=found.first_offset,
        producer_id=found.producer_id,
        transactional_id=name,
        idle_s=max(0.0, round(idle_s, 1)),
        verdict=verdict,
        why=why,
    )


def _judged(
    seen: Observed, key: TopicPartition, offset: int, now_ms: int, max_restore_s: float | None
) -> GroupPosition:
    start, end = seen.starts[key], seen.ends[key]
    lag, written_ms = max(0, end - offset), seen.written_ms.get(key)
    size = seen.sizes.get(key)
    there = max(0, end - max(offset, start))  # of an empty log nothing, however far behind
    replay_bytes = None if size is None else round(size * there / (end - start)) if there else 0
    pin = _pin(seen.pins, key, offset)
    age_s = None if written_ms is None else max(0, now_ms - written_ms) / 1000
    left_s = None if pin or not lag else _left_s(seen.settings.get(key[0], {}), age_s, replay_bytes)
    verdict, why = _verdict(offset, start, end, pin, left_s, max_restore_s)
    return GroupPosition(
        topic=key[0],
        partition=key[1],
        offset=offset,
        log_start=start,
        log_end=end,
        lag_records=lag,
        lag_s=age_s if lag else 0.0,
        replay_bytes=replay_bytes,
        retention_left_s=left_s,
        pin=pin,
        verdict=verdict,
        why=why,
        unsettled=key in seen.unsettled,
    )


def _left_s(
    settings: Mapping[str, str], age_s: float | None, replay_bytes: int | None
) -> float | None:
    """Goal retention, by time or by size, may delete the batch that comes next; None: never.

    By size nothing is left once more lies behind the position than may; before that nobody knows.
    """
    if "delete" not in settings.get("cleanup.policy", "delete"):
        return None
    most_bytes = int(settings.get("retention.bytes", -1))
    if most_bytes >= 0 and replay_bytes is not None and replay_bytes > most_bytes:
        return 0.0
    retention_ms = int(settings.get("retention.ms", -1))
    if retention_ms < 0 or age_s is None:
        return None
    return max(0.0, round(retention_ms / 1000 - age_s, 1))


def _pin(pins: Sequence[Mapping[str, Any]], key: TopicPartition, offset: int) -> str:
    """The first pin that keeps the partition from this offset on."""
    for pin in pins:
        if pin["state"] not in _HOLDS:
            continue
        for each in pin["positions"]:
            if (each["topic"], each["partition"]) == key and each["offset"] <= offset:
                return str(pin["id"])
    return ""


def _verdict(
    offset: int, start: int, end: int, pin: str, left_s: float | None, max_restore_s: float | None
) -> tuple[Verdict, str]:
    if offset < start:
        return "fail", f"lost: the log begins at {start}, {start - offset} records are gone"
    if offset > end:
        return "fail", f"the log ends at {end}: it is not the one that this was read from"
    if offset == end:
        return "pass", "everything was read"
    if pin:
        return "pass", f"pinned by {pin}"
    if left_s is None:
        return "pass", "retention does not delete it"
    if left_s <= 0:
        return "warn", "retention may delete it at any moment"
    if max_restore_s is not None and left_s < max_restore_s:
        return "warn", f"deleted in {left_s:.0f} s, before a restore of {max_restore_s:.0f} s ends"
    return "pass", f"kept for {left_s:.0f} s at least"


def _changelogs(seen: Observed) -> list[Changelog]:
    found = []
    for topic, settings in sorted(seen.settings.items()):
        if topic.startswith(f"{seen.group}-") and topic.endswith(_CHANGELOG):
            sizes = [size for key, size in seen.sizes.items() if key[0] == topic]
            policy = settings.get("cleanup.policy", "")
            found.append(Changelog(topic, len(sizes), sum(sizes) if sizes else None, policy))
    return found


def check_held(seen: Observed) -> None:
    """Raise `HistoryGone` unless the log still holds all that the group has not read."""
    for key, offset in sorted(seen.committed.items()):
        if offset < seen.starts[key]:
            raise HistoryGone(
                f"Group {seen.group} needs {key[0]}-{key[1]} from offset {offset} on, and the log "
                f"begins at {seen.starts[key]}: {seen.starts[key] - offset} records are gone.",
                hint="Reset the group to what the log still holds, then pin it.",
            )


def pin_of(group: str) -> str:
    """The name, and the owner, of the pin that keeps a group's input."""
    return f"group/{group}"


@dataclass(frozen=True, slots=True)
class Move:
    """What a reset does to a group's position in one partition."""

    topic: str
    partition: int
    offset: int | None
    """Where the group stands; None: nowhere yet."""
    to: int

    @property
    def again(self) -> int:
        """Offsets that are read again; negative: that are passed over."""
        return 0 if self.offset is None else self.offset - self.to


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a reset leads: to the first record written at or after a time, or to an offset."""

    timestamp_ms: int | None = None
    """Also EARLIEST and LATEST."""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    offset: int | None = None
    """In every partition."""
    stays: bool = False
    """Where the group stands now."""


def read_goal(text: str, now: datetime) -> Goal:
    """An end, an offset, a time, or how long ago, as it is typed. Raises `BadGoal`."""
    ends = {"earliest": EARLIEST, "latest": LATEST}
    if text in ends:
        return Goal(ends[text])
    if text == "current":
        return Goal(stays=True)
    if text.isdecimal() and text.isascii():
        return Goal(offset=int(text))
    if match := _AGO.fullmatch(text):
        with suppress(ValueError):
            return Goal(round(now.timestamp() * 1000) - duration_ms(match[1]))
    return Goal(
        read_time_ms(
            text,
            f'{text!r} is none of "earliest", "latest", "current", an offset, a time such as '
            '2026-01-31T12:00:00Z, and a duration such as "2h ago".',
        )
    )


def read_time_ms(text: str, wrong: str | None = None) -> int:
    """A time with its zone, as it is typed; `wrong` is said of what is none. Raises `BadGoal`."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadGoal(wrong or f"{text!r} is no time such as 2026-01-31T12:00:00Z.") from None
    if at.tzinfo is None:
        raise BadGoal(f"{text!r} names no time zone; end it with Z for UTC.")
    return round(at.timestamp() * 1000)


def read_topics(named: Iterable[str]) -> tuple[list[str], set[TopicPartition]]:
    """Topics, as TOPIC or TOPIC:P,…, and the partitions of those of which not all are meant.

    Raises `BadGoal`.
    """
    topics, only = [], set()
    for each in named:
        topic, colon, partitions = each.partition(":")
        topics.append(topic)
        for partition in partitions.split(",") if colon else ():
            if not (partition.isdecimal() and partition.isascii()):
                raise BadGoal(f"{each!r} is not TOPIC or TOPIC:P,… with numbers of partitions.")
            only.add((topic, int(partition)))
    return topics, only


def check_left(group: str, members: Sequence[tuple[str, str]]) -> None:
    """Raise `GroupBusy` where the group has members: (client id, host) of each."""
    if members:
        who = ", ".join(sorted({f"{client_id} at {host}" for client_id, host in members}))
        raise GroupBusy(
            f"Group {group} has {len(members)} members, which would go on from where they are: "
            f"{who}.",
            hint="Stop them first; a member that died leaves when its session times out.",
        )


def plan_reset(
    client: Client,
    group: str,
    goal: Goal,
    topics: Sequence[str] = (),
    only: Collection[TopicPartition] = (),
) -> list[Move]:
    """The moves of a reset, of all topics in which the group has positions unless some are named.

    Of a topic that has partitions in `only` it is those. Nothing is changed. A time after the last
    record is the end of the partition. Raises `GroupBusy`, `NoPositions`, `NoSuchPosition`, and
    what the client raises.
    """
    check_left(group, [(each.client_id, each.host) for each in client.members(group)])
    before, cluster = client.committed(group), client.metadata()
    keys = chosen(group, goal, before, cluster.leaders, topics, only)
    starts = client.list_offsets(dict.fromkeys(keys, EARLIEST))
    ends = client.list_offsets(dict.fromkeys(keys, LATEST))
    at = None if goal.stays else goal.timestamp_ms
    found = {} if at is None else client.list_offsets(dict.fromkeys(keys, at))
    return moves_to(group, goal, keys, Places(before, starts, ends, found))


def chosen(
    group: str,
    goal: Goal,
    before: Mapping[TopicPartition, int],
    there: Iterable[TopicPartition],
    topics: Collection[str] = (),
    only: Collection[TopicPartition] = (),
) -> list[TopicPartition]:
    """The partitions that a reset is about, as `plan_reset` says. Raises `NoPositions`.

    `before` is where the group stands, `there` are the partitions that there are.
    """
    wanted = set(topics) or {topic for topic, _ in goal.offsets or before}
    keys = sorted(key for key in there if key[0] in wanted)
    if goal.offsets:
        keys = [key for key in keys if key in goal.offsets]
    if goal.stays:
        keys = [key for key in keys if key in before]
    if absent := sorted({*only} - {*keys}):
        raise NoPositions(
            f"There is no partition {', '.join(f'{t}-{p}' for t, p in absent)} to reset.",
            hint="catchwater topic describe TOPIC shows those that there are.",
        )
    in_part = {topic for topic, _ in only}
    keys = [key for key in keys if key in only or key[0] not in in_part]
    missing = sorted(wanted - {topic for topic, _ in keys})
    if not wanted or missing:
        raise NoPositions(
            f"Group {group} has no committed position."
            if not wanted
            else f"There is no topic {', '.join(missing)}.",
            hint="Name the topics with --topic; catchwater topic list shows them.",
        )
    return keys


class Places(NamedTuple):
    """Offsets by partition, as a reset needs them."""

    before: Mapping[TopicPartition, int]
    """Where the group stands."""
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    found: Mapping[TopicPartition, int] = {}
    """The first record at the goal's time or after it; negative: there is none."""


def moves_to(group: str, goal: Goal, keys: Sequence[TopicPartition], places: Places) -> list[Move]:
    """What a reset of these partitions does. Raises `NoSuchPosition`."""
    before, starts, ends, found = places
    if goal.stays:
        goals = {key: before[key] for key in keys}
    elif goal.timestamp_ms is not None:
        goals = {key: ends[key] if found[key] < 0 else found[key] for key in keys}
    else:
        goals = {key: goal.offsets.get(key, goal.offset or 0) for key in keys}
    outside = [
        f"{topic}-{partition} holds {starts[key]} to {ends[key]}, and not {goals[key]}"
        for key in keys
        for topic, partition in [key]
        if not starts[key] <= goals[key] <= ends[key]
    ]
    if outside:
        raise NoSuchPosition(
            f"Group {group} cannot be reset to there: {'; '.join(outside)}.",
            hint="Name one that the log holds, or earliest.",
        )
    return [Move(*key, before.get(key), goals[key]) for key in keys]


def move(client: Client, group: str, moves: Sequence[Move]) -> None:
    """Carry out the moves. Raises `GroupBusy` where the group has got members meanwhile."""
    try:
        client.commit(group, {(each.topic, each.partition): each.to for each in moves})
    except RequestRefused as refused:
        if refused.code not in _BUSY:
            raise
        raise GroupBusy(
            f"Group {group} has got members meanwhile, which go on from where they are.",
            hint="Stop them first. catchwater group describe shows who they are.",
        ) from refused
