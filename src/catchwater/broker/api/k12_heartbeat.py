"""Heartbeat (12), v0-4: renews a member's session; the error may ask it to join again.

Version notes: v3 (KIP-345) adds static members.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import Operation, Whole, the_group


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Renew the member's session."""
    instance_id = getattr(request, "group_instance_id", None)
    member = (request.member_id, instance_id, request.generation_id)
    return {"error_code": await broker.groups.heartbeat(request.group_id, member)}


API = Api(12, "Heartbeat", range(0, 5), handle, asks=[Whole(Operation.READ, the_group)])
