"""A broker's traces: what producers sent, and the chunk that it became (`catchwater.traces`).

The writer shows each chunk when it is committed, before it is acknowledged; every n-th becomes a
span with two children, `wal` and `commit`, and one `produce` for each of its first requests, from
the request's first byte in the handler to here. A producer's own trace is gone on with where a
request's first record names it in a header `traceparent` and is not compressed.

Where the newest traced chunks lie is remembered, for pipelines that ask which of them an epoch has
read: `POST /api/v1/traces`. Another broker's are not known here.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from starlette.requests import Request as Asked
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control.entry import ByHandler, Caller, entry
from catchwater.broker.control.replies import json_reply, read_body
from catchwater.broker.gate import Operation
from catchwater.catalog.rows import PartitionKey
from catchwater.log.write.sequence import Result
from catchwater.log.write.writer import Request, Write
from catchwater.traces import Traces, Value
from catchwater.wire.errors import ErrorCode

MOST_REQUESTS = 16
"""Of one chunk that get a span: each is some 50 µs of the event loop."""
MOST_LINKS = 32
MOST_PLACES = 4_096
"""Runs of traced chunks that are remembered."""
_HEADER_BYTES = 4_096
_PARENT = re.compile(rb"\x16traceparent\x6e(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})")
"""The header as it lies in a record: the sizes of key and value, 11 and 55, as varints."""


class _Place(NamedTuple):
    key: PartitionKey
    first: int
    last: int
    chunk: str


class ChunkTraces:
    """Makes the spans of one broker's chunks. Used on its event loop."""

    def __init__(self, broker: Broker, traces: Traces, every: int) -> None:
        """`every` n-th chunk is traced."""
        self._broker = broker
        self._traces = traces
        self._every = every
        self._count = 0
        self._places: deque[_Place] = deque(maxlen=MOST_PLACES)

    def committed(self, write: Write, results: Sequence[Result]) -> None:
        """A chunk is about to be acknowledged."""
        self._count += 1
        if self._count % self._every == 0:
            self._trace(write, results)

    def _trace(self, write: Write, results: Sequence[Result]) -> None:
        now_s = self._broker.clock.monotonic_s()
        now_ns = self._broker.clock.now_ms() * 1_000_000
        took_ns = round(write.took_s * 1e9)
        begin_ns = min(write.chunk.created_ms * 1_000_000, now_ns - took_ns)
        produced = []
        for request in write.requests[:MOST_REQUESTS]:
            started_s = getattr(request.answer, "started_s", None)
            at_ns = begin_ns if started_s is None else now_ns - round((now_s - started_s) * 1e9)
            produced.append(self._produce(request, at_ns, now_ns))
        about: dict[str, Value] = {
            "catchwater.broker": self._broker.config.node_id,
            "catchwater.requests": len(write.requests),
            "catchwater.batches": len(results),
            "catchwater.bytes": len(write.payload),
        }
        chunk = self._traces.span("chunk", begin_ns, now_ns, about, links=produced)
        self._traces.span("wal", begin_ns, begin_ns + took_ns, {}, parent=chunk)
        self._traces.span("commit", begin_ns + took_ns, now_ns, {}, parent=chunk)
        for batch, result in zip(write.chunk.entries, results, strict=True):
            if result.error is ErrorCode.NONE and not result.duplicate:
                last = result.base_offset + batch.last_offset_delta
                key = batch.topic_id, batch.partition
                self._places.append(_Place(key, result.base_offset, last, chunk))

    def _produce(self, request: Request, begin_ns: int, end_ns: int) -> str:
        first = request.batches[0]
        about: dict[str, Value] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "produce",
            "messaging.destination.name": self._broker.log.topics.name_of(first.partition[0]) or "",
            "messaging.destination.partition.id": str(first.partition[1]),
            "messaging.batch.message_count": sum(b.header.record_count for b in request.batches),
            "messaging.message.body.size": request.size_bytes,
        }
        found = _PARENT.search(first.data, 0, min(len(first.data), _HEADER_BYTES))
        parent = found[1].decode() if found else ""
        return self._traces.span("produce", begin_ns, end_ns, about, parent=parent, is_request=True)

    def among(self, key: PartitionKey, start: int, end: int) -> list[str]:
        """The traced chunks of which something lies in these offsets, newest first."""
        found = [
            each.chunk
            for each in reversed(self._places)
            if each.key == key and each.first < end and each.last >= start
        ]
        return found[:MOST_LINKS]


class _Range(msgspec.Struct):
    partition: int
    start: int
    end: int


class _Body(msgspec.Struct):
    topic: str
    ranges: list[_Range]


class TracePaths:
    """`/api/v1/traces`: which traced chunks lie in offsets that somebody has read."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        reads = ByHandler(Operation.READ)
        return [entry(self._broker, "/api/v1/traces", self.links, reads, "POST")]

    async def links(self, request: Asked, caller: Caller) -> Response:
        body = await read_body(request, _Body)
        caller.check(Operation.READ, body.topic)
        traces, topic = self._broker.traces, self._broker.log.topics.get(body.topic)
        found: dict[str, None] = {}
        if traces is not None and topic is not None:
            for each in body.ranges[:MOST_PLACES]:
                at = traces.among((topic.id, each.partition), each.start, each.end)
                found |= dict.fromkeys(at)
        return json_reply({"links": list(found)[:MOST_LINKS]})
