"""A group is moved from the page: first it is shown what that would do, then that alone is done.

`GET /api/v1/groups/{group}/reset?to=…&topic=…` is the dry run, by the rules of `catchwater group
reset`; `POST` to the same path carries out moves that were shown, each only if the group still
stands where it stood then. A dry run needs DESCRIBE of the group and of its topics, a reset READ,
as OffsetCommit does. With several brokers it is the group's coordinator that moves it.

A page of somebody else cannot send the `POST`: its `Origin` is refused at the door, as for every
path, and the body is of a type that a browser does not send unasked.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker import placement
from catchwater.broker.api import k08_offset_commit
from catchwater.broker.broker import Broker
from catchwater.broker.control.entry import ByHandler, Caller, entry
from catchwater.broker.control.replies import Refusal, json_reply, read_body
from catchwater.broker.gate import Operation
from catchwater.catalog.errors import TopicUnknown
from catchwater.catalog.rows import OffsetCommit, PartitionKey
from catchwater.recovery.group import (
    BadGoal,
    Goal,
    GroupBusy,
    Move,
    NoPositions,
    NoSuchPosition,
    Places,
    check_left,
    chosen,
    moves_to,
    read_goal,
    read_topics,
)
from catchwater.web import words
from catchwater.web.facts import Facts
from catchwater.web.of_log import group_href, topic_href
from catchwater.web.view import (
    Act,
    Cell,
    Column,
    Command,
    Crumb,
    Field,
    Form,
    Line,
    Panel,
    Table,
    View,
    shell_word,
)
from catchwater.wire.client import EARLIEST, LATEST
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fields import TopicPartition

READ, DESCRIBE = Operation.READ, Operation.DESCRIBE
_PATH = "/api/v1/groups/{name:path}/reset"
_LONGEST_S = 30.0
"""How long looking for the records of a time may take."""
_MOST_SHOWN = 200
_NOBODY = ("", None, -1)
"""The member that a commit from outside names."""
_STATUSES: Mapping[type[Exception], tuple[int, str]] = {
    BadGoal: (400, "BAD_GOAL"),
    NoPositions: (404, "NO_POSITIONS"),
    GroupBusy: (409, "GROUP_BUSY"),
    NoSuchPosition: (409, "NO_SUCH_POSITION"),
}


class _Moved(msgspec.Struct):
    """One move, as a dry run has shown it."""

    topic: str
    partition: int
    to: int
    at: int | None = msgspec.field(name="from")
    """Where the group stood; None: nowhere yet."""


class _Body(msgspec.Struct):
    moves: list[_Moved]


class Resets:
    """The paths by which a group is moved."""

    def __init__(self, broker: Broker, facts: Facts) -> None:
        self._broker = broker
        self._log = broker.log
        self._facts = facts

    def routes(self) -> list[Route]:
        return [
            entry(self._broker, _PATH, self.show, ByHandler(DESCRIBE)),
            entry(self._broker, _PATH, self.carry_out, ByHandler(READ), "POST"),
        ]

    # --- the dry run -----------------------------------------------------------------------------

    async def show(self, request: Request, caller: Caller) -> Response:
        name, query = request.path_params["name"], request.query_params
        moves = await self.plan(caller, name, query.get("to", ""), query.getlist("topic"))
        return json_reply({"group": name, "moves": [*map(_move, moves)]})

    async def plan(
        self, caller: Caller, name: str, to: str, named: Iterable[str] = ()
    ) -> list[Move]:
        """What a reset would do; nothing is changed. Raises `Refusal`, `TopicDenied`."""
        caller.check_group(DESCRIBE, name)
        await self._check_here(name)
        try:
            async with asyncio.timeout(_LONGEST_S):
                return await self._plan(caller, name, to, named)
        except TimeoutError:
            message = f"The records of that time were not found within {_LONGEST_S:.0f} s."
            hint = "Name fewer partitions, as TOPIC:0,1,2."
            raise Refusal(504, "TOOK_TOO_LONG", message, hint=hint) from None
        except tuple(_STATUSES) as refused:
            raise _as_refusal(refused) from refused

    async def _plan(self, caller: Caller, name: str, to: str, named: Iterable[str]) -> list[Move]:
        goal = read_goal(to.strip(), datetime.fromtimestamp(self._facts.now_ms / 1000, UTC))
        topics, only = read_topics(named)
        for topic in topics:
            caller.check(DESCRIBE, topic)
        check_left(name, [(each.client_id, each.host) for each in self._facts.members(name)])
        before = {
            key: commit.offset
            for key, commit in (await self._log.committed(name)).items()
            if caller.may(DESCRIBE, key[0])
        }
        wanted = {*topics} or {topic for topic, _ in before}
        await self._log.look_up(wanted)
        known = filter(None, map(self._log.topics.get, wanted))
        ids = {(row.name, at): (row.id, at) for row in known for at in range(row.partitions)}
        keys = chosen(name, goal, before, ids, topics, only)
        await self._log.refresh(ids[key] for key in keys)
        states = {key: self._log.state(ids[key]) for key in keys}
        starts = {key: state.log_start for key, state in states.items()}
        ends = {key: state.high_watermark for key, state in states.items()}
        found = await self._at_time(goal, {key: ids[key] for key in keys}, starts, ends)
        return moves_to(name, goal, keys, Places(before, starts, ends, found))

    async def _at_time(
        self,
        goal: Goal,
        ids: Mapping[TopicPartition, PartitionKey],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, int]:
        """Where each partition has the first record at the goal's time or after it; else -1."""
        if goal.timestamp_ms is None:
            return {}
        if goal.timestamp_ms in (EARLIEST, LATEST):
            return starts if goal.timestamp_ms == EARLIEST else ends
        found = {}
        for key, place in ids.items():
            first = await self._log.offset_for_timestamp(place, goal.timestamp_ms)
            is_there = first is not None and first[0] < ends[key]
            # The batch that holds the log's start still has the records before it.
            found[key] = max(first[0], starts[key]) if first is not None and is_there else -1
        return found

    # --- the reset -------------------------------------------------------------------------------

    async def carry_out(self, request: Request, caller: Caller) -> Response:
        """Make moves that were shown, all or none."""
        name = request.path_params["name"]
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind.lower() != "application/json":
            raise Refusal(415, "NOT_JSON", "A reset is sent as application/json.")
        moves = (await read_body(request, _Body)).moves
        caller.check_group(READ, name)
        for topic in {each.topic for each in moves}:
            caller.check(READ, topic)
        await self._log.look_up({each.topic for each in moves})
        for each in moves:
            self._check_place(name, each)
        before = {f"{each.topic}-{each.partition}": each.at for each in moves}
        after = {f"{each.topic}-{each.partition}": each.to for each in moves}
        if len(after) < len(moves):
            raise Refusal(400, "INVALID_BODY", "A partition is moved once.")
        await self._store(name, moves)
        caller.note(self._broker, "POST reset", f"GROUP {name}", before, after)
        self._facts.forget_groups()
        return json_reply({"group": name, "moved": len(moves)})

    def _check_place(self, name: str, move: _Moved) -> None:
        topic = self._log.topics.find(move.topic)
        if not 0 <= move.partition < topic.partitions:
            raise TopicUnknown(f"There is no partition {move.topic}-{move.partition}.")
        state = self._log.state((topic.id, move.partition))
        if not state.log_start <= move.to <= state.high_watermark:
            message = f"{move.topic}-{move.partition} holds {state.log_start} to "
            message += f"{state.high_watermark}, and not {move.to}."
            raise Refusal(409, "NO_SUCH_POSITION", message, hint="Show again what it would do.")

    async def _store(self, name: str, moves: Sequence[_Moved]) -> None:
        groups, now_ms = self._broker.groups, self._facts.now_ms
        async with groups.in_order(name):
            self._check(name, await groups.check_commit(name, _NOBODY))
            stands = await self._log.committed(name)
            for each in moves:
                commit = stands.get((each.topic, each.partition))
                if (commit.offset if commit else None) != each.at:
                    message = f"Group {name} has moved in {each.topic}-{each.partition} meanwhile."
                    hint = "Show again what it would do."
                    raise Refusal(409, "GROUP_HAS_MOVED", message, hint=hint)
            commits = {
                (each.topic, each.partition): OffsetCommit(each.to, -1, "", now_ms)
                for each in moves
            }
            self._check(name, await k08_offset_commit.store(self._broker, name, commits))

    async def _check_here(self, name: str) -> None:
        self._check(name, await self._broker.groups.check_described(name))

    def _check(self, name: str, error: ErrorCode) -> None:
        """Raise the `Refusal` that an error of the coordinator means."""
        if error is ErrorCode.NONE:
            return
        if error is ErrorCode.NOT_COORDINATOR:
            row = placement.coordinator(self._broker.brokers, name)
            message = f"Broker {row.id} coordinates the group {name}, and not this one."
            hint = f"Reset it there: {row.control_url}{group_href(name)}"
            raise Refusal(409, "NOT_COORDINATOR", message, hint=hint)
        if error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            message = "The catalog cannot be reached at the moment; nothing was changed."
            raise Refusal(503, "CATALOG_UNAVAILABLE", message)
        if error is ErrorCode.INVALID_GROUP_ID:
            raise Refusal(400, "INVALID_GROUP_ID", f"No group can be called {name!r}.")
        message = f"Group {name} has got members meanwhile, which go on from where they are."
        raise Refusal(409, "GROUP_BUSY", message, hint="Stop them first.")


def _as_refusal(error: Exception) -> Refusal:
    status, code = next(found for kind, found in _STATUSES.items() if isinstance(error, kind))
    return Refusal(status, code, str(error), hint=getattr(error, "hint", None))


def _move(move: Move) -> dict[str, Any]:
    return {"topic": move.topic, "partition": move.partition, "from": move.offset, "to": move.to,
            "again": move.again}  # fmt: skip


# --- as a page -----------------------------------------------------------------------------------


def href(name: str) -> str:
    """Where a group's reset is shown."""
    return f"/reset/{quote(name, safe='')}"


def form(name: str, to: str = "", topics: str = "") -> Form:
    """What asks for a dry run."""
    return Form(
        href(name),
        [
            Field("to", "to", to, "2h ago, earliest …"),
            Field("topics", "topics", topics, "all that it has read, or TOPIC:0,1 …"),
        ],
        "Show what it would do",
    )


class DryRunResult(NamedTuple):
    """What a dry run came to."""

    to: str
    topics: str
    moves: Sequence[Move] = ()
    problem: Refusal | None = None
    may: bool = False
    """Whether the caller may carry it out."""
    who: str = ""


def view(name: str, shown: DryRunResult, now_ms: int) -> View:
    """The page of a reset, before it is done."""
    note = (
        "earliest, latest, an offset, 2h ago, or a time such as 2026-01-31T12:00:00Z. Nothing is "
        "changed by looking."
    )
    panels = [Panel("goal", "Where to", form=form(name, shown.to, shown.topics), note=note)]
    if shown.problem is not None:
        lines = [Line("why", str(shown.problem), mark="fail", note=shown.problem.hint or "")]
        panels.append(Panel("problem", "It cannot be reset to there", lines))
    elif shown.to:
        panels += _moves(name, shown)
    return View(
        f"Reset {name}",
        "groups",
        now_ms,
        crumbs=[Crumb("Groups", "/groups"), Crumb(name, group_href(name))],
        panels=panels,
        is_live=False,
    )


def _moves(name: str, shown: DryRunResult) -> list[Panel]:
    changed = [each for each in shown.moves if each.offset != each.to]
    again = sum(each.again for each in changed if each.again > 0)
    over = -sum(each.again for each in changed if each.again < 0)
    lines = [
        Line(
            "moved",
            words.plural(len(changed), "partition"),
            note=f"of {words.count(len(shown.moves))}",
        ),
        Line("read again", words.plural(again, "record")),
        Line(
            "passed over",
            words.plural(over, "record"),
            mark="warn" if over else "",
            note="which the group will not read" if over else "",
        ),
    ]
    command = f"catchwater group reset {shell_word(name)} --to {shell_word(shown.to)}"
    for each in shown.topics.split():
        command += f" --topic {shell_word(each)}"
    act = None
    if changed and shown.may:
        act = Act(
            f"Reset {words.plural(len(changed), 'partition')}",
            _PATH.replace("{name:path}", quote(name, safe="")),
            {"moves": [_move(each) for each in changed]},
            group_href(name),
        )
    note = "It stands there already."
    if changed:
        note = "" if shown.may else f"{shown.who} may not READ the group and its topics."
    would = Panel(
        "would",
        "What it would do",
        lines,
        act=act,
        note=note,
        commands=[Command(f"{command} --execute", "The same in a terminal", True)]
        if changed
        else [],
    )
    return [would, Panel("moves", "", table=_table(shown.moves), wide=True)]


def _table(moves: Sequence[Move]) -> Table:
    rows = [
        [
            Cell(f"{each.topic}-{each.partition}", href=topic_href(each.topic)),
            Cell("none" if each.offset is None else words.count(each.offset)),
            Cell(words.count(each.to)),
            Cell(_what(each)),
        ]
        for each in moves[:_MOST_SHOWN]
    ]
    columns = [
        Column("partition"), Column("stands at", right=True), Column("goes to", right=True),
        Column("", grows=True),
    ]  # fmt: skip
    if len(moves) > _MOST_SHOWN:
        rows.append([Cell(f"and {words.count(len(moves) - _MOST_SHOWN)} more"), *[Cell("")] * 3])
    return Table(columns, rows, "There is nothing to move.")


def _what(move: Move) -> str:
    if move.offset is None:
        return "gets a position"
    if not move.again:
        return "stays"
    verb = "read again" if move.again > 0 else "passed over"
    return f"{words.plural(abs(move.again), 'record')} {verb}"
