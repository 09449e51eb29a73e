"""One broker from its configuration to its end: open the log, open the ports, serve, drain.

Promises: when the ready file is there, both ports answer; on SIGTERM or Ctrl-C requests in flight
are answered, and the log is closed with its catalog current. Whatever keeps a broker from
starting (a data directory in use, a port taken) is a `CatchwaterError` for the caller to print.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import uvicorn

from catchwater.broker.broker import Broker
from catchwater.broker.control import create_app
from catchwater.broker.coordination.claims import LogClaims
from catchwater.broker.coordination.coordinator import Coordinator
from catchwater.broker.coordination.groups import GroupLimits
from catchwater.broker.metrics import Metrics
from catchwater.broker.router import APIS
from catchwater.broker.server import Server
from catchwater.clock import SYSTEM, Clock
from catchwater.config import Address, BrokerConfig, CatchwaterError
from catchwater.log.log import Log
from catchwater.log.open import LogConfig

_log = logging.getLogger("catchwater.broker")


class _ControlServer(uvicorn.Server):
    """uvicorn in our event loop; signals stay ours."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(config: BrokerConfig) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises `CatchwaterError` when it cannot start."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(config, SYSTEM))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed (the extra `fast`), asyncio's own elsewhere."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(config: BrokerConfig, clock: Clock) -> None:
    """As `run`, in a loop that is already running."""
    log = await Log.open(config.log_dirs, log_config(config), clock)
    try:
        await _serve_log(config, clock, log)
    finally:
        await log.close()


def log_config(config: BrokerConfig) -> LogConfig:
    """The part of the settings that the log needs."""
    return LogConfig(
        wal_segment_bytes=config.catchwater_wal_segment_bytes,
        cache_bytes=config.catchwater_cache_bytes,
        pack_interval_ms=config.catchwater_pack_interval_ms,
        pack_min_bytes=config.catchwater_pack_min_bytes,
        retention_interval_ms=config.catchwater_retention_interval_ms,
        retention_ms=config.log_retention_ms,
        retention_bytes=config.log_retention_bytes,
        delete_grace_ms=config.catchwater_delete_grace_ms,
    )


async def _serve_log(config: BrokerConfig, clock: Clock, log: Log) -> None:
    limits = GroupLimits(
        config.group_min_session_timeout_ms,
        config.group_max_session_timeout_ms,
        config.group_initial_rebalance_delay_ms,
        config.group_max_size,
    )
    claims = LogClaims(log, config.node_id) if log.is_shared else None
    groups = Coordinator(limits, clock, claims)
    broker = Broker(config, log, clock, groups, Metrics(), config.listeners, APIS)
    server = Server(broker)
    stop = _stop_signal()
    control_socket = _bind(config.catchwater_control_listener)
    port = control_socket.getsockname()[1]
    broker.control_url = f"http://{Address(config.catchwater_control_listener.host, port)}"
    control = _ControlServer(
        uvicorn.Config(
            create_app(broker),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=2,
        )
    )
    bound = await server.listen(config.listeners)
    broker.kafka_address = config.advertised_listeners or bound
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(control.serve(sockets=[control_socket]))
        background = [
            tasks.create_task(groups.run()),
            tasks.create_task(log.txns.run()),
            tasks.create_task(server.sweep()),
            tasks.create_task(_measure_loop_lag(broker)),
        ]
        _announce(config, broker, bound)
        await stop.wait()
        _log.info("Stopping: answering what is in flight.")
        broker.draining.set()
        groups.stop()
        if log.cluster is not None:
            await log.cluster.drain()  # from here on the others' Metadata leaves us out
        await server.drain()
        for task in background:
            task.cancel()
        control.should_exit = True
        await serving
    _log.info("Stopped.")


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _bind(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        # From here on clients may connect; they are accepted as soon as uvicorn is there.
        bound.listen()
    except OSError as problem:
        bound.close()
        raise CatchwaterError(
            f"The control API cannot bind {address}: {problem.strerror}.",
            hint="Stop what listens there, or set `catchwater.control.listener`.",
        ) from problem
    return bound


def _announce(config: BrokerConfig, broker: Broker, bound: Address) -> None:
    """Tell who waits for us where we are; the file appears whole or not at all."""
    ready = {"kafka": str(bound), "control": broker.control_url, "pid": os.getpid()}
    _log.info(
        "Ready: Kafka on %s, control API on %s, data in %s.",
        bound,
        broker.control_url,
        config.log_dirs,
    )
    if config.catchwater_ready_file is not None:
        path = config.catchwater_ready_file
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(ready))
        draft.replace(path)


async def _measure_loop_lag(broker: Broker) -> None:
    """How long a ready task waits for its turn; the first sign of a busy broker."""
    while True:
        before_s = broker.clock.monotonic_s()
        await broker.clock.sleep(1.0)
        late_s = broker.clock.monotonic_s() - before_s - 1.0
        broker.metrics.loop_lag_seconds.observe(max(0.0, late_s))
