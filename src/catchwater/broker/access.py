"""Who there is and who may do what: the users and rules of a file, and the gate made of them.

The file is JSON: verifiers of passwords (`wire.security.verifiers`) by user, and rules as Kafka's
ACLs. All changes go through `change`, under a lock, and replace the file as a whole; brokers look
at it every second. One that cannot be read is reported, and what was read before stays in force.

The verdict is that of Kafka's StandardAuthorizer: a super user may do everything; a rule that
denies wins; else a rule that allows has to be there. To be allowed to READ, WRITE, DELETE or ALTER
allows to DESCRIBE, and ALTER_CONFIGS to DESCRIBE_CONFIGS.
"""

import base64
import fcntl
import hmac
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from catchwater.broker.gate import Gate, Operation, Resource, ResourceType, is_sealed
from catchwater.config import CatchwaterError, ConfigError
from catchwater.wire.security.verifiers import (
    NotProved,
    Verifier,
    Verifiers,
    check_password,
)

ANY = "*"
"""As a name: all resources of the type; as a host: all; as `User:*`: everybody."""
EVERYBODY = "User:*"
ALL = "ALL"
MOST_VERDICTS = 10_000
"""That a connection keeps."""
_MOST_PASSWORDS = 1_000
_IMPLIES = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}

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

    def about(self, name: str) -> Iterable[Rule]:
        """The rules that speak of this resource."""
        yield from self.literal.get(name, ())
        if name != ANY:
            yield from self.literal.get(ANY, ())
        for length in self.lengths:
            yield from self.prefixed.get(name[:length], ()) if length <= len(name) else ()


class Rules:
    """Rules, by principal."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.all = tuple(rules)
        self._by_principal: dict[tuple[str, ResourceType], _Index] = {}
        for rule in self.all:
            self._by_principal.setdefault((rule.principal, rule.type), _Index()).add(rule)

    def may(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether a rule allows it and none denies it."""
        rule = self.decisive(principal, host, operation, resource)
        return rule is not None and rule.permission == "ALLOW"

    def decisive(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> Rule | None:
        """The rule that decides; None: none speaks of it, so that it is denied."""
        suffices = {operation, *_IMPLIES.get(operation, ()), ALL}
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
    """What one version of the file says."""

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
                mechanism: {
                    key: value if isinstance(value, int) else base64.b64encode(value).decode()
                    for key, value in kept._asdict().items()
                }
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
    return replace(access, rules=Rules(dict.fromkeys((*access.rules.all, rule))))


def without_rules(access: Access, gone: Callable[[Rule], bool]) -> Access:
    """Without these rules."""
    return replace(access, rules=Rules(rule for rule in access.rules.all if not gone(rule)))


class Guard:
    """The file as it is in force, and the gates of those who have come in by it."""

    def __init__(self, path: Path, super_users: Iterable[str]) -> None:
        """Raises `AccessFileBad`."""
        self.path = path
        self.super_users = frozenset(super_users)
        self.access = read(path)
        self._seen = self._look()
        self._proved: dict[bytes, Access] = {}
        """Digests of names with passwords that were right, and by which version."""

    def refresh(self) -> None:
        """Take over what the file says now, if it is another."""
        try:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                self.access = read(self.path)
                _LOG.info("Users and rules are those of the changed %s now.", self.path)
        except (OSError, CatchwaterError) as error:
            _LOG.error("Users and rules stay as they were: %s", error)

    def _look(self) -> tuple[int, int, int]:
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

    def check_password(self, user: str, password: str) -> None:
        """Raise `NotProved` unless it is the user's; blocks for some milliseconds."""
        access = self.access
        digest = _digest(user, password)
        if self._proved.get(digest) is access:
            return
        check_password(access.users.get(user), user, password)
        if len(self._proved) >= _MOST_PASSWORDS:
            self._proved.clear()
        self._proved[digest] = access


_DIGEST_KEY = os.urandom(32)


def _digest(user: str, password: str) -> bytes:
    return hmac.digest(_DIGEST_KEY, f"{len(user)} {user} {password}".encode(), "sha256")


class _ClientGate:
    """The verdicts for one client, kept until the rules change."""

    def __init__(self, guard: Guard, principal: str, host: str) -> None:
        self._guard = guard
        self._principal = principal
        self._host = host
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
            self._principal in self._guard.super_users
            or self._access.rules.may(self._principal, self._host, operation, resource)
        )
        self._verdicts[asked] = verdict
        return verdict


__all__ = [
    "ALL", "ANY", "EVERYBODY", "Access", "AccessFileBad", "Guard", "NotProved", "Rule", "Rules",
    "change", "read", "with_rule", "with_user", "without_rules",
]  # fmt: skip
