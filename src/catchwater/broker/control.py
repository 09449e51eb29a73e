"""The HTTP port for people and machines that are not Kafka clients.

    GET    /healthz                                   the process is up
    GET    /readyz                                    it takes requests; 503 while it stops, while
                                                      its storage or its catalog is out of reach
    GET    /metrics                                   Prometheus
    GET    /api/v1/cluster                            the brokers, and this one's session
    GET    /api/v1/topics                             {"topics": [{"name", "id", "partitions"}]}
    GET    /api/v1/topics/{topic}                     offsets, bytes and places of each partition
    POST   /api/v1/plans                              where ranges of offsets lie in storage, and
                                                      which transactions in them were aborted
    GET    /api/v1/pins                               {"pins": [...]}
    PUT    /api/v1/pins/{id}             {"owner", "positions", a lease, "max_bytes"}
    PATCH  /api/v1/pins/{id}             {"lease_ms"}: its lease ends so long from now
    DELETE /api/v1/pins/{id}
    GET    /api/v1/sinks/{pipeline}/{sink}            the sink's last epoch
    GET    /api/v1/sinks/{pipeline}/{sink}/epochs/{epoch}   what it committed as this epoch
    PUT    /api/v1/sinks/{pipeline}/{sink}/epochs/{epoch}   write an epoch once
    GET    /api/v1/storage                            {"objects": url}
    POST   /api/v1/grants                {"bytes", "client_id"}: what may be read of the quota, when

Every error is JSON: {"error": code, "message": sentence, "hint": sentence or null}; a plan that
asks for offsets that are gone is answered 416 with the missing ranges, and a topic that the gate
keeps from whoever asks 403. Bodies are bounded. It binds loopback unless the configuration says
otherwise, and knows no users yet.
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.gate import ANONYMOUS, ClusterDenied, Operation, TopicDenied
from catchwater.broker.metrics import MAX_GROUPS
from catchwater.broker.quotas.replay import Grant
from catchwater.catalog.base import (
    CatalogFull,
    CatalogUnavailable,
    CatalogUncertain,
    EpochGap,
    SessionFenced,
    TopicExists,
    TopicUnknown,
)
from catchwater.catalog.rows import (
    EpochCommit,
    Pin,
    PinState,
    Topic,
)
from catchwater.config import Address, CatchwaterError
from catchwater.log.core import RangeMissing
from catchwater.log.read.planner import CommittedPlan
from catchwater.log.storage import StagedDamaged

MAX_BODY_BYTES = 4 * 1024 * 1024
READ_COMMITTED = "read_committed"

T = TypeVar("T")


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


class _Position(msgspec.Struct):
    topic: str
    partition: int
    offset: int


class _PinBody(msgspec.Struct):
    owner: str
    positions: list[_Position]
    lease_until_ms: int | None = None
    lease_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """From now on, by this broker's clock; goes before `lease_until_ms`."""
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _LeaseBody(msgspec.Struct):
    lease_ms: Annotated[int, msgspec.Meta(ge=1)]


class _EpochBody(msgspec.Struct):
    topic: str
    staged: list[str]
    checksum: str = ""


class Refusal(CatchwaterError):
    """A request that is answered with an HTTP error status."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


_STATUSES: Mapping[type[CatchwaterError], tuple[int, str]] = {
    TopicDenied: (403, "TOPIC_AUTHORIZATION_FAILED"),
    ClusterDenied: (403, "CLUSTER_AUTHORIZATION_FAILED"),
    TopicUnknown: (404, "UNKNOWN_TOPIC"),
    TopicExists: (409, "TOPIC_EXISTS"),
    EpochGap: (409, "EPOCH_GAP"),
    StagedDamaged: (422, "STAGED_DAMAGED"),
    CatalogFull: (507, "STORAGE_FULL"),
    CatalogUnavailable: (503, "CATALOG_UNAVAILABLE"),
    CatalogUncertain: (503, "CATALOG_UNCERTAIN"),
    SessionFenced: (503, "SESSION_FENCED"),
}


def create_app(broker: Broker) -> Starlette:
    """The application; it keeps nothing of its own."""
    api = _Control(broker)
    return Starlette(
        routes=[
            Route("/healthz", api.healthz),
            Route("/readyz", api.readyz),
            Route("/metrics", api.metrics),
            Route("/api/v1/cluster", api.cluster),
            Route("/api/v1/topics", api.topics),
            Route("/api/v1/topics/{topic}", api.topic),
            Route("/api/v1/plans", api.plan, methods=["POST"]),
            Route("/api/v1/pins", api.pins),
            Route("/api/v1/pins/{id:path}", api.set_pin, methods=["PUT"]),
            Route("/api/v1/pins/{id:path}", api.renew_pin, methods=["PATCH"]),
            Route("/api/v1/pins/{id:path}", api.release_pin, methods=["DELETE"]),
            Route("/api/v1/sinks/{pipeline}/{sink}", api.last_epoch),
            Route("/api/v1/sinks/{pipeline}/{sink}/epochs/{epoch:int}", api.epoch),
            Route(
                "/api/v1/sinks/{pipeline}/{sink}/epochs/{epoch:int}",
                api.commit_epoch,
                methods=["PUT"],
            ),
            Route("/api/v1/storage", api.storage),
            Route("/api/v1/grants", api.grant, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error, CatchwaterError: _operating_error},
    )


class _Control:
    """The endpoints, as methods of what they share."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = broker.log

    async def healthz(self, request: Request) -> Response:
        return _json({"status": "up"})

    async def readyz(self, request: Request) -> Response:
        if self._broker.draining.is_set():
            raise Refusal(503, "NOT_READY", "The broker is stopping.")
        if self._log.has_failed:
            raise Refusal(503, "STORAGE_FAILED", "The log's storage failed; see the broker's log.")
        if self._log.cluster is not None and not self._log.cluster.is_current:
            raise Refusal(503, "NO_SESSION", "The broker's session is not renewed at the moment.")
        return _json({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        await self._measure_groups()
        states = Counter(pin.state for pin in await self._log.pins())
        for state in get_args(PinState):
            self._broker.metrics.pins.labels(state).set(states[state])
        self._broker.metrics.wal_unflushed_bytes.set(self._log.unflushed_bytes)
        self._broker.metrics.txn_open.set(self._log.txns.open_count)
        self._broker.metrics.brokers.set(len(self._broker.brokers))
        return Response(self._broker.metrics.page(), media_type="text/plain; version=0.0.4")

    async def _measure_groups(self) -> None:
        """Lag is looked up when somebody asks, so that commits and appends pay nothing for it."""
        metrics = self._broker.metrics
        metrics.group_members.clear()
        metrics.consumer_lag_records.clear()
        for group in islice(self._broker.groups.groups.values(), MAX_GROUPS):
            metrics.group_members.labels(group.id).set(len(group.members))
        for group_id in (await self._log.groups())[:MAX_GROUPS]:
            for (name, partition), commit in (await self._log.committed(group_id)).items():
                topic = self._log.topics.get(name)
                if topic is not None:
                    end = self._log.state((topic.id, partition)).high_watermark
                    lag = metrics.consumer_lag_records.labels(group_id, name, str(partition))
                    lag.set(max(0, end - commit.offset))

    async def cluster(self, request: Request) -> Response:
        session = self._log.session
        return _json(
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

    async def topics(self, request: Request) -> Response:
        may = partial(self._broker.may, ANONYMOUS, Operation.DESCRIBE)
        return _json({"topics": [_topic(topic) for topic in self._log.topics if may(topic.name)]})

    async def topic(self, request: Request) -> Response:
        topic = await self._find(request.path_params["topic"], Operation.DESCRIBE)
        places = {row.partition: row for row in await self._log.storage(topic.name)}
        states = [(index, self._log.state((topic.id, index))) for index in range(topic.partitions)]
        return _json(
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

    async def plan(self, request: Request) -> Response:
        body = await _body(request, _PlanBody)
        topic = await self._find(body.topic, Operation.READ)
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
        return _json(
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
        """What who reads by a plan must know of the quota, where there is one."""
        quota = self._broker.replay_quotas.limits.quota(ANONYMOUS, client_id)
        if quota is None:
            return {}
        url = self._broker.keeper_url(quota.account)
        return {"quota": {"bytes_per_s": quota.bytes_per_s, "url": url}}

    async def grant(self, request: Request) -> Response:
        body = await _body(request, _GrantBody)
        quotas = self._broker.replay_quotas
        quota = quotas.limits.quota(ANONYMOUS, body.client_id)
        grant = Grant(body.bytes, 0) if quota is None else quotas.grant(quota, body.bytes)
        self._broker.metrics.replay_granted_bytes.inc(grant.size_bytes)
        self._broker.metrics.replay_throttled_seconds.inc(grant.throttle_ms / 1000)
        return _json({"bytes": grant.size_bytes, "throttle_ms": grant.throttle_ms})

    async def pins(self, request: Request) -> Response:
        pins = await self._log.pins()
        return _json({"pins": [_pin(pin) for pin in pins if self._may(Operation.DESCRIBE, pin)]})

    async def set_pin(self, request: Request) -> Response:
        body = await _body(request, _PinBody)
        positions = {(p.topic, p.partition): p.offset for p in body.positions}
        await self._check_pin(request)
        for topic, _ in positions:
            self._check(Operation.READ, topic)
        now_ms = self._broker.clock.now_ms()
        pin = Pin(
            request.path_params["id"],
            body.owner,
            positions,
            body.lease_until_ms if body.lease_ms is None else now_ms + body.lease_ms,
            now_ms,
            body.max_bytes,
        )
        await self._log.set_pin(pin)
        return _json(_pin(pin))

    async def renew_pin(self, request: Request) -> Response:
        body = await _body(request, _LeaseBody)
        pin_id = request.path_params["id"]
        await self._check_pin(request)
        pin = await self._log.renew_pin(pin_id, self._broker.clock.now_ms() + body.lease_ms)
        if pin is None:
            message = f"There is no pin {pin_id} that still holds anything."
            raise Refusal(404, "UNKNOWN_PIN", message)
        return _json(_pin(pin))

    async def release_pin(self, request: Request) -> Response:
        await self._check_pin(request)
        if not await self._log.release_pin(request.path_params["id"]):
            raise Refusal(404, "UNKNOWN_PIN", f"There is no pin {request.path_params['id']}.")
        return _json({"released": request.path_params["id"]})

    async def last_epoch(self, request: Request) -> Response:
        pipeline, sink = request.path_params["pipeline"], request.path_params["sink"]
        commit = await self._log.epochs.last(pipeline, sink)
        if commit is None:
            raise Refusal(404, "NO_EPOCH", f"Sink {sink} of {pipeline} has written no epoch yet.")
        self._check(Operation.DESCRIBE, commit.topic)
        return _json(_epoch(commit))

    async def epoch(self, request: Request) -> Response:
        path = request.path_params
        commit = await self._log.epochs.find(path["pipeline"], path["sink"], path["epoch"])
        if commit is None:
            raise Refusal(
                404,
                "NO_EPOCH",
                f"Sink {path['sink']} of {path['pipeline']} has not written epoch {path['epoch']}.",
            )
        self._check(Operation.DESCRIBE, commit.topic)
        return _json(_epoch(commit))

    async def commit_epoch(self, request: Request) -> Response:
        body = await _body(request, _EpochBody)
        path = request.path_params
        self._check(Operation.WRITE, body.topic)
        await self._log.look_up([body.topic])
        commit = await self._log.epochs.commit(
            path["pipeline"], path["sink"], path["epoch"], body.topic, body.staged, body.checksum
        )
        return _json(_epoch(commit))

    async def storage(self, request: Request) -> Response:
        if not self._broker.may_administer(ANONYMOUS, Operation.DESCRIBE):
            raise ClusterDenied(ANONYMOUS, Operation.DESCRIBE)
        return _json({"objects": self._log.objects.url()})

    def _check(self, operation: Operation, topic: str) -> None:
        if not self._broker.may(ANONYMOUS, operation, topic):
            raise TopicDenied(ANONYMOUS, operation, topic)

    def _may(self, operation: Operation, pin: Pin) -> bool:
        topics = {topic for topic, _ in pin.positions}
        return all(self._broker.may(ANONYMOUS, operation, topic) for topic in topics)

    async def _check_pin(self, request: Request) -> None:
        """Raise `Refusal` if the pin is there, of topics that who asks may not read.

        It does not name them: they may be kept from whoever asks.
        """
        pin_id = request.path_params["id"]
        for pin in await self._log.pins():
            if pin.id == pin_id and not self._may(Operation.READ, pin):
                message = f"{ANONYMOUS} may not READ all topics of the pin {pin_id}."
                raise Refusal(403, "TOPIC_AUTHORIZATION_FAILED", message)

    async def _find(self, name: str, operation: Operation) -> Topic:
        """The topic, its partitions seen as they are now, whoever has changed them.

        Raises `TopicDenied` before it is known whether there is such a topic.
        """
        self._check(operation, name)
        await self._log.look_up([name])
        topic = self._log.topics.find(name)
        await self._log.refresh((topic.id, index) for index in range(topic.partitions))
        return topic


def _topic(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "id": topic.id.hex(), "partitions": topic.partitions}


def _committed(plan: CommittedPlan) -> dict[str, Any]:
    """What a reader of committed records needs besides the ranges."""
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


def _pin(pin: Pin) -> dict[str, Any]:
    return {
        "id": pin.id,
        "owner": pin.owner,
        "positions": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(pin.positions.items())
        ],
        "lease_until_ms": pin.lease_until_ms,
        "created_ms": pin.created_ms,
        "max_bytes": pin.max_bytes,
        "state": pin.state,
    }


def _epoch(commit: EpochCommit) -> dict[str, Any]:
    return {
        "already": commit.already,
        "epoch": commit.epoch,
        "topic": commit.topic,
        "records": commit.records,
        "checksum": commit.checksum,
        "offsets": {str(p): list(offsets) for p, offsets in commit.offsets.items()},
    }


async def _body(request: Request, kind: type[T]) -> T:
    """The request's body as this type. Raises `Refusal` for too much, or for anything else."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise Refusal(413, "BODY_TOO_LARGE", f"A body has up to {MAX_BODY_BYTES} bytes.")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Refusal(400, "INVALID_BODY", f"The body is not what is wanted: {problem}.") from None


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _error(status: int, code: str, message: str, hint: str | None, **more: Any) -> Response:
    return _json({"error": code, "message": message, "hint": hint, **more}, status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "HTTP_ERROR")
    message = f"{request.method} {request.url.path}: {error.detail}."
    return _error(error.status_code, code, message, "docs/control.md lists the paths.")


async def _operating_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CatchwaterError)
    if isinstance(error, Refusal):
        return _error(error.status, error.code, str(error), error.hint)
    if isinstance(error, RangeMissing):
        missing = [{"partition": p, "start": s, "end": e} for p, s, e in error.missing]
        return _error(416, "OFFSET_OUT_OF_RANGE", str(error), error.hint, missing=missing)
    status, code = next(
        (found for kind, found in _STATUSES.items() if isinstance(error, kind)), (500, "FAILED")
    )
    return _error(status, code, str(error), error.hint)
