"""Quotas of replays: bytes per second from storage, shared by all readers of one account.

A replay reads storage directly, so a broker cannot delay its bytes. Instead the plan says that a
quota applies, and a task asks for a grant before it reads: it gets at most what the account earns
in `STEP_S`, and waits until the account has earned it (throttled, never refused, as in KIP-13). So
tasks, jobs and micro-batches share an account evenly, an account causes at most `1 / STEP_S`
requests a second, and a killed task leaves a debt of one step at most.

`Limits` decides the account and its rate: the most specific of client id, principal and default, as
Kafka resolves its client quotas. One broker holds an account in memory; after a restart, or when
another broker takes over, it begins anew.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from catchwater.broker.gate import ANONYMOUS
from catchwater.clock import Clock

STEP_S = 0.25
"""A grant is at most what the account earns in this time."""
MOST_DEBT_S = 60.0
"""Beyond this nothing is granted for a moment: nobody can run up the debt of an account."""
FORGIVEN_S = 2.0
"""Up to this long an account that nobody uses goes on earning, as between two micro-batches; after
a longer pause it begins anew."""
MAX_ACCOUNTS = 10_000
"""Clients choose their ids, so beyond this number unused accounts are forgotten."""

WITHOUT_LIMIT = -1
CLIENT_ID = "client-id:"
"""Prefix of a client id as an account's name, like `User:` of a principal."""


class Quota(NamedTuple):
    """An account and the rate at which it earns bytes."""

    account: str
    bytes_per_s: int


class Limits(Protocol):
    """Resolves the quota of a client; the answer may change at any time."""

    def quota(self, principal: str, client_id: str) -> Quota | None:
        """The quota that applies; None if there is no limit. Does not block."""
        ...


class ConfiguredLimits:
    """The broker's settings: a rate for each principal, and others for single names."""

    def __init__(self, default: int, overrides: Mapping[str, int]) -> None:
        self._default = default
        self._overrides = overrides

    def quota(self, principal: str, client_id: str) -> Quota | None:
        """The client id's rate, else the principal's, else the default.

        A client chooses its id itself, so each principal that has logged in has its own account.
        """
        for named in (CLIENT_ID + client_id, principal):
            if named in self._overrides:
                account = named if principal in (named, ANONYMOUS) else f"{principal} {named}"
                return _limited(account, self._overrides[named])
        return _limited(principal, self._default)


def _limited(account: str, bytes_per_s: int) -> Quota | None:
    return None if bytes_per_s == WITHOUT_LIMIT else Quota(account, bytes_per_s)


class Grant(NamedTuple):
    """How many bytes may be read after waiting `throttle_ms`."""

    size_bytes: int
    throttle_ms: int


class ReplayQuotas:
    """The accounts of one broker."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self._clock = clock
        # By account: the time up to which its earnings are spent, on the monotonic clock.
        self._spent_until_s: dict[str, float] = {}

    def grant(self, quota: Quota, wanted_bytes: int) -> Grant:
        """Charge up to `wanted_bytes` to the account; the reader waits before it reads."""
        now_s = self._clock.monotonic_s()
        if len(self._spent_until_s) >= MAX_ACCOUNTS:
            self._forget(now_s)
        spent_s = self._spent_until_s.get(quota.account, now_s)
        if spent_s < now_s - FORGIVEN_S:
            spent_s = now_s
        if spent_s > now_s + MOST_DEBT_S:
            return Grant(0, round((spent_s - now_s - MOST_DEBT_S + STEP_S) * 1000))
        size_bytes = min(wanted_bytes, max(int(quota.bytes_per_s * STEP_S), 1))
        spent_s += size_bytes / quota.bytes_per_s
        self._spent_until_s[quota.account] = spent_s
        return Grant(size_bytes, max(round((spent_s - now_s) * 1000), 0))

    def _forget(self, now_s: float) -> None:
        """Drop the accounts that would begin anew anyway."""
        self._spent_until_s = {
            account: spent_s
            for account, spent_s in self._spent_until_s.items()
            if spent_s >= now_s - FORGIVEN_S
        }
