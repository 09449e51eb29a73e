"""AlterUserScramCredentials (51), v0: makes users, gives them passwords, removes them (KIP-554).

The client salts and hashes: passwords are never sent. Durable, and in force here, when answered; at
other brokers within a second, on open connections as well. Users of a file are changed there.
"""

from collections import Counter
from typing import Any

from catchwater.broker.access import Access, with_user
from catchwater.broker.api.k50_describe_user_scram_credentials import MECHANISMS, users
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.catalog.errors import CatalogRetriable
from catchwater.wire.errors import ErrorCode
from catchwater.wire.security.verifiers import (
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    Verifiers,
    of_salted,
)

_LONGEST_NAME = 1_000
_LONGEST_SALT = 256
_KEY_BYTES = {1: 32, 2: 64}


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Alter each user whose changes can all be made."""
    changes = [*request.deletions, *request.upsertions]
    times = Counter((each.name, each.mechanism) for each in changes)
    results: dict[str, Any] = {each.name: error_fields(ErrorCode.NONE) for each in changes}
    try:
        known = await users(broker)
        for each in changes:
            reason = _refusal(broker, each, known.get(each.name))
            if times[each.name, each.mechanism] > 1:
                reason = ErrorCode.DUPLICATE_RESOURCE, "Alter each password once."
            if reason is not None and not results[each.name]["error_code"]:
                results[each.name] = error_fields(*reason)
        good = [each for each in changes if not results[each.name]["error_code"]]
        if good:
            await broker.change_access(lambda now: _altered(now, good))
    except CatalogRetriable as problem:
        failed = error_fields(ErrorCode.KAFKA_STORAGE_ERROR, str(problem))
        results = {name: was if was["error_code"] else failed for name, was in results.items()}
    return {"results": [{"user": name, **result} for name, result in results.items()]}


def _altered(now: Access, changes: list[Any]) -> Access:
    for each in changes:
        kept = dict(now.users.get(each.name, {}))
        mechanism = MECHANISMS[each.mechanism]
        if hasattr(each, "iterations"):
            salted, salt = bytes(each.salted_password), bytes(each.salt)
            kept[mechanism] = of_salted(mechanism, salted, salt, each.iterations)
        else:
            kept.pop(mechanism, None)
        now = with_user(now, each.name, kept or None)
    return now


def _refusal(broker: Broker, change: Any, kept: Verifiers | None) -> tuple[ErrorCode, str] | None:
    """Why a change cannot be made."""
    bad = ErrorCode.UNACCEPTABLE_CREDENTIAL
    if not change.name or len(change.name) > _LONGEST_NAME or not change.name.isprintable():
        return bad, "A user has a name, which is printable and not too long."
    if change.mechanism not in MECHANISMS:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism."
    if broker.guard is not None and change.name in broker.guard.of_file.users:
        return bad, "The user stands in catchwater.access.file, where it can be altered."
    if not hasattr(change, "iterations"):
        if kept and MECHANISMS[change.mechanism] in kept:
            return None
        return ErrorCode.RESOURCE_NOT_FOUND, "There is no such password."
    if change.iterations < LEAST_ITERATIONS:
        return bad, f"Too few iterations: {LEAST_ITERATIONS} at least."
    if change.iterations > MOST_ITERATIONS:
        return bad, f"Too many iterations: {MOST_ITERATIONS} at most."
    if not 0 < len(change.salt) <= _LONGEST_SALT:
        return bad, "There is no salt, or too much."
    if len(change.salted_password) != _KEY_BYTES[change.mechanism]:
        return bad, "The salted password does not have the length of its hash."
    return None


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    names = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    return {"results": [{"user": name, **error_fields(error)} for name in names]}


API = Api(
    51,
    "AlterUserScramCredentials",
    range(1),
    handle,
    refuse=_refuse,
    asks=[Whole(Operation.ALTER, the_cluster)],
)
