"""DeleteAcls (31), v1-3: removes the rules that filters choose, at all brokers.

Durable, and in force here, when answered; at other brokers within a second. A rule of a file stays,
and its entry says so. Version notes: v3 knows resources of type USER (KIP-373).
"""

from collections.abc import Collection
from typing import Any

from catchwater.broker import acls
from catchwater.broker.access import Access, Rule, without_rules
from catchwater.broker.api.k29_describe_acls import DISABLED
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.catalog.errors import CatalogRetriable
from catchwater.wire.errors import ErrorCode

_NONE = error_fields(ErrorCode.NONE)
_OF_FILE = error_fields(
    ErrorCode.INVALID_REQUEST, "The rule stands in catchwater.access.file, where it can be removed."
)


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Remove what the filters choose; several may choose the same rule."""
    filters = [acls.wanted(given) for given in request.filters]
    if broker.guard is None:
        return {"filter_results": [DISABLED | {"matching_acls": ()} for _ in filters]}
    gone: list[Rule] = []

    def decide(now: Access) -> Access:
        gone[:] = [rule for rule in now.rules.all if any(each.fits(rule) for each in filters)]
        going = frozenset(gone)
        return without_rules(now, going.__contains__)

    try:
        if any(each.fits(rule) for rule in broker.guard.access.rules.all for each in filters):
            await broker.change_access(decide)
    except CatalogRetriable as reason:
        failed = error_fields(ErrorCode.KAFKA_STORAGE_ERROR, str(reason))
        return {"filter_results": [failed | {"matching_acls": ()} for _ in filters]}
    kept = broker.guard.of_file.rules.all
    return {"filter_results": [_result(each, gone, kept) for each in filters]}


def _result(chosen: acls.Filter, gone: Collection[Rule], kept: Collection[Rule]) -> Fields:
    matching = [(rule, _NONE) for rule in gone if rule not in kept]
    matching += [(rule, _OF_FILE) for rule in kept]
    shown = [
        {**error, **acls.resource(rule), **acls.entry(rule)}
        for rule, error in matching
        if chosen.fits(rule)
    ]
    return _NONE | {"matching_acls": shown}


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    refused = error_fields(error) | {"matching_acls": ()}
    return {"filter_results": [refused for _ in request.filters]}


API = Api(
    31,
    "DeleteAcls",
    range(1, 4),
    handle,
    refuse=_refuse,
    asks=[Whole(Operation.ALTER, the_cluster)],
)
