"""An event loop on virtual time: the clock jumps to the next timer instead of waiting for it.

What belongs to one simulated machine runs in a context that names its `Node`, so a machine can be
paused (its callbacks queue up, timers too, as under SIGSTOP) and cut off (whatever it still does
reaches nobody).

What blocks runs in a `Hand`: a thread that runs only while the loop stands still for it, and gives
the loop its turn back where it would wait: at a call of a store, or in `Clock.pause`. So blocking
code is interleaved at exactly those places, and the same seed gives the same order. A wait with no
timer left, or a hand that really blocks, is a deadlock and raises at once.
"""

import asyncio
import heapq
import threading
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

NODE: ContextVar["Node | None"] = ContextVar("node", default=None)
_STUCK_S = 120.0


class Deadlock(AssertionError):
    """Everything waits for something that nobody will do."""


class Killed(BaseException):
    """Ends a hand whose machine is gone; no code under test may catch it."""


class Node:
    """A simulated machine: what runs in its context can be paused, and cut off for ever."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_paused = False
        self.is_cut = False
        self.frozen: list[asyncio.Handle] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.hands: dict[Hand, None] = {}
        self.context = copy_context()
        self.context.run(NODE.set, self)


class Hand:
    """A thread that takes turns with the loop; used for one blocking call after the other."""

    def __init__(self) -> None:
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self.work: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.is_killed = False
        self.is_stuck = False
        self.delay_s = 0.0
        # The next turn is a request on its way: it goes on whatever becomes of the machine.
        self.is_travelling = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def turn(self) -> None:
        """Let it run until it waits or is done."""
        self._go.release()
        self.is_stuck = not self._back.acquire(timeout=_STUCK_S)

    def wait(self, seconds: float, *, travelling: bool = False) -> None:
        """In the hand: give the turn back for so long."""
        if self.is_killed:
            raise Killed
        self.delay_s, self.is_travelling = seconds, travelling
        self._back.release()
        self._go.acquire()
        self.is_travelling = False
        if self.is_killed:
            raise Killed

    def _run(self) -> None:
        _OF_THREAD.hand = self
        while True:
            self._go.acquire()
            if self.work is None:
                self._back.release()
                return
            self.result = self.error = None
            try:
                self.result = self.work()
            except BaseException as error:  # noqa: BLE001  (handed to whoever waits)
                self.error = error
            self.is_done = True
            self._back.release()


class _OfThread(threading.local):
    hand: Hand | None = None


_OF_THREAD = _OfThread()


def current_hand() -> Hand | None:
    """The hand this code runs in; None on the loop."""
    return _OF_THREAD.hand


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs everything in one order that only depends on what is run."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._idle: list[Hand] = []
        self._all: list[Hand] = []
        self._is_stuck = False
        self.failures: list[str] = []
        """What went wrong in callbacks and forgotten tasks of machines that were not cut off."""
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._now_s

    # --- one turn ----------------------------------------------------------------------------

    def _run_once(self) -> None:
        ready = self._ready
        while not ready:
            if not self._scheduled:
                raise Deadlock(f"everything waits, and there is no timer; {self.failures}")
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            if handle._cancelled:
                self._timer_cancelled_count -= 1
                continue
            self._now_s = max(self._now_s, handle._when)
            ready.append(handle)
        handle = ready.popleft()
        node = handle._context.get(NODE)
        if handle._cancelled:
            return
        if node is not None and node.is_paused:
            node.frozen.append(handle)
        else:
            handle._run()
        if self._is_stuck:
            raise Deadlock("a blocking call really blocks, for something that only the loop can do")

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""

    def _process_events(self, event_list: Any) -> None:
        raise AssertionError("there are no events outside of the loop")

    def create_task(self, coro: Any, **settings: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **settings)
        context = settings.get("context")
        node = context.get(NODE) if context is not None else NODE.get()
        if node is not None:
            node.tasks.add(task)
            task.add_done_callback(node.tasks.discard)
        return task

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        node = NODE.get()
        error = context.get("exception")
        cut = node is not None and node.is_cut
        if not cut and not isinstance(error, Killed):
            self.failures.append(f"{context.get('message')}: {error!r}")

    # --- what blocks ---------------------------------------------------------------------------

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it in a hand, whichever pool was meant."""
        future: asyncio.Future[Any] = self.create_future()
        hand = self._idle.pop() if self._idle else self._new_hand()
        hand.work = lambda: func(*args)
        hand.is_done = hand.is_killed = False
        hand.delay_s = 0.0
        context = copy_context()
        node = context.get(NODE)
        if node is not None:
            node.hands[hand] = None
        self._turn(hand, future, context)
        return future

    def _new_hand(self) -> Hand:
        self._all.append(Hand())
        return self._all[-1]

    def _later(self, hand: Hand, future: asyncio.Future[Any], context: Context) -> None:
        where = Context() if hand.is_travelling else context
        self.call_later(hand.delay_s, self._turn, hand, future, context, context=where)

    def _turn(self, hand: Hand, future: asyncio.Future[Any], context: Context) -> None:
        if not hand.is_done:
            hand.turn()
            self._is_stuck = hand.is_stuck
        if not hand.is_done:
            self._later(hand, future, context)
            return
        node = context.get(NODE)
        if node is not None:
            node.hands.pop(hand, None)
        self._idle.append(hand)
        if future.cancelled():
            return
        if isinstance(hand.error, Killed):
            future.cancel()
        elif hand.error is not None:
            future.set_exception(hand.error)
        else:
            future.set_result(hand.result)

    # --- machines ------------------------------------------------------------------------------

    def pause(self, node: Node) -> None:
        """Stop it: from now on its callbacks only queue up."""
        node.is_paused = True

    def resume(self, node: Node) -> None:
        """Let it go on, with everything that came due meanwhile."""
        node.is_paused = False
        self._ready.extend(node.frozen)
        node.frozen.clear()

    def cut(self, node: Node, lands: Callable[[], bool]) -> None:
        """End it: its tasks and hands unwind, and nobody sees what they do while they do.

        A request that is on its way may still land; `lands` says whether.
        """
        node.is_cut = True
        self.resume(node)
        for hand in list(node.hands):
            hand.is_killed = not (hand.is_travelling and lands())
        for task in list(node.tasks):
            task.cancel()

    def end(self) -> None:
        """Unwind every task that is left, end the threads, and forget what is scheduled."""
        for _ in range(4):
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            if left and not self._is_stuck:
                self.run_until_complete(asyncio.sleep(1))
        for hand in (hand for hand in self._all if not hand.is_stuck):
            hand.is_killed = True
            while hand not in self._idle and not hand.is_done:
                hand.turn()
            hand.work = None
            hand.turn()
        self._scheduled.clear()
        self._ready.clear()
        self.close()
