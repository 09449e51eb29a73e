"""Situations that the simulation has found broken once, each played again by hand."""

import asyncio

import pytest
from tests.simulation.machine import broker_opener
from tests.simulation.world import World


@pytest.mark.parametrize("seed", range(8))
def test_a_broker_that_opens_at_the_third_try_has_one_session_and_keeps_it(seed: int) -> None:
    """A try that failed behind the join went on with its heartbeats: two sessions of one broker
    superseded each other for ever (seed 121)."""
    world = World(seed, 1, broker_opener, climate={"catalog_refuses": 0.4})
    (machine,) = world.machines

    async def play() -> None:
        machine.start()
        while not machine.is_serving:
            await asyncio.sleep(0.1)
        world.weather.clear()
        await asyncio.sleep(10)
        session = machine.log.session
        await asyncio.sleep(30)
        assert machine.log.session == session

    world.loop.run_until_complete(play())
    machine.crash()
    world.loop.end()
    assert not world.loop.failures
