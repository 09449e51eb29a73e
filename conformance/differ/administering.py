"""Cases of admin clients: topics, partitions, configurations, the cluster."""

from typing import Any

from conformance.differ.cases import case
from conformance.differ.talk import NO_TOPIC_ID, Talk

API_VERSIONS, CREATE, DELETE, CONFIGS, ALTER, LOG_DIRS, PARTITIONS = 18, 19, 20, 32, 33, 35, 37
ELECT, INCREMENTAL, REASSIGN, REASSIGNMENTS, CLUSTER, RESOURCES = 43, 44, 45, 46, 60, 74
TOPIC, BROKER, GROUP = 2, 4, 32
SET, UNSET, APPEND, SUBTRACT = 0, 1, 2, 3


def new(name: str, partitions: int = 1, factor: int = 1, **fields: Any) -> dict[str, Any]:
    """One element of CreateTopics."""
    return {"name": name, "num_partitions": partitions, "replication_factor": factor} | fields


def config(**settings: str | None) -> list[dict[str, Any]]:
    """Settings of a topic, `_` for `.`; with the operation "set" where there is one."""
    return [{"name": name.replace("_", "."), "value": value} for name, value in settings.items()]


@case(API_VERSIONS)
def by_a_named_client(talk: Talk) -> None:
    talk.ask(client_software_name="differ", client_software_version="1.0")
    talk.ask(client_software_name="not a name!", client_software_version="1.0")


@case(CREATE)
def new_topics(talk: Talk) -> None:
    first, second = new(talk.name("a"), 2), new(talk.name("b"), configs=config(retention_ms="7"))
    talk.ask(topics=[second, first])
    talk.ask(topics=[first, new(talk.name("c"))])
    if talk.version >= 4:
        talk.ask(topics=[new(talk.name("defaults"), -1, -1)])


@case(CREATE)
def bad_topics(talk: Talk) -> None:
    for name in ("", ".", "..", "a/b", "x" * 250, "with blank"):
        talk.ask(topics=[new(name)])
    name = talk.name("bad")
    for partitions, factor in ((0, 1), (-2, 1), (1, 0), (1, 9), (1, -2)):
        talk.ask(topics=[new(name, partitions, factor)])
    talk.ask(topics=[new(name), new(name)])
    collides = talk.name("col.lides")
    talk.ask(topics=[new(collides)])
    talk.ask(topics=[new(collides.replace(".", "_"))])


@case(CREATE)
def bad_settings(talk: Talk) -> None:
    for suffix, settings in enumerate(
        (
            config(no_such_setting="1"),
            config(retention_ms="soon"),
            config(retention_ms="-5"),
            config(cleanup_policy="burn"),
            config(retention_ms=None),
            config(segment_bytes="1"),
            config(min_insync_replicas="0"),
            config(compression_type="brotli"),
            config(message_timestamp_type="Never"),
        )
    ):
        talk.ask(topics=[new(talk.name(f"bad{suffix}"), configs=settings)])


@case(CREATE)
def assigned_topics(talk: Talk) -> None:
    for suffix, assignments in enumerate(
        (
            [{"partition_index": 0, "broker_ids": [1]}],
            [{"partition_index": 1, "broker_ids": [1]}],
            [{"partition_index": 0, "broker_ids": [9]}],
            [{"partition_index": 0, "broker_ids": [1, 1]}],
            [{"partition_index": 0, "broker_ids": []}],
        )
    ):
        talk.ask(topics=[new(talk.name(f"a{suffix}"), -1, -1, assignments=assignments)])
    one = [{"partition_index": 0, "broker_ids": [1]}]
    talk.ask(topics=[new(talk.name("both"), 1, 1, assignments=one)])


@case(CREATE)
def only_validated(talk: Talk) -> None:
    name = talk.name("valid")
    talk.ask(topics=[new(name, 2)], validate_only=True)
    talk.ask(topics=[new(name, 2)])
    talk.ask(topics=[new(name, 2)], validate_only=True)


@case(DELETE)
def topics_deleted(talk: Talk) -> None:
    topic, other = talk.topic("a"), talk.topic("b")
    names = [topic.name, talk.name("no")]
    talk.ask(topic_names=names, topics=[{"name": name} for name in names])
    talk.ask(
        topic_names=[other.name],
        topics=[{"name": None, "topic_id": each} for each in (other.id, NO_TOPIC_ID)],
    )


@case(DELETE)
def topics_deleted_twice(talk: Talk) -> None:
    topic = talk.topic()
    talk.ask(topic_names=[topic.name] * 2, topics=[{"name": topic.name}] * 2)
    if talk.version >= 6:
        talk.ask(topics=[{"name": topic.name, "topic_id": topic.id}])
        talk.ask(topics=[{"name": None, "topic_id": None}])


def asked(kind: int, name: str, *keys: str) -> dict[str, Any]:
    """One element of DescribeConfigs; all settings without keys."""
    return {
        "resource_type": kind,
        "resource_name": name,
        "configuration_keys": list(keys) or None,
    }


@case(CONFIGS)
def settings_of_a_topic(talk: Talk) -> None:
    topic = talk.topic(retention_ms="123", cleanup_policy="compact")
    talk.ask(resources=[asked(TOPIC, topic.name)])
    talk.ask(resources=[asked(TOPIC, topic.name, "retention.ms", "no.such.setting")])
    talk.ask(resources=[asked(TOPIC, topic.name, "retention.ms")], include_synonyms=True)


@case(CONFIGS)
def settings_of_what_does_not_exist(talk: Talk) -> None:
    for kind, name in (
        (TOPIC, talk.name("no")), (TOPIC, ""), (TOPIC, "a/b"), (BROKER, "99"), (BROKER, "x"),
        (0, "x"), (99, "x"), (GROUP, talk.name("group")),
    ):  # fmt: skip
        talk.ask(resources=[asked(kind, name, "retention.ms")])


def told(talk: Talk, topic: str, mark: int) -> None:
    """Wait until what was altered is told: alterations are seen in their order, the last is ours.

    Kafka's brokers hear of them a moment after they were answered.
    """
    change = {"name": "retention.bytes", "config_operation": SET, "value": str(mark)}
    talk.prepare(
        INCREMENTAL,
        resources=[{"resource_type": TOPIC, "resource_name": topic, "configs": [change]}],
    )

    def is_told() -> bool:
        reply = talk.prepare(CONFIGS, resources=[asked(TOPIC, topic, "retention.bytes")])
        return [config.value for config in reply.results[0].configs] == [str(mark)]

    talk.until(is_told, "what was altered")


@case(ALTER)
def settings_replaced(talk: Talk) -> None:
    topic = talk.topic(retention_ms="123", max_message_bytes="1000")
    one = {"resource_type": TOPIC, "resource_name": topic.name}
    talk.ask(resources=[one | {"configs": config(retention_ms="456")}])
    told(talk, topic.name, 1)
    talk.also(CONFIGS, resources=[asked(TOPIC, topic.name, "retention.ms", "max.message.bytes")])
    talk.ask(resources=[one | {"configs": config(retention_ms="soon")}])
    talk.ask(resources=[one | {"configs": config(no_such="1")}])
    nowhere = {"resource_type": TOPIC, "resource_name": talk.name("no")}
    talk.ask(resources=[nowhere | {"configs": config(retention_ms="1")}])


@case(INCREMENTAL)
def settings_changed(talk: Talk) -> None:
    topic = talk.topic(retention_ms="123", max_message_bytes="1000")
    changes = (
        ("retention.ms", SET, "456"), ("max.message.bytes", UNSET, None),
        ("cleanup.policy", APPEND, "compact"), ("cleanup.policy", SUBTRACT, "delete"),
        ("retention.ms", APPEND, "1"), ("retention.ms", 9, "1"), ("retention.ms", SET, None),
        ("retention.ms", SET, "soon"), ("no.such.setting", SET, "1"),
    )  # fmt: skip
    for mark, (name, operation, value) in enumerate(changes, start=1):
        change = {"name": name, "config_operation": operation, "value": value}
        one = {"resource_type": TOPIC, "resource_name": topic.name, "configs": [change]}
        talk.ask(resources=[one])
        told(talk, topic.name, mark)
        talk.also(
            CONFIGS,
            resources=[
                asked(TOPIC, topic.name, "retention.ms", "max.message.bytes", "cleanup.policy")
            ],
        )


@case(INCREMENTAL)
def settings_changed_wrongly(talk: Talk) -> None:
    change = {"name": "retention.ms", "config_operation": SET, "value": "5"}
    topic = talk.topic()
    for kind, name, changes in (
        (TOPIC, talk.name("no"), [change]), (TOPIC, topic.name, [change, change]),
        (TOPIC, topic.name, []), (0, "x", [change]), (BROKER, "99", [change]),
    ):  # fmt: skip
        talk.ask(resources=[{"resource_type": kind, "resource_name": name, "configs": changes}])
    both = {"resource_type": TOPIC, "resource_name": topic.name, "configs": [change]}
    talk.ask(resources=[both], validate_only=True)
    talk.ask(resources=[both, both])


@case(PARTITIONS)
def topics_grown(talk: Talk) -> None:
    topic = talk.topic("t", 2)
    for count in (2, 1, 0, -1, 3):
        talk.ask(topics=[{"name": topic.name, "count": count, "assignments": None}])
    talk.ask(topics=[{"name": topic.name, "count": 5, "assignments": None}], validate_only=True)
    for brokers in ([[1]], [[9]], [[1], [1]], [[]]):
        assignments = [{"broker_ids": ids} for ids in brokers]
        talk.ask(topics=[{"name": topic.name, "count": 4, "assignments": assignments}])
    talk.ask(topics=[{"name": talk.name("no"), "count": 2, "assignments": None}])
    talk.ask(topics=[{"name": topic.name, "count": 9, "assignments": None}] * 2)


@case(LOG_DIRS)
def sizes(talk: Talk) -> None:
    topic = talk.topic()
    talk.ask(topics=[{"topic": topic.name, "partitions": [0]}])
    talk.ask(topics=[{"topic": talk.name("no"), "partitions": [0]}])


@case(ELECT)
def elections(talk: Talk) -> None:
    topic = talk.topic()
    for kind in (0, 1):
        for name, partition in ((topic.name, 0), (topic.name, 7), (talk.name("no"), 0)):
            talk.ask(
                election_type=kind, topic_partitions=[{"topic": name, "partitions": [partition]}]
            )


@case(REASSIGN)
def reassigned(talk: Talk) -> None:
    topic = talk.topic()
    for name, partition, replicas in (
        (topic.name, 0, [1]), (topic.name, 0, [9]), (topic.name, 0, []), (topic.name, 0, None),
        (topic.name, 7, [1]), (talk.name("no"), 0, [1]),
    ):  # fmt: skip
        one = {"partition_index": partition, "replicas": replicas}
        talk.ask(topics=[{"name": name, "partitions": [one]}])


@case(REASSIGNMENTS)
def reassignments_listed(talk: Talk) -> None:
    topic = talk.topic()
    talk.ask(topics=None)
    talk.ask(topics=[{"name": topic.name, "partition_indexes": [0, 7]}])
    talk.ask(topics=[{"name": talk.name("no"), "partition_indexes": [0]}])


@case(CLUSTER)
def the_cluster(talk: Talk) -> None:
    talk.ask(include_cluster_authorized_operations=True)
    talk.ask(endpoint_type=2)
    talk.ask(endpoint_type=9)


@case(RESOURCES)
def resources_listed(talk: Talk) -> None:
    talk.ask(resource_types=[BROKER])
    talk.ask(resource_types=[99])
