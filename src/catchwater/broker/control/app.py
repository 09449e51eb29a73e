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
from catchwater.broker.control.pipelines import Pipelines, verdicts_seen
from catchwater.broker.control.plans import Plans
from catchwater.broker.control.replies import Refusal, find, http_error, json_reply, operating_error
from catchwater.broker.control.tables import Tables
from catchwater.broker.gate import Operation
from catchwater.broker.traces import TracePaths
from catchwater.catalog.rows import PinState, ReportRow, Topic
from catchwater.config import CatchwaterError
from catchwater.kafka_listeners import Address


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
        """What takes longer than an instant, queries and the page's text, happens in threads."""
        async with self._measuring:  # two that ask at once do not cost twice as much at a time
            metrics, log = self._broker.metrics, self._log
            groups = self._broker.groups
            members = {each.id: len(each.members) for each in groups.groups.values()}
            members |= {each.id: len(each.members) for each in groups.consumer_groups.values()}
            most = self._broker.config.catchwater_metrics_max_groups
            metrics.groups.members = dict(islice(members.items(), most))
            metrics.groups.found = await self._broker.lags.look()
            metrics.groups.promises = self._broker.lags.promises
            states = Counter(pin.state for pin in await log.pins())
            for state in get_args(PinState):
                metrics.pins.labels(state).set(states[state])
            reports = await log.reports()
            metrics.wal_unflushed_bytes.set(log.unflushed_bytes)
            metrics.wal_age_seconds.set(await log.keeping.wal_age_s())
            metrics.txn_open.set(log.txns.open_count)
            metrics.brokers.set(len(self._broker.brokers))
            metrics.partitions.set(sum(topic.partitions for topic in log.topics))
            page = await asyncio.to_thread(self._page, reports)
            return Response(page, media_type="text/plain; version=0.0.4")

    def _page(self, rows: Sequence[ReportRow]) -> bytes:
        shown, now_ms = self._broker.metrics.reports, self._broker.clock.now_ms()
        shown.ages_s = {row.name: max(0, now_ms - row.received_ms) / 1000 for row in rows}
        shown.verdicts = {
            row.name: verdicts_seen(row.report, shown.ages_s[row.name]) for row in rows
        }
        return self._broker.metrics.page()

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
        config = self._broker.config
        return json_reply(
            {
                "objects": self._log.objects.url(),
                "location": config.catchwater_location,
                "sealed": bool(config.catchwater_encryption_keys),
            }
        )


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
        Pipelines(broker), TracePaths(broker), Tables(broker),
    )  # fmt: skip
    return Starlette(
        routes=[*(route for chapter in chapters for route in chapter.routes()), *more],
        exception_handlers={HTTPException: http_error, CatchwaterError: operating_error},
    )
