"""One broker from its configuration to its end: open the log, open the ports, serve, drain.

Promises: once the ready file exists, both ports answer; on SIGTERM or Ctrl-C requests in flight are
answered, and the log is closed with its catalog up to date. If a broker cannot start (a data
directory or a port in use), it raises a `CatchwaterError` for the caller to print.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, Protocol, cast

import msgspec
import uvicorn
from starlette.routing import Route

from catchwater.audit import Trail
from catchwater.broker.access import Guard
from catchwater.broker.audit import Audit
from catchwater.broker.broker import Broker
from catchwater.broker.control.app import create_app
from catchwater.broker.control.port import ControlPort
from catchwater.broker.coordination import expiry
from catchwater.broker.coordination.consumer.member import ConsumerLimits
from catchwater.broker.coordination.coordinator import Coordinator
from catchwater.broker.coordination.held import LogClaims
from catchwater.broker.coordination.members import GroupLimits
from catchwater.broker.door import Door, HandshakeRates
from catchwater.broker.gate import AllButSealed
from catchwater.broker.metrics import Metrics
from catchwater.broker.peers import Peers
from catchwater.broker.pressure import AT_ONCE, RESERVE, fitted, printable
from catchwater.broker.router import APIS
from catchwater.broker.server import Server
from catchwater.broker.tls import CONTROL, Certificate, of_listeners
from catchwater.broker.tokens import Tokens, check_settings
from catchwater.broker.traces import ChunkTraces
from catchwater.broker_config import BrokerConfig, LogConfig
from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.rows import BrokerRow
from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.kafka_listeners import Address
from catchwater.log.cluster import BrokerReplaced
from catchwater.log.log import Log
from catchwater.log.open import SharedStores
from catchwater.log.tables.open import properties_of as tables_of
from catchwater.objects.base import StoreError
from catchwater.objects.open import check_seal, open_store, use_keys
from catchwater.objects.retry import ONCE, RetryingStore
from catchwater.objects.seal import KeysNeeded
from catchwater.traces import Traces
from catchwater.wal.open import WalKind

BACKLOG = 1024
"""Connections to the Kafka port that the kernel accepts before we do."""
_ANSWERS_WITHIN_S = 3.0
"""A store that is asked only whether something in it is sealed."""

_COLLECT_AFTER = (10_000, 20, 50)
"""New objects before a collection of the youngest, then how many of one kind before the next."""
_SWITCH_S = 1e-4
"""So long a thread that works in Python keeps others from it. A request changes threads several
times, and waits at each for a scrape or a page that is being made: a shorter time than Python's
5 ms is what its p99 is made of (decision 0032)."""
_IMPORTED_S = 15.0
"""After so long what a thread imports at the start, numba, is there."""

_ENOUGH_FILES = 2**30

_log = logging.getLogger("catchwater.broker")


class Places(NamedTuple):
    """The addresses of a broker."""

    kafka: Mapping[str, Address]
    """By the name of the listener, the first one first."""
    control_url: str

    @property
    def listeners(self) -> str:
        """As `BrokerRow.listeners`."""
        return msgspec.json.encode(self.kafka).decode() if len(self.kafka) > 1 else ""


class _Listener(NamedTuple):
    """The name of a port in messages."""

    name: str
    hint: str


_KAFKA = _Listener(
    "The Kafka listener", "Stop what listens there, or set `listeners` to another port."
)
_CONTROL = _Listener(
    "The control API", "Stop what listens there, or set `catchwater.control.listener`."
)


class _ControlServer(uvicorn.Server):
    """uvicorn in our event loop, without its signal handlers, behind a `Door` of ours."""

    certificate: Certificate | None = None
    rates: HandshakeRates | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        certificate, make = self.certificate, self.config.http_protocol_class

        def connection() -> asyncio.BaseProtocol:
            protocol: Any = make  # it takes what uvicorn gives it
            made: asyncio.BaseProtocol = protocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        tls = None if certificate is None else (lambda: certificate.context)
        self.servers = [cast(Any, Door(bound, connection, tls, self.rates)) for bound in sockets]
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class OneLine(logging.Formatter):
    """Escapes what does not print, so that no name that a client chose can look like a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)


class Page(Protocol):
    """The page for people, which is served beside the control API."""

    def routes(self) -> list[Route]:
        """Its paths, each an `entry`."""

    async def run(self) -> None:
        """What it does in the background, until cancelled."""


MakePage = Callable[[Broker], Page]


def run(config: BrokerConfig, make_page: MakePage | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises `CatchwaterError` when it cannot start."""
    os.umask(0o077)  # what a log holds is for its own user to read, whatever was set before
    sys.setswitchinterval(_SWITCH_S)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    limit = _raise_limit(config)
    bounded = fitted(config, limit)
    if bounded != config:
        _log.warning(
            "The limit of open files (ulimit -n) is %d: max.connections is %d here, "
            "max.connections.per.ip %d and catchwater.max.control.connections %d.",
            *(limit, bounded.max_connections, bounded.max_connections_per_ip),
            bounded.catchwater_max_control_connections,
        )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(bounded, SYSTEM, make_page))


def _raise_limit(config: BrokerConfig) -> int:
    """Raise the soft limit of open files as far as this configuration may need; the new limit.

    The hard limit bounds it (setrlimit(2)).
    """
    soft, hard = (
        _ENOUGH_FILES if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    wanted = RESERVE + config.max_connections + config.catchwater_max_control_connections
    limit = min(wanted, hard)
    if limit <= soft:
        return soft
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed (the extra `fast`), asyncio's own elsewhere."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(config: BrokerConfig, clock: Clock, make_page: MakePage | None = None) -> None:
    """As `run`, in a loop that is already running."""
    if config.takes_tokens:
        check_settings(config)
    with ExitStack() as bound:
        # The ports are bound first, because this broker joins the others with its addresses.
        kafka = {
            each.name: bound.enter_context(_bind(each.address, _KAFKA))
            for each in config.kafka_listeners
        }
        control = bound.enter_context(_bind(config.catchwater_control_listener, _CONTROL))
        places = Places(
            {
                each.name: each.advertised or _address(each.address, kafka[each.name])
                for each in config.kafka_listeners
            },
            f"{config.catchwater_control_protocol}://"
            f"{_address(config.catchwater_control_listener, control)}",
        )
        log = await _open_log(config, places, clock)
        try:
            await _serve_log(config, clock, log, places, kafka, control, make_page)
        finally:
            await log.close()


async def _open_log(config: BrokerConfig, places: Places, clock: Clock) -> Log:
    use_keys(config.catchwater_encryption_keys, config.catchwater_encryption_local)
    log = await _open_plainly(config, places, clock)
    try:
        await _check_seal(config, log, clock)
    except CatchwaterError:
        await log.close()
        raise
    return log


async def _check_seal(config: BrokerConfig, log: Log, clock: Clock) -> None:
    """See that what lies in the store can be opened. Raises `StoreError`, `ConfigError`."""
    if config.catchwater_encryption_keys or not config.catchwater_objects:
        await asyncio.to_thread(check_seal, log.objects)
        return
    store = open_store(config.catchwater_objects, clock, ONCE)
    try:
        await asyncio.wait_for(asyncio.to_thread(check_seal, store), _ANSWERS_WITHIN_S)
    except KeysNeeded:
        raise
    except (StoreError, TimeoutError):
        return  # a store that is down keeps no broker from starting


async def _open_plainly(config: BrokerConfig, places: Places, clock: Clock) -> Log:
    if not config.is_shared:
        return await Log.open(config.log_dirs, log_config(config), clock, config.catchwater_objects)
    stores = SharedStores(
        config.catchwater_catalog,
        config.catchwater_objects,
        cast(WalKind, config.catchwater_wal or "object"),
        config.catchwater_wal_dir,
        config.catchwater_wal_linger_ms,
    )
    broker = BrokerRow(
        id=config.node_id,
        epoch=0,
        zone=config.broker_rack,
        **next(iter(places.kafka.values()))._asdict(),
        control_url=places.control_url,
        wal=stores.wal,
        wal_is_shared=True,
        state="live",
        deadline_ms=0,
        listeners=places.listeners,
    )
    return await Log.connect(stores, broker, log_config(config), clock)


def log_config(config: BrokerConfig) -> LogConfig:
    """The part of the settings that the log needs."""
    return LogConfig(
        wal_segment_bytes=config.catchwater_wal_segment_bytes,
        reserve_bytes=config.catchwater_reserve_bytes,
        cache_bytes=config.catchwater_cache_bytes,
        pack_interval_ms=config.catchwater_pack_interval_ms,
        pack_min_bytes=config.catchwater_pack_min_bytes,
        pack_backlog_bytes=config.catchwater_pack_backlog_bytes,
        segment_bytes=config.catchwater_segment_bytes,
        parquet_after_ms=config.catchwater_history_parquet_after_ms,
        retention_interval_ms=config.catchwater_retention_interval_ms,
        retention_ms=config.log_retention_ms,
        retention_bytes=config.log_retention_bytes,
        transactional_id_expiry_ms=config.transactional_id_expiration_ms,
        delete_grace_ms=config.catchwater_delete_grace_ms,
        session_ms=config.catchwater_session_timeout_ms,
        tables=tuple((tables_of(config) or {}).items()),
        schema_registry=config.catchwater_schema_registry_url,
        schema_registry_login=config.schema_registry_login,
    )


def _broker(config: BrokerConfig, clock: Clock, log: Log, places: Places, peers: Peers) -> Broker:
    """The broker over an open log, with the log's metrics connected."""
    limits = GroupLimits(
        config.group_min_session_timeout_ms,
        config.group_max_session_timeout_ms,
        config.group_initial_rebalance_delay_ms,
        config.group_max_size,
    )
    claims = LogClaims(log, config.node_id, peers.unreachable)
    consumer_limits = ConsumerLimits(
        config.group_consumer_session_timeout_ms,
        config.group_consumer_heartbeat_interval_ms,
        config.group_consumer_max_size,
    )
    groups = Coordinator(limits, clock, claims, consumer_limits)
    first = next(iter(places.kafka.values()))
    broker = Broker(config, log, clock, groups, Metrics(), first, APIS)
    log.observe_wal(broker.metrics.wal_fsync_seconds.observe)
    if isinstance(log.objects, RetryingStore):
        broker.metrics.show(log.objects.requests, log.reads, log.written)
    broker.metrics.show_tables(lambda: log.keeping.tables.writer.counts)
    broker.listeners, broker.control_url = places.listeners, places.control_url
    if config.is_guarded:
        tokens = Tokens(config, clock) if config.takes_tokens else None
        broker.guard = Guard(config.catchwater_access_file, config.super_user_names, log, tokens)
    broker.unreachable = peers.unreachable
    if config.audit_folder is not None:
        broker.audit = Audit(broker, _trail(config, clock))
        broker.gate = AllButSealed()
    return broker


def _traced(config: BrokerConfig, broker: Broker) -> Traces | None:
    """Have chunks traced, if that is asked for. Raises `ConfigError`."""
    if not config.catchwater_traces_every:
        return None
    traces = Traces("catchwater-broker", {"service.instance.id": str(config.node_id)})
    broker.traces = ChunkTraces(broker, traces, config.catchwater_traces_every)
    broker.log.observe_chunks(broker.traces.committed)
    return traces


def _trail(config: BrokerConfig, clock: Clock) -> Trail:
    folder, name = config.audit_folder, f"broker-{config.node_id}"
    assert folder is not None
    try:
        return Trail(folder, name, clock, retention_ms=config.catchwater_audit_retention_ms)
    except OSError as error:
        raise CatchwaterError(
            f"The audit trail in {folder} cannot be opened: {error.strerror}.",
            hint="Let this user write there, or name another folder: catchwater.audit.dir.",
        ) from error


async def _serve_log(
    config: BrokerConfig,
    clock: Clock,
    log: Log,
    places: Places,
    kafka: Mapping[str, socket.socket],
    control: socket.socket,
    make_page: MakePage | None,
) -> None:
    peers = Peers(log, config.node_id, clock)
    broker = _broker(config, clock, log, places, peers)
    certificates = of_listeners(config.kafka_listeners)
    keystore, tls = config.ssl_keystore_location, None
    if keystore is not None and config.catchwater_control_protocol == "https":
        client_auth = config.catchwater_control_ssl_client_auth
        tls = Certificate(keystore, config.ssl_truststore_location, client_auth)
        broker.control_certificate = certificates[CONTROL] = tls
    traces = _traced(config, broker)
    server = Server(broker)
    stop = _stop_signal()
    control_port = ControlPort(broker)
    page = make_page(broker) if make_page else None
    serving_http = uvicorn.Config(
        create_app(broker, page.routes() if page else ()),
        http=control_port.protocol,
        backlog=AT_ONCE,
        log_config=None,
        log_level="error",  # it warns of each bad request; the control port counts them
        access_log=False,
        proxy_headers=False,  # anybody on this machine may write X-Forwarded-For
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    serving_http.load()
    control_server = _ControlServer(serving_http)
    control_server.certificate = tls
    if tls is not None:
        rate = config.catchwater_max_handshake_rate
        control_server.rates = HandshakeRates(rate, clock, control_port.refused_handshake)
    _listen(control, config.catchwater_control_listener, _CONTROL)
    for listener in config.kafka_listeners:
        _listen(kafka[listener.name], listener.address, _KAFKA)
        server.listen(kafka[listener.name], listener, certificates.get(listener.name))
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(control_server.serve(sockets=[control]))
        background = [
            tasks.create_task(broker.groups.run()),
            tasks.create_task(log.txns.run()),
            tasks.create_task(expiry.run(broker)),
            tasks.create_task(peers.run()),
            tasks.create_task(server.sweep()),
            tasks.create_task(control_port.sweep()),
            tasks.create_task(_measure_loop_lag(broker)),
            tasks.create_task(_refresh_quotas(broker)),
            tasks.create_task(_collect_seldom(clock)),
            tasks.create_task(_refresh_security(broker, certificates)),
            tasks.create_task(_stop_if_replaced(log, stop)),
            *([tasks.create_task(page.run())] if page else []),
        ]
        if broker.audit is not None:
            background.append(tasks.create_task(broker.audit.run()))
        heard = {
            each.name: _address(each.address, kafka[each.name]) for each in config.kafka_listeners
        }
        _announce(config, broker, heard)
        await stop.wait()
        _log.info("Stopping: answering what is in flight.")
        broker.draining.set()
        broker.groups.stop()
        if log.cluster is not None:
            await log.cluster.drain()  # from here on the others' Metadata leaves us out
        await server.drain()
        for task in background:
            task.cancel()
        control_server.should_exit = True
        await serving
        if broker.audit is not None:
            await broker.audit.close()
    if traces is not None:
        await asyncio.to_thread(traces.close)
    _log.info("Stopped.")
    if log.cluster is not None and log.cluster.replaced.is_set():
        raise BrokerReplaced(
            f"Another process has joined as broker {config.node_id}, so this one has stopped.",
            hint="Give every broker a node.id of its own.",
        )


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _stop_if_replaced(log: Log, stop: asyncio.Event) -> None:
    if log.cluster is not None:
        await log.cluster.replaced.wait()
        stop.set()


def _bind(address: Address, what: _Listener) -> socket.socket:
    """Bind the port; no client can connect before `_listen`."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as problem:
        bound.close()
        raise _cannot_bind(address, what, problem) from problem
    return bound


def _listen(bound: socket.socket, address: Address, what: _Listener) -> None:
    """Listen: clients can connect, and are served once the port's `Door` accepts."""
    try:
        bound.listen(BACKLOG)
    except OSError as problem:
        raise _cannot_bind(address, what, problem) from problem


def _cannot_bind(address: Address, what: _Listener, problem: OSError) -> CatchwaterError:
    return CatchwaterError(
        f"{what.name} cannot bind {address}: {os.strerror(problem.errno or 0)}.", hint=what.hint
    )


def _address(wanted: Address, bound: socket.socket) -> Address:
    """The address with the port that was bound."""
    return Address(wanted.host, bound.getsockname()[1])


def _announce(config: BrokerConfig, broker: Broker, heard: Mapping[str, Address]) -> None:
    """Write the ready file with the addresses, atomically."""
    bound = next(iter(heard.values()))
    ready = {"kafka": str(bound), "control": broker.control_url, "pid": os.getpid()}
    if len(heard) > 1:
        ready["listeners"] = {name: str(address) for name, address in heard.items()}
    session = broker.log.session
    if session is None:
        place = f"alone, data in {config.log_dirs}"
    else:
        ready |= {"broker": session.broker_id, "session": session.epoch, "zone": config.broker_rack}
        zone = f" of zone {config.broker_rack}" if config.broker_rack else ""
        place = f"broker {session.broker_id}{zone} among others, session {session.epoch}"
    ready_at = (place, _named(heard), broker.control_url)
    _log.info("Ready: %s; Kafka on %s, page and control API on %s.", *ready_at)
    if config.catchwater_ready_file is not None:
        path = config.catchwater_ready_file
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(ready))
        draft.replace(path)


def _named(heard: Mapping[str, Address]) -> str:
    if len(heard) == 1:
        return str(next(iter(heard.values())))
    return ", ".join(f"{address} ({name})" for name, address in heard.items())


async def _refresh_security(broker: Broker, certificates: Mapping[str, Certificate]) -> None:
    """Look for other users and rules twice a second: what was taken away ends within one."""
    used = set(certificates.values())  # listeners with the same files share one
    watched = [each.refresh for each in (broker.guard, *used) if each is not None]
    while watched:
        for each in used:
            each.remind(broker.clock.now_ms() / 1000)
        for name, each in certificates.items():
            broker.metrics.certificate_ends.labels(name).set(each.ends_s)
        await broker.clock.sleep(0.5)
        for refresh in watched:
            await asyncio.to_thread(refresh)


async def _collect_seldom(clock: Clock) -> None:
    """Let all requests wait less, and less often, while Python looks for garbage in cycles.

    A collection of everything looks at everything that was not frozen, and what was there from the
    start, half of it imports, stays to the end. Next to nothing here makes cycles, so all three
    collections may come more seldom than by default, by which a busy broker had one of everything
    each second.
    """
    gc.set_threshold(*_COLLECT_AFTER)
    gc.collect()
    gc.freeze()
    await clock.sleep(_IMPORTED_S)
    # Imports leave next to no garbage, and a collection of them holds up all requests for 0.1 s.
    gc.freeze()


async def _refresh_quotas(broker: Broker) -> None:
    """Look for other quotas of clients once a second: any broker may have changed them."""
    while True:
        with suppress(CatalogRetriable):
            await broker.refresh_quotas()
        await broker.clock.sleep(1.0)


async def _measure_loop_lag(broker: Broker) -> None:
    """Measure how long a ready task waits for the event loop; the first sign of a busy broker."""
    while True:
        before_s = broker.clock.monotonic_s()
        await broker.clock.sleep(1.0)
        late_s = broker.clock.monotonic_s() - before_s - 1.0
        broker.metrics.loop_lag_seconds.observe(max(0.0, late_s))
