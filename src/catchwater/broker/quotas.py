"""Quotas: what a user or a client may take of a broker in a second, and how long it waits for more.

**Of clients**, in Kafka's terms (KIP-13, 55, 124, 219, 599): `producer_byte_rate`,
`consumer_byte_rate`, `request_percentage` and `controller_mutation_rate`, set for users and client
ids, with its precedence (`Settings.find`). A reply is sent at once and names the time for which the
connection is then not read from. Two more are ours: `replay_byte_rate`, and `lagging_byte_rate` for
what consumers that lag behind read from storage; these are also held to a rate of all together, so
that they take no disk and no network from those at the tail. An account is in one broker's memory,
as in Kafka, and earns nothing beyond `BURST_S` in advance.

**Of replays**: bytes per second from storage, shared by all readers of one account. A replay reads
storage directly, so a broker cannot delay its bytes. Instead the plan says that a quota applies,
and a task asks for a grant before it reads: it gets at most what the account earns in `STEP_S`, and
waits until the account has earned it (throttled, never refused). So tasks, jobs and micro-batches
share an account evenly, an account causes at most `1 / STEP_S` requests a second, and a killed task
leaves a debt of one step at most. `Limits` decides the account and its rate: the most specific of
client id, principal and default. One broker holds an account in memory; after a restart, or when
another broker takes over, it begins anew.
"""

from collections.abc import Iterable, Mapping, Sequence
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

    def __init__(
        self, default: int, overrides: Mapping[str, int], quotas: "Quotas | None" = None
    ) -> None:
        self._default = default
        self._overrides = overrides
        self._quotas = quotas

    def quota(self, principal: str, client_id: str) -> Quota | None:
        """What was set over Kafka's protocol; else the client id's rate here, else the principal's,
        else the default.

        A client chooses its id itself, so each principal that has logged in has its own account.
        """
        if self._quotas is not None:
            user = principal.removeprefix("User:")
            rate = self._quotas.settings.find(REPLAY, user, client_id)
            if rate is not None:
                _, of_user, _ = rate.account
                account = " ".join(rate.account)
                account = account if of_user else _own(principal, account)
                return Quota(account, max(1, int(rate.per_s)))
        for named in (CLIENT_ID + client_id, principal):
            if named in self._overrides:
                return _limited(_own(principal, named), self._overrides[named])
        return _limited(principal, self._default)


def _own(principal: str, account: str) -> str:
    """The account as this principal's own, so that nobody else runs up its debt."""
    return account if principal in (account, ANONYMOUS) else f"{principal} {account}"


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


# --- Of clients

PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"
REQUEST, MUTATIONS = "request_percentage", "controller_mutation_rate"
REPLAY, LAGGING = "replay_byte_rate", "lagging_byte_rate"
KEYS: Mapping[str, str] = {
    PRODUCE: "bytes a second that may be produced",
    FETCH: "bytes a second that may be fetched",
    REQUEST: "percent of a second that requests may take of the broker's time",
    MUTATIONS: "partitions a second that may be created or deleted",
    REPLAY: "bytes a second that replays may read from storage",
    LAGGING: "bytes a second that consumers which lag behind may fetch from storage",
}
ANY_OTHER = ""
"""As a name in an `Entity`: all that have no quota by name (Kafka's `<default>`)."""
EVERY = "*"
BURST_S = 1.0
"""What an account may have earned in advance; and how much a reply of records may be at once."""
MOST_MUTATIONS_S = 10.0
"""The same for mutations, which come in few and large requests (11 samples of 1 s in Kafka)."""
LONGEST_THROTTLE_S = 60.0
_MOST_RESOLVED = 10_000


class Entity(NamedTuple):
    """What a quota is for: a user, a client id or both; None: any. At least one is named.

    A user's name that ends in `*` is a tenant: all users whose names begin so share its account.
    """

    user: str | None
    client_id: str | None


class Rate(NamedTuple):
    """A quota that applies to a client, and the account it pays from."""

    account: tuple[str, str, str]
    """Key, user and client id; empty where it is shared by all of them."""
    per_s: float


class Settings:
    """The quotas that are set; replaced as a whole."""

    def __init__(self, values: Mapping[Entity, Mapping[str, float]]) -> None:
        self.values = {entity: dict(keys) for entity, keys in values.items() if keys}
        self.keys = frozenset(key for keys in self.values.values() for key in keys)
        """Those that are set for anybody."""
        named = {each.user for each in self.values if each.user and each.user.endswith(EVERY)}
        self._tenants = sorted(named, key=len, reverse=True)
        self._resolved: dict[tuple[str, str, str], Rate | None] = {}

    def find(self, key: str, user: str, client_id: str) -> Rate | None:
        """The quota that applies; None: there is no limit.

        In Kafka's order, and tenants after users, the longest name first.
        """
        if key not in self.keys:
            return None
        asked = (key, user, client_id)
        if asked not in self._resolved:
            if len(self._resolved) >= _MOST_RESOLVED:
                self._resolved.clear()
            self._resolved[asked] = self._find(key, user, client_id)
        return self._resolved[asked]

    def _find(self, key: str, user: str, client_id: str) -> Rate | None:
        tenants = [each for each in self._tenants if user.startswith(each.removesuffix(EVERY))]
        of_users = [
            (Entity(name, client), pays)
            for name, pays in ((user, user), *zip(tenants, tenants, strict=True), (ANY_OTHER, user))
            for client in (client_id, ANY_OTHER, None)
        ]
        for entity, pays in (
            *of_users, (Entity(None, client_id), ""), (Entity(None, ANY_OTHER), "")
        ):  # fmt: skip
            value = self.values.get(entity, {}).get(key)
            if value is not None:
                of_client = "" if entity.client_id is None else client_id
                return Rate((key, pays, of_client), value)
        return None


class Accounts:
    """What has been taken of each rate, on a clock that never goes back. Pure."""

    def __init__(self) -> None:
        self._spent_until_s: dict[tuple[str, str, str], float] = {}
        """Until when an account's earnings are spent; before now it has some."""

    def charge(self, rate: Rate, amount: float, now_s: float, burst_s: float = BURST_S) -> float:
        """Take so much; the seconds until the account has earned it, 0 if it has."""
        if len(self._spent_until_s) >= MAX_ACCOUNTS:
            self._spent_until_s = {
                account: until_s
                for account, until_s in self._spent_until_s.items()
                if until_s > now_s - burst_s
            }
        spent_s = max(self._spent_until_s.get(rate.account, 0.0), now_s - burst_s)
        spent_s += amount / rate.per_s
        self._spent_until_s[rate.account] = spent_s
        return max(0.0, spent_s - now_s)

    def debt_s(self, rate: Rate, now_s: float) -> float:
        """Seconds until the account has earned what it took."""
        return max(0.0, self._spent_until_s.get(rate.account, 0.0) - now_s)


class ThrottleMetrics(Protocol):
    """Where it is shown what was throttled."""

    def throttled(self, key: str, seconds: float) -> None:
        """Count how long a client waits for this."""

    def lagging(self, size_bytes: int) -> None:
        """Count bytes read from storage for a consumer that lags behind."""


class Quotas:
    """The quotas of one broker's clients."""

    def __init__(self, clock: Clock, shown: ThrottleMetrics, lagging_bytes_per_s: int) -> None:
        """`lagging_bytes_per_s` is that of all lagging consumers together; -1: no limit."""
        self.clock = clock
        self.shown = shown
        self.accounts = Accounts()
        self.settings = Settings({})
        self.all_lagging: Rate | None = None
        if lagging_bytes_per_s != WITHOUT_LIMIT:
            self.all_lagging = Rate((LAGGING, "", ""), lagging_bytes_per_s)

    def meter(self, principal: str, client_id: str) -> "Meter | None":
        """Of one request of this client; None where nobody has a quota."""
        return Meter(self, principal, client_id) if self.settings.keys else None


class Meter:
    """What one request takes, and for how long its client is not read from afterwards."""

    __slots__ = ("_client_id", "_quotas", "_user", "throttle_s")

    def __init__(self, quotas: Quotas, principal: str, client_id: str) -> None:
        self._quotas = quotas
        self._user = principal.removeprefix("User:")
        self._client_id = client_id
        self.throttle_s = 0.0

    @property
    def throttle_ms(self) -> int:
        return round(self.throttle_s * 1000)

    def rate(self, key: str) -> Rate | None:
        """The client's quota for this."""
        return self._quotas.settings.find(key, self._user, self._client_id)

    def take(self, key: str, amount: float) -> None:
        """Charge what the request takes."""
        rate = self.rate(key)
        if rate is not None:
            burst_s = MOST_MUTATIONS_S if key == MUTATIONS else BURST_S
            self._charge(rate, amount, burst_s)

    def take_time(self, seconds: float) -> None:
        """Charge time of the event loop."""
        self.take(REQUEST, seconds * 100)

    def take_lagging(self, size_bytes: int) -> None:
        """Charge bytes that were read from storage: to the client, and to all who lag together."""
        self.take(LAGGING, size_bytes)
        self._quotas.shown.lagging(size_bytes)
        if self._quotas.all_lagging is not None:
            self._charge(self._quotas.all_lagging, size_bytes, BURST_S)

    def most_bytes(self) -> int | None:
        """How much a reply of records may have, so that it is no long debt; None: no limit."""
        rates = [rate.per_s for key in (FETCH, LAGGING) if (rate := self.rate(key)) is not None]
        return max(1, int(min(rates) * BURST_S)) if rates else None

    def may_mutate(self) -> bool:
        """Whether the account of mutations has no debt: strict clients are refused otherwise."""
        rate = self.rate(MUTATIONS)
        now_s = self._quotas.clock.monotonic_s()
        debt_s = 0.0 if rate is None else self._quotas.accounts.debt_s(rate, now_s)
        self.throttle_s = max(self.throttle_s, min(debt_s, LONGEST_THROTTLE_S))
        return debt_s == 0

    def _charge(self, rate: Rate, amount: float, burst_s: float) -> None:
        now_s = self._quotas.clock.monotonic_s()
        wait_s = self._quotas.accounts.charge(rate, amount, now_s, burst_s)
        wait_s = min(wait_s, LONGEST_THROTTLE_S)
        if wait_s > self.throttle_s:
            self._quotas.shown.throttled(rate.account[0], wait_s - self.throttle_s)
            self.throttle_s = wait_s


# --- How they are set


class QuotaRefused(ValueError):
    """An entity or a value that cannot be a quota's."""


def parsed_entity(named: Sequence[tuple[str, str | None]]) -> Entity:
    """The entity of types and names as requests have them. Raises `QuotaRefused`."""
    found: dict[str, str] = {}
    for kind, name in named:
        if kind not in ("user", "client-id"):
            raise QuotaRefused(
                f"There are quotas of users and client ids, not of {kind[:40]!r}; connections of "
                "an address are bounded by catchwater.max.connection.creation.rate.per.ip."
            )
        if kind in found:
            raise QuotaRefused(f"The entity names its {kind} twice.")
        if name == "":
            raise QuotaRefused(f"The name of a {kind} is not empty.")
        found[kind] = ANY_OTHER if name is None else name
    if not found:
        raise QuotaRefused("The entity names neither a user nor a client id.")
    return Entity(found.get("user"), found.get("client-id"))


def check_value(key: str, value: float) -> None:
    """Raise `QuotaRefused` for a key that does not exist, and for a rate that lets nothing pass."""
    if key not in KEYS:
        raise QuotaRefused(f"There is no quota {key[:100]!r}; there are {', '.join(KEYS)}.")
    if not 0 < value < float("inf"):
        raise QuotaRefused(f"{key} must be more than 0, not {value}.")


def shown_entity(entity: Entity) -> list[dict[str, str | None]]:
    """The entity as replies have it."""
    named = (("user", entity.user), ("client-id", entity.client_id))
    return [
        {"entity_type": kind, "entity_name": None if name == ANY_OTHER else name}
        for kind, name in named
        if name is not None
    ]


class EntityFilter(NamedTuple):
    """A part of a filter: which names of a type of entity are wanted."""

    kind: str
    match: int
    """0: this name, 1: the default, 2: any that is named or the default."""
    name: str | None


def matching(
    values: Mapping[Entity, Mapping[str, float]], filters: Iterable[EntityFilter], *, strict: bool
) -> list[Entity]:
    """The entities that all parts of the filter fit; `strict`: and that have no other part."""
    by_kind = {each.kind: each for each in filters}

    def fits(entity: Entity) -> bool:
        names = {"user": entity.user, "client-id": entity.client_id}
        there = {kind for kind, name in names.items() if name is not None}
        if not by_kind.keys() <= there or (strict and there != by_kind.keys()):
            return False
        return all(
            each.match == 2 or names[kind] == (each.name if each.match == 0 else ANY_OTHER)
            for kind, each in by_kind.items()
        )

    return sorted((each for each in values if fits(each)), key=lambda each: str(each))
