"""Settings as replies tell them: a value, where it comes from, and where it could.

A synonym is one place that a value could come from; the first is the one that it does come from.
What may hold a password is sensitive: its value is not told. A broker's settings are read-only,
for they are set where it is started.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any

from catchwater.broker.topic_config import BOOLEAN, LONG, STRING, TOPIC_SETTINGS, Setting
from catchwater.catalog.rows import Topic
from catchwater.config import BrokerConfig

# Where a value comes from (`DescribeConfigsResponse.ConfigSource`).
_FROM_TOPIC, _FROM_STATIC_BROKER, _FROM_DEFAULT, _FROM_LOGGER = 1, 4, 5, 6

_TYPES: Mapping[Any, int] = {int: LONG, bool: BOOLEAN}
_SENSITIVE = frozenset(("catchwater.catalog", "catchwater.objects"))
"""URLs, which may hold a password."""

_CONTROL_URL = "catchwater.control.url"

_BROKER_FIELDS = {field.name.replace("_", "."): field for field in fields(BrokerConfig)}

Source = tuple[str, str | None, int]
"""A setting's name, its value, and where that comes from."""


def of_topic(config: BrokerConfig, topic: Topic) -> list[dict[str, Any]]:
    """All settings of a topic, as DescribeConfigs tells them."""
    return [
        _config(name, _sources(name, setting, config, topic), setting.kafka_type, setting.about)
        for name, setting in TOPIC_SETTINGS.items()
    ]


def _sources(name: str, setting: Setting, config: BrokerConfig, topic: Topic) -> list[Source]:
    """Where the value of a topic's setting comes from, and where it could."""
    found: list[Source] = []
    if name in topic.config:
        found.append((name, topic.config[name], _FROM_TOPIC))
    if setting.broker_key:
        return found + _broker_sources(config, _BROKER_FIELDS[setting.broker_key])
    return [*found, (name, setting.default(config), _FROM_DEFAULT)]


def of_broker(config: BrokerConfig, control_url: str) -> list[dict[str, Any]]:
    """All settings of a broker, and where its control API is."""
    configs = [
        _config(name, _broker_sources(config, field), _TYPES.get(field.type, STRING), None)
        for name, field in _BROKER_FIELDS.items()
    ]
    from_us = (_CONTROL_URL, control_url, _FROM_STATIC_BROKER)
    configs.append(_config(_CONTROL_URL, [from_us], STRING, None))
    for each in configs:
        each["read_only"] = True
    return sorted(configs, key=lambda each: str(each["name"]))


def of_loggers() -> list[dict[str, Any]]:
    """The level of the broker's log, which all its loggers have."""
    level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
    return [_config("root", [("root", level, _FROM_LOGGER)], STRING, None) | {"read_only": True}]


def _broker_sources(config: BrokerConfig, field: Field[Any]) -> list[Source]:
    """What differs from the default was set where the broker was started."""
    name = field.name.replace("_", ".")
    value = getattr(config, field.name)
    default: Source = (name, _text(field.default), _FROM_DEFAULT)
    if value == field.default:
        return [default]
    return [(name, _text(value), _FROM_STATIC_BROKER), default]


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _config(
    name: str, sources: Sequence[Source], kafka_type: int, about: str | None
) -> dict[str, Any]:
    is_sensitive = name in _SENSITIVE or "password" in name
    told = [
        {"name": at, "value": None if is_sensitive else value, "source": source}
        for at, value, source in sources
    ]
    return {
        "name": name,
        "value": told[0]["value"],
        "read_only": False,
        "config_source": told[0]["source"],
        "is_sensitive": is_sensitive,
        "synonyms": told,
        "config_type": kafka_type,
        "documentation": about,
    }
