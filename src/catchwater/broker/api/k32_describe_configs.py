"""DescribeConfigs (32), v1-4: the settings of topics and of this broker, and its log level.

The broker's settings include `catchwater.control.url`, so that a client that only has
`bootstrap.servers` finds the control API. The fields of a setting: `broker/settings.py`.

Version notes: v1 adds where a value comes from and its synonyms, v3 its type and documentation,
v4 is flexible.

Groups and client metrics have no settings here; the answer is empty, as in Kafka.
"""

from typing import Any

from catchwater.broker import settings
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Each, Operation
from catchwater.broker.topic_config import is_legal_topic_name
from catchwater.catalog.errors import CatalogRetriable
from catchwater.wire.errors import ErrorCode

MAX_RESOURCES = 10_000
"""Bound of one request; each takes about a millisecond and some kilobytes of the reply."""


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Describe each resource independently."""
    names = [r.resource_name for r in request.resources if r.resource_type == settings.TOPIC]
    try:
        await broker.log.look_up(names)
    except CatalogRetriable:
        pass  # the reply has what this broker knows; a topic made just now may be missing
    results = []
    for resource in request.resources[:MAX_RESOURCES]:
        results.append(_resource(broker, call, request, resource))
        await broker.clock.sleep(0)  # each has many settings; others are served in between
    results += [_too_many(resource) for resource in request.resources[MAX_RESOURCES:]]
    return {"results": results}


def _too_many(resource: Any) -> dict[str, Any]:
    what = f"A request describes up to {MAX_RESOURCES} resources."
    return _refused(resource, ErrorCode.INVALID_REQUEST, what)


def _refused(resource: Any, error: ErrorCode, message: str | None = None) -> dict[str, Any]:
    return error_fields(error, message) | {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }


def _resource(broker: Broker, call: Call, request: Any, resource: Any) -> dict[str, Any]:
    error, message, configs = _configs(broker, resource)
    wanted = resource.configuration_keys
    documented = getattr(request, "include_documentation", False)
    for config in configs:
        config["synonyms"] = config["synonyms"] if request.include_synonyms else []
        config["documentation"] = config["documentation"] if documented else None
    return error_fields(error, message) | {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [c for c in configs if not wanted or c["name"] in wanted],
    }


def _configs(broker: Broker, resource: Any) -> tuple[ErrorCode, str | None, list[dict[str, Any]]]:
    name = resource.resource_name
    match resource.resource_type:
        case settings.TOPIC:
            topic = broker.find_topic(name)
            if not is_legal_topic_name(name):
                return ErrorCode.INVALID_TOPIC_EXCEPTION, None, []
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, []
            return ErrorCode.NONE, None, settings.of_topic(broker.config, topic)
        case settings.BROKER if name in ("", str(broker.config.node_id)):
            return ErrorCode.NONE, None, settings.of_broker(broker.config, broker.control_url)
        case settings.BROKER_LOGGER if name == str(broker.config.node_id):
            return ErrorCode.NONE, None, settings.of_loggers()
        case settings.BROKER | settings.BROKER_LOGGER:
            what = f"This is broker {broker.config.node_id}: ask the other one itself."
            return ErrorCode.INVALID_REQUEST, what, []
        case settings.CLIENT_METRICS | settings.GROUP if name:
            return ErrorCode.NONE, None, []
        case kind:
            what = f"A resource of kind {kind} and this name has no settings here."
            return ErrorCode.INVALID_REQUEST, what, []


API = Api(
    32,
    "DescribeConfigs",
    range(1, 5),
    handle,
    asks=[Each(Operation.DESCRIBE_CONFIGS, settings.resource, "resources", "results", _refused)],
)
