"""AlterConfigs (33), v0-2: a topic has exactly these settings from now on.

What is not named goes back to its default; IncrementalAlterConfigs (44) changes single ones.
Durable and in force on this broker when answered, on all others soon after. Version notes: v2 is
flexible.

Settings: `broker/topic_config.py`. Those of brokers, groups and client metrics are refused by name.
"""

from typing import Any

from catchwater.broker import settings
from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.gate import Each, Operation
from catchwater.broker.settings import Change, alter_each, replaced


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Alter each resource for itself."""
    return await alter_each(
        broker, request, lambda r: [Change(c.name, c.value) for c in r.configs], replaced
    )


API = Api(
    33,
    "AlterConfigs",
    range(0, 3),
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
