"""DeleteGroups (42), v0-2: deletes groups that have no members, and their committed offsets."""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, Turns
from catchwater.broker.coordination.held import MOVED
from catchwater.broker.coordination.members import is_legal_group_id
from catchwater.broker.gate import Each, Operation, ResourceType, named
from catchwater.catalog.errors import CatalogRetriable
from catchwater.wire.errors import ErrorCode


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Delete each group independently."""
    return {
        "results": [
            {"group_id": name, "error_code": await _delete(broker, name)}
            async for name in Turns(broker.clock).over(dict.fromkeys(request.groups_names))
        ]
    }


async def _delete(broker: Broker, group_id: str) -> ErrorCode:
    if not is_legal_group_id(group_id):
        return ErrorCode.GROUP_ID_NOT_FOUND  # no group can have this name
    groups = broker.groups
    async with groups.in_order(group_id):
        error = await groups.hold(group_id)
        if error is not ErrorCode.NONE:
            return error
        if groups.has_members(group_id):
            return ErrorCode.NON_EMPTY_GROUP
        try:
            # Under the claim: a later coordinator may have members that commit offsets by now.
            epoch = groups.claim_epoch(group_id)
            # Before the deletion, during which a member may join a new group of this name.
            was_known = groups.forget(group_id)
            had_positions = await broker.log.delete_group(group_id, epoch)
        except MOVED:
            groups.give_up(group_id)
            return ErrorCode.NOT_COORDINATOR
        except CatalogRetriable:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE if was_known or had_positions else ErrorCode.GROUP_ID_NOT_FOUND


def _refused(group_id: str, error: ErrorCode) -> Fields:
    return {"group_id": group_id, "error_code": error}


API = Api(
    42,
    "DeleteGroups",
    range(0, 3),
    handle,
    asks=[Each(Operation.DELETE, named(ResourceType.GROUP), "groups_names", "results", _refused)],
)
