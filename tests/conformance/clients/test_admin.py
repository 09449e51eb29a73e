"""The administration of two clients, librdkafka's and kafka-python's, against a real broker."""

import warnings

import pytest
from confluent_kafka import (
    ElectionType,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import TopicPartition as PythonPlace
    from kafka.admin import ConfigResource as PythonResource
    from kafka.admin import ConfigResourceType, KafkaAdminClient
    from kafka.admin import NewPartitions as PythonPartitions
    from kafka.admin import NewTopic as PythonTopic

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves sockets to the collector when it connects anew.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

WAIT_S = 60.0
RETENTION = "retention.ms"


@pytest.fixture(scope="module")
def confluent(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture(scope="module")
def python(broker):
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def done(futures):
    """What each of an AdminClient's futures comes to; raises what the first that fails raises."""
    return {key: future.result(WAIT_S) for key, future in futures.items()}


def refusal(futures) -> str:
    """The error's name of the only future, which fails."""
    ((_, future),) = futures.items()
    with pytest.raises(KafkaException) as refused:
        future.result(WAIT_S)
    return refused.value.args[0].name()


def settings(client, topic):
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    return done(client.describe_configs([resource]))[resource]


def test_confluent_makes_and_describes_topics(confluent, broker):
    config = {RETENTION: "-1", "segment.bytes": "1048576"}
    done(confluent.create_topics([NewTopic("c-made", 3, 1, config=config)]))
    assert refusal(confluent.create_topics([NewTopic("c-made", 3)])) == "TOPIC_ALREADY_EXISTS"
    assert refusal(confluent.create_topics([NewTopic("c-x", 10**5)])) == "INVALID_PARTITIONS"
    far = NewTopic("c-x", 1, 99)
    assert refusal(confluent.create_topics([far])) == "INVALID_REPLICATION_FACTOR"
    odd = NewTopic("c-x", 1, config={"no.such": "1"})
    assert refusal(confluent.create_topics([odd])) == "INVALID_CONFIG"
    described = done(confluent.describe_topics(TopicCollection(["c-made"])))["c-made"]
    assert [p.leader.id for p in described.partitions] == [1, 1, 1]
    found = settings(confluent, "c-made")
    assert (found[RETENTION].value, found[RETENTION].source) == (
        "-1",
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
    )
    synonyms = {name: each.value for name, each in found[RETENTION].synonyms.items()}
    assert synonyms == {RETENTION: "-1", "log.retention.ms": "604800000"}
    done(confluent.delete_topics(["c-made"]))
    assert refusal(confluent.delete_topics(["c-made"])) == "UNKNOWN_TOPIC_OR_PART"


def test_confluent_changes_single_settings_and_all(confluent):
    done(confluent.create_topics([NewTopic("c-set", 1, config={RETENTION: "5000"})]))

    def entry(name, value, operation):
        return ConfigEntry(name, value, incremental_operation=operation)

    def resource(*entries):
        return ConfigResource(ConfigResource.Type.TOPIC, "c-set", incremental_configs=list(entries))

    done(
        confluent.incremental_alter_configs(
            [
                resource(
                    entry("cleanup.policy", "compact", AlterConfigOpType.APPEND),
                    entry("flush.messages", "1", AlterConfigOpType.SET),
                    entry(RETENTION, None, AlterConfigOpType.DELETE),
                )
            ]
        )
    )
    found = settings(confluent, "c-set")
    assert found["cleanup.policy"].value == "delete,compact"
    assert found["flush.messages"].value == "1"
    assert (found[RETENTION].value, found[RETENTION].is_default) == ("604800000", True)
    bad = resource(entry(RETENTION, "soon", AlterConfigOpType.SET))
    assert refusal(confluent.incremental_alter_configs([bad])) == "INVALID_CONFIG"
    whole = ConfigResource(ConfigResource.Type.TOPIC, "c-set", set_config={RETENTION: "7000"})
    done(confluent.alter_configs([whole]))
    found = settings(confluent, "c-set")
    assert (found[RETENTION].value, found["cleanup.policy"].value) == ("7000", "delete")
    broker = ConfigResource(ConfigResource.Type.BROKER, "1", set_config={"num.partitions": "9"})
    assert refusal(confluent.alter_configs([broker])) == "INVALID_REQUEST"


def test_a_changed_setting_is_in_force_at_once(confluent, broker):
    done(confluent.create_topics([NewTopic("c-size", 1)]))
    change = ConfigEntry("max.message.bytes", "500", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "c-size", incremental_configs=[change])
    done(confluent.incremental_alter_configs([resource]))
    errors = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for size in (100, 1000):
        producer.produce("c-size", b"x" * size, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(WAIT_S) == 0
    assert [error and error.name() for error in errors] == [None, "MSG_SIZE_TOO_LARGE"]


def test_confluent_adds_partitions(confluent, broker):
    done(confluent.create_topics([NewTopic("c-grow", 1)]))
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("c-grow", b"first")
    assert producer.flush(WAIT_S) == 0
    done(confluent.create_partitions([NewPartitions("c-grow", 3)]))
    assert refusal(confluent.create_partitions([NewPartitions("c-grow", 2)])) == (
        "INVALID_PARTITIONS"
    )
    fresh = Producer({"bootstrap.servers": broker.bootstrap})
    for partition in range(3):
        fresh.produce("c-grow", b"more", partition=partition)
    assert fresh.flush(WAIT_S) == 0
    places = [TopicPartition("c-grow", index) for index in range(3)]
    ends = confluent.list_offsets({place: OffsetSpec.latest() for place in places})
    assert [ends[place].result(WAIT_S).offset for place in places] == [2, 1, 1]


def test_confluent_lists_describes_and_elects(confluent, broker):
    done(confluent.create_topics([NewTopic("c-here", 1)]))
    cluster = confluent.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.controller.id == 1
    operations = {each.name for each in cluster.authorized_operations}
    assert operations >= {"CREATE", "ALTER_CONFIGS"}
    assert "c-here" in confluent.list_topics(timeout=WAIT_S).topics
    partition = TopicPartition("c-here", 0)
    elected = confluent.elect_leaders(ElectionType.PREFERRED, [partition]).result(WAIT_S)
    assert elected[partition].name() == "ELECTION_NOT_NEEDED"
    me = ConfigResource(ConfigResource.Type.BROKER, "1")
    found = done(confluent.describe_configs([me]))[me]
    assert found["catchwater.control.url"].value == broker.control_url
    assert found["num.partitions"].is_read_only


def test_python_makes_alters_grows_and_deletes_topics(python):
    topic = PythonTopic("p-made", 2, 1, topic_configs={RETENTION: "5000"})
    python.create_topics([topic])
    resource = PythonResource(ConfigResourceType.TOPIC, "p-made", configs={"flush.ms": "1"})
    python.alter_configs([resource])
    assert "p-made" in python.list_topics()
    python.create_partitions({"p-made": PythonPartitions(4)})
    (described,) = python.describe_topics(["p-made"])
    assert len(described["partitions"]) == 4
    found = python.describe_configs([PythonResource(ConfigResourceType.TOPIC, "p-made")])
    assert "flush.ms" in str(found)
    python.delete_topics(["p-made"])
    assert "p-made" not in python.list_topics()


def test_python_sees_producers_log_dirs_and_transactions(python, broker):
    python.create_topics([PythonTopic("p-txn", 1, 1)])
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "p-pay", "linger.ms": 0}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("p-txn", b"x" * 1000)
    producer.flush(WAIT_S)
    place = PythonPlace("p-txn", 0)
    (found,) = python.list_transactions()[1]
    assert (found.transactional_id, found.state.value) == ("p-pay", "Ongoing")
    assert python.describe_transactions(["p-pay"])["p-pay"].topic_partitions == {place}
    (standing,) = python.describe_producers([place])[place].active_producers
    assert (standing.producer_id, standing.last_sequence) == (found.producer_id, 0)
    assert standing.current_transaction_start_offset == 0
    producer.commit_transaction(WAIT_S)
    (standing,) = python.describe_producers([place])[place].active_producers
    assert standing.current_transaction_start_offset == -1
    ((log_dir,),) = [each["log_dirs"] for each in python.describe_log_dirs()]
    (topic,) = [each for each in log_dir["topics"] if each["name"] == "p-txn"]
    assert topic["partitions"][0]["partition_size"] > 1000


def test_python_is_told_of_quorum_features_and_leaders(python):
    python.create_topics([PythonTopic("p-told", 3, 1)])
    (quorum,) = python.describe_metadata_quorum()["topics"]
    assert [each["replica_id"] for each in quorum["partitions"][0]["current_voters"]] == [1]
    assert python.describe_features()["transaction.version"]["finalized"] == (2, 2)
    assert "p-told" in python.list_config_resources()["topic"]
    assert python.list_partition_reassignments() == {}
    (topic,) = python.describe_topic_partitions(["p-told"])["topics"]
    assert [each["leader_id"] for each in topic["partitions"]] == [1, 1, 1]
    (elected,) = [
        each for each in python.elect_leaders(0).replica_election_results if each.topic == "p-told"
    ]
    assert {each.error_code for each in elected.partition_result} == {84}
    cluster = python.describe_cluster()
    assert (cluster["controller_id"], len(cluster["brokers"])) == (1, 1)
    assert {"CREATE", "ALTER_CONFIGS"} <= set(cluster["authorized_operations"])
