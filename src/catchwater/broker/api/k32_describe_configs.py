"""DescribeConfigs (32), v1-4: the settings of topics and of this broker.

The broker's settings carry `catchwater.control.url`, so that a client which knows only
`bootstrap.servers` finds the control API.

Version notes: v1 adds where a value comes from and its synonyms (none are given), v3 its type
and documentation.
"""

from dataclasses import fields
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.topic_config import TOPIC_SETTINGS
from catchwater.catalog.rows import (
    Topic,
)
from catchwater.wire.errors import ErrorCode

_TOPIC, _BROKER = 2, 4
_STRING = 2
# Where a value comes from (`DescribeConfigsResponse.ConfigSource`).
_FROM_TOPIC, _FROM_STATIC_BROKER, _FROM_DEFAULT = 1, 4, 5


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Describe each resource for itself."""
    return {"results": [_resource(broker, resource) for resource in request.resources]}


def _resource(broker: Broker, resource: Any) -> dict[str, Any]:
    fields = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    configs: list[dict[str, Any]] = []
    error = ErrorCode.NONE
    if resource.resource_type == _TOPIC:
        topic = broker.find_topic(resource.resource_name)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            configs = _topic_configs(broker, topic)
    elif resource.resource_type == _BROKER:
        if resource.resource_name in ("", str(broker.config.node_id)):
            configs = _broker_configs(broker)
        else:
            error = ErrorCode.INVALID_REQUEST
    else:
        error = ErrorCode.INVALID_REQUEST
    wanted = resource.configuration_keys
    if wanted is not None:
        configs = [config for config in configs if config["name"] in wanted]
    return fields | error_fields(error) | {"configs": configs}


def _topic_configs(broker: Broker, topic: Topic) -> list[dict[str, Any]]:
    return [
        _config(
            name,
            topic.config.get(name, setting.default(broker.config)),
            _FROM_TOPIC if name in topic.config else _FROM_DEFAULT,
            setting.kafka_type,
        )
        for name, setting in TOPIC_SETTINGS.items()
    ]


def _broker_configs(broker: Broker) -> list[dict[str, Any]]:
    values = {
        field.name.replace("_", "."): getattr(broker.config, field.name)
        for field in fields(broker.config)
    }
    values["catchwater.control.url"] = broker.control_url
    return [
        _config(name, None if value is None else _text(value), _FROM_STATIC_BROKER, _STRING)
        for name, value in sorted(values.items())
    ]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _config(name: str, value: str | None, source: int, kafka_type: int) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": True,
        "config_source": source,
        "is_sensitive": False,
        "config_type": kafka_type,
        "documentation": None,
    }


API = Api(32, "DescribeConfigs", range(1, 5), handle)
