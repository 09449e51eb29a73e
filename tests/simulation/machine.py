"""A real broker on a simulated machine: its log in shared mode, with all that runs beside it."""

import asyncio

from tests.simulation.world import SESSION_MS, Machine

from catchwater.broker.broker import Broker
from catchwater.broker.coordination.coordinator import Coordinator
from catchwater.broker.coordination.held import LogClaims
from catchwater.broker.coordination.members import GroupLimits
from catchwater.broker.metrics import Metrics
from catchwater.broker.router import APIS
from catchwater.broker_config import BrokerConfig, LogConfig
from catchwater.catalog.rows import BrokerRow, Session
from catchwater.config import CatchwaterError
from catchwater.kafka_listeners import Address
from catchwater.log.log import Log
from catchwater.objects.open import sealed
from catchwater.objects.retry import RetryingStore, RetryPolicy
from catchwater.wal.object import ObjectWal
from catchwater.wal.open import session_prefix

CONFIG = LogConfig(
    cache_bytes=3_000,
    lagging_cache_bytes=3_000,
    session_ms=SESSION_MS,
    pack_interval_ms=6_000,
    pack_min_bytes=3_000,
    pack_backlog_bytes=3_000,
    segment_bytes=6_000,
    retention_interval_ms=5_000,
    delete_grace_ms=3_000,
)
LINGER_MS = 40
PATIENCE = RetryPolicy(tries=3, first_wait_s=0.05, longest_wait_s=0.5, total_s=3.0)
_AGAIN_S = 0.5


async def broker_opener(machine: Machine) -> Broker:
    """Open the log, again and again as whoever supervises processes would, and serve it."""
    while True:
        try:
            log = await _open_log(machine)
        except CatchwaterError:
            await machine.clock.sleep(_AGAIN_S)
        else:
            break
    clock = machine.clock
    groups = Coordinator(GroupLimits(), clock, LogClaims(log, machine.id, frozenset()))
    config = BrokerConfig(node_id=machine.id)
    address = Address(f"broker-{machine.id}", 9092)
    broker = Broker(config, log, clock, groups, Metrics(), address, APIS)
    running = (log.txns.run(), groups.run())
    machine.background = [asyncio.ensure_future(each) for each in running]
    return broker


async def _open_log(machine: Machine) -> Log:
    store = RetryingStore(sealed(machine.store), machine.clock, PATIENCE)

    def open_wal(session: Session) -> ObjectWal:
        prefix = session_prefix(session)
        return ObjectWal(store, machine.clock, prefix=prefix, linger_ms=LINGER_MS)

    row = BrokerRow(
        id=machine.id,
        epoch=0,
        zone="",
        host=f"broker-{machine.id}",
        port=9092,
        control_url="",
        wal="object",
        wal_is_shared=True,
        state="live",
        deadline_ms=0,
    )
    catalog = machine.open_catalog()
    try:
        return await Log.shared(catalog, store, open_wal, row, CONFIG, machine.clock)
    except CatchwaterError:
        catalog.close()
        raise
