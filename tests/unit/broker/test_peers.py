"""A broker that refuses connections is known at once; one that answers again, too."""

import asyncio
from contextlib import suppress
from typing import Any

from tests.ports import free_port

from catchwater.broker.peers import Peers
from catchwater.catalog.rows import BrokerRow
from catchwater.clock import SYSTEM


class Log:
    def __init__(self, port: int) -> None:
        self.rows = [
            BrokerRow(number, 1, "", "127.0.0.1", port, "", "object", True, "live", 0)
            for number in (1, 2)
        ]

    def brokers(self) -> list[BrokerRow]:
        return self.rows


async def unreachable_are(peers: Peers, expected: set[int]) -> bool:
    for _ in range(6000):
        if peers.unreachable == expected:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_a_broker_is_unreachable_while_it_refuses_connections() -> None:
    accepted: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)

    port = free_port()
    server = await asyncio.start_server(accept, "127.0.0.1", port)
    log: Any = Log(port)
    peers = Peers(log, 1, SYSTEM)
    running = asyncio.ensure_future(peers.run())
    while not accepted:
        await asyncio.sleep(0.01)
    assert not peers.unreachable, "nobody looks for itself"

    server.close()
    accepted[0].close()
    assert await unreachable_are(peers, {2})
    server = await asyncio.start_server(accept, "127.0.0.1", port)
    assert await unreachable_are(peers, set())
    while len(accepted) < 2:
        await asyncio.sleep(0.01)

    server.close()
    accepted[-1].close()
    assert await unreachable_are(peers, {2})
    log.rows = log.rows[:1]
    assert await unreachable_are(peers, set()), "its session has ended; nothing more is to be known"
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
