"""The simulated machines, what they share, and the faults that befall them.

Brokers are real: `Log` in shared mode, housekeeping and transactions running, behind the real
router. They share a database (SQLite in memory) and an object store in memory, each at a distance
of its own. Everything is drawn from one seed.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tests.faulty import FaultPlan, FaultyStore, Rates
from tests.simulation.gates import (
    Database,
    Gate,
    GatedCatalog,
    GatedStore,
    SimulatedClock,
    Weather,
)
from tests.simulation.loop import Node, VirtualLoop
from tests.simulation.network import Network, Server

from catchwater.broker.broker import Broker
from catchwater.catalog.memory import MemoryCatalog
from catchwater.catalog.rows import Notice, PartitionKey, Topic
from catchwater.drill.history import Line
from catchwater.log.log import Log
from catchwater.objects.memory import MemoryStore
from catchwater.objects.open import sealed

T = TypeVar("T")

SESSION_MS = 4_000

Open = Callable[["Machine"], Coroutine[Any, Any, Broker]]
"""Opens a broker on a machine, with what the machine has."""


class Machine:
    """One broker's machine: the process on it comes and goes, the clock stays as wrong as it is."""

    def __init__(self, world: "World", broker_id: int, open_broker: Open) -> None:
        self.world = world
        self.id = broker_id
        self.clock = SimulatedClock(world.loop, world.random.getrandbits(32))
        self._open = open_broker
        self._lives = 0
        self.server: Server | None = None
        self.background: list[asyncio.Future[None]] = []
        """What the broker runs beside its log."""
        self.unreachable: set[str] = set()
        """Of "catalog" and "store": where this machine, and no other, has no way to."""
        self._catalogs: list[GatedCatalog] = []

    @property
    def is_up(self) -> bool:
        return self.server is not None

    @property
    def is_paused(self) -> bool:
        return self.server is not None and self.server.node.is_paused

    @property
    def is_serving(self) -> bool:
        return self.server is not None and self.server.is_open

    @property
    def log(self) -> Log:
        assert self.server is not None and self.server.broker is not None
        return self.server.broker.log

    def start(self) -> None:
        """Begin a process; it serves as soon as it could open its log."""
        assert not self.is_up
        world = self.world
        self._lives += 1
        node = Node(f"broker {self.id}, life {self._lives}")
        draws = world.stream(node.name)
        self._gate = Gate(world.loop, node, world.weather, draws, world.fail, self.unreachable)
        self._catalogs = []
        self.store = GatedStore(world.store, self._gate)
        self.server = Server(world.loop, node, world.failures)
        world.loop.call_soon(partial(self._begin, self.server), context=node.context)

    def open_catalog(self) -> GatedCatalog:
        """A connection of this process."""
        self._catalogs.append(GatedCatalog(self.world.database, self._gate))
        return self._catalogs[-1]

    def _begin(self, server: Server) -> None:
        task = asyncio.ensure_future(self._open(self))

        def opened(task: asyncio.Task[Broker]) -> None:
            if not task.cancelled() and not server.node.is_cut:
                server.broker = task.result()

        task.add_done_callback(opened)

    def crash(self) -> None:
        """End the process at once; some of its requests still arrive."""
        assert self.server is not None
        for catalog in self._catalogs:
            catalog.close()
        self.world.loop.cut(self.server.node, lambda: self.world.random.random() < 0.5)
        self.server = None

    def pause(self) -> None:
        assert self.server is not None
        self.world.loop.pause(self.server.node)

    def resume(self) -> None:
        if self.server is not None:
            self.world.loop.resume(self.server.node)

    async def stop(self) -> None:
        """End the process in good order."""
        await self.inside(self._stop)
        self.server = None

    async def _stop(self) -> None:
        for task in self.background:
            task.cancel()
        await asyncio.wait(self.background)
        await self.log.close()

    async def clean_up(self) -> None:
        """Pack, retain and sweep until only what is needed is left."""
        await self.inside(self._clean_up)

    async def _clean_up(self) -> None:
        keeping = self.log.keeping
        await self.clock.sleep(2 * SESSION_MS / 1000)
        await keeping.pack()
        # Whatever has no row by now will never get one; nobody waits six hours for that.
        keeping._sweeper._orphan_grace_ms = 0
        for _ in range(2):
            await keeping.retain()
            await self.clock.sleep(6)
            await keeping.sweep_orphans()

    async def inside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something in the broker's own context."""
        task = await self.begin(work)
        assert task is not None, "it is up and not paused"
        await task

    async def begin(self, work: Callable[[], Awaitable[T]]) -> "asyncio.Future[T] | None":
        """Begin something in the broker's own context; None if it does not answer."""
        assert self.server is not None
        begun: asyncio.Future[asyncio.Future[T]] = self.world.loop.create_future()

        def begin() -> None:
            task = asyncio.ensure_future(work())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            if not begun.done():
                begun.set_result(task)

        self.world.loop.call_soon(begin, context=self.server.node.context)
        try:
            async with asyncio.timeout(5):
                return await begun
        except TimeoutError:
            return None


@dataclass
class World:
    """Everything there is, and what was seen of it."""

    seed: int
    brokers: int
    open_broker: Open
    history: list[Line] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What must never happen and is no matter of the history."""
    is_stopping: bool = False
    climate: Mapping[str, float] = field(default_factory=dict)
    """The weather where it is not bad."""

    def __post_init__(self) -> None:
        self.random = self.stream("world")
        self.loop = VirtualLoop()
        self.clock = SimulatedClock(self.loop, self.seed)
        self.weather = Weather(**self.climate)
        self.database = Database(self.clock, self.watch)
        plan = FaultPlan(self.seed, Rates(stale_list_ms=5_000))
        inside = MemoryStore(self.clock)
        self.bucket = sealed(inside)
        """What lies there, as who has the keys (if there are any) sees it."""
        self.store = FaultyStore(inside, plan, self.clock)
        self.network = Network(self.loop, self.weather, self.stream("network"))
        self.machines = [
            Machine(self, number + 1, self.open_broker) for number in range(self.brokers)
        ]
        self._ends: dict[PartitionKey, list[int]] = {}

    def stream(self, name: str) -> random.Random:
        """Draws of its own, so that more draws in one place change nothing in another."""
        return random.Random(f"{name} of {self.seed}")

    # --- what clients and machines use -----------------------------------------------------------

    def record(self, line: Line) -> None:
        line.time = int(self.loop.time() * 1000)
        self.history.append(line)

    def servers(self) -> list[Server]:
        """The brokers a client may have heard of; never none."""
        return [machine.server for machine in self.machines if machine.server] or [NOBODY]

    def topic(self, name: str) -> Topic:
        """A topic as the database has it."""
        snapshot = MemoryCatalog(self.database).load()
        return next(topic for topic in snapshot.topics if topic.name == name)

    def now_s(self) -> float:
        return self.loop.time()

    def fail(self, what: str) -> None:
        self.failures.append(f"{self.loop.time():.3f} s: {what}")

    def watch(self, notice: Notice) -> None:
        """What every commit tells: log starts and watermarks never go back."""
        for topic_id, partition, *ends in notice.partitions:
            before = self._ends.get((topic_id, partition), ends)
            if any(now < then for now, then in zip(ends, before, strict=True)):
                self.fail(
                    f"log start and watermark of partition {partition}: {before}, then {ends}"
                )
            self._ends[topic_id, partition] = ends


NOBODY = Server(None, Node("nobody"), [])  # type: ignore[arg-type]


class Faults:
    """What goes wrong, one thing after the other, until it is told to stop."""

    def __init__(self, world: World, *, cuts_off: bool = False) -> None:
        """With `cuts_off`, a single broker may lose its way to the catalog or the store, too."""
        self.world = world
        self.cuts_off = cuts_off
        self.random = world.stream("faults")
        self.told: list[str] = []

    async def run(self, until_s: float) -> None:
        """Safety: anything may happen, to several at once."""
        kinds = [self._crash, self._crash, self._pause, self._pause, self._bad_weather,
                 self._bad_weather, self._clock_jump]  # fmt: skip
        kinds += [self._cut_off] * 2 if self.cuts_off else []
        world = self.world
        async with asyncio.TaskGroup() as group:
            while world.loop.time() < until_s:
                await asyncio.sleep(self.random.uniform(0.2, 4))
                kind = self.random.choice(kinds)
                group.create_task(kind(self.random.choice(world.machines)))

    def heal(self) -> None:
        """Liveness: all machines are up, nothing is slow or lost any more."""
        self.world.weather.clear()
        for machine in self.world.machines:
            machine.resume()
            machine.clock.wrong_by_ms = 0
            machine.unreachable.clear()
            if not machine.is_up:
                machine.start()

    def _note(self, what: str) -> None:
        self.told.append(f"{self.world.loop.time():.3f} s: {what}")

    async def _crash(self, machine: Machine) -> None:
        if machine.is_up:
            self._note(f"broker {machine.id} crashes")
            machine.crash()
            await asyncio.sleep(self.random.choice([0.05, 1, 10]) * self.random.uniform(0.5, 1.5))
            if not machine.is_up:
                machine.start()

    async def _pause(self, machine: Machine) -> None:
        if machine.is_up and not machine.is_paused:
            usual_s = self.random.choice([0.3, 2, 2 * SESSION_MS / 1000, 2 * SESSION_MS / 1000])
            seconds = usual_s * self.random.uniform(0.8, 1.5)
            self._note(f"broker {machine.id} is paused for {seconds:.1f} s")
            machine.pause()
            await asyncio.sleep(seconds)
            machine.resume()

    async def _bad_weather(self, machine: Machine) -> None:
        weather = self.world.weather
        name, worst = self.random.choice(
            [
                ("slow", 8.0),
                ("store_refuses", 0.6),
                ("store_loses_answer", 0.5),
                ("store_is_late", 0.3),
                ("store_truncates", 0.5),
                ("catalog_refuses", 0.4),
                ("catalog_is_uncertain", 0.4),
                ("notice_is_lost", 0.9),
                ("network_loses", 0.5),
                ("network_repeats", 0.5),
            ]
        )
        value = self.random.uniform(0.1, worst) + (1 if name == "slow" else 0)
        self._note(f"{name} becomes {value:.2f}")
        setattr(weather, name, value)
        await asyncio.sleep(self.random.uniform(1, 8))
        setattr(weather, name, getattr(Weather(**self.world.climate), name))

    async def _cut_off(self, machine: Machine) -> None:
        ways = self.random.choice([{"catalog"}, {"store"}, {"catalog", "store"}])
        seconds = self.random.choice([1, 2 * SESSION_MS / 1000]) * self.random.uniform(0.5, 1.5)
        self._note(f"broker {machine.id} is cut off from {sorted(ways)} for {seconds:.1f} s")
        machine.unreachable |= ways
        await asyncio.sleep(seconds)
        machine.unreachable -= ways

    async def _clock_jump(self, machine: Machine) -> None:
        by_ms = self.random.choice([-3_600_000, -5_000, 5_000, 3_600_000])
        self._note(f"the clock of broker {machine.id} jumps by {by_ms} ms")
        machine.clock.wrong_by_ms += by_ms
