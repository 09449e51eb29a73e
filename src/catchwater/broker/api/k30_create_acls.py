"""CreateAcls (30), v1-3: adds rules, for all brokers, durable when answered.

Here they are in force when answered; at other brokers within a second. A rule that is there already
is no error. Version notes: v3 knows resources of type USER (KIP-373).
"""

from typing import Any

from catchwater.broker import acls
from catchwater.broker.access import Access, Rule, with_rules
from catchwater.broker.api.k29_describe_acls import DISABLED
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.catalog.errors import CatalogRetriable
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Add each rule that can be."""
    results, rules = [], []
    for given in request.creations:
        error, message = ErrorCode.NONE, None
        try:
            rules.append(acls.rule_of(given))
        except acls.RuleRefused as refused:
            error, message = ErrorCode.INVALID_REQUEST, str(refused)
        results.append(error_fields(error, message))
    if broker.guard is None:
        return {"results": [DISABLED for _ in results]}
    failed = await _add(broker, rules)
    if failed is not None:
        results = [each if each["error_code"] else failed for each in results]
    return {"results": results}


async def _add(broker: Broker, rules: list[Rule]) -> dict[str, Any] | None:
    """What went wrong with all of them, if something did."""

    def decide(now: Access) -> Access:
        after = with_rules(now, rules)
        if len(after.rules.all) > acls.MOST_RULES:
            raise acls.TooManyRules(f"There may be {acls.MOST_RULES} rules.")
        return after

    try:
        if rules:
            await broker.change_access(decide)
    except acls.TooManyRules as refused:
        return error_fields(ErrorCode.POLICY_VIOLATION, str(refused))
    except CatalogRetriable as reason:
        return error_fields(ErrorCode.KAFKA_STORAGE_ERROR, str(reason))
    return None


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return {"results": [error_fields(error) for _ in request.creations]}


API = Api(
    30,
    "CreateAcls",
    range(1, 4),
    handle,
    refuse=_refuse,
    asks=[Whole(Operation.ALTER, the_cluster)],
)
