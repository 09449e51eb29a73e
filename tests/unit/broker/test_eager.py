"""Coroutines that begin at once."""

import asyncio

import pytest

from catchwater.broker.api.k01_fetch import begin


async def test_what_waits_for_nothing_is_done_at_once() -> None:
    async def answer() -> int:
        return 1

    assert begin(answer()).result() == 1


async def test_an_error_is_told_to_who_asks() -> None:
    async def answer() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        begin(answer()).result()


async def test_what_waits_goes_on_as_a_task() -> None:
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))
    seen: list[int] = []

    async def answer() -> int:
        seen.append(0)
        seen.append(await first)
        async with asyncio.timeout(5):
            seen.append(await second)
        return sum(seen)

    begun = begin(answer())
    assert seen == [0]
    assert not begun.done()
    first.set_result(1)
    await asyncio.sleep(0)
    second.set_result(2)
    assert await begun == 3
    assert seen == [0, 1, 2]


async def test_what_it_waits_for_may_fail_and_it_may_go_on() -> None:
    failing = asyncio.get_running_loop().create_future()

    async def answer() -> str:
        try:
            await failing
        except ValueError as error:
            await asyncio.sleep(0)
            return str(error)
        return ""

    begun = begin(answer())
    failing.set_exception(ValueError("no"))
    assert await begun == "no"


@pytest.mark.parametrize("turns", [0, 1], ids=["before its task begins", "while it waits"])
async def test_a_cancelled_one_cleans_up(turns: int) -> None:
    cleaned: list[int] = []

    async def answer() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cleaned.append(1)

    begun = begin(answer())
    for _ in range(turns):
        await asyncio.sleep(0)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun
    assert cleaned == [1]
