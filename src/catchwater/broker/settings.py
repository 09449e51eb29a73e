"""Settings of topics and brokers in Kafka's terms: how replies show them and how they are altered.

Synonyms are the places a value can come from; the first is the one that it does come from. A
setting that may hold a password is sensitive: its value is not shown. A broker's settings are
read-only, because they are set where it is started.

Only topics have settings that can be changed; changes of other resources are refused by name. A
topic's new settings are computed in the catalog's transaction, so that of two changes at once none
is lost, and are checked as a whole: one refused setting refuses all changes of its resource.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, NamedTuple

from catchwater.broker import topic_config
from catchwater.broker.broker import Broker, Fields, Turns, error_fields
from catchwater.broker.gate import THE_CLUSTER, Each, Operation, Resource, ResourceType
from catchwater.broker.topic_config import BOOLEAN, LONG, STRING, TOPIC_SETTINGS, Setting
from catchwater.broker_config import BrokerConfig
from catchwater.catalog.base import AlterConfig
from catchwater.catalog.errors import CatalogRetriable, TopicUnknown
from catchwater.catalog.rows import Topic
from catchwater.config import CatchwaterError
from catchwater.wire.errors import ErrorCode

# Where a value comes from (`DescribeConfigsResponse.ConfigSource`).
_FROM_TOPIC, _FROM_STATIC_BROKER, _FROM_DEFAULT, _FROM_LOGGER = 1, 4, 5, 6

_TYPES: Mapping[Any, int] = {int: LONG, bool: BOOLEAN}
_SENSITIVE = frozenset(("catchwater.catalog", "catchwater.objects"))
"""URLs, which may hold a password."""

_CONTROL_URL = "catchwater.control.url"

_BROKER_FIELDS = {
    field.name.replace("_", "."): field
    for field in fields(BrokerConfig)
    if field.name not in ("listener_name", "catchwater_tables_catalog")
}

Source = tuple[str, str | None, int]
"""A setting's name, its value, and the code of its source."""


def of_topic(config: BrokerConfig, topic: Topic) -> list[dict[str, Any]]:
    """All settings of a topic, as DescribeConfigs shows them."""
    return [
        _config(name, _sources(name, setting, config, topic), setting.kafka_type, setting.about)
        for name, setting in TOPIC_SETTINGS.items()
    ]


def _sources(name: str, setting: Setting, config: BrokerConfig, topic: Topic) -> list[Source]:
    """The sources of a topic's setting; the first one counts."""
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
    configs += [
        _config(key, [(key, value, _FROM_STATIC_BROKER)], STRING, None)
        for key, value in config.listener_name
    ]
    from_us = (_CONTROL_URL, control_url, _FROM_STATIC_BROKER)
    configs.append(_config(_CONTROL_URL, [from_us], STRING, None))
    for each in configs:
        each["read_only"] = True
    return sorted(configs, key=lambda each: str(each["name"]))


def of_loggers() -> list[dict[str, Any]]:
    """The level of the broker's log, the same for all its loggers."""
    level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
    return [_config("root", [("root", level, _FROM_LOGGER)], STRING, None) | {"read_only": True}]


def _broker_sources(config: BrokerConfig, field: Field[Any]) -> list[Source]:
    """A value other than the default was set where the broker was started."""
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
    synonyms = [
        {"name": at, "value": None if is_sensitive else value, "source": source}
        for at, value, source in sources
    ]
    return {
        "name": name,
        "value": synonyms[0]["value"],
        "read_only": False,
        "config_source": synonyms[0]["source"],
        "is_sensitive": is_sensitive,
        "synonyms": synonyms,
        "config_type": kafka_type,
        "documentation": about,
    }


TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""Types of resources by Kafka's numbers (`ConfigResource.Type`)."""

SET, DELETE, APPEND, SUBTRACT = range(4)

_IN_CLUSTER = (BROKER, BROKER_LOGGER, CLIENT_METRICS)


class Change(NamedTuple):
    """One setting to be changed: SET, DELETE, APPEND or SUBTRACT."""

    name: str
    value: str | None
    operation: int = SET


class SettingRefused(CatchwaterError):
    """A change of settings is refused; `error` is the code in the reply."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


Changes = Callable[[Any], Sequence[Change]]
Decide = Callable[[Sequence[Change], BrokerConfig], AlterConfig]


def replaced(changes: Sequence[Change], config: BrokerConfig) -> AlterConfig:
    """The settings after AlterConfigs: these and no others."""
    return lambda current: _checked({}, changes, config)


def changed(changes: Sequence[Change], config: BrokerConfig) -> AlterConfig:
    """The settings after IncrementalAlterConfigs: the present ones with these changes."""
    return lambda current: _checked(current, changes, config)


def resource(broker: Broker, wanted: Any) -> Iterable[Resource]:
    """The resource that the gate checks for access to its settings."""
    kind, name = wanted.resource_type, wanted.resource_name
    if kind == TOPIC:
        return (Resource(ResourceType.TOPIC, name),)
    if kind == GROUP:
        return (Resource(ResourceType.GROUP, name),)
    return (THE_CLUSTER,) if kind in _IN_CLUSTER else ()


def answer(wanted: Any, error: ErrorCode, message: str | None = None) -> Fields:
    """The reply's part for one resource."""
    return {
        **error_fields(error, message),
        "resource_type": wanted.resource_type,
        "resource_name": wanted.resource_name,
    }


ALTER = Each(Operation.ALTER_CONFIGS, resource, "resources", "responses", answer)
"""The check of both APIs that alter settings."""


async def alter_each(broker: Broker, request: Any, changes_of: Changes, decide: Decide) -> Fields:
    """Alter each resource independently; the reply to either API."""
    times = Counter((r.resource_type, r.resource_name) for r in request.resources)
    responses = []
    async for resource in Turns(broker.clock).over(request.resources):
        error, message = ErrorCode.NONE, None
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise SettingRefused(ErrorCode.INVALID_REQUEST, "Name each resource once.")
            changes = changes_of(resource)
            await _alter(broker, resource, changes, decide, request.validate_only)
        except SettingRefused as refusal:
            error, message = refusal.error, str(refusal)
        except TopicUnknown as unknown:
            error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(unknown)
        except CatalogRetriable as reason:
            error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(reason)
        responses.append(answer(resource, error, message))
    return {"responses": responses}


async def _alter(
    broker: Broker, resource: Any, changes: Sequence[Change], decide: Decide, validate_only: bool
) -> None:
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise SettingRefused(ErrorCode.INVALID_REQUEST, "Name each setting once.")
    for change in changes:
        if change.operation not in range(4):
            what = f"There is no operation {change.operation}."
            raise SettingRefused(ErrorCode.INVALID_REQUEST, what)
        if change.value is None and change.operation != DELETE:
            what = f"{change.name[: topic_config.LONGEST_VALUE]} needs a value."
            raise SettingRefused(ErrorCode.INVALID_REQUEST, what)
    name = resource.resource_name
    if resource.resource_type != TOPIC:
        _refuse(broker, resource, changes)
    elif validate_only:
        await broker.log.look_up([name])
        decide(changes, broker.config)(broker.log.topics.find(name).config)
    else:
        await broker.log.alter_topic_config(name, decide(changes, broker.config))


def _refuse(broker: Broker, resource: Any, changes: Sequence[Change]) -> None:
    """Refuse changes of a resource that is no topic; a DELETE of a broker changes nothing."""
    error = ErrorCode.INVALID_REQUEST
    mine = str(broker.config.node_id)
    if resource.resource_type == BROKER:
        wanted = [change.name for change in changes if change.operation != DELETE]
        if resource.resource_name not in ("", mine):
            what = f"This is broker {mine}, not {resource.resource_name[:100]!r}."
        elif not wanted:
            return
        else:
            what = f"{wanted[0][:100]} of a broker is set where it is started, not here."
    elif resource.resource_type == BROKER_LOGGER:
        what = "The levels of a broker's loggers cannot be changed."
    elif resource.resource_type == CLIENT_METRICS:
        what = "This broker takes no metrics of clients."
    elif resource.resource_type == GROUP:
        error = ErrorCode.INVALID_CONFIG
        what = "A group has no settings of its own; its broker and its members have."
    else:
        what = f"There is no kind of resource {resource.resource_type}."
    raise SettingRefused(error, what)


def _checked(
    current: Mapping[str, str], changes: Sequence[Change], config: BrokerConfig
) -> Mapping[str, str]:
    altered = dict(current)
    for change in changes:
        value = _value(current, change, config)
        reason = None
        if change.operation != DELETE:
            reason = topic_config.refusal(change.name, value, config)
        elif change.name not in topic_config.TOPIC_SETTINGS:
            reason = topic_config.refusal(change.name, None, config)
        if reason is not None:
            raise SettingRefused(ErrorCode.INVALID_CONFIG, reason)
        altered.pop(change.name, None)
        if value is not None:
            altered[change.name] = value
    return altered


def _value(current: Mapping[str, str], change: Change, config: BrokerConfig) -> str | None:
    """What the setting becomes; None: its default."""
    if change.operation in (SET, DELETE):
        return change.value if change.operation == SET else None
    setting = topic_config.TOPIC_SETTINGS.get(change.name)
    if setting is None or change.value is None:
        return change.value
    if setting.kafka_type != topic_config.LIST:
        what = f"{change.name} is no list: nothing can be added to it or taken from it."
        raise SettingRefused(ErrorCode.INVALID_CONFIG, what)
    had = _parts(current.get(change.name, setting.default(config)))
    named = _parts(change.value)
    if change.operation == APPEND:
        return ",".join([*had, *(part for part in dict.fromkeys(named) if part not in had)])
    return ",".join(part for part in had if part not in named)


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]
