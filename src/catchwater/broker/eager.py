"""Coroutines that begin at once, as Python's own eager tasks do from 3.12 on.

A read from memory waits for nothing: a task for it, and the turn of the event loop until it begins,
would cost more than the read.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def begin(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Run `work` up to where it first waits; the rest, if there is one, becomes a task.

    Up to there it has no task of its own: it must not ask for one, as `asyncio.timeout` does.
    """
    try:
        awaited = work.send(None)
    except StopIteration as ended:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.set_result(ended.value)
        return future
    except Exception as error:  # noqa: BLE001 - told to whoever asks for the result
        future = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        return future
    task = asyncio.ensure_future(_rest(_Rest(work, awaited)))
    # A task that is cancelled before its first turn never comes to `work`, which has begun.
    task.add_done_callback(lambda _: work.close())
    return task


class _Rest:
    """What is left of a coroutine that has begun to wait."""

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._awaited
        try:
            while True:
                try:
                    sent = yield awaited
                except (Exception, asyncio.CancelledError) as thrown:  # noqa: BLE001 - the coroutine's
                    awaited = self._work.throw(thrown)
                else:
                    awaited = self._work.send(sent)
        except StopIteration as ended:
            return ended.value


async def _rest(rest: _Rest) -> Any:
    return await rest
