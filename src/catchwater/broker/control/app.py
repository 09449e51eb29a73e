"""The application: all paths of the control API, and the replies to errors of its handlers.

The paths about the broker and its topics are here; plans, pins and epochs have their own modules.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any, get_args

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control.entry import ByHandler, Caller, Free, OfCluster, entry
from catchwater.broker.control.epochs import Epochs
from catchwater.broker.control.pins import Pins
from catchwater.broker.control.pipelines import Pipelines
from catchwater.broker.control.plans import Plans
from catchwater.broker.control.replies import Refusal, find, http_error, json_reply, operating_error
from catchwater.broker.gate import Operation
from catchwater.broker.metrics import MAX_GROUPS, MAX_LAGS
from catchwater.catalog.rows import PinState, Topic
from catchwater.config import Address, CatchwaterError

_AT_ONCE = 1_000
"""Lags that are looked at in one turn of the event loop."""


class Health:
    """`/healthz`, `/readyz`, `/metrics`, and the paths of the cluster and its storage."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = broker.log
        self._measuring = asyncio.Lock()

    def routes(self) -> list[Route]:
        describe = OfCluster(Operation.DESCRIBE)
        return [
            entry(self._broker, "/healthz", self.healthz, Free()),
            entry(self._broker, "/readyz", self.readyz, Free()),
            entry(self._broker, "/metrics", self.metrics, describe),
            entry(self._broker, "/api/v1/cluster", self.cluster, describe),
            entry(self._broker, "/api/v1/storage", self.storage, describe),
        ]

    async def healthz(self, request: Request, caller: Caller) -> Response:
        return json_reply({"status": "up"})

    async def readyz(self, request: Request, caller: Caller) -> Response:
        if self._broker.draining.is_set():
            raise Refusal(503, "NOT_READY", "The broker is stopping.")
        if self._log.has_failed:
            raise Refusal(503, "STORAGE_FAILED", "The log's storage failed; see the broker's log.")
        if self._log.cluster is not None and not self._log.cluster.is_current:
            raise Refusal(503, "NO_SESSION", "The broker's session is not renewed at the moment.")
        return json_reply({"status": "ready"})

    async def metrics(self, request: Request, caller: Caller) -> Response:
        async with self._measuring:  # two that ask at once do not cost twice as much at a time
            await self._measure_groups()
            return await self._page()

    async def _page(self) -> Response:
        states = Counter(pin.state for pin in await self._log.pins())
        for state in get_args(PinState):
            self._broker.metrics.pins.labels(state).set(states[state])
        self._broker.metrics.wal_unflushed_bytes.set(self._log.unflushed_bytes)
        self._broker.metrics.txn_open.set(self._log.txns.open_count)
        self._broker.metrics.brokers.set(len(self._broker.brokers))
        page = await asyncio.to_thread(self._broker.metrics.page)
        return Response(page, media_type="text/plain; version=0.0.4")

    async def _measure_groups(self) -> None:
        """Lag is computed when metrics are read, so that commits and appends cost nothing more."""
        shown, left_out = self._broker.metrics.groups, 0
        lags: list[tuple[str, str, int, int]] = []
        groups = islice(self._broker.groups.groups.values(), MAX_GROUPS)
        members = {group.id: len(group.members) for group in groups}
        for group_id in (await self._log.groups())[:MAX_GROUPS]:
            committed = await self._log.committed(group_id)
            for at, ((name, partition), commit) in enumerate(committed.items()):
                if at % _AT_ONCE == 0:
                    await self._broker.clock.sleep(0)  # the turn of others
                topic = self._log.topics.get(name)
                if topic is None:
                    continue
                if len(lags) >= MAX_LAGS:
                    left_out += 1
                    continue
                end = self._log.state((topic.id, partition)).high_watermark
                lags.append((group_id, name, partition, max(0, end - commit.offset)))
        shown.members, shown.lags, shown.left_out = members, lags, left_out

    async def cluster(self, request: Request, caller: Caller) -> Response:
        session = self._log.session
        return json_reply(
            {
                "cluster_id": self._log.cluster_id,
                "broker": self._broker.config.node_id,
                "session": session.epoch if session else None,
                "brokers": [
                    {
                        "id": row.id,
                        "zone": row.zone,
                        "state": row.state,
                        "session": row.epoch if session else None,
                        "kafka": str(Address(row.host, row.port)),
                        "control": row.control_url,
                        "wal": row.wal,
                    }
                    for row in self._broker.brokers
                ],
            }
        )

    async def storage(self, request: Request, caller: Caller) -> Response:
        return json_reply({"objects": self._log.objects.url()})


class Topics:
    """The paths under `/api/v1/topics`: the topics that the caller may DESCRIBE."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = broker.log

    def routes(self) -> list[Route]:
        describe = ByHandler(Operation.DESCRIBE)
        return [
            entry(self._broker, "/api/v1/topics", self.topics, describe),
            entry(self._broker, "/api/v1/topics/{topic}", self.topic, describe),
        ]

    async def topics(self, request: Request, caller: Caller) -> Response:
        may = partial(caller.may, Operation.DESCRIBE)
        return json_reply(
            {"topics": [_topic(topic) for topic in self._log.topics if may(topic.name)]}
        )

    async def topic(self, request: Request, caller: Caller) -> Response:
        name = request.path_params["topic"]
        caller.check(Operation.DESCRIBE, name)
        topic = await find(self._broker, name)
        places = {row.partition: row for row in await self._log.storage(topic.name)}
        states = [(index, self._log.state((topic.id, index))) for index in range(topic.partitions)]
        return json_reply(
            _topic(topic)
            | {
                "config": dict(topic.config),
                "offsets": [
                    {
                        "partition": index,
                        "log_start": state.log_start,
                        "high_watermark": state.high_watermark,
                        "bytes": state.bytes,
                        "earliest_timestamp": state.earliest_timestamp,
                    }
                    for index, state in states
                ],
                "storage": [row._asdict() for row in places.values()],
            }
        )


def _topic(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "id": topic.id.hex(), "partitions": topic.partitions}


def create_app(broker: Broker, more: Sequence[Route] = ()) -> Starlette:
    """The application; it has no state of its own. `more` are the paths of the page."""
    chapters = (
        Health(broker), Topics(broker), Plans(broker), Pins(broker), Epochs(broker),
        Pipelines(broker),
    )  # fmt: skip
    return Starlette(
        routes=[*(route for chapter in chapters for route in chapter.routes()), *more],
        exception_handlers={HTTPException: http_error, CatchwaterError: operating_error},
    )
