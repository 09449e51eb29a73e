"""Situations that the simulation has found broken once, each played again by hand."""

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest
from tests.simulation.clients import Client
from tests.simulation.machine import broker_opener
from tests.simulation.records import build
from tests.simulation.world import Machine, World

from catchwater.catalog.errors import SessionFenced
from catchwater.catalog.memory import MemoryCatalog
from catchwater.catalog.rows import Pin


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


def stop_before_trimming(machine: Machine) -> None:
    """The machine stands still when it wants to move a log start; the request leaves after."""
    world = machine.world
    catalog: Any = machine.log._core.catalog
    trim = catalog.trim

    def later(*args: Any) -> "Future[Any]":
        assert machine.server is not None
        world.loop.pause(machine.server.node)
        answer: Future[Any] = Future()

        def pass_on(done: "Future[Any]") -> None:
            error = done.exception()
            answer.set_exception(error) if error else answer.set_result(done.result())

        def leave() -> None:
            trim(*args).add_done_callback(pass_on)

        world.loop.call_soon(leave, context=machine.server.node.context)
        return answer

    catalog.trim = later


def test_a_broker_that_stood_still_does_not_delete_what_was_pinned_meanwhile() -> None:
    """It had looked at the pins, lost its lease on them, and trimmed all the same."""
    world = World(1, 2, broker_opener)
    zombie, other = world.machines

    async def play() -> None:
        for machine in world.machines:
            machine.start()
        while not all(machine.is_serving for machine in world.machines):
            await asyncio.sleep(0.1)
        await other.inside(lambda: create(other))
        await asyncio.sleep(1)
        client = Client(world, 1, 1)
        client.server = other.server
        records = [(None, str(value)) for value in range(10)]
        await client.produce(("t", 0), build(records, timestamp_ms=client.timestamp_ms()))
        key = (world.topic("t").id, 0)
        stop_before_trimming(zombie)
        deleting = await zombie.begin(lambda: zombie.log.keeping.delete_records({key: 8}))
        await asyncio.sleep(12)
        await other.inside(lambda: other.log.set_pin(Pin("p", "o", {("t", 0): 2}, None, 0)))
        zombie.resume()
        await asyncio.sleep(5)
        assert deleting is not None and isinstance(deleting.exception(), SessionFenced)
        (row,) = MemoryCatalog(world.database).partitions([key])
        assert (row.log_start, row.high_watermark) == (0, 10)

    world.loop.run_until_complete(play())
    for machine in world.machines:
        machine.crash()
    world.loop.end()


async def create(machine: Machine) -> None:
    await machine.log.create_topic("t", 1)
