"""What running pipelines report of themselves, for all brokers to show.

The last report of each lies in the catalog: one broker's memory would be silent after a restart,
and where a load balancer sends the next question to another one.
"""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control.entry import ByHandler, Caller, entry
from catchwater.broker.control.replies import Refusal, json_reply, read_body
from catchwater.broker.gate import Operation, Resource, ResourceType
from catchwater.catalog.rows import ReportRow
from catchwater.verdicts import VERDICTS, State, Verdict, as_seen

MAX_REPORT_BYTES = 128 * 1024


class _Report(msgspec.Struct):
    """What every report has; the rest is the reporter's (`verdicts.PipelineStatus`)."""

    name: str
    correct: Verdict
    recoverable: Verdict
    fresh: Verdict


class Pipelines:
    """The paths under `/api/v1/pipelines`; who may act as a pipeline may report as it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = broker.log

    def routes(self) -> list[Route]:
        every = "/api/v1/pipelines"
        one, shows = every + "/{name}", ByHandler(Operation.DESCRIBE)
        writes = ByHandler(Operation.WRITE)
        return [
            entry(self._broker, every, self.pipelines, shows),
            entry(self._broker, one, self.pipeline, shows),
            entry(self._broker, one + "/report", self.take_report, writes, "PUT"),
        ]

    async def pipelines(self, request: Request, caller: Caller) -> Response:
        rows = await self._log.reports()
        shown = [
            self._shown(row)
            for row in rows
            if caller.may_with(
                Operation.DESCRIBE, Resource(ResourceType.TRANSACTIONAL_ID, row.name)
            )
        ]
        return json_reply({"pipelines": shown})

    async def pipeline(self, request: Request, caller: Caller) -> Response:
        name = request.path_params["name"]
        caller.check_pipeline(Operation.DESCRIBE, name)
        row = next((row for row in await self._log.reports() if row.name == name), None)
        if row is None:
            raise Refusal(404, "NO_REPORT", f"No pipeline {name} has reported to this log.")
        return json_reply(self._shown(row))

    async def take_report(self, request: Request, caller: Caller) -> Response:
        name = request.path_params["name"]
        caller.check_pipeline(Operation.WRITE, name)
        body = await read_body(request, dict[str, Any], MAX_REPORT_BYTES)
        try:
            says = msgspec.convert(body, _Report)
        except msgspec.ValidationError as problem:
            raise Refusal(400, "INVALID_BODY", f"This is no report: {problem}.") from None
        if says.name != name:
            raise Refusal(400, "INVALID_BODY", f"This is a report of {says.name}, not of {name}.")
        now_ms = self._broker.clock.now_ms()
        await self._log.keep_report(ReportRow(name, now_ms, msgspec.json.encode(body).decode()))
        return json_reply({"received_ms": now_ms})

    def _shown(self, row: ReportRow) -> dict[str, Any]:
        age_s = max(0, self._broker.clock.now_ms() - row.received_ms) / 1000
        report = as_seen(msgspec.json.decode(row.report), age_s)
        return {
            "name": row.name,
            "received_ms": row.received_ms,
            "age_s": age_s,
            "report": report,
        }


def verdicts_seen(report: str, age_s: float) -> dict[str, State]:
    """Verdict → its state, of a report that is so old."""
    says = msgspec.json.decode(report, type=_Report)
    seen = as_seen({name: msgspec.to_builtins(getattr(says, name)) for name in VERDICTS}, age_s)
    return {name: seen[name]["state"] for name in VERDICTS}
