"""What a request costs the broker alone: CPU of one process, the least of many rounds.

A log, a server's connection and a client share one event loop and a pair of sockets; the data
lies in memory (/dev/shm). So neither a disk nor a neighbour on the machine has a say, and two
commits can be compared on a busy one, in turns: `python -m benchmarks.request_cost`. The client's
own calls are in the figures, the kernel's copies as well. By hand; nothing is published.
"""

import argparse
import asyncio
import socket
import struct
import tempfile
import time
from pathlib import Path

import uvloop

from benchmarks.load import fetch_request, frame, produce_request
from catchwater.broker.broker import Broker
from catchwater.broker.metrics import Metrics
from catchwater.broker.router import APIS
from catchwater.broker.server import Connection, Server
from catchwater.broker_config import LogConfig, load_broker_config
from catchwater.clock import Clock
from catchwater.kafka_listeners import Address
from catchwater.log.log import Log
from catchwater.wire.batch import load_walk

TOPIC = "bench"
SHAPES = {
    "produce, 100 B": (produce_request(TOPIC, 0, 100, 1), 40),
    "fetch, 100 B": (fetch_request(TOPIC, 0, 0, 1), 40),
    "fetch, 900 KB": (fetch_request(TOPIC, 1, 0, 1 << 20), 2),
    "produce, 64 KB": (produce_request(TOPIC, 0, 1000, 64), 8),
    "produce, 900 KB": (produce_request(TOPIC, 0, 1000, 900), 2),
}
"""The request, and how many are sent at once. What is fetched is still in memory."""
_BUFFER_BYTES = 4 << 20


class Client:
    """The other end of a connection of the broker's."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._loop = asyncio.get_running_loop()

    async def ask(self, requests: bytes, count: int) -> None:
        """Send so many requests, and read the answers."""
        await self._loop.sock_sendall(self._end, requests)
        rest = b""
        while count:
            rest += await self._loop.sock_recv(self._end, _BUFFER_BYTES)
            while len(rest) >= 4 and len(rest) >= (end := 4 + struct.unpack_from(">i", rest)[0]):
                rest, count = rest[end:], count - 1


async def least_cost(data: Path, rounds: int) -> None:
    """Print every shape's microseconds of CPU a request."""
    config = load_broker_config(None, {}, {"log.dirs": str(data)})
    clock, loop = Clock(), asyncio.get_running_loop()
    log = await Log.open(data, LogConfig(background=False), clock)
    broker = Broker(config, log, clock, None, Metrics(), Address("", 0), APIS)  # type: ignore[arg-type]
    server = Server(broker)
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    await loop.create_connection(lambda: Connection(server, config.kafka_listeners[0]), sock=ours)
    client = Client(theirs)
    await client.ask(frame(18, 0, False, b""), 1)
    await log.create_topic(TOPIC, 2)
    await client.ask(SHAPES["produce, 100 B"][0], 1)
    await client.ask(produce_request(TOPIC, 1, 1000, 900), 1)
    for name, (request, count) in SHAPES.items():
        costs = []
        for _ in range(rounds):
            before_s = time.process_time()
            await client.ask(request * count, count)
            costs.append((time.process_time() - before_s) / count)
        costs.sort()
        least, tenth = costs[0] * 1e6, costs[rounds // 10] * 1e6
        print(
            f"{name}: {least:.1f} µs a request at the least, {tenth:.1f} in a tenth of the rounds"
        )
    theirs.close()
    await asyncio.sleep(0.01)
    await log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    assert load_walk(), "numba is installed"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as data:
        uvloop.run(least_cost(Path(data), rounds))


if __name__ == "__main__":
    main()
