"""IncrementalAlterConfigs (44), v0-1: changes single settings of a topic (KIP-339).

SET, DELETE (back to the default), and for lists APPEND and SUBTRACT. Appending a value that is in
the list, or subtracting one that is not, changes nothing, so a request may be repeated. Version
notes: v1 is flexible.

Settings: `broker/topic_config.py`. Those of brokers, groups and client metrics are refused by name.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.settings import ALTER, Change, alter_each, changed


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Change each resource independently."""

    def changes(resource: Any) -> list[Change]:
        return [Change(c.name, c.value, c.config_operation) for c in resource.configs]

    return await alter_each(broker, request, changes, changed)


API = Api(
    44,
    "IncrementalAlterConfigs",
    range(0, 2),
    handle,
    notes="topics only",
    asks=[ALTER],
)
