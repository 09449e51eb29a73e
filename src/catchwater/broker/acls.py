"""Rules as Kafka's ACL APIs (29-31) name them, by number, and the filters that choose among them.

Pure. A number that Kafka does not know is UNKNOWN, which no request may have: `MalformedMessage`,
upon which the connection ends, as at Apache Kafka.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from catchwater.broker.access import ANY, Rule
from catchwater.broker.gate import THE_CLUSTER, ResourceType
from catchwater.config import CatchwaterError
from catchwater.wire.fields import MalformedMessage

TYPES = ("UNKNOWN", "ANY", *map(str, (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
    ResourceType.DELEGATION_TOKEN, ResourceType.USER,
)))  # fmt: skip
PATTERNS = ("UNKNOWN", "ANY", "MATCH", "LITERAL", "PREFIXED")
OPERATIONS = (
    "UNKNOWN", "ANY", "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE",
    "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "CREATE_TOKENS",
    "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
)  # fmt: skip
PERMISSIONS = ("UNKNOWN", "ANY", "DENY", "ALLOW")
MOST_RULES = 50_000
_LONGEST = 1_000


class RuleRefused(CatchwaterError):
    """A rule that cannot be."""


class TooManyRules(CatchwaterError):
    """There is room for no more rules."""


def _word(words: tuple[str, ...], number: int) -> str:
    if not 0 < number < len(words):
        raise MalformedMessage("ACLs are named with elements that are UNKNOWN.")
    return words[number]


class Filter(NamedTuple):
    """Chooses rules; None, and ANY, stand for all."""

    type: str
    name: str | None
    pattern: str
    principal: str | None
    host: str | None
    operation: str
    permission: str

    def fits(self, rule: Rule) -> bool:
        """Whether the rule is chosen, as Kafka's `AclBindingFilter` does."""
        return (
            self.type in ("ANY", str(rule.type))
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in ("ANY", rule.operation)
            and self.permission in ("ANY", rule.permission)
            and self._fits_pattern(rule)
        )

    def _fits_pattern(self, rule: Rule) -> bool:
        if self.pattern not in ("ANY", "MATCH", rule.pattern):
            return False
        if self.name is None or self.name == rule.name or self.pattern != "MATCH":
            return self.name in (None, rule.name)
        # What speaks of the name, however it does so.
        return rule.name == ANY if rule.pattern == "LITERAL" else self.name.startswith(rule.name)


def wanted(given: Any) -> Filter:
    """The filter of DescribeAcls, or one of DeleteAcls. Raises `MalformedMessage`."""
    return Filter(
        _word(TYPES, given.resource_type_filter),
        given.resource_name_filter,
        _word(PATTERNS, given.pattern_type_filter),
        given.principal_filter,
        given.host_filter,
        _word(OPERATIONS, given.operation),
        _word(PERMISSIONS, given.permission_type),
    )


def rule_of(given: Any) -> Rule:
    """The rule that CreateAcls names. Raises `MalformedMessage`, `RuleRefused`."""
    words = {
        "resource type": _word(TYPES, given.resource_type),
        "pattern type": _word(PATTERNS, given.resource_pattern_type),
        "operation": _word(OPERATIONS, given.operation),
        "permission type": _word(PERMISSIONS, given.permission_type),
    }
    for what, word in words.items():
        if word in ("ANY", "MATCH"):
            raise RuleRefused(f"A rule cannot have the {what} {word}.")
    kind, pattern, operation, permission = words.values()
    texts = (given.resource_name, given.principal, given.host)
    if not given.resource_name:
        raise RuleRefused("A rule names a resource; * is all.")
    if kind == ResourceType.CLUSTER and given.resource_name != THE_CLUSTER.name:
        raise RuleRefused(f"The only name of the cluster is {THE_CLUSTER.name}.")
    if ":" not in given.principal:
        raise RuleRefused("A principal has a type and a name, such as User:alice.")
    if any(len(text.encode()) > _LONGEST or not text.isprintable() for text in texts):
        raise RuleRefused(f"The texts of a rule are printable, of {_LONGEST} bytes at most.")
    made: Any = Rule
    named = (ResourceType(kind), given.resource_name, pattern)
    rule: Rule = made(given.principal, permission, operation, *named, given.host)
    return rule


def entry(rule: Rule) -> dict[str, Any]:
    """What of a rule is not its resource, as replies have it."""
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": OPERATIONS.index(rule.operation),
        "permission_type": PERMISSIONS.index(rule.permission),
    }


def resource(rule: Rule) -> dict[str, Any]:
    """The resource of a rule, as replies have it."""
    return {
        "resource_type": TYPES.index(rule.type),
        "resource_name": rule.name,
        "pattern_type": PATTERNS.index(rule.pattern),
    }


def by_resource(rules: Iterable[Rule]) -> list[Mapping[str, Any]]:
    """The rules as DescribeAcls shows them."""
    ordered = sorted(rules, key=lambda rule: (rule.type, rule.name, rule.pattern, rule))
    return [
        {**resource(same[0]), "acls": list(map(entry, same))}
        for _, group in groupby(ordered, key=lambda rule: (rule.type, rule.name, rule.pattern))
        for same in [list(group)]
    ]
