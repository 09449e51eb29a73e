"""The pages of the log: topics, groups, transactions, brokers with their WAL and objects.

Each is one pure function from what `facts` found to the record that is shown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from catchwater.audit import Line as AuditLine
from catchwater.catalog.rows import BrokerRow, OpenTxnRow, Pin, TxnRow
from catchwater.wal.base import WalDescription
from catchwater.web import words
from catchwater.web.facts import (
    BrokerFact,
    GroupFact,
    MemberFact,
    PartitionFact,
    PositionFact,
    TableFact,
    Times,
    TopicFact,
)
from catchwater.web.view import (
    Cell,
    Chart,
    Column,
    Command,
    Crumb,
    Form,
    Line,
    Mark,
    PageQuery,
    Panel,
    Sorted,
    Table,
    View,
    listed,
    shell_word,
)

_SLOW_LOOP_S, _STUCK_LOOP_S = 0.1, 1.0
_SLOW_SYNC_S = 0.25
_LONG_UNPACKED_S = 3600.0
"""As the alert has it."""
_BUSY, _FULL = 0.7, 0.9
"""Shares of one core; a broker's event loop has no second one."""
_NEAR_TIMEOUT = 0.8
_MOST_SHOWN = 30
_PIN_MARKS: Mapping[str, Mark] = {
    "reserved": "ok",
    "extended": "ok",
    "unreserved": "warn",
    "lost": "fail",
}
_TXN_STATES = {
    "empty": "none yet",
    "ongoing": "open",
    "prepare_commit": "committing",
    "prepare_abort": "aborting",
    "complete_commit": "committed",
    "complete_abort": "aborted",
}
OPEN = ("ongoing", "prepare_commit", "prepare_abort")
"""States of a transaction that holds readers back."""


def topic_href(name: str) -> str:
    """Where a topic's page is."""
    return f"/topics/{quote(name, safe='')}"


def group_href(name: str) -> str:
    """Where a group's page is."""
    return f"/groups/{quote(name, safe='')}"


# --- topics --------------------------------------------------------------------------------------


def topics(found: Iterable[TopicFact], asked: PageQuery, now_ms: int, kept_ms: int) -> View:
    """All topics, a page at a time.

    `kept_ms` is how long records are kept by default; -1: for ever.
    """
    all_topics = list(found)
    columns = [
        Sorted(
            Column("topic", "name"),
            lambda t: Cell(t.name, href=topic_href(t.name)),
            lambda t: t.name,
        ),
        _number("partitions", lambda t: t.partitions),
        _number("records", lambda t: t.records),
        Sorted(
            Column("written", "rate", right=True),
            lambda t: Cell(words.rate(t.per_s)),
            lambda t: t.per_s or 0.0,
        ),
        Sorted(
            Column("size", "size", right=True),
            lambda t: Cell(words.size(t.size_bytes)),
            lambda t: t.size_bytes,
        ),
        Sorted(
            Column("oldest record", "oldest", right=True),
            lambda t: Cell(words.ago(t.earliest_ms, now_ms) if t.earliest_ms >= 0 else words.DASH),
            lambda t: t.earliest_ms if t.earliest_ms >= 0 else now_ms,
        ),
        Sorted(Column("kept"), lambda t: Cell(_kept(t.settings, kept_ms))),
    ]
    table = listed(
        all_topics, columns, asked, "-size", "There are no topics yet.", lambda t: t.name
    )
    partitions = sum(topic.partitions for topic in all_topics)
    size = words.size(sum(topic.size_bytes for topic in all_topics))
    about = (
        f"{words.plural(len(all_topics), 'topic')}, {words.plural(partitions, 'partition')}, {size}"
    )
    empty = [Command("catchwater topic create my-topic --partitions 4", "Make the first one", True)]
    return View(
        "Topics",
        "topics",
        now_ms,
        about=about,
        panels=[Panel("topics", "", table=table, commands=[] if all_topics else empty, wide=True)],
    )


def _kept(settings: Mapping[str, str], default_ms: int) -> str:
    """What retention and compaction leave of a topic."""
    if "compact" in settings.get("cleanup.policy", ""):
        return "compacted"
    kept_ms = int(settings.get("retention.ms", default_ms))
    kept = "for ever" if kept_ms < 0 else words.span(kept_ms / 1000)
    return kept if "retention.ms" in settings else f"{kept} (default)"


def _table(topic: str, fact: TableFact, now_ms: int) -> Panel:
    lines = [
        Line("table", fact.name, mark="warn" if fact.problem else "", note=fact.problem),
        Line(
            "behind the log",
            "unknown" if fact.behind is None else words.plural(fact.behind, "record"),
            mark="unknown" if fact.behind is None else "",
        ),
    ]
    if fact.is_there:
        lines += [
            Line("rows", words.count(fact.rows)),
            Line("files", words.count(fact.files), note=words.size(fact.size_bytes)),
            Line("last commit", words.ago(fact.committed_ms, now_ms)),
        ]
    lacks: Mark = "unknown" if fact.gaps is None else "warn" if fact.gaps else "ok"
    lines.append(
        Line(
            "ranges that it lacks",
            "unknown" if fact.gaps is None else words.count(fact.gaps),
            mark=lacks,
            note="the log had deleted them before they were written" if fact.gaps else "",
        )
    )
    more = Command(f"catchwater table status {shell_word(topic)}", "Each partition of it", True)
    return Panel("table", "As a table", lines, commands=[more], wide=True)


class TopicPage(NamedTuple):
    """What the page of a topic is made of."""

    topic: TopicFact
    partitions: Sequence[PartitionFact]
    groups: Sequence[tuple[str, int]]
    """Groups that read it, with their lag here."""
    pins: Sequence[Pin]
    table: TableFact | None = None
    """The Iceberg table that it is; None: it is none."""


def topic(seen: TopicPage, asked: PageQuery, now_ms: int) -> View:
    """One topic: what is stored where, who reads it, what keeps it, its settings."""
    fact = seen.topic
    chunk_bytes = sum(each.chunk_bytes for each in seen.partitions)
    segment_bytes = sum(each.segment_bytes for each in seen.partitions)
    behind = sum(each.high_watermark - each.stable for each in seen.partitions)
    stored = chunk_bytes + segment_bytes
    facts = [
        Line("records", words.count(fact.records)),
        Line("written", words.rate(fact.per_s, "records")),
        Line("size", words.size(fact.size_bytes)),
        Line("oldest record", words.ago(fact.earliest_ms, now_ms)),
        Line(
            "behind an open transaction",
            words.plural(behind, "record"),
            note="what readers of committed records have to wait for" if behind else "",
            href="/transactions" if behind else "",
        ),
    ]
    places = [
        Line(
            "in segments",
            words.size(segment_bytes),
            share=segment_bytes / stored if stored else 0,
            note="packed, in the object store",
        ),
        Line(
            "in chunks",
            words.size(chunk_bytes),
            share=chunk_bytes / stored if stored else 0,
            note="as written, not packed yet",
        ),
        Line(
            "runs",
            words.count(sum(each.runs for each in seen.partitions)),
            note="rows of the catalog that say where the bytes are",
        ),
    ]
    settings = _plain(
        ["setting", "value"],
        [[Cell(key), Cell(value)] for key, value in sorted(fact.settings.items())],
        "Every setting is the broker's default.",
    )
    readers = _plain(
        ["group", "behind"],
        [
            [Cell(name, href=group_href(name)), Cell(words.count(lag))]
            for name, lag in seen.groups[:_MOST_SHOWN]
        ],
        "No group has a position here.",
        numbers={1},
    )
    name = fact.name
    return View(
        name,
        "topics",
        now_ms,
        crumbs=[Crumb("Topics", "/topics")],
        about=words.plural(fact.partitions, "partition"),
        panels=[
            Panel("facts", "What is in it", facts),
            Panel("places", "Where it is stored", places),
            Panel("readers", "Who reads it", table=readers),
            Panel("pins", "What keeps it", table=_pins(seen.pins, now_ms, topic=name)),
            Panel(
                "partitions",
                "Partitions",
                table=_partitions(seen.partitions, asked, now_ms),
                wide=True,
            ),
            *([] if seen.table is None else [_table(name, seen.table, now_ms)]),
            Panel("settings", "Settings", table=settings, wide=True),
        ],
    )


def _partitions(found: Sequence[PartitionFact], asked: PageQuery, now_ms: int) -> Table:
    columns = [
        Sorted(
            Column("partition", "partition", right=True),
            lambda p: Cell(str(p.partition)),
            lambda p: p.partition,
        ),
        _number("first offset", lambda p: p.log_start),
        _number("end", lambda p: p.high_watermark),
        _number("records", lambda p: p.high_watermark - p.log_start),
        _size("size", lambda p: p.size_bytes),
        _size("in segments", lambda p: p.segment_bytes),
        _size("in chunks", lambda p: p.chunk_bytes),
        _number("runs", lambda p: p.runs),
        Sorted(
            Column("oldest record", "oldest", right=True),
            lambda p: Cell(words.ago(p.earliest_ms, now_ms) if p.earliest_ms >= 0 else words.DASH),
            lambda p: p.earliest_ms,
        ),
    ]
    return listed(
        found,
        columns,
        asked,
        "partition",
        "It has no partitions.",
        lambda p: f"{p.partition:06d}",
    )


def _pins(pins: Sequence[Pin], now_ms: int, topic: str | None = None) -> Table:
    """Pins, by the offsets that they hold; of one topic, its own."""
    rows = []
    for pin in sorted(pins, key=lambda pin: (pin.owner, pin.id))[:_MOST_SHOWN]:
        places = {at: offset for at, offset in pin.positions.items() if topic in (None, at[0])}
        held = ", ".join(
            f"{name}-{index} from {offset}" for (name, index), offset in sorted(places.items())[:2]
        )
        more = f" and {len(places) - 2} more" if len(places) > 2 else ""
        ends = "with its owner" if pin.lease_until_ms is None else _left(pin.lease_until_ms, now_ms)
        rows.append(
            [
                Cell(pin.owner),
                Cell(pin.state, mark=_PIN_MARKS[pin.state]),
                Cell(held + more),
                Cell(ends),
            ]
        )
    return _plain(
        ["owner", "state", "keeps", "ends"],
        rows,
        "No pin: retention alone decides what is deleted.",
    )


def _left(until_ms: int, now_ms: int) -> str:
    left_s = (until_ms - now_ms) / 1000
    return f"in {words.span(left_s)}" if left_s > 0 else "has ended"


# --- groups --------------------------------------------------------------------------------------


def groups(found: Sequence[GroupFact], asked: PageQuery, now_ms: int) -> View:
    """All consumer groups, a page at a time."""
    columns = [
        Sorted(
            Column("group", "name"),
            lambda g: Cell(g.name, href=group_href(g.name)),
            lambda g: g.name,
        ),
        Sorted(Column("state", "state"), _state_cell, lambda g: g.state),
        _number("members", lambda g: g.members),
        _number("partitions", lambda g: g.partitions),
        Sorted(
            Column("behind", "lag", right=True),
            lambda g: Cell(words.count(g.lag) if g.partitions else words.DASH),
            lambda g: g.lag,
        ),
        Sorted(
            Column("in seconds", "seconds", right=True),
            lambda g: Cell(
                _lag_s(g.lag, g.lag_s) if g.partitions else words.DASH, mark=promised(g)
            ),
            lambda g: g.lag_s if g.lag_s is not None else float("inf"),
        ),
    ]
    empty = "No group has members or positions."
    table = listed(found, columns, asked, "-lag", empty, lambda g: g.name)
    reading = sum(1 for group in found if group.members)
    about = f"{words.plural(len(found), 'group')}, {words.count(reading)} with members"
    return View(
        "Groups",
        "groups",
        now_ms,
        about=about,
        panels=[Panel("groups", "", table=table, wide=True)],
    )


def _state_cell(group: GroupFact) -> Cell:
    if not group.state:
        return Cell("not known here", mark="unknown")
    is_moving = group.state not in ("Stable", "Empty", "Dead")
    return Cell(group.state, mark="warn" if is_moving else "ok" if group.members else "")


def promised(group: GroupFact) -> Mark:
    """Its lag against what was promised of it, if anything was."""
    if group.promise_s is None or not group.partitions:
        return ""
    if group.lag_s is None:
        return "unknown"
    return "fail" if group.lag_s > group.promise_s else "ok"


def _lag_s(lag: int, lag_s: float | None) -> str:
    return "unknown" if lag_s is None else words.span(lag_s) if lag else "0 s"


class GroupPage(NamedTuple):
    """What the page of a group is made of."""

    group: GroupFact
    members: Sequence[MemberFact]
    positions: Sequence[PositionFact]
    reset: Form | None = None
    """Where the caller may move it."""


def group(seen: GroupPage, asked: PageQuery, now_ms: int) -> View:
    """One group: lag now and over time, its members, its positions, how to move it."""
    fact, name = seen.group, seen.group.name
    state = _state_cell(fact)
    lines = [
        Line("state", state.text, mark=state.mark, note=fact.protocol),
        Line("members", words.count(fact.members)),
        Line("behind", words.plural(fact.lag, "record")),
        Line(
            "in seconds",
            _lag_s(fact.lag, fact.lag_s),
            mark=promised(fact) or ("unknown" if fact.lag_s is None else ""),
            note="age of the oldest record that it has not committed"
            + ("" if fact.promise_s is None else f"; {words.span(fact.promise_s)} promised"),
        ),
        Line(
            "last commit",
            words.ago(max((p.committed_ms for p in seen.positions), default=-1), now_ms),
        ),
    ]
    reset = [
        Command(
            f"catchwater group reset {shell_word(name)} --by-duration 2h",
            "See what a reset would do",
            asks_log=True,
        ),
        Command(
            f"catchwater contract show --group {shell_word(name)}",
            "How long the log keeps what comes next",
            asks_log=True,
        ),
    ]
    charts = [
        Chart("Behind, records", "records", {f"group/{name}/lag": "records"}),
        Chart("Behind, seconds", "s", {f"group/{name}/lag_s": "seconds"}),
    ]
    members = _plain(
        ["client", "host", "member", "reads"],
        [
            [
                Cell(m.client_id),
                Cell(m.host.lstrip("/")),
                Cell(m.instance_id or m.id),
                Cell(_some(m.partitions)),
            ]
            for m in seen.members[:_MOST_SHOWN]
        ],
        "It has no members now.",
    )
    return View(
        name,
        "groups",
        now_ms,
        crumbs=[Crumb("Groups", "/groups")],
        about=f"{fact.protocol} group".strip(),
        panels=[
            Panel("now", "Now", lines),
            Panel(
                "reset",
                "Move it",
                commands=reset,
                form=seen.reset,
                note="It must have no members. What it would do is shown before it is done.",
            ),
            Panel("lag", "Over time", charts=charts, wide=True),
            Panel("members", "Members", table=members, wide=True),
            Panel(
                "positions", "Positions", table=_positions(seen.positions, asked, now_ms), wide=True
            ),
        ],
    )


def _positions(found: Sequence[PositionFact], asked: PageQuery, now_ms: int) -> Table:
    columns = [
        Sorted(
            Column("partition", "partition"),
            lambda p: Cell(f"{p.topic}-{p.partition}", href=topic_href(p.topic)),
            lambda p: (p.topic, p.partition),
        ),
        _number("position", lambda p: p.position),
        _number("end", lambda p: p.end),
        _number("behind", lambda p: p.lag),
        Sorted(
            Column("in seconds", "seconds", right=True),
            lambda p: Cell(_lag_s(p.lag, p.lag_s)),
            lambda p: p.lag_s if p.lag_s is not None else float("inf"),
        ),
        Sorted(
            Column("committed", "committed", right=True),
            lambda p: Cell(words.ago(p.committed_ms, now_ms)),
            lambda p: p.committed_ms,
        ),
    ]
    return listed(
        found,
        columns,
        asked,
        "-behind",
        "It has committed nothing.",
        lambda p: f"{p.topic}-{p.partition}",
    )


# --- transactions --------------------------------------------------------------------------------


def transactions(
    found: Sequence[TxnRow],
    opened: Mapping[int, Sequence[tuple[str, OpenTxnRow]]],
    asked: PageQuery,
    now_ms: int,
) -> View:
    """Transactional ids; `opened` has the (topic, row) of those that are open, by producer id."""
    open_now = [row for row in found if row.state in OPEN]
    late = [row for row in open_now if _open_share(row, now_ms) >= _NEAR_TIMEOUT]
    oldest_ms = min((row.started_ms for row in open_now), default=-1)
    columns = [
        Sorted(
            Column("transactional id", "id"),
            lambda r: Cell(r.transactional_id),
            lambda r: r.transactional_id,
        ),
        Sorted(
            Column("state", "state"),
            lambda r: Cell(_TXN_STATES[r.state], mark=_txn_mark(r, now_ms)),
            lambda r: (r.state in OPEN, r.started_ms if r.state in OPEN else 0),
        ),
        Sorted(
            Column("open for", "open", right=True),
            lambda r: Cell(
                words.span((now_ms - r.started_ms) / 1000) if r.state in OPEN else words.DASH
            ),
            lambda r: now_ms - r.started_ms if r.state in OPEN else 0,
        ),
        Sorted(
            Column("aborts after", "timeout", right=True),
            lambda r: Cell(words.span(r.timeout_ms / 1000)),
            lambda r: r.timeout_ms,
        ),
        Sorted(
            Column("holds back"),
            lambda r: Cell(
                _some(
                    [
                        f"{topic}-{at.partition} from {at.first_offset}"
                        for topic, at in opened.get(r.producer_id, ())
                    ]
                )
            ),
        ),
        Sorted(
            Column("producer", "producer", right=True),
            lambda r: Cell(f"{r.producer_id} / {r.epoch}"),
            lambda r: r.producer_id,
        ),
        Sorted(
            Column("last change", "updated", right=True),
            lambda r: Cell(words.ago(r.updated_ms, now_ms)),
            lambda r: r.updated_ms,
        ),
    ]
    table = listed(
        found,
        columns,
        asked,
        "-state",
        "No producer has a transactional id.",
        lambda r: r.transactional_id,
    )
    lines = [
        Line(
            "open",
            words.count(len(open_now)),
            mark="warn" if late else "",
            note=f"{len(late)} will be aborted soon" if late else "",
        ),
        Line(
            "oldest",
            words.span((now_ms - oldest_ms) / 1000) if open_now else words.DASH,
            note="readers of committed records wait for it" if open_now else "",
        ),
    ]
    abort = [
        Command(
            f"catchwater txn abort {shell_word(row.transactional_id)}", "Abort what hangs", True
        )
        for row in late[:3]
    ]
    return View(
        "Transactions",
        "transactions",
        now_ms,
        about=words.plural(len(found), "transactional id"),
        panels=[
            Panel("open", "Open now", lines, commands=abort, wide=True, strip=True),
            Panel("transactions", "", table=table, wide=True),
        ],
    )


def _open_share(row: TxnRow, now_ms: int) -> float:
    return (now_ms - row.started_ms) / max(1, row.timeout_ms)


def _txn_mark(row: TxnRow, now_ms: int) -> Mark:
    if row.state not in OPEN:
        return ""
    return "warn" if _open_share(row, now_ms) >= _NEAR_TIMEOUT else "ok"


# --- brokers, WAL, objects -----------------------------------------------------------------------


class BrokersPage(NamedTuple):
    """What the page of the brokers is made of."""

    node_id: int
    brokers: Sequence[BrokerRow]
    now: BrokerFact
    before: BrokerFact | None
    """Some time ago; None: the broker has just begun."""
    over_s: float
    wal: WalDescription
    objects: str
    pins: Sequence[Pin]
    wal_age_s: float | None = None
    """For how long the oldest bytes wait to be packed; 0: none do."""


def brokers(seen: BrokersPage, now_ms: int, problem: str = "") -> View:
    """The brokers, and of the one that was asked how it and its storage are.

    `problem` is why its history is not kept.
    """
    me = f"broker/{seen.node_id}"
    members = _plain(
        ["broker", "state", "zone", "Kafka", "page", "write-ahead log"],
        [
            [
                Cell(f"{row.id} (this one)" if row.id == seen.node_id else str(row.id)),
                Cell(row.state, mark="ok" if row.state == "live" else "warn"),
                Cell(row.zone or words.DASH),
                Cell(f"{row.host}:{row.port}"),
                Cell(row.control_url, href=row.control_url),
                Cell(row.wal or seen.wal.kind),
            ]
            for row in seen.brokers
        ],
        "No broker has a session.",
    )
    charts = [
        Chart(
            "Bytes a second, live and replay",
            "bytes",
            {
                f"{me}/bytes_in": "in",
                f"{me}/bytes_out": "out",
                f"{me}/planned": "read by Spark from storage",
                f"{me}/lagging": "read by clients that lag",
            },
        ),
        Chart(
            "Produce and WAL, 99th percentile",
            "s",
            {f"{me}/produce_p99": "produce", f"{me}/fsync_p99": "WAL sync"},
        ),
        Chart("Share of a core", "share", {f"{me}/cpu": "CPU"}),
        Chart("Event loop late by", "s", {f"{me}/loop_lag": "longest"}),
    ]
    return View(
        "Brokers",
        "brokers",
        now_ms,
        about=words.plural(len(seen.brokers), "live broker"),
        panels=[
            Panel("brokers", "", table=members, wide=True),
            Panel("this", f"Broker {seen.node_id}, the last {words.span(seen.over_s)}", load(seen)),
            Panel("wal", "Write-ahead log", wal_lines(seen)),
            Panel("objects", "Objects", _objects(seen)),
            Panel("cost", "What reads and writes cost", _amplified(seen.now)),
            Panel("over-time", "Over time", charts=charts, note=problem, wide=True),
            Panel(
                "pins",
                "What keeps the log from deleting",
                table=_pins(seen.pins, now_ms),
                wide=True,
            ),
        ],
    )


def load(seen: BrokersPage) -> list[Line]:
    """How busy the broker is."""
    now, before, over_s = seen.now, seen.before, max(0.001, seen.over_s)
    core = None if before is None else max(0.0, now.cpu_s - before.cpu_s) / over_s
    late_s = now.loop_lag.since(before.loop_lag if before else None).quantile(1.0)
    return [
        _busy(core),
        Line(
            "event loop late by",
            words.span(late_s) if late_s is not None else "unknown",
            mark=_grade(late_s, _SLOW_LOOP_S, _STUCK_LOOP_S),
            note="longest",
        ),
        Line(
            "waiting for their turn",
            _p(now.queue.since(before.queue if before else None)),
            note="requests; p50 / p99, at most",
        ),
        Line(
            "Produce",
            _p(now.produce.since(before.produce if before else None)),
            note="p50 / p99, at most",
        ),
        Line(
            "Fetch",
            _p(now.fetch.since(before.fetch if before else None)),
            note="p50 / p99, at most; with waiting for more",
        ),
        Line(
            "bytes in / out",
            " / ".join(
                words.size((new - old) / over_s) + "/s"
                for new, old in (
                    (now.bytes_in, before.bytes_in if before else now.bytes_in),
                    (now.bytes_out, before.bytes_out if before else now.bytes_out),
                )
            ),
        ),
        Line("Kafka connections", words.count(now.connections)),
        _refused(now, before),
    ]


def _busy(core: float | None) -> Line:
    if core is None:
        return Line("CPU", "unknown", mark="unknown", note="not measured yet")
    return Line(
        "CPU",
        f"{core * 100:.0f} % of a core",
        mark=_grade(core, _BUSY, _FULL),
        share=min(1.0, core),
    )


def _refused(now: BrokerFact, before: BrokerFact | None) -> Line:
    before_by = before.refused if before else {}
    lately = {name: round(count - before_by.get(name, 0)) for name, count in now.refused.items()}
    lately = {name: count for name, count in lately.items() if count > 0}
    text = ", ".join(f"{words.count(count)} {name}" for name, count in sorted(lately.items()))
    return Line("batches refused", text or "none", mark="warn" if lately else "ok")


def wal_lines(seen: BrokersPage) -> list[Line]:
    """How the write-ahead log is."""
    now, before = seen.now, seen.before
    syncs = now.fsync.since(before.fsync if before else None)
    slow_s = syncs.quantile(0.99)
    return [
        Line("kind", seen.wal.kind, note=seen.wal.latency_class),
        Line("what must fail to lose it", seen.wal.failure_domain),
        _unpacked(seen.wal_age_s),
        Line("not durable yet", words.size(now.unflushed_bytes)),
        Line(
            "until durable",
            _p(syncs),
            note="p50 / p99, at most",
            mark="warn" if slow_s is not None and slow_s > _SLOW_SYNC_S else "",
        ),
        Line("readable by", seen.wal.readers),
    ]


def _unpacked(age_s: float | None) -> Line:
    note = "until they are packed into the object store"
    if age_s is None:
        return Line("oldest bytes wait for", "unknown", mark="unknown", note=note)
    mark: Mark = "warn" if age_s > _LONG_UNPACKED_S else ""
    return Line("oldest bytes wait for", words.span(age_s) if age_s else "none do", mark, note)


def store_line(seen: BrokersPage) -> Line:
    """In one line, how requests to the object store went lately."""
    counts = _outcomes(seen)
    if counts is None:
        return Line("requests to objects", "not counted", note="a folder of this machine")
    again, failed = counts["retried"], counts["failed"]
    mark: Mark = "fail" if failed else "warn" if again else "ok"
    note = (
        f"{words.count(again)} tried again, {words.count(failed)} failed; put within {_put(seen)}"
    )
    return Line("requests to objects", words.count(counts["ok"]), mark, note)


def _objects(seen: BrokersPage) -> list[Line]:
    where, counts = Line("where", seen.objects), _outcomes(seen)
    if counts is None:
        return [where, Line("requests", "not counted", note="a folder of this machine")]
    again, failed = counts["retried"], counts["failed"]
    return [
        where,
        Line("requests", words.count(counts["ok"])),
        Line("tried again", words.count(again), mark="warn" if again else "ok"),
        Line("failed", words.count(failed), mark="fail" if failed else "ok"),
        Line("an object is put within", _put(seen), note="p50 / p99, at most"),
    ]


def _outcomes(seen: BrokersPage) -> Mapping[str, int] | None:
    """How many requests to the object store ended how, lately; None: they are not counted."""
    if not seen.now.store:
        return None
    counts = {"ok": 0, "retried": 0, "failed": 0}
    before = seen.before.store if seen.before else {}
    for key, count in seen.now.store.items():
        counts[key[1]] = counts.get(key[1], 0) + count - before.get(key, 0)
    return counts


def _put(seen: BrokersPage) -> str:
    return _p(seen.now.puts.since(seen.before.puts if seen.before else None))


def _amplified(now: BrokerFact) -> list[Line]:
    """What reads and writes have cost since the broker began."""
    reads = now.tail_reads + now.storage_reads
    hit = now.tail_reads / reads if reads else None
    factors = [
        f"{kind} {size_bytes / now.appended_bytes:.2f}"
        for kind, size_bytes in now.written_bytes.items()
        if size_bytes and now.appended_bytes
    ]
    sum_bytes = sum(now.written_bytes.values())
    times = f"{sum_bytes / now.appended_bytes:.2f}×" if now.appended_bytes else "nothing yet"
    return [
        Line(
            "read from memory",
            "nothing yet" if hit is None else f"{hit * 100:.0f} % of reads",
            note="" if hit is None else "the others from storage; since the start",
            share=hit,
        ),
        Line(
            "written for each byte",
            times,
            note=", ".join(factors) + ("; since the start" if factors else ""),
        ),
    ]


# --- the audit trail -----------------------------------------------------------------------------


def audit(
    found: Sequence[AuditLine] | None, asked: PageQuery, now_ms: int, folder: Path | None = None
) -> View:
    """Who was refused what, and who changed what, as this broker wrote it down in the folder."""
    columns = [
        Sorted(
            Column("when (UTC)", "when"),
            lambda e: Cell(words.moment(e.time_ms)),
            lambda e: e.number,
        ),
        Sorted(
            Column("what", "kind"),
            lambda e: Cell(
                e.kind if e.count == 1 else f"{e.kind}, {words.count(e.count)} times",
                mark="warn" if e.kind in ("refusal", "login") else "",
            ),
            lambda e: e.kind,
        ),
        Sorted(Column("who", "who"), lambda e: Cell(e.principal), lambda e: e.principal),
        Sorted(Column("from", "from"), lambda e: Cell(e.host), lambda e: e.host),
        Sorted(Column("asked for", "action"), lambda e: Cell(e.action), lambda e: e.action),
        Sorted(Column("of", "of", grows=True), lambda e: Cell(e.resource), lambda e: e.resource),
    ]
    empty = "Nothing was refused and nothing was changed yet."
    if found is None:
        empty = "This broker keeps no trail: it has no users and rules (catchwater.audit.dir)."
    table = listed(
        found or (),
        columns,
        asked,
        "-when",
        empty,
        lambda e: f"{e.principal} {e.action} {e.resource}",
    )
    command = f"catchwater governance audit verify {shell_word(str(folder))}"
    verify = [Command(command, "Show that nothing in it was changed, on the broker's machine")]
    return View(
        "Audit",
        "audit",
        now_ms,
        about="the newest lines of this broker's trail" if found else "",
        panels=[Panel("audit", "", table=table, commands=verify if found else [], wide=True)],
    )


# --- small things --------------------------------------------------------------------------------


def _number(title: str, of: Callable[[Any], int]) -> Sorted:
    return Sorted(
        Column(title, title.split()[0], right=True), lambda each: Cell(words.count(of(each))), of
    )


def _size(title: str, of: Callable[[Any], int]) -> Sorted:
    key = title.replace("in ", "")
    return Sorted(Column(title, key, right=True), lambda each: Cell(words.size(of(each))), of)


def _plain(
    titles: Sequence[str], rows: list[list[Cell]], empty: str, numbers: Iterable[int] = ()
) -> Table:
    right = set(numbers)
    return Table([Column(t, right=at in right) for at, t in enumerate(titles)], rows, empty)


def _some(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _p(times: Times) -> str:
    low, high = times.quantile(0.5), times.quantile(0.99)
    return "nothing lately" if high is None else f"{words.span(low)} / {words.span(high)}"


def _grade(value: float | None, warn: float, fail: float) -> Mark:
    if value is None:
        return "unknown"
    return "fail" if value >= fail else "warn" if value >= warn else "ok"
