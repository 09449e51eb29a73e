"""One simulated run: clients at work, faults for a while, then healing, progress, and judgement.

Safety: whatever happens while faults do, the history shows no anomaly. Liveness: once all is
healed, everything that was begun is acknowledged, open transactions end, and readers reach the
end. At the end the storage is held against the catalog and against what the readers saw.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.simulation.clients import (
    Client,
    Place,
    PlainProducer,
    Producer,
    Reader,
    WatermarkWatcher,
)
from tests.simulation.extras import GroupMember, Sink, Trimmer
from tests.simulation.machine import broker_opener
from tests.simulation.truth import Truth
from tests.simulation.txns import TIMEOUT_MS, Copier, TxnProducer
from tests.simulation.world import SESSION_MS, Faults, World

from catchwater.catalog.rows import Session
from catchwater.config import CatchwaterError
from catchwater.drill.check import Report, check
from catchwater.drill.history import TopicLine, write_line

FAULTY_S = 16.0
CALM_S = SESSION_MS / 1000
CALM: Mapping[str, float] = {}
LONGEST_S = 90.0
"""What is begun when all is healed ends within this time, or there is no progress."""

TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (3, {}),
    "txn": (3, {}),
    "copies": (1, {}),
    "keyed": (1, {"cleanup.policy": "compact"}),
    "trimmed": (1, {}),
    "sink": (1, {}),
}
PLACES = [(topic, index) for topic, (count, _) in TOPICS.items() for index in range(count)]


def of(topic: str) -> list[Place]:
    return [place for place in PLACES if place[0] == topic]


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    seed: int
    history: bytes
    report: Report
    failures: list[str]
    faults: list[str]
    requests: int
    virtual_s: float

    def shown(self, signs: Iterable[str]) -> set[str]:
        """Those of the signs that are part of what went wrong."""
        return _shown(signs, self.report, self.failures)

    @property
    def is_good(self) -> bool:
        # Kafka may show a watermark of before it read (`poll-beyond-hw`); this log never does.
        beyond = self.report.counts().get("poll-beyond-hw")
        return not self.failures and self.report.verdict == "pass" and not beyond

    def explained(self) -> str:
        """What went wrong, and how to see it again."""
        lines = [f"seed {self.seed}: {self.report.verdict}, {self.report.counts()}"]
        lines += [f"  {failure}" for failure in self.failures[:5]]
        for found in self.report.findings:
            if found.count and not found.allowed:
                lines += [f"  {found.anomaly}, line {e.lines}: {e.what}" for e in found.examples]
        lines += [f"  {fault}" for fault in self.faults]
        replay = f"SEED={self.seed} HISTORY=history.jsonl python -m pytest -q tests/simulation"
        return "\n".join([*lines, f"replay: {replay}/test_simulation.py -k one_seed"])


def simulate(
    seed: int,
    *,
    faulty_s: float = FAULTY_S,
    climate: Mapping[str, float] = CALM,
    signs: Iterable[str] = (),
    cuts_off: bool = False,
) -> Outcome:
    """The whole run of one seed, in a `climate` of faults that are always there.

    With `cuts_off`, single brokers lose their way to the catalog or the store, too.

    It ends before it heals if one of the `signs` of something wrong is seen by then.
    """
    with _silence():
        return _simulate(seed, faulty_s, climate, set(signs), cuts_off)


@contextmanager
def _silence() -> Iterator[None]:
    """Brokers complain a lot while they are tormented."""
    logger = logging.getLogger("catchwater")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _simulate(
    seed: int, faulty_s: float, climate: Mapping[str, float], signs: set[str], cuts_off: bool
) -> Outcome:
    world = World(seed, 3, broker_opener, climate=climate)
    run = _Run(world, cuts_off)
    try:
        world.loop.run_until_complete(run.whole(faulty_s, signs))
    except (AssertionError, CatchwaterError) as stuck:
        world.fail(f"{type(stuck).__name__}: {stuck}")
    world.failures += world.loop.failures
    virtual_s = world.loop.time()
    for machine in world.machines:
        if machine.is_up:
            machine.crash()
    world.loop.end()
    world.database.close()
    history = b"".join(map(write_line, world.history))
    report = check(world.history)
    return Outcome(
        seed, history, report, world.failures, run.faults.told, world.network.requests, virtual_s
    )


def _shown(signs: Iterable[str], report: Report, failures: Iterable[str]) -> set[str]:
    found = [*report.counts(), *failures]
    return {sign for sign in signs if any(sign in each for each in found)}


class _Run:
    def __init__(self, world: World, cuts_off: bool) -> None:
        self.world = world
        self.faults = Faults(world, cuts_off=cuts_off)
        self._processes = iter(range(1, 1000))

    async def whole(self, faulty_s: float, signs: set[str]) -> None:
        world = self.world
        for machine in world.machines:
            machine.start()
        await self._create_topics()
        workers, readers = self._workers(), self._readers()
        tasks = {asyncio.ensure_future(client.run()): client for client in [*workers, *readers]}
        await self.faults.run(world.loop.time() + faulty_s)
        if signs and _shown(signs, check(world.history), world.failures):
            return
        self.faults.heal()
        await asyncio.sleep(CALM_S)
        world.is_stopping = True
        _, unfinished = await asyncio.wait(tasks, timeout=LONGEST_S)
        for task in unfinished:
            client = tasks[task]
            world.fail(f"no progress: {type(client).__name__} {client.process} is not done")
            task.cancel()
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                world.fail(f"{type(tasks[task]).__name__}: {task.exception()!r}")
        # The last transactions, whose clients have vanished, end by themselves.
        await asyncio.sleep(TIMEOUT_MS / 1000 + 5)
        finals = [self._reader(committed=True), self._reader(committed=False)]
        for reader in finals:
            await self._within(reader.read_to_the_end(), f"the final reader {reader.process}")
        truth = Truth(world)
        compacted = {name for name, (_, config) in TOPICS.items() if config}
        truth.compare(finals[1].seen, PLACES, compacted)
        truth.compare_copies(self.copiers, finals[0].seen)
        truth.judge_transactions()
        session = await self._shut_down()
        truth.judge_objects(session)

    async def _within(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                await work
        except TimeoutError:
            self.world.fail(f"no progress: {name} does not reach the end")

    async def _create_topics(self) -> None:
        world = self.world
        while not all(machine.is_serving for machine in world.machines):
            await asyncio.sleep(0.1)

        async def create() -> None:
            for name, (partitions, config) in TOPICS.items():
                await world.machines[0].log.create_topic(name, partitions, config)

        await world.machines[0].inside(create)
        for name, (_, config) in TOPICS.items():
            compacted = config.get("cleanup.policy") == "compact"
            world.record(TopicLine(process=0, type="ok", topic=name, compacted=compacted))

    def _workers(self) -> list[Client]:
        world, seed = self.world, self.world.seed
        plain, txn = of("plain"), of("txn")
        process = self._processes
        self.copiers = [
            Copier(world, next(process), seed, plain[0], ("copies", 0), version=1 + seed % 2)
        ]
        return [
            Producer(world, next(process), seed, plain),
            Producer(world, next(process), seed, plain[:1] + txn[:1]),
            Producer(world, next(process), seed, of("keyed"), keys=4),
            PlainProducer(world, next(process), seed, plain),
            TxnProducer(world, next(process), seed, txn, version=1),
            TxnProducer(world, next(process), seed, txn, version=2),
            *self.copiers,
            Producer(world, next(process), seed, of("trimmed")),
            Trimmer(world, next(process), seed, ("trimmed", 0)),
            Sink(world, next(process), seed, ("sink", 0)),
            GroupMember(world, next(process), seed, plain[0]),
        ]

    def _readers(self) -> list[Client]:
        world, process = self.world, self._processes
        watcher = WatermarkWatcher(world, next(process), world.seed, PLACES)
        return [self._reader(committed=True), self._reader(committed=False), watcher]

    def _reader(self, *, committed: bool, places: Iterable[Place] = PLACES) -> Reader:
        process = next(self._processes)
        return Reader(self.world, process, self.world.seed, places, read_committed=committed)

    async def _shut_down(self) -> Session | None:
        """Stop all but one broker, which cleans up what is left, then that one; its session."""
        last, *others = self.world.machines
        for machine in others:
            await machine.stop()
        await self._within(last.clean_up(), "the last cleaning")
        session = last.log.session
        await last.stop()
        return session
