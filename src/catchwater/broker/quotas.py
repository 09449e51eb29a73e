"""How fast replays may read storage: bytes per second, shared by all readers of one account.

A replay reads storage itself, so nothing can be held back on its way. Instead the plan says that a
quota applies, and before a task reads it pays: it asks for a grant, gets at most what the account
earns in `STEP_S`, and waits until the account has earned it (throttled, never refused, as KIP-13).
So tasks, jobs and micro-batches share one account evenly, however many there are, an account costs
its broker at most `1 / STEP_S` requests a second, and a task that is killed leaves no debt but one
step.

Which account somebody pays from, and its rate, is the question that `Limits` answers: the most
specific of client id, principal and default, as Kafka resolves its client quotas. An account is
kept in memory by one broker; when another takes over, or after a restart, it begins anew.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from catchwater.clock import Clock

STEP_S = 0.25
"""A grant is at most what the account earns in this time."""
FORGIVEN_S = 2.0
"""A pause up to this, such as between two micro-batches, is made up for; after a longer one
nothing is."""
MAX_ACCOUNTS = 10_000
"""Clients choose their ids, so beyond this accounts that nobody pays from are forgotten."""

WITHOUT_LIMIT = -1
CLIENT_ID = "client-id:"
"""In front of a client id where it names an account, as `User:` is in front of a principal."""


class Quota(NamedTuple):
    """The account somebody pays from, and what it earns."""

    account: str
    bytes_per_s: int


class Limits(Protocol):
    """Says what applies to whom; may change its mind at any time."""

    def quota(self, principal: str, client_id: str) -> Quota | None:
        """What applies; None if there is no limit. Does not block."""
        ...


class ConfiguredLimits:
    """The broker's settings: a rate for each principal, and others for single names."""

    def __init__(self, default: int, overrides: Mapping[str, int]) -> None:
        self._default = default
        self._overrides = overrides

    def quota(self, principal: str, client_id: str) -> Quota | None:
        """The client id's own rate goes before the principal's, and that before the default."""
        for account in (CLIENT_ID + client_id, principal):
            if account in self._overrides:
                return _limited(account, self._overrides[account])
        return _limited(principal, self._default)


def _limited(account: str, bytes_per_s: int) -> Quota | None:
    return None if bytes_per_s == WITHOUT_LIMIT else Quota(account, bytes_per_s)


class Grant(NamedTuple):
    """So many bytes may be read once the wait is over."""

    size_bytes: int
    throttle_ms: int


class ReplayQuotas:
    """The accounts of one broker."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self._clock = clock
        # Per account, until when what it earns is spent, by the monotonic clock.
        self._spent_until_s: dict[str, float] = {}

    def grant(self, quota: Quota, wanted_bytes: int) -> Grant:
        """Up to `wanted_bytes`, charged to the account at once; the reader waits first."""
        now_s = self._clock.monotonic_s()
        if len(self._spent_until_s) >= MAX_ACCOUNTS:
            self._forget(now_s)
        spent_s = self._spent_until_s.get(quota.account, now_s)
        if spent_s < now_s - FORGIVEN_S:
            spent_s = now_s
        size_bytes = min(wanted_bytes, max(int(quota.bytes_per_s * STEP_S), 1))
        spent_s += size_bytes / quota.bytes_per_s
        self._spent_until_s[quota.account] = spent_s
        return Grant(size_bytes, max(round((spent_s - now_s) * 1000), 0))

    def _forget(self, now_s: float) -> None:
        """Leave out the accounts that would begin anew."""
        self._spent_until_s = {
            account: spent_s
            for account, spent_s in self._spent_until_s.items()
            if spent_s >= now_s - FORGIVEN_S
        }
