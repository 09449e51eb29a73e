"""A request of any API with something in every field, the errors in any reply, and all paths."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, get_args, get_origin
from unittest.mock import MagicMock
from uuid import UUID

from kio.static.primitive import i32Timedelta
from starlette.routing import Route

from catchwater.broker.control.app import create_app
from catchwater.broker_config import load_broker_config
from catchwater.kafka_listeners import Address
from catchwater.web.pages import Page

TEXT = ""
"""As a field's name: what strings say that nothing is said about."""


def values(
    topic_id: bytes, producer_id: int, producer_epoch: int, data: bytes, *, topic: str = "t",
    group: str = "g", transactional_id: str = "x",
) -> dict[str, Any]:  # fmt: skip
    """What the fields of any request say, by their names."""
    minute = i32Timedelta.parse(timedelta(minutes=1))
    return {
        **dict.fromkeys(("topic_id", "cluster_id"), UUID(bytes=topic_id)),
        **dict.fromkeys(("group_id", "key"), group),
        **dict.fromkeys(("transactional_id", "v3_and_below_transactional_id"), transactional_id),
        **dict.fromkeys(("producer_id", "v3_and_below_producer_id"), producer_id),
        **dict.fromkeys(("producer_epoch", "v3_and_below_producer_epoch"), producer_epoch),
        **dict.fromkeys(("member_id", "group_instance_id"), ""),
        **dict.fromkeys(("generation_id", "generation_id_or_member_epoch"), -1),
        **dict.fromkeys(("replica_id", "acks", "session_epoch"), -1),
        **dict.fromkeys(("session_timeout", "rebalance_timeout", "transaction_timeout"), minute),
        "group_instance_id": None,
        "instance_id": None,
        "rack_id": None,
        "server_assignor": None,
        "subscribed_topic_regex": None,
        "committed": True,
        "resource_type": 2,
        "resource_name": topic,
        TEXT: topic,
        "records": data,
        "offset": -1,
        "count": 3,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": (),
        "current_leader_epoch": 0,
        "partitions_at": 0,
        "validate_only": False,
        "committed_offset": 9,
        "protocol_type": "consumer",
        "cursor": None,
        "client_software_name": "test",
        "client_software_version": "1",
        "session_id": 0,
        "forgotten_topics_data": (),
    }


NAMED = {
    ("CreateTopics", "name"): "new",
    ("CreateTopics", "configs"): (),
    ("CreatePartitions", "assignments"): None,
    ("ConsumerGroupHeartbeat", "member_id"): "m",
    ("ConsumerGroupHeartbeat", "topic_partitions"): (),
    ("AlterConfigs", "name"): "retention.ms",
    ("IncrementalAlterConfigs", "name"): "retention.ms",
    ("AlterConfigs", "value"): "60000",
    ("IncrementalAlterConfigs", "value"): "60000",
    ("DeleteTopics", "topic_id"): None,
    **{
        (api, field): 1
        for api in ("DescribeAcls", "DeleteAcls")
        for field in (
            "resource_type_filter",
            "pattern_type_filter",
            "operation",
            "permission_type",
        )
    },
    **{
        ("DeleteAcls", field): None
        for field in ("resource_name_filter", "principal_filter", "host_filter")
    },
    ("CreateAcls", "resource_pattern_type"): 3,
    ("CreateAcls", "principal"): "User:b",
    ("CreateAcls", "operation"): 3,
    ("CreateAcls", "permission_type"): 3,
    ("AlterUserScramCredentials", "deletions"): (),
    ("AlterUserScramCredentials", "mechanism"): 1,
    ("AlterUserScramCredentials", "iterations"): 4096,
    ("AlterUserScramCredentials", "salt"): b"salt",
    ("AlterUserScramCredentials", "salted_password"): bytes(32),
    ("DescribeCluster", "endpoint_type"): 1,
    ("Fetch", "rack_id"): "",
    ("Fetch", "cluster_id"): None,
    ("PushTelemetry", "subscription_id"): 1,
    ("InitProducerId", "producer_id"): -1,
    ("InitProducerId", "producer_epoch"): -1,
    ("TxnOffsetCommit", "producer_epoch"): 0,
}
"""What a field says in one API alone."""
IN_GROUPS = {"groups", "group_ids", "groups_names", "coordinator_keys"}


def sample(api: str, entity: Any, at: dict[str, Any]) -> Any:
    """A request with something in every field and array."""
    return entity(**{field.name: value(api, field, field.type, at) for field in fields(entity)})


def value(api: str, field: Any, kind: Any, at: dict[str, Any]) -> Any:
    for said in (NAMED, at):
        key = (api, field.name) if said is NAMED else field.name
        if key in said:
            return said[key]
    kinds = [each for each in get_args(kind) if each not in (type(None), ...)]
    if kinds:
        inside = value(api, field, kinds[0], at)
        return (inside,) if get_origin(kind) is tuple else inside
    return sample(api, kind, at) if is_dataclass(kind) else plain(field, at)


def plain(field: Any, at: dict[str, Any]) -> Any:
    if field.name in IN_GROUPS:
        return at["group_id"]
    kafka_type = field.metadata["kafka_type"]
    if kafka_type.startswith("timedelta"):
        return i32Timedelta.parse(timedelta(0))
    text = at["transactional_id" if "transactional" in field.name else TEXT]
    others = {"string": text, "bytes": b"", "bool": False, "uuid": UUID(int=1)}
    return others.get(kafka_type, 0)


def errors(reply: Any) -> Iterator[str]:
    """The names of all errors that a reply tells, wherever they stand."""
    for field in fields(reply):
        inside = getattr(reply, field.name)
        if field.name.endswith("error_code"):
            yield getattr(inside, "name", str(inside)).replace("0", "none")
        for each in inside if isinstance(inside, tuple) else (inside,):
            if is_dataclass(each):
                yield from errors(each)


def control_paths(name: str) -> list[str]:
    """All that the control port serves, this name wherever a path names something."""
    broker = MagicMock(
        config=load_broker_config(None, {}, {}), control_url="", kafka_address=Address("h", 1)
    )
    app = create_app(broker, Page(broker).routes())
    paths = dict.fromkeys(each.path for each in app.routes if isinstance(each, Route))
    return [re.sub(r"{[^}]+}", name, re.sub(r"{\w+:int}", "1", path)) for path in paths]
