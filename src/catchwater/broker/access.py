"""Who there is and who may do what: users and rules, and the gate made of them.

They are kept in two places, which count together. The catalog has those that `kafka-acls` and
`kafka-configs` make (`acls.py`), for all brokers of the log. A file, which is changed without a
broker, has the first of them: JSON with verifiers of passwords (`wire.security.verifiers`) by user,
and rules as Kafka's ACLs. A user who is in both is the file's. All changes of the file go through
`change`, under a lock, and replace it as a whole. Brokers look at both twice a second; what cannot
be read is reported, and what was read before stays in force.

The verdict is that of Kafka's StandardAuthorizer: a super user may do everything; a rule that
denies wins; else a rule that allows has to be there. To be allowed to READ, WRITE, DELETE or ALTER
allows to DESCRIBE, and ALTER_CONFIGS to DESCRIBE_CONFIGS.
"""

import asyncio
import base64
import fcntl
import hmac
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol
from weakref import WeakValueDictionary

import msgspec

from catchwater.broker.gate import Gate, Operation, Resource, ResourceType, is_sealed
from catchwater.catalog.rows import AccessRows, RuleRow, VerifierRow
from catchwater.config import CatchwaterError, ConfigError
from catchwater.wire.security.verifiers import (
    NotProved,
    Verifier,
    Verifiers,
    check_password,
)

if TYPE_CHECKING:
    from catchwater.broker.tokens import Tokens

ANY = "*"
"""As a name: all resources of the type; as a host: all; as `User:*`: everybody."""
EVERYBODY = "User:*"
ALL = "ALL"
MOST_VERDICTS = 10_000
"""That a connection keeps."""
_MOST_PASSWORDS = 1_000
_HASHING = 2
"""Threads that passwords are checked in: others must not wait behind them."""
_IMPLIES = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
_SUFFICES = {each: frozenset({each, *_IMPLIES.get(each, ()), ALL}) for each in Operation}
"""By operation: to be allowed one of these is enough."""

_LOG = logging.getLogger("catchwater.broker")


class Rule(NamedTuple):
    """Lets a principal do something from a host, or forbids it."""

    principal: str
    permission: Literal["ALLOW", "DENY"]
    operation: str
    """Kafka's name of it, or ALL."""
    type: ResourceType
    name: str
    pattern: Literal["LITERAL", "PREFIXED"] = "LITERAL"
    host: str = ANY


class _Index:
    """The rules of one principal for one type of resource."""

    def __init__(self) -> None:
        self.literal: dict[str, list[Rule]] = {}
        self.prefixed: dict[str, list[Rule]] = {}
        self.lengths: set[int] = set()

    def add(self, rule: Rule) -> None:
        if rule.pattern == "LITERAL":
            self.literal.setdefault(rule.name, []).append(rule)
        else:
            self.prefixed.setdefault(rule.name, []).append(rule)
            self.lengths.add(len(rule.name))

    def all(self) -> Iterable[Rule]:
        """All rules."""
        for kind in (self.literal, self.prefixed):
            for rules in kind.values():
                yield from rules

    def about(self, name: str) -> list[Rule]:
        """The rules that speak of this resource."""
        found = [*self.literal.get(name, ())]
        if name != ANY:
            found += self.literal.get(ANY, ())
        size = len(name)
        for length in self.lengths:
            if length <= size and (rules := self.prefixed.get(name[:length])) is not None:
                found += rules
        return found


class Rules:
    """Rules, by principal."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.all = tuple(rules)
        self._by_principal: dict[tuple[str, ResourceType], _Index] = {}
        for rule in self.all:
            self._by_principal.setdefault((rule.principal, rule.type), _Index()).add(rule)

    def may_with_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Whether there could be a resource of this type with which a rule allows it.

        As Kafka's `authorizeByResourceType`: unless all that is allowed is denied again.
        """
        speak = [
            rule
            for who in (principal, EVERYBODY)
            if (index := self._by_principal.get((who, kind)))
            for rule in index.all()
            if rule.host in (ANY, host) and rule.operation in (operation, ALL)
        ]
        denied = {(rule.pattern, rule.name) for rule in speak if rule.permission == "DENY"}
        if ("LITERAL", ANY) in denied:
            return False
        return any(
            rule[4:6] == (ANY, "LITERAL")
            or (
                (rule.pattern, rule.name) not in denied
                and not any(
                    ("PREFIXED", rule.name[:length]) in denied
                    for length in range(1, len(rule.name) + 1)
                )
            )
            for rule in speak
            if rule.permission == "ALLOW"
        )

    def may(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether a rule allows it and none denies it."""
        rule = self.decisive(principal, host, operation, resource)
        return rule is not None and rule.permission == "ALLOW"

    def decisive(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> Rule | None:
        """The rule that decides; None: none speaks of it, so that it is denied."""
        suffices = _SUFFICES[operation]
        allows: Rule | None = None
        for who in (principal, EVERYBODY):
            index = self._by_principal.get((who, resource.type))
            for rule in index.about(resource.name) if index else ():
                if rule.host not in (ANY, host):
                    continue
                if rule.permission == "DENY":
                    if rule.operation in (operation, ALL):
                        return rule
                elif rule.operation in suffices:
                    allows = rule
        return allows


@dataclass(frozen=True)
class Access:
    """Users and rules as they are at one moment."""

    users: Mapping[str, Verifiers] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)


class _Written(msgspec.Struct):
    """The file's form."""

    users: dict[str, dict[str, dict[str, Any]]] = {}
    rules: list[dict[str, str]] = []


class AccessFileBad(ConfigError):
    """The file of users and rules cannot be used."""


def read(path: Path) -> Access:
    """What the file says. Raises `AccessFileBad`."""
    try:
        status = path.stat()
        data = path.read_bytes()
    except OSError as error:
        raise AccessFileBad(
            f"The file of users and rules {path} cannot be read: {error.strerror}.",
            hint="Make the first user: catchwater access user NAME --file FILE.",
        ) from error
    if status.st_mode & 0o007:
        raise AccessFileBad(
            f"The file of users and rules {path} can be read or written by everybody.",
            hint=f"chmod 600 {path}",
        )
    try:
        written = msgspec.json.decode(data, type=_Written)
        users = {
            name: {mechanism: _verifier(kept) for mechanism, kept in kinds.items()}
            for name, kinds in written.users.items()
        }
        rules = [Rule(**{**each, "type": ResourceType(each["type"])}) for each in written.rules]  # type: ignore[arg-type]
    except (msgspec.DecodeError, ValueError, TypeError, KeyError) as error:
        raise AccessFileBad(
            f"The file of users and rules {path} is damaged: {type(error).__name__}.",
            hint="Change it by catchwater access only.",
        ) from error
    return Access(users, Rules(rules))


def _verifier(kept: Mapping[str, Any]) -> Verifier:
    salt, stored_key, server_key = (
        base64.b64decode(kept[name], validate=True) for name in ("salt", "stored_key", "server_key")
    )
    return Verifier(salt, int(kept["iterations"]), stored_key, server_key)


def change(path: Path, decide: Callable[[Access], Access]) -> Access:
    """Replace what the file says by what `decide` makes of it; creates the file."""
    with open(path.with_name(f"{path.name}.lock"), "a", opener=_private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        changed = decide(read(path) if path.exists() else Access())
        rules = [{**rule._asdict(), "type": str(rule.type)} for rule in changed.rules.all]
        users = {
            name: {
                mechanism: {key: _shown(value) for key, value in kept._asdict().items()}
                for mechanism, kept in kinds.items()
            }
            for name, kinds in changed.users.items()
        }
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        with open(draft, "wb", opener=_private) as file:
            file.write(msgspec.json.format(msgspec.json.encode(_Written(users, rules)), indent=1))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    return changed


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def with_user(access: Access, name: str, kept: Verifiers | None) -> Access:
    """With this user, or without if nothing is kept."""
    others = {user: kinds for user, kinds in access.users.items() if user != name}
    return replace(access, users=others if kept is None else {**others, name: kept})


def with_rule(access: Access, rule: Rule) -> Access:
    """With this rule, once."""
    return with_rules(access, (rule,))


def with_rules(access: Access, rules: Iterable[Rule]) -> Access:
    """With these rules, each once."""
    return replace(access, rules=Rules(dict.fromkeys((*access.rules.all, *rules))))


def without_rules(access: Access, gone: Callable[[Rule], bool]) -> Access:
    """Without these rules."""
    return replace(access, rules=Rules(rule for rule in access.rules.all if not gone(rule)))


def of_rows(rows: AccessRows) -> Access:
    """What the catalog keeps."""
    users: dict[str, dict[str, Verifier]] = {}
    for row in rows.verifiers:
        salt, stored, server = map(base64.b64decode, (row.salt, row.stored_key, row.server_key))
        users.setdefault(row.name, {})[row.mechanism] = Verifier(
            salt, row.iterations, stored, server
        )
    return Access(users, Rules(Rule(*_typed(row)) for row in rows.rules))


def changed_rows(decide: Callable[[Access], Access]) -> Callable[[AccessRows], AccessRows]:
    """The same change, of the catalog's rows."""

    def change_rows(rows: AccessRows) -> AccessRows:
        after = decide(of_rows(rows))
        verifiers = [
            VerifierRow(name, mechanism, *(_shown(value) for value in kept))
            for name, kinds in after.users.items()
            for mechanism, kept in kinds.items()
        ]
        rules = [RuleRow(*map(str, rule)) for rule in after.rules.all]
        return AccessRows(rows.version, rules, verifiers)

    return change_rows


def _typed(row: RuleRow) -> Any:
    return row._replace(type=ResourceType(row.type))


def _shown(value: int | bytes) -> Any:
    return value if isinstance(value, int) else base64.b64encode(value).decode()


class AccessStore(Protocol):
    """Where all brokers keep users and rules: the log."""

    def access_version(self) -> int:
        """Grows with every change; blocks."""
        ...

    def access(self) -> AccessRows:
        """Users and rules; blocks."""
        ...


class Guard:
    """Users and rules as they are in force, and the gates of those who have come in by them."""

    def __init__(
        self,
        path: Path | None,
        super_users: Iterable[str],
        kept: AccessStore | None = None,
        tokens: "Tokens | None" = None,
    ) -> None:
        """Blocks. Raises `AccessFileBad`, `CatalogUnavailable`."""
        self.path = path
        self.tokens = tokens
        self.super_users = frozenset(super_users)
        self.of_file = Access() if path is None else read(path)
        self._seen = self._look()
        self._kept = kept
        rows = AccessRows(0, (), ()) if kept is None else kept.access()
        self._version = rows.version
        self._of_catalog = of_rows(rows)
        self.access = _together(self._of_catalog, self.of_file)
        self._proved: dict[bytes, Access] = {}
        """Digests of names with passwords that were right, and by which version."""
        self._hashing = ThreadPoolExecutor(_HASHING, "passwords")
        self._by_host: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._refreshing = threading.Lock()
        self._has_failed = False

    def refresh(self) -> None:
        """Take over what there is now, if it is another; blocks."""
        with self._refreshing:
            try:
                if self._refresh():
                    self.access = _together(self._of_catalog, self.of_file)
                    _LOG.info("Users and rules have changed.")
                self._has_failed = False
            except (OSError, CatchwaterError) as error:
                if not self._has_failed:
                    _LOG.error("Users and rules stay as they were: %s", error)
                self._has_failed = True

    def _refresh(self) -> bool:
        """Whether something is another."""
        version = 0 if self._kept is None else self._kept.access_version()
        has_changed = version != self._version
        if self._kept is not None and has_changed:
            rows = self._kept.access()
            self._of_catalog, self._version = of_rows(rows), rows.version
        seen = self._look()
        if self.path is not None and seen != self._seen:
            self._seen = seen
            try:
                self.of_file = read(self.path)
                has_changed = True
            except CatchwaterError as error:
                _LOG.error("The users and rules of a file stay as they were: %s", error)
        return has_changed

    def _look(self) -> tuple[int, int, int]:
        if self.path is None:
            return 0, 0, 0
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def gate(self, principal: str, host: str) -> Gate:
        """What this principal may do from this host."""
        return _ClientGate(self, principal, host)

    def rule(self, principal: str, host: str, operation: Operation, resource: Resource) -> str:
        """What decides whether this may be done, in words."""
        if is_sealed(operation, resource):
            return "sealed"
        if principal in self.super_users:
            return "super.users"
        rule = self.access.rules.decisive(principal, host, operation, resource)
        return "no rule" if rule is None else " ".join(rule)

    async def check_password(self, user: str, password: str, host: str) -> None:
        """Raise `NotProved` unless it is the user's; takes some milliseconds of a thread.

        Of one address one password is checked at a time: one that guesses keeps itself waiting.
        """
        access = self.access
        digest = _digest(user, password)
        if self._proved.get(digest) is access:
            return
        async with self._by_host.setdefault(host, asyncio.Lock()):
            loop = asyncio.get_running_loop()
            asked = (access.users, user, password)
            await loop.run_in_executor(self._hashing, check_password, *asked)
        if len(self._proved) >= _MOST_PASSWORDS:
            self._proved.clear()
        self._proved[digest] = access


def _together(of_catalog: Access, of_file: Access) -> Access:
    rules = dict.fromkeys((*of_file.rules.all, *of_catalog.rules.all))
    return Access({**of_catalog.users, **of_file.users}, Rules(rules))


_DIGEST_KEY = os.urandom(32)


def _digest(user: str, password: str) -> bytes:
    return hmac.digest(_DIGEST_KEY, f"{len(user)} {user} {password}".encode(), "sha256")


class _ClientGate:
    """The verdicts for one client, kept until the rules change."""

    def __init__(self, guard: Guard, principal: str, host: str) -> None:
        self._guard = guard
        self._principal = principal
        self._host = host
        self._is_super = principal in guard.super_users
        self._access = guard.access
        self._verdicts: dict[tuple[Operation, Resource], bool] = {}

    def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Whether the client may do this; `principal` is the client's own."""
        asked = (operation, resource)
        if self._access is self._guard.access:
            verdict = self._verdicts.get(asked)
            if verdict is not None:
                return verdict
        else:
            self._access = self._guard.access
            self._verdicts.clear()
        if len(self._verdicts) >= MOST_VERDICTS:
            self._verdicts.clear()
        verdict = not is_sealed(operation, resource) and (
            self._is_super
            or self._access.rules.may(self._principal, self._host, operation, resource)
        )
        self._verdicts[asked] = verdict
        return verdict

    def may_with_any(self, principal: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether there could be something of this type with which the client may do this."""
        rules = self._guard.access.rules
        return self._is_super or rules.may_with_any(self._principal, self._host, operation, kind)


__all__ = [
    "ALL", "ANY", "EVERYBODY", "Access", "AccessFileBad", "Guard", "NotProved", "Rule", "Rules",
    "change", "changed_rows", "of_rows", "read", "with_rule", "with_rules",
    "with_user", "without_rules",
]  # fmt: skip
