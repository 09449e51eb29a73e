"""ListGroups (16), v0-5: the groups that have members, and those that have committed offsets.

With several brokers each lists the groups it coordinates; a caller that may not DESCRIBE the
cluster sees the groups it may DESCRIBE.

Version notes: v4 (KIP-518) filters by state, v5 (KIP-848) by type. The broker remembers the type of
an empty consumer group until it stops or there are too many groups; after that it shows as classic.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.coordination.members import GroupState
from catchwater.broker.gate import ByHandler, Operation, ResourceType
from catchwater.wire.errors import ErrorCode

_CLASSIC, _CONSUMER = "classic", "consumer"
"""The types as Kafka spells them."""
_DESCRIBE = ByHandler(Operation.DESCRIBE, ResourceType.GROUP, or_cluster=True)


class _Listed(NamedTuple):
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List the groups that pass the filters."""
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    types = {kind.lower() for kind in getattr(request, "types_filter", ())}
    stored = await broker.log.groups()
    groups = {listed.group_id: listed for listed in _all(broker, stored)}
    return {
        "error_code": ErrorCode.NONE,
        "groups": [
            listed._asdict()
            for group_id, listed in sorted(groups.items())
            if (not states or listed.group_state.lower() in states)
            and (not types or listed.group_type.lower() in types)
            and call.allows(_DESCRIBE, group_id)
        ],
    }


def _all(broker: Broker, stored: list[str]) -> Iterator[_Listed]:
    """Every group this broker coordinates; a later one replaces an earlier one of its name."""
    for group_id in stored:
        if broker.groups.is_mine(group_id):
            yield _Listed(group_id, "consumer", GroupState.EMPTY.value, _CLASSIC)
    for group in broker.groups.groups.values():
        yield _Listed(group.id, group.protocol_type or "", group.state.value, _CLASSIC)
    for consumers in broker.groups.consumer_groups.values():
        yield _Listed(consumers.id, "consumer", consumers.state.value, _CONSUMER)


API = Api(16, "ListGroups", range(0, 6), handle, asks=[_DESCRIBE])
