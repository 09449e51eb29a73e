"""AlterConfigs (33), v0-2: replaces all settings of a topic.

A setting that is not named returns to its default; IncrementalAlterConfigs (44) changes single
ones. Once answered the change is durable and in force on this broker, on all others soon after.
Version notes: v2 is flexible.

Settings: `broker/topic_config.py`. Those of brokers, groups and client metrics are refused by name.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.broker.settings import ALTER, Change, alter_each, replaced


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Alter each resource independently."""
    return await alter_each(
        broker, request, lambda r: [Change(c.name, c.value) for c in r.configs], replaced
    )


API = Api(
    33,
    "AlterConfigs",
    range(0, 3),
    handle,
    notes="topics only",
    asks=[ALTER],
)
