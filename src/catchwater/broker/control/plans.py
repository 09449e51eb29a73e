"""Plans of replays: the objects and byte ranges of offsets, and grants of a quota to read them.

A plan of committed records also lists the aborted transactions in its ranges. If a quota applies, a
plan names it, and a grant is a part of it.
"""

from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control import replies
from catchwater.broker.control.replies import Refusal, json_reply, read_body
from catchwater.broker.gate import ANONYMOUS, Operation
from catchwater.broker.quotas import Grant
from catchwater.log.read.planner import CommittedPlan

READ_COMMITTED = "read_committed"


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

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/plans", self.plan, methods=["POST"]),
            Route("/api/v1/grants", self.grant, methods=["POST"]),
        ]

    async def plan(self, request: Request) -> Response:
        body = await read_body(request, _PlanBody)
        topic = await replies.find(self._broker, body.topic, Operation.READ)
        for wanted in body.ranges:
            if not 0 <= wanted.partition < topic.partitions:
                raise Refusal(
                    404, "UNKNOWN_PARTITION", f"{topic.name} has no partition {wanted.partition}."
                )
        ranges = [(wanted.partition, wanted.start, wanted.end) for wanted in body.ranges]
        if body.isolation == READ_COMMITTED:
            committed = await self._log.planner.plan_committed(topic.name, ranges)
            planned, more = committed.ranges, _committed(committed)
        else:
            planned, more = await self._log.planner.plan(topic.name, ranges), {}
        states = {p: self._log.state((topic.id, p)) for p in range(topic.partitions)}
        return json_reply(
            {
                "topic": topic.name,
                "ranges": planned,
                "log_start": {str(p): state.log_start for p, state in states.items()},
                "high_watermark": {str(p): state.high_watermark for p, state in states.items()},
            }
            | more
            | self._quota(body.client_id)
        )

    def _quota(self, client_id: str) -> dict[str, Any]:
        """The quota that applies to the reader of a plan, if there is one."""
        quota = self._broker.replay_quotas.limits.quota(ANONYMOUS, client_id)
        if quota is None:
            return {}
        url = self._broker.keeper_url(quota.account)
        return {"quota": {"bytes_per_s": quota.bytes_per_s, "url": url}}

    async def grant(self, request: Request) -> Response:
        body = await read_body(request, _GrantBody)
        quotas = self._broker.replay_quotas
        quota = quotas.limits.quota(ANONYMOUS, body.client_id)
        grant = Grant(body.bytes, 0) if quota is None else quotas.grant(quota, body.bytes)
        self._broker.metrics.replay_granted_bytes.inc(grant.size_bytes)
        self._broker.metrics.replay_throttled_seconds.inc(grant.throttle_ms / 1000)
        return json_reply({"bytes": grant.size_bytes, "throttle_ms": grant.throttle_ms})


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
