"""What a request costs the broker alone: CPU of one process, the least of many rounds.

A log, a server's connection and a client share one event loop and a pair of sockets; the data
lies in memory (/dev/shm). So neither a disk nor a neighbour on the machine has a say, and two
commits can be compared on a busy one, in turns: `python -m benchmarks.request_cost`. The client's
own calls are in the figures, the kernel's copies as well. By hand; nothing of that is published.

With `--counted` valgrind counts the instructions of user code instead (`instructions`), which are
the same on any machine and to within a percent in every run. It takes half a minute a shape.
"""

import argparse
import asyncio
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

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
WARM_UP, ROUNDS_COUNTED = 30, 100

Ask: TypeAlias = Callable[[], Awaitable[None]]
Measure: TypeAlias = Callable[[str, Ask, int], Awaitable[None]]
"""Takes a shape, what sends its requests and awaits the answers, and how many they are."""


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


def timed(rounds: int) -> Measure:
    """Print the microseconds of CPU a request, at the least."""

    async def measure(name: str, ask: Ask, count: int) -> None:
        costs = []
        for _ in range(rounds):
            before_s = time.process_time()
            await ask()
            costs.append((time.process_time() - before_s) / count)
        costs.sort()
        least, tenth = costs[0] * 1e6, costs[rounds // 10] * 1e6
        print(
            f"{name}: {least:.1f} µs a request at the least, {tenth:.1f} in a tenth of the rounds"
        )

    return measure


def watched(rounds: int) -> Measure:
    """Once warm, say so and wait to be told to go on; then again, for valgrind is switched."""

    async def measure(name: str, ask: Ask, count: int) -> None:
        for turn in (WARM_UP, rounds):
            for _ in range(turn):
                await ask()
            print("ready", flush=True)
            sys.stdin.readline()

    return measure


async def served(data: Path, shapes: list[str], measure: Measure) -> None:
    """Measure these shapes with a broker in this process."""
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
    for name in shapes:
        request, count = SHAPES[name]
        await measure(name, partial(client.ask, request * count, count), count)
    theirs.close()
    await asyncio.sleep(0.01)
    await log.close()


def instructions(shape: str, rounds: int = ROUNDS_COUNTED) -> float:
    """User instructions a request, counted by valgrind in a process of its own once it is warm."""
    # valgrind's processor is another one than this machine's: numba would compile all over in it.
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    load = "from catchwater.wire.batch import load_walk; load_walk()"
    subprocess.run([sys.executable, "-c", load], check=True, env=environment)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        command = [sys.executable, "-m", "benchmarks.request_cost", "--shape", shape]
        process = subprocess.Popen(
            [*tool, *command, "--watched", str(rounds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        for state in ("on", "off"):
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(process.communicate()[1])
            subprocess.run(
                ["callgrind_control", f"--instr={state}", str(process.pid)],
                check=True, capture_output=True,
            )  # fmt: skip
            process.stdin.write("\n")
            process.stdin.flush()
        _, told = process.communicate()
    counted = re.search(r"Collected : (\d+)", told)
    assert counted, told
    return int(counted[1]) / rounds / SHAPES[shape][1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="all without it")
    parser.add_argument("--counted", action="store_true", help="instructions instead of time")
    parser.add_argument("--watched", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    shapes = options.shape or list(SHAPES)
    if options.counted:
        for shape in shapes:
            print(f"{shape}: {instructions(shape):,.0f} user instructions a request", flush=True)
        return
    assert load_walk(), "numba is installed"
    measure = watched(options.watched) if options.watched else timed(options.rounds)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as data:
        uvloop.run(served(Path(data), shapes, measure))


if __name__ == "__main__":
    main()
