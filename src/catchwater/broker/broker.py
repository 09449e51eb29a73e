"""What a handler may use, and how it answers.

A handler module serves one API key and exports one `Api`. Most are plain coroutines from a decoded
request to the fields of a reply (`Cold`); Produce, Fetch and Metadata parse and encode their own
bytes (`Hot`). A reply's fields are named as in Kafka's message definitions, in snake case, and
include those of the newest served version; fields that the asked version lacks are left out.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from catchwater.broker.access import Access, Guard, changed_rows
from catchwater.broker.audit import Audit, Client
from catchwater.broker.coordination.coordinator import Coordinator
from catchwater.broker.coordination.held import MOVED
from catchwater.broker.fetch_sessions import FetchSessions
from catchwater.broker.gate import (
    ANONYMOUS,
    THE_CLUSTER,
    AllowAll,
    Ask,
    ByHandler,
    Gate,
    Resource,
    ResourceType,
    allowed_operations,
)
from catchwater.broker.lags import GroupLags
from catchwater.broker.login import Session
from catchwater.broker.metrics import Metrics
from catchwater.broker.quotas import (
    ConfiguredLimits,
    Entity,
    Meter,
    Quotas,
    ReplayQuotas,
    Settings,
)
from catchwater.broker.tls import Certificate
from catchwater.broker.value_checks import ValueChecks
from catchwater.broker_config import BrokerConfig, replay_quotas
from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.rows import BrokerRow, QuotaRow, Topic
from catchwater.clock import Clock
from catchwater.kafka_listeners import Address
from catchwater.log.log import Log
from catchwater.log.write.txn import TxnRefused
from catchwater.objects.base import Buffer
from catchwater.wire.errors import ErrorCode
from catchwater.wire.frames import Frame, RequestHeader

if TYPE_CHECKING:
    from catchwater.broker.traces import ChunkTraces

T = TypeVar("T")

NO_TOPIC_ID = bytes(16)


@dataclass
class Broker:
    """The parts that handlers share; lives as long as the process."""

    config: BrokerConfig
    log: Log
    clock: Clock
    groups: Coordinator
    metrics: Metrics
    kafka_address: Address
    """Where clients connect."""
    apis: "Mapping[int, Api]"
    """What is served."""
    control_url: str = ""
    listeners: str = ""
    """As `BrokerRow.listeners`."""
    unreachable: AbstractSet[int] = frozenset()
    """Live brokers that clients had better not be sent to; see `peers`."""
    gate: Gate = field(default_factory=AllowAll)
    """What requests are let through, by the Kafka protocol and by the control API alike."""
    guard: Guard | None = None
    """Users and rules, where there are any; its gates then take the place of `gate`."""
    control_certificate: Certificate | None = None
    """The control API's, and who signs those of its callers; None where it is without TLS."""
    audit: Audit | None = None
    """Where refusals and what administrators do are written down, if anywhere."""
    traces: "ChunkTraces | None" = None
    """Makes spans of chunks, where they are asked for."""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the broker is about to stop: long polls end at once."""
    replay_quotas: ReplayQuotas = field(init=False)
    """The accounts from which replays pay for what they read from storage."""

    value_checks: ValueChecks = field(init=False)
    """Whether values fit the schemas of topics that ask for it."""
    quotas: Quotas = field(init=False)
    """What clients may take in a second."""
    fetch_sessions: FetchSessions = field(init=False)
    lags: GroupLags = field(init=False)
    """How far consumer groups are behind."""

    def __post_init__(self) -> None:
        config = self.config
        slots = config.max_incremental_fetch_session_cache_slots
        self.fetch_sessions = FetchSessions(slots, self.clock)
        self.lags = GroupLags(self)
        self.value_checks = ValueChecks(config, self.clock)
        lagging = config.catchwater_lagging_quota_bytes_per_second
        self.quotas = Quotas(self.clock, self.metrics, lagging)
        limits = ConfiguredLimits(
            config.catchwater_replay_quota_bytes_per_second,
            replay_quotas(config.catchwater_replay_quota_overrides),
            self.quotas,
        )
        self.replay_quotas = ReplayQuotas(limits, self.clock)

    @property
    def brokers(self) -> Sequence[BrokerRow]:
        """The live brokers as this one knows them; at least one, most often this one too."""
        rows = self.log.brokers() if self.log.is_shared else []
        rows = [row for row in rows if row.id not in self.unreachable]
        if self.draining.is_set():
            node_id = self.config.node_id
            rows = [row._replace(state="draining") if row.id == node_id else row for row in rows]
        return rows or [self._myself]

    @property
    def _myself(self) -> BrokerRow:
        host, port = self.kafka_address
        node_id, zone = self.config.node_id, self.config.broker_rack
        mine = (node_id, 0, zone, host, port, self.control_url, "", False)
        return BrokerRow(*mine, "live", 0, self.listeners)

    def find_topic(self, name: str | None, topic_id: bytes = NO_TOPIC_ID) -> Topic | None:
        """The topic of this name or, where no name was given, of this id."""
        return self.log.topics.get(name) if name else self.log.topics.by_id(topic_id)

    def find_named(self, wanted: Any) -> Topic | None:
        """The topic that a part of a request names by its `name` or by its `topic_id`."""
        topic_id = getattr(wanted, "topic_id", None)
        name = getattr(wanted, "name", None)
        return self.find_topic(name, topic_id.bytes if topic_id else NO_TOPIC_ID)

    async def refresh_quotas(self) -> None:
        """Take over the quotas of clients as they are now. Raises `CatalogUnavailable`."""
        found: dict[Entity, dict[str, float]] = {}
        for row in await self.log.client_quotas():
            entity = Entity(row.user_name, row.client_id)
            found.setdefault(entity, {})[row.key] = row.value or 0.0
        if found != self.quotas.settings.values:
            self.quotas.settings = Settings(found)

    async def change_quotas(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set or remove quotas of an entity. Raises what every change of the catalog raises."""
        rows = [QuotaRow(entity.user, entity.client_id, *each) for each in changes.items()]
        await self.log.change_client_quotas(rows)
        await self.refresh_quotas()

    def gate_of(self, principal: str, host: str) -> Gate:
        """What lets a principal pass that comes from this host; to be kept for its connection."""
        return self.gate if self.guard is None else self.guard.gate(principal, host)

    async def change_access(self, decide: Callable[[Access], Access]) -> None:
        """Change the users and rules of all brokers; in force here when this returns.

        Raises `CatalogRetriable`, and what `decide` raises.
        """
        await self.log.change_access(changed_rows(decide))
        if self.guard is not None:
            await asyncio.to_thread(self.guard.refresh)

    def keeper_url(self, account: str) -> str:
        """The control API of the live broker that keeps this account, the same for all who ask.

        By rendezvous hashing: when a broker comes or goes, only its own accounts move.
        """
        urls = [row.control_url for row in self.brokers if row.control_url] or [self.control_url]
        return max(urls, key=lambda url: zlib.crc32(f"{account} {url}".encode()))

    async def wait_unless_draining(self, future: asyncio.Future[None], timeout_s: float) -> None:
        """Wait for the future, or for the broker's end, or until the time is over."""
        draining = asyncio.ensure_future(self.draining.wait())
        try:
            await asyncio.wait(
                (future, draining), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            draining.cancel()


_OPEN = AllowAll()


@cache
def _places(listeners: str) -> Mapping[str, Address]:
    return {name: Address(*at) for name, at in msgspec.json.decode(listeners).items()}


class Call(msgspec.Struct, frozen=True):
    """One request as it came; its handler, or the router, releases the frame."""

    header: RequestHeader
    client_host: str
    frame: Frame
    principal: str = ANONYMOUS
    gate: Gate | None = None
    """None where everything is allowed, and nothing is asked."""
    session: Session | None = None
    """The connection's, where there are users and rules."""
    audit: Audit | None = None
    api_name: str = ""
    listener: str = ""
    meter: Meter | None = None
    """Where the client may have a quota."""

    def may(self, ask: ByHandler, name: str = THE_CLUSTER.name) -> bool:
        """Whether the gate allows what the handler's API declares it asks, for this resource.

        If not, that is a refusal, which is audited.
        """
        if self.allows(ask, name):
            return True
        if self.audit is not None:
            self.audit.refuse(self.client, self.api_name, ask.operation, Resource(ask.type, name))
        return False

    def allows(self, ask: ByHandler, name: str = THE_CLUSTER.name) -> bool:
        """As `may`, where nothing is refused: what may not be seen is left out."""
        if self.gate is None:
            return True
        if ask.or_cluster and self.gate.may(self.principal, ask.operation, THE_CLUSTER):
            return True
        return self.gate.may(self.principal, ask.operation, Resource(ask.type, name))

    def place(self, row: BrokerRow) -> Address:
        """Where this client reaches a broker: at the listener of the name that it came by."""
        if row.listeners and (found := _places(row.listeners).get(self.listener)):
            return found
        return Address(row.host, row.port)

    @property
    def client(self) -> Client:
        """Who asks, and where, for the audit trail."""
        return Client(self.principal, self.listener, self.client_host)

    def operations(self, kind: ResourceType, name: str = THE_CLUSTER.name) -> int:
        """All that the gate allows with a resource, as a set of bits (KIP-430)."""
        return allowed_operations(self.gate or _OPEN, self.principal, Resource(kind, name))

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def correlation_id(self) -> int:
        return self.header.correlation_id


Fields = Mapping[str, Any]
Cold = Callable[[Broker, Call, Any], Awaitable[Any]]
Encode = Callable[[int, int, Any], Sequence[Buffer]]


LARGE_REQUEST_BYTES = 64 * 1024
"""To decode a larger one takes so long that others would notice; a thread does it."""
A_TURN = 500
"""Topics, partitions or groups of a request that are seen to in one turn; a few milliseconds."""


class Turns:
    """Counts the work of a task, and yields to others after every `A_TURN` of it.

    What names many things in one request holds up nobody else by it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = A_TURN

    async def after(self, work: int) -> None:
        """Count work that was done, and yield if it is time to."""
        self._left -= work
        if self._left <= 0:
            self._left = A_TURN
            await self._clock.sleep(0)

    async def over(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items, each of which is some work."""
        for item in items:
            yield item
            await self.after(1)


def _nobody_waits() -> None:
    pass


def as_it_is(encoded: Sequence[Buffer]) -> Sequence[Buffer]:
    """Encodes what is the bytes of a reply already."""
    return encoded


class Later(msgspec.Struct, eq=False):
    """A reply to come: the one object that goes with a request, from its handler to the socket.

    The outcome is given to `set_result`, once and on the event loop: the log does so with what it
    appended. `encode` makes the reply's bytes of it, none for no reply.
    """

    encoder: Callable[[Any], Sequence[Buffer]]
    result: Any = None
    is_done: bool = False
    meter: "Meter | None" = None
    """Says for how long the connection is not read from, once the reply is encoded."""
    when_done: Callable[[], object] = _nobody_waits
    api: "Api" = None  # type: ignore[assignment]  # the router sets it
    """This and what follows are notes that are made when the request is started."""
    size_bytes: int = 0
    started_s: float = 0.0

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: Any, /) -> None:
        """What the request came to."""
        self.result = result
        self.is_done = True
        self.when_done()

    def encode(self) -> Sequence[Buffer]:
        """The reply's bytes. Raises what answering the request raised."""
        return self.encoder(self.result)

    def cancel(self) -> None:
        """Nobody waits for it any more; what was submitted is appended even so."""
        self.when_done = _nobody_waits


class LaterOf(Later, eq=False, kw_only=True):
    """The reply that a future brings, which is cancelled with it."""

    future: asyncio.Future[Any]

    def __post_init__(self) -> None:
        self.is_done = self.future.done()
        if not self.is_done:
            self.future.add_done_callback(self.set_result)

    def encode(self) -> Sequence[Buffer]:
        return self.encoder(self.future.result())

    def cancel(self) -> None:
        super().cancel()
        self.future.cancel()


Hot = Callable[[Broker, Call], Later]


def _error_alone(call: Call, request: Any, error: ErrorCode) -> Fields:
    return {"error_code": error}


@dataclass(frozen=True)
class Api:
    """One API key, what it asks of the gate, and what answers it: either `handle` or `start`."""

    key: int
    name: str
    versions: range
    handle: Cold | None = None
    start: Hot | None = None
    encode: Encode | None = None
    """Makes bytes of correlation id, version and what `handle` gives; None where those are the
    reply's `Fields`."""
    notes: str = ""
    """Into docs/protocol.md."""
    refuse: Callable[[Call, Any, ErrorCode], Fields] = _error_alone
    """The reply to a request that is denied as a whole."""
    asks: Sequence[Ask] = field(kw_only=True)


def error_fields(error: ErrorCode, message: str | None = None) -> dict[str, Any]:
    """The two fields by which most replies say what went wrong."""
    return {"error_code": error, "error_message": message}


def errors_by_partition(request: Any, errors: Mapping[tuple[str, int], ErrorCode]) -> Fields:
    """The fields of a reply that answers every (topic, partition) asked for with an error alone."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": p.partition_index,
                        "error_code": errors[topic.name, p.partition_index],
                    }
                    for p in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def refused_by_partition(topic: Any, error: ErrorCode) -> Fields:
    """One topic of such a reply: all its partitions have the same error."""
    partitions = [
        {"partition_index": p.partition_index, "error_code": error} for p in topic.partitions
    ]
    return {"name": topic.name, "partitions": partitions}


async def answered(broker: Broker, work: Awaitable[T]) -> tuple[ErrorCode, T | None]:
    """What a transaction request came to: NONE and its outcome, or the error it is answered.

    Any broker may serve any transactional id, because the catalog decides.
    """
    try:
        return ErrorCode.NONE, await work
    except TxnRefused as refused:
        error = refused.code
    except MOVED:
        error = ErrorCode.NOT_COORDINATOR
    except CatalogRetriable:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    broker.metrics.txn_errors.labels(error.name).inc()
    return error, None


def as_known_to(version: int, since: int, error: ErrorCode) -> ErrorCode:
    """PRODUCER_FENCED by its older name, for versions before the one that introduced it."""
    if error is ErrorCode.PRODUCER_FENCED and version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
