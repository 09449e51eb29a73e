"""A quota on what is read from storage: tasks pay a broker for the bytes before they read them.

The plan says that a quota applies, what it is, and which broker keeps the account. A task asks
there for what it still has to read, is granted a part of it after a stated wait, and
goes on until a range is paid for. Nothing is split beforehand: a task that reads slowly leaves the
rest to the others, of its own job and of those that share the account.

Relies on the control API. Promises never to read faster than the quota; where the broker gives no
grants (it is down, or older than they are), a task allows itself an even part of it, as if all
tasks of its job read at once. So that slows a replay and does not end it.
"""

import logging

from catchwater.clock import SYSTEM, Clock
from catchwater.replay.control import Control, ControlRefused, ControlUnreachable
from catchwater.replay.plan import Quota

_LOG = logging.getLogger(__name__)

_PATIENCE_S = 5.0
"""How long a broker is asked for a grant before the task goes on by itself."""


class Meter:
    """One task's payments; without a quota it pays nothing and never waits.

    `_granted_bytes` are paid for and not read yet, `_left_bytes` not even paid for.
    """

    def __init__(self, quota: Quota | None, total_bytes: int, clock: Clock = SYSTEM) -> None:
        self.throttled_s = 0.0
        """How long it has waited so far."""
        self._quota = quota
        self._left_bytes = total_bytes
        self._granted_bytes = 0
        self._clock = clock

    def pay(self, size_bytes: int) -> None:
        """Wait until so many bytes more may be read."""
        if self._quota is None:
            return
        began_s = self._clock.monotonic_s()
        while self._granted_bytes < size_bytes:
            granted_bytes, wait_s = self._granted(self._quota, size_bytes - self._granted_bytes)
            self._granted_bytes += granted_bytes
            self._left_bytes -= granted_bytes
            self._clock.pause(wait_s)
        self._granted_bytes -= size_bytes
        self.throttled_s += self._clock.monotonic_s() - began_s

    def _granted(self, quota: Quota, needed_bytes: int) -> tuple[int, float]:
        """Bytes, and the seconds to wait for them."""
        url, client_id = quota.keeper_url, quota.client_id
        control = Control(url, timeout_s=_PATIENCE_S, clock=self._clock, client_id=client_id)
        asked_s = self._clock.monotonic_s()
        try:
            # More than is needed now, so that many small ranges are paid for at once.
            return control.grant(max(self._left_bytes, needed_bytes))
        except (ControlUnreachable, ControlRefused) as error:
            _LOG.warning("Going on at this task's even part of the quota: %s", error)
            wait_s = needed_bytes * quota.tasks / quota.bytes_per_s
            return needed_bytes, max(wait_s - (self._clock.monotonic_s() - asked_s), 0.0)
