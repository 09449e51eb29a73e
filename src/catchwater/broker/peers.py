"""Detects unreachable brokers before their sessions expire.

A session expires after its timeout, but the operating system closes the connections of a killed
process at once. So each broker keeps a connection to every other one; when it is closed and cannot
be opened again, clients are no longer sent to that broker. This fences nothing: a broker that only
this one cannot reach works on, and is recommended again as soon as it answers.
"""

import asyncio
import struct
from itertools import islice

from catchwater.broker.pressure import MOST_PEERS
from catchwater.clock import Clock
from catchwater.log.log import Log
from catchwater.room import NO_DESCRIPTORS
from catchwater.wire.frames import prefixed

LOOK_S = 0.2
AGAIN_S = 0.05
CONNECT_S = 1.0

_HELLO = b"".join(prefixed([struct.pack(">hhih4s", 18, 0, 0, 4, b"peer")]))
"""ApiVersions v0: a broker closes connections that send no valid request."""

Place = tuple[int, str, int]
"""A broker's id, host and port."""


class Peers:
    """The connections of this broker to all others."""

    def __init__(self, log: Log, broker_id: int, clock: Clock) -> None:
        self.unreachable: set[int] = set()
        """The ids of live brokers that refuse a connection."""
        self._log = log
        self._broker_id = broker_id
        self._clock = clock

    async def run(self) -> None:
        """Keep the connections up, until cancelled."""
        watches: dict[Place, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                rows = [row for row in self._log.brokers() if row.id != self._broker_id]
                places = {(row.id, row.host, row.port) for row in islice(rows, MOST_PEERS)}
                for place in watches.keys() - places:
                    watches.pop(place).cancel()
                    self.unreachable.discard(place[0])
                for place in places - watches.keys():
                    watches[place] = tasks.create_task(self._watch(*place))
                await self._clock.sleep(LOOK_S)

    async def _watch(self, broker_id: int, host: str, port: int) -> None:
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    reader, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:  # else this broker is at fault
                    self.unreachable.add(broker_id)
                await self._clock.sleep(AGAIN_S)
                continue
            self.unreachable.discard(broker_id)
            began_s = self._clock.monotonic_s()
            try:
                writer.write(_HELLO)
                while await reader.read(4096):
                    pass
            except OSError:
                pass
            finally:
                writer.close()
            if self._clock.monotonic_s() - began_s < CONNECT_S:
                await self._clock.sleep(AGAIN_S)  # it accepts connections and closes them at once
