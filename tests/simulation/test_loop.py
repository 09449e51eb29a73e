"""The loop itself: time jumps, blocking code takes turns, machines stop and end, deadlocks show."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from tests.simulation.loop import Deadlock, Killed, Node, VirtualLoop, current_hand


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.end()
    assert loop.is_closed() and not loop.failures


def started(node: Node, loop: VirtualLoop, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    def begin() -> None:
        node.tasks.add(asyncio.ensure_future(work()))

    loop.call_soon(begin, context=node.context)


def test_an_hour_passes_at_once(loop: VirtualLoop) -> None:
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() == 3600


def test_a_wait_that_nobody_ends_is_a_deadlock(loop: VirtualLoop) -> None:
    with pytest.raises(Deadlock, match="no timer"):
        loop.run_until_complete(loop.create_future())


def test_blocking_code_takes_turns_where_it_waits(loop: VirtualLoop) -> None:
    told: list[tuple[float, str]] = []

    def block(name: str, seconds: float) -> str:
        for _ in range(3):
            told.append((loop.time(), name))
            hand = current_hand()
            assert hand is not None
            hand.wait(seconds)
        return name

    async def both() -> list[str]:
        tasks = [asyncio.to_thread(block, "a", 2), asyncio.to_thread(block, "b", 3)]
        return list(await asyncio.gather(*tasks))

    assert loop.run_until_complete(both()) == ["a", "b"]
    assert told == [(0, "a"), (0, "b"), (2, "a"), (3, "b"), (4, "a"), (6, "b")]


def test_what_blocking_code_raises_reaches_the_loop(loop: VirtualLoop) -> None:
    async def fails() -> None:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)

    loop.run_until_complete(fails())


def test_code_that_really_blocks_is_a_deadlock(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.simulation.loop._STUCK_S", 0.05)
    event = threading.Event()
    with pytest.raises(Deadlock, match="blocks"):
        loop.run_until_complete(asyncio.to_thread(event.wait))
    event.set()


def test_a_paused_machine_stands_still_and_then_catches_up(loop: VirtualLoop) -> None:
    node = Node("n")
    beats: list[float] = []

    async def beat() -> None:
        for _ in range(4):
            await asyncio.sleep(1)
            beats.append(loop.time())

    async def outside() -> None:
        started(node, loop, beat)
        await asyncio.sleep(1.5)
        loop.pause(node)
        await asyncio.sleep(10)
        loop.resume(node)
        await asyncio.sleep(5)

    loop.run_until_complete(outside())
    assert beats == [1, 11.5, 12.5, 13.5]


@pytest.mark.parametrize(("lands", "arrived"), [(True, ["put"]), (False, [])])
def test_a_request_of_a_machine_that_ended_may_still_land(
    loop: VirtualLoop, lands: bool, arrived: list[str]
) -> None:
    node = Node("n")
    effects: list[str] = []
    ends: list[str] = []

    def put() -> None:
        hand = current_hand()
        assert hand is not None
        try:
            hand.wait(1, travelling=True)
            effects.append("put")
            hand.wait(1)
            effects.append("answered")
        except Killed:
            ends.append("hand")
            raise

    async def work() -> None:
        try:
            await asyncio.to_thread(put)
        finally:
            ends.append("task")

    async def outside() -> None:
        started(node, loop, work)
        await asyncio.sleep(0.5)
        loop.cut(node, lambda: lands)
        await asyncio.sleep(5)

    loop.run_until_complete(outside())
    assert effects == arrived + (["answered"] if lands else [])
    assert "task" in ends
