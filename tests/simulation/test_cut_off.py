"""One broker of three has no way to the catalog, or to the store: it acknowledges nothing.

The others have theirs, and clients go to them. Once the way is there again, the broker serves.
"""

import asyncio
from itertools import cycle

import pytest
from tests.simulation.clients import Place, Producer
from tests.simulation.machine import PATIENCE, broker_opener
from tests.simulation.run import TOPICS, of
from tests.simulation.world import SESSION_MS, Machine, World

from catchwater.wire.errors import ErrorCode

SESSION_S = SESSION_MS / 1000
CUT_S = 4 * SESSION_S
UNDER_WAY_S = 1.0
"""What was committed before the cut may be acknowledged so long after it."""


Noted = tuple[float, str]
"""When, and the name of the broker's node."""


class Noting(Producer):
    """A producer that notes when, and by which broker, it was acknowledged."""

    def __init__(self, world: World, process: int, seed: int, noted: list[Noted]) -> None:
        super().__init__(world, process, seed, of("plain"))
        self.noted = noted

    async def produce(self, place: Place, batch: bytes) -> tuple[ErrorCode | None, int]:
        if self.server is None or self.server not in self.world.servers():
            self.server = self.random.choice(self.world.servers())
        asked = self.server
        error, offset = await super().produce(place, batch)
        if error is ErrorCode.NONE:
            self.noted.append((self.world.now_s(), asked.node.name))
        return error, offset


def acknowledged_by(noted: list[Noted], machine: Machine, since_s: float, until_s: float) -> int:
    """How many were acknowledged by a machine's broker meanwhile."""
    name = f"broker {machine.id},"
    return sum(since_s <= at < until_s and who.startswith(name) for at, who in noted)


@pytest.mark.parametrize("way", ["catalog", "store"])
@pytest.mark.parametrize("seed", range(3))
def test_a_broker_that_is_cut_off_acknowledges_nothing_and_clients_go_elsewhere(
    seed: int, way: str
) -> None:
    world = World(seed, 3, broker_opener)
    noted: list[Noted] = []
    cut, *others = world.machines
    moments = []

    async def play() -> set[asyncio.Future[None]]:
        for machine in world.machines:
            machine.start()
        while not all(machine.is_serving for machine in world.machines):
            await asyncio.sleep(0.1)
        partitions, config = TOPICS["plain"]
        await cut.inside(lambda: _created(cut, partitions, config))
        producers = [Noting(world, number, seed, noted) for number in range(4)]
        for producer, machine in zip(producers, cycle(world.machines), strict=False):
            producer.server = machine.server  # each broker has one, whatever the seed
        tasks = [asyncio.ensure_future(each.run()) for each in producers]
        await asyncio.sleep(2 * SESSION_S)
        moments.append(world.now_s())
        cut.unreachable.add(way)
        await asyncio.sleep(CUT_S)
        moments.append(world.now_s())
        cut.unreachable.clear()
        await asyncio.sleep(PATIENCE.total_s + SESSION_S)
        # The others have no reason to come back to it; a new one begins there.
        newcomer = Noting(world, 9, seed, noted)
        newcomer.server = cut.server
        tasks.append(asyncio.ensure_future(newcomer.run()))
        await asyncio.sleep(SESSION_S)
        world.is_stopping = True
        return (await asyncio.wait(tasks, timeout=60))[1]

    unfinished = world.loop.run_until_complete(play())
    ended_s = world.now_s()
    for machine in world.machines:
        machine.crash()
    world.loop.end()
    cut_s, back_s = moments
    assert acknowledged_by(noted, cut, 0, cut_s) > 0, "it was at work before"
    assert acknowledged_by(noted, cut, cut_s + UNDER_WAY_S, back_s) == 0
    for other in others:
        assert acknowledged_by(noted, other, cut_s + SESSION_S, back_s) > 0
    assert acknowledged_by(noted, cut, back_s, ended_s) > 0, "it serves again"
    assert not unfinished and not world.failures and not world.loop.failures


async def _created(machine: Machine, partitions: int, config: dict[str, str]) -> None:
    await machine.log.create_topic("plain", partitions, config)
