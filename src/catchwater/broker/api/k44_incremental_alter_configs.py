"""IncrementalAlterConfigs (44), v0-1: single settings of a topic are changed (KIP-339).

SET, DELETE (back to the default), and for lists APPEND and SUBTRACT. What is appended and there
already, or subtracted and not there, changes nothing, so a request may be sent again. Version
notes: v1 is flexible.

Settings: `broker/topic_config.py`. Those of brokers, groups and client metrics are refused by name.
"""

from typing import Any

from catchwater.broker import settings
from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import Each, Operation
from catchwater.broker.settings import Change, alter_each, changed


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Change each resource for itself."""

    def changes(resource: Any) -> list[Change]:
        return [Change(c.name, c.value, c.config_operation) for c in resource.configs]

    return await alter_each(broker, request, changes, changed)


API = Api(
    44,
    "IncrementalAlterConfigs",
    range(0, 2),
    handle,
    notes="topics only",
    asks=[
        Each(
            Operation.ALTER_CONFIGS,
            settings.resource,
            "resources",
            "responses",
            settings.answer,
        )
    ],
)
