"""Plans of replays: the objects and byte ranges of offsets, and grants of a quota to read them.

A plan grants what it names and nothing else: a URL of a bucket is signed for the very bytes and for
a quarter of an hour. Files are named only to readers on this machine. Other readers, and those of
bytes that nobody but a broker can read, get a URL of this broker (`Bytes`), signed with a key of
this process.

A plan of committed records also lists the aborted transactions in its ranges. If a quota applies, a
plan names it, and a grant is a part of it.
"""

import asyncio
import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, pairwise
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control import replies
from catchwater.broker.control.entry import ByHandler, ByUrl, Caller, Free, entry
from catchwater.broker.control.replies import Refusal, json_reply, read_body
from catchwater.broker.gate import Operation
from catchwater.broker.quotas import Grant
from catchwater.catalog.rows import Topic
from catchwater.log.read.planner import CommittedPlan, PlanRange
from catchwater.objects.base import range_header
from catchwater.values.policy import FIELDS
from catchwater.wire.connection import HERE, nearest

READ_COMMITTED = "read_committed"
MOST_RANGES = 10_000
"""Of a request."""
MOST_PLACES = 20_000
"""Of an answer: some 8 MB."""
GRANT_S = 900
_READS_AT_ONCE = 4
_LONGEST_NAME = 250
_MOST_NOTED = 100
"""Partitions whose offsets stand in the audit trail's line of a plan."""
_KEY = os.urandom(32)
"""Signs this process's own URLs."""


class _Range(msgspec.Struct):
    partition: int
    start: int
    end: int


class _PlanBody(msgspec.Struct):
    topic: str
    ranges: list[_Range]
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    client_id: str = ""


class _GrantBody(msgspec.Struct):
    bytes: Annotated[int, msgspec.Meta(ge=1)]
    client_id: str = ""


class Plans:
    """`/api/v1/plans` and `/api/v1/grants`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = broker.log
        self._bytes = Bytes(broker)

    def routes(self) -> list[Route]:
        return [
            entry(self._broker, "/api/v1/plans", self.plan, ByHandler(Operation.READ), "POST"),
            entry(self._broker, "/api/v1/bytes/{object:path}", self._bytes.read, ByUrl()),
            entry(self._broker, "/api/v1/grants", self.grant, Free(), "POST"),
        ]

    async def plan(self, request: Request, caller: Caller) -> Response:
        body = await read_body(request, _PlanBody)
        caller.check(Operation.READ, body.topic)
        topic = await replies.find(self._broker, body.topic)
        for wanted in body.ranges:
            if not 0 <= wanted.partition < topic.partitions:
                raise Refusal(
                    404, "UNKNOWN_PARTITION", f"{topic.name} has no partition {wanted.partition}."
                )
        ranges = [(wanted.partition, wanted.start, wanted.end) for wanted in body.ranges]
        _check_ranges(ranges)
        planner = self._log.planner
        if body.isolation == READ_COMMITTED:
            committed = await planner.plan_committed(topic.name, ranges, MOST_PLACES)
            planned, more = committed.ranges, _committed(committed)
        else:
            planned, more = await planner.plan(topic.name, ranges, MOST_PLACES), {}
        caller.note(self._broker, "POST plan", f"TOPIC {topic.name}", None, _asked(body))
        self._broker.metrics.planned_bytes.inc(sum(each.byte_size for each in planned))
        is_near = await asyncio.to_thread(is_here, request)
        states = {p: self._log.state((topic.id, p)) for p in range(topic.partitions)}
        return await asyncio.to_thread(
            json_reply,
            {
                "topic": topic.name,
                "ranges": [self._bytes.granted(each, is_near) for each in planned],
                "log_start": {str(p): state.log_start for p, state in states.items()},
                "high_watermark": {str(p): state.high_watermark for p, state in states.items()},
            }
            | _fields(topic)
            | more
            | self._quota(caller, body.client_id),
        )

    def _quota(self, caller: Caller, client_id: str) -> dict[str, Any]:
        """The quota that applies to the reader of a plan, if there is one."""
        quota = self._broker.replay_quotas.limits.quota(caller.principal, client_id)
        if quota is None:
            return {}
        url = self._broker.keeper_url(quota.account)
        return {"quota": {"bytes_per_s": quota.bytes_per_s, "url": url}}

    async def grant(self, request: Request, caller: Caller) -> Response:
        """Asks nothing of the gate: everybody spends what is their own."""
        body = await read_body(request, _GrantBody)
        quotas = self._broker.replay_quotas
        quota = quotas.limits.quota(caller.principal, body.client_id)
        grant = Grant(body.bytes, 0) if quota is None else quotas.grant(quota, body.bytes)
        self._broker.metrics.replay_granted_bytes.inc(grant.size_bytes)
        self._broker.metrics.replay_throttled_seconds.inc(grant.throttle_ms / 1000)
        return json_reply({"bytes": grant.size_bytes, "throttle_ms": grant.throttle_ms})


def _fields(topic: Topic) -> dict[str, str]:
    """What readers are to do with its fields, if anything is declared."""
    declared = topic.config.get(FIELDS, "")
    return {"fields": declared} if declared else {}


def _asked(body: _PlanBody) -> dict[str, Any]:
    """What a plan is for, as the audit trail has it."""
    ends: dict[int, tuple[int, int]] = {}
    for each in body.ranges:
        start, end = ends.get(each.partition, (each.start, each.end))
        ends[each.partition] = min(start, each.start), max(end, each.end)
    noted = islice(ends.items(), _MOST_NOTED)
    return {
        "isolation": body.isolation,
        "client_id": body.client_id[:_LONGEST_NAME],
        "partitions": len(ends),
        "offsets": {str(partition): list(both) for partition, both in noted},
    }


class Bytes:
    """`/api/v1/bytes`: ranges of objects for who got their URL in a plan."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    def granted(self, each: PlanRange, is_here: bool) -> PlanRange:
        """The range with the URL by which this reader may read it."""
        if each.url.startswith("https:") or each.url.startswith("http:"):
            return replace(each, parquet="")  # Spark's own reader takes no signed URL
        if each.url.startswith("file:") and is_here:
            return each
        until_s = self._broker.clock.now_ms() // 1000 + GRANT_S
        asked = (each.object, each.byte_offset, each.byte_size, until_s)
        query = urlencode(
            {"from": asked[1], "size": asked[2], "until": asked[3], "key": _sign(asked)}
        )
        url = f"{self._broker.control_url}/api/v1/bytes/{quote(each.object)}?{query}"
        return replace(each, url=url, parquet="")

    async def read(self, request: Request, caller: Caller) -> Response:
        """Exactly the bytes that the URL was signed for; a `Range` header changes nothing."""
        query = request.query_params
        try:
            numbers = int(query["from"]), int(query["size"]), int(query["until"])
        except (KeyError, ValueError):
            numbers = (0, 0, 0)
        asked = (request.path_params["object"], *numbers)
        offset, size, until_s = numbers
        is_signed = hmac.compare_digest(_sign(asked).encode(), query.get("key", "").encode())
        if not is_signed or self._broker.clock.now_ms() > until_s * 1000:
            raise Refusal(403, "NOT_GRANTED", "This URL grants nothing (any more).")
        async with self._reads:
            data = await asyncio.to_thread(self._broker.log.read_object, asked[0], offset, size)
        where = range_header(offset, size).replace("=", " ")
        headers = {"content-range": f"{where}/{offset + size}"}
        return Response(data, 206, headers, media_type="application/octet-stream")


def _sign(asked: tuple[str, int, int, int]) -> str:
    return hmac.new(_KEY, repr(asked).encode(), hashlib.sha256).hexdigest()


def is_here(request: Request) -> bool:
    """Whether the reader is on this machine."""
    return request.client is None or nearest(request.client.host) == HERE


def _check_ranges(ranges: Iterable[tuple[int, int, int]]) -> None:
    """Refuse so many, or offsets that are named twice: an answer would be endless."""
    inorder = sorted(ranges)
    if len(inorder) > MOST_RANGES:
        raise Refusal(413, "PLAN_TOO_LARGE", f"A request has up to {MOST_RANGES} ranges.")
    for (partition, _, end), (following, start, _) in pairwise(inorder):
        if partition == following and start < end:
            message = f"Offset {start} of partition {partition} is asked for twice."
            raise Refusal(400, "INVALID_RANGES", message)


def _committed(plan: CommittedPlan) -> dict[str, Any]:
    """What a reader of committed records needs in addition to the ranges."""
    return {
        "isolation": READ_COMMITTED,
        "last_stable_offset": {str(p): offset for p, offset in plan.last_stable.items()},
        "aborted": [
            {
                "partition": row.partition,
                "producer_id": row.producer_id,
                "first_offset": row.first_offset,
                "last_offset": row.last_offset,
            }
            for row in plan.aborted
        ],
    }
