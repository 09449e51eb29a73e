"""Topics as tables: where each stands, and how it is taken back."""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control.entry import ByHandler, Caller, entry
from catchwater.broker.control.plans import is_here
from catchwater.broker.control.replies import Refusal, find, json_reply, read_body
from catchwater.broker.gate import Operation
from catchwater.catalog.rows import Topic
from catchwater.log.tables.open import TableUnfit
from catchwater.log.tables.settings import TABLE, has_table


class _Rewind(msgspec.Struct):
    offsets: dict[int, int] | None = None
    """By partition; without it, all that the log has is written again."""
    dry_run: bool = False


class _Range(msgspec.Struct):
    partition: int
    start: int
    end: int


class _Files(msgspec.Struct):
    ranges: list[_Range]
    as_bytes: bool = False
    """Whether values are wanted as bytes, where the table has them as fields, too."""
    by_url: bool = False
    """Whether the reader takes signed URLs, too: of files in a bucket."""


class Tables:
    """The paths `/api/v1/topics/{topic}/table`; rewinding needs ALTER of the topic.

    Files are named to readers on this machine only, as plans name them; those in a bucket are
    signed for.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._keeping = broker.log.keeping

    def routes(self) -> list[Route]:
        one = "/api/v1/topics/{topic}/table"
        return [
            entry(self._broker, one, self.status, ByHandler(Operation.DESCRIBE)),
            entry(self._broker, f"{one}/files", self.files, ByHandler(Operation.READ), "POST"),
            entry(self._broker, f"{one}/rewind", self.rewind, ByHandler(Operation.ALTER), "POST"),
        ]

    async def status(self, request: Request, caller: Caller) -> Response:
        topic = await self._find(request, caller, Operation.DESCRIBE)
        return json_reply(await self._keeping.tables.status(topic))

    async def files(self, request: Request, caller: Caller) -> Response:
        body = await read_body(request, _Files)
        topic = await self._find(request, caller, Operation.READ)
        wanted = {each.partition: (each.start, each.end) for each in body.ranges}
        if len(wanted) < len(body.ranges):
            raise Refusal(400, "INVALID_RANGES", "A partition is asked for twice.")
        found = await self._keeping.tables.native(
            topic, wanted, as_bytes=body.as_bytes, by_url=body.by_url
        )
        if found is None:
            return json_reply({"spans": []})
        are_files = [file.startswith("file:///") for file in (*found.whole, *found.partly)]
        if any(are_files) and not await asyncio.to_thread(is_here, request):
            raise TableUnfit("A table's files are named to readers on the broker's machine.")
        if not (body.by_url or all(are_files)):
            raise TableUnfit(
                f"The files of {topic.config[TABLE]} lie in a bucket, from where only records are "
                "read, and no columns."
            )
        spans = [
            {"partition": partition, "start": first, "end": stop}
            for partition, (first, stop) in found.spans.items()
        ]
        caller.note(self._broker, "POST table files", f"TOPIC {topic.name}", None, {"spans": spans})
        return json_reply(
            {
                "spans": spans,
                "whole": found.whole,
                "partly": found.partly,
                "values": found.values,
                "malformed": found.malformed,
                "left_out": found.left_out,
            }
        )

    async def rewind(self, request: Request, caller: Caller) -> Response:
        body = await read_body(request, _Rewind)
        topic = await self._find(request, caller, Operation.ALTER)
        done = await self._keeping.rewind_table(topic, body.offsets, dry_run=body.dry_run)
        if not body.dry_run:
            caller.note(self._broker, "POST table rewind", f"TOPIC {topic.name}", None, done)
        return json_reply(done)

    async def _find(self, request: Request, caller: Caller, operation: Operation) -> Topic:
        name = request.path_params["topic"]
        caller.check(operation, name)
        topic = await find(self._broker, name)
        if not has_table(topic):
            message = f"{name} is no table: {TABLE} is not set."
            raise Refusal(404, "NO_TABLE", message)
        return topic
