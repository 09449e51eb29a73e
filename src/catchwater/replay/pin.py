"""The pin of a query: taken with its plan, renewed while its tasks read, gone soon after.

Spark does not tell a Python batch source that its job has ended, and plans it in a process that
may be gone before the first task runs. So the pin has a lease, and what reads renews it: it ends
one lease after the last task, or after the job was killed, and the log's next pass removes it. A
stream's pin, where one is wanted, moves on with its micro-batches.

Relies on the control API, whose clock measures the lease. Promises that what was planned can be
read until the pin ends. A pin that has ended is a warning in the task's log, and a range that the
task then does not find is an error as ever. A failing renewal does not stop a task: storage may
still answer.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.replay.control import Control, ControlRefused
from catchwater.replay.options import Offsets
from catchwater.replay.plan import Missing, Slice, Task
from catchwater.replay.subscription import Subscription, excluding

_LOG = logging.getLogger(__name__)

_FIRST = 0.1
"""A process renews a pin first within this part of the lease: it may be the only one, and late."""
_EACH = 0.3
"""And then after this part of it, so that three renewals fail before the lease ends."""

_GOODBYE_S = 5.0
"""How long removing a pin is tried; a pin that stays ends with its lease."""

THREAD = "renew-pin"
"""The name of the thread that does it."""

T = TypeVar("T")

_due_s: dict[tuple[str, str], float] = {}
"""When this process, which reads task after task, renews a pin next, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class ReadPin:
    """The pin of one query, as its tasks know it."""

    control_url: str = field(repr=False)
    id: str
    lease_ms: int


def planned(
    subscription: Subscription, clock: Clock = SYSTEM, *, older: Sequence[Missing] = ()
) -> tuple[list[Slice], ReadPin | None]:
    """Where what a batch query reads lies, and the pin that is held for it.

    What is `older` than the log is not looked for in it; the pin holds these partitions from where
    the log begins. There is none where nothing is read from our storage. Raises what
    `Subscription.wanted` and `Subscription.slices` do.
    """
    lease_ms = subscription.options.pin_lease_ms
    wanted = excluding(subscription.wanted(), older)
    while True:
        slices = subscription.slices(wanted)
        held = _held(subscription, slices, older)
        control_url = subscription.control_url() if held and lease_ms else None
        if control_url is None:
            return slices, None
        pin = ReadPin(control_url, f"read/{clock.token()}", lease_ms)
        try:
            _set(pin, "a batch query on Spark", held, clock)
        except ControlRefused as refusal:
            if not refusal.missing:
                raise
            continue  # Retention was faster than the pin; a new plan says what is missing.
        return slices, pin


def _held(
    subscription: Subscription, slices: Sequence[Slice], older: Sequence[Missing] = ()
) -> Offsets:
    """The first offset of each partition that is read in the log.

    Where the log begins, for a partition of which only older offsets are read.
    """
    firsts: Offsets = {}
    for each in slices:
        if not each.files:
            key = each.topic, each.partition
            firsts[key] = min(each.first, firsts.get(key, each.first))
    deleted = {(each.topic, each.partition) for each in older}
    deleted |= {(each.topic, each.partition) for each in slices if each.files}
    return (subscription.earliest(deleted) | firsts) if deleted else firsts


def _set(pin: ReadPin, owner: str, firsts: Offsets, clock: Clock) -> None:
    content = {
        "owner": owner,
        "positions": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(firsts.items())
        ],
        "lease_ms": pin.lease_ms,
        # For a broker that is older and knows no `lease_ms`: it must not hold for ever.
        "lease_until_ms": clock.now_ms() + pin.lease_ms,
    }
    Control(pin.control_url, clock=clock).set_pin(pin.id, content)


class MovingPin:
    """A streaming query's: it holds from the start of the last micro-batch that was planned.

    From there the query reads again after a failure, and all that it has not read lies behind. It
    is renewed at each trigger and by the tasks, so it ends one lease after the query; a query
    that starts again within that time finds everything. Not to be had without a lease.
    """

    def __init__(self, lease_ms: int, clock: Clock = SYSTEM) -> None:
        self._lease_ms = lease_ms
        self._clock = clock
        self._pin: ReadPin | None = None
        # When it was last set, and when its lease last began anew, by the monotonic clock.
        self._set_s = self._renewed_s = -math.inf

    def planned(
        self, subscription: Subscription, start: Offsets, end: Offsets
    ) -> tuple[list[Task], ReadPin | None]:
        """A micro-batch's tasks, and the pin that holds them; raises `HistoryLost`."""
        # What a partition brings nothing of now, it brings the next time.
        ends = end
        while True:
            tasks = subscription.tasks(start, end)
            control_url = subscription.control_url() if tasks and self._lease_ms else None
            if control_url is None:
                return tasks, None
            slices = [each for task in tasks for each in task.slices]
            try:
                return tasks, self._moved(control_url, {**ends, **_held(subscription, slices)})
            except ControlRefused as refusal:
                if not refusal.missing:
                    raise
                # Retention was faster: a new plan says what is missing, and where it had deleted
                # all of a partition, as `failOnDataLoss=false` allows, that goes on behind it.
                begins = subscription.earliest(end)
                ends = {key: max(offset, begins[key]) for key, offset in end.items()}

    def _moved(self, control_url: str, firsts: Offsets) -> ReadPin:
        now_s = self._clock.monotonic_s()
        if self._pin is None:
            token = self._clock.token()
            self._pin = ReadPin(control_url, f"read/{token}", self._lease_ms)
        elif now_s < self._set_s + self._lease_ms / 1000 * _FIRST:
            return self._pin  # It holds a little more than it must; setting it syncs the catalog.
        _set(self._pin, "a streaming query on Spark", firsts, self._clock)
        self._set_s = self._renewed_s = now_s
        return self._pin

    def renew(self) -> None:
        """Called at each trigger, whether there is anything to read or not."""
        now_s = self._clock.monotonic_s()
        if self._pin is None or now_s < self._renewed_s + self._lease_ms / 1000 * _EACH:
            return
        control = Control(self._pin.control_url, timeout_s=_GOODBYE_S, clock=self._clock)
        try:
            if not control.renew_pin(self._pin.id, self._lease_ms):
                _LOG.warning("The pin %s has ended; the next micro-batch sets it.", self._pin.id)
                self._set_s = -math.inf
            self._renewed_s = now_s
        except CatchwaterError as error:
            _LOG.warning("The pin %s was not renewed: %s", self._pin.id, error)


def renewed(batches: Iterator[T], pin: ReadPin | None, clock: Clock = SYSTEM) -> Iterator[T]:
    """What a task reads, its pin renewed meanwhile, also while nobody asks for the next batch."""
    if pin is None:
        yield from batches
        return
    ended = threading.Event()
    threading.Thread(target=_renew, args=(pin, ended, clock), name=THREAD, daemon=True).start()
    try:
        yield from batches
    finally:
        ended.set()


def held(pin: ReadPin, is_needed: Callable[[], bool], clock: Clock = SYSTEM) -> Callable[[], None]:
    """Renew the pin on the driver, for readers that do not; returns what ends and removes it.

    `is_needed` is asked before each renewal; when it says no, the pin is removed as well.
    """
    ended = threading.Event()

    def hold() -> None:
        _renew(pin, ended, clock, is_needed)
        try:
            Control(pin.control_url, timeout_s=_GOODBYE_S, clock=clock).release_pin(pin.id)
        except CatchwaterError as error:
            _LOG.warning("The pin %s ends with its lease; not removed: %s", pin.id, error)

    thread = threading.Thread(target=hold, name=THREAD, daemon=True)
    thread.start()

    def release() -> None:
        ended.set()
        thread.join()

    return release


def _renew(
    pin: ReadPin,
    ended: threading.Event,
    clock: Clock,
    is_needed: Callable[[], bool] = lambda: True,
) -> None:
    """Renew the pin when it is due, until its reader has ended or it holds nothing any more."""
    key, lease_s = (pin.control_url, pin.id), pin.lease_ms / 1000
    # Not at once: of a job's many short tasks each would ask, all at the same moment.
    now_s = clock.monotonic_s()
    for other in [other for other, at_s in list(_due_s.items()) if at_s + lease_s < now_s]:
        _due_s.pop(other, None)  # of a job that has ended
    due_s = _due_s.setdefault(key, now_s + lease_s * _FIRST * clock.random.random())
    control = Control(pin.control_url, timeout_s=max(lease_s * _EACH, 1.0), clock=clock)
    while not ended.wait(max(due_s - clock.monotonic_s(), 0)) and is_needed():
        due_s = _due_s[key] = clock.monotonic_s() + lease_s * _EACH
        try:
            if not control.renew_pin(pin.id, pin.lease_ms):
                _LOG.warning("The pin %s has ended, though a task still reads.", pin.id)
                return
        except CatchwaterError as error:
            _LOG.warning("The pin %s was not renewed: %s", pin.id, error)
