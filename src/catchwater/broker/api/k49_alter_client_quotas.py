"""AlterClientQuotas (49), v0-1: sets and removes quotas of users and client ids (KIP-546).

Each entity is changed as a whole, or refused; all brokers hold clients to it within a second.
Version notes: v1 is flexible. Beside Kafka's four keys there are `replay_byte_rate` and
`lagging_byte_rate` (`broker/quotas.py`); quotas of addresses (`ip`) are refused.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.broker.quotas import QuotaRefused, check_value, parsed_entity
from catchwater.catalog.errors import CatalogRetriable
from catchwater.wire.errors import ErrorCode

_MOST_KEYS = 6


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Change each entity independently."""
    entities = [_names(entry) for entry in request.entries]
    entries = []
    for entry, names in zip(request.entries, entities, strict=True):
        error, message = ErrorCode.NONE, None
        try:
            if entities.count(names) > 1:
                raise QuotaRefused("Name each entity once.")
            entity, changes = parsed_entity(names), _changes(entry)
            if not request.validate_only:
                await broker.change_quotas(entity, changes)
        except QuotaRefused as refused:
            error, message = ErrorCode.INVALID_REQUEST, str(refused)
        except CatalogRetriable as reason:
            error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(reason)
        entries.append(_entry(entry, error, message))
    return {"entries": entries}


def _names(entry: Any) -> list[tuple[str, str | None]]:
    return [(each.entity_type, each.entity_name) for each in entry.entity]


def _changes(entry: Any) -> dict[str, float | None]:
    """By key its value, None to remove it. Raises `QuotaRefused`."""
    changes: dict[str, float | None] = {}
    for op in entry.ops[: _MOST_KEYS + 1]:
        if op.key in changes:
            raise QuotaRefused(f"{op.key[:100]} is named twice.")
        check_value(op.key, 1.0 if op.remove else op.value)
        changes[op.key] = None if op.remove else op.value
    return changes


def _entry(entry: Any, error: ErrorCode, message: str | None = None) -> Fields:
    entity = [{"entity_type": kind, "entity_name": name} for kind, name in _names(entry)]
    return error_fields(error, message) | {"entity": entity}


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    return {"entries": [_entry(entry, error) for entry in request.entries]}


API = Api(
    49,
    "AlterClientQuotas",
    range(0, 2),
    handle,
    refuse=_refuse,
    notes="users and client ids",
    asks=[Whole(Operation.ALTER_CONFIGS, the_cluster)],
)
