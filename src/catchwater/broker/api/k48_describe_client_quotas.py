"""DescribeClientQuotas (48), v0-1: the quotas of users and client ids (KIP-546).

A filter's parts all have to fit; with none of them all quotas are listed. Version notes: v1 is
flexible. There are no quotas of addresses: a filter by `ip` finds nothing.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.broker.quotas import EntityFilter, matching, shown_entity
from catchwater.wire.errors import ErrorCode

_MATCHES = (0, 1, 2)
_KINDS = ("user", "client-id", "ip")


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List what fits."""
    filters = [EntityFilter(c.entity_type, c.match_type, c.match) for c in request.components]
    kinds = [each.kind for each in filters]
    if (
        len(set(kinds)) < len(kinds)
        or not all(each.kind in _KINDS and each.match in _MATCHES for each in filters)
        or any((each.match == 0) != (each.name is not None) for each in filters)
    ):
        message = "A filter names each of user, client-id and ip once at most, with a name or none."
        return error_fields(ErrorCode.INVALID_REQUEST, message) | {"entries": None}
    await broker.refresh_quotas()
    values = broker.quotas.settings.values
    entries = [
        {
            "entity": shown_entity(entity),
            "values": [
                {"key": key, "value": value} for key, value in sorted(values[entity].items())
            ],
        }
        for entity in matching(values, filters, strict=request.strict)
    ]
    return error_fields(ErrorCode.NONE) | {"entries": entries}


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return error_fields(error) | {"entries": None}


API = Api(
    48,
    "DescribeClientQuotas",
    range(0, 2),
    handle,
    refuse=_refuse,
    notes="users and client ids",
    asks=[Whole(Operation.DESCRIBE_CONFIGS, the_cluster)],
)
