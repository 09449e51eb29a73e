"""`kafka-topics` and `kafka-configs`."""

from conformance.suites.tools.cases import case, topic
from conformance.suites.tools.jvm import Tools


@case
def topics_create(tools: Tools, name: str) -> None:
    made = tools("topics", "--create", "--topic", name, "--partitions", "3")
    made.tells(f"^Created topic {name}.$")
    tools("topics", "--list").tells(f"^{name}$")
    tools("topics", "--describe", "--topic", name).tells(
        rf"^Topic: {name}\tTopicId: [\w-]{{22}}\tPartitionCount: 3\tReplicationFactor: 1\t",
        rf"^\tTopic: {name}\tPartition: 2\tLeader: 1\tReplicas: 1\tIsr: 1\t",
    )


@case
def topics_create_twice(tools: Tools, name: str) -> None:
    topic(tools, name)
    tools("topics", "--create", "--topic", name).refuses("already exists")
    tools("topics", "--create", "--topic", name, "--if-not-exists").tells().lacks("Error")


@case
def topics_create_with_settings(tools: Tools, name: str) -> None:
    settings = ["--config", "retention.ms=3600000", "--config", "cleanup.policy=compact"]
    topic(tools, name, 1, *settings)
    described = tools("topics", "--describe", "--topic", name)
    described.tells("Configs: .*retention.ms=3600000", "Configs: .*cleanup.policy=compact")
    tools("topics", "--describe", "--topics-with-overrides").tells(f"Topic: {name}\t")


@case
def topics_create_refused(tools: Tools, name: str) -> None:
    create = ["topics", "--create", "--topic"]
    tools(*create, name, "--config", "retention.ms=often").refuses("retention.ms")
    tools(*create, name, "--config", "no.such=1").refuses("no.such")
    tools(*create, name, "--replication-factor", "3").refuses("[Rr]eplication")
    tools(*create, f"{name}!").refuses("legal|characters")
    tools("topics", "--list").lacks(name)


@case
def topics_create_with_assignment(tools: Tools, name: str) -> None:
    tools("topics", "--create", "--topic", name, "--replica-assignment", "1,1").tells("^Created")
    tools("topics", "--describe", "--topic", name).tells("PartitionCount: 2")


@case
def topics_add_partitions(tools: Tools, name: str) -> None:
    topic(tools, name, 2)
    tools("topics", "--alter", "--topic", name, "--partitions", "4").tells().lacks("Error")
    tools("topics", "--describe", "--topic", name).tells("PartitionCount: 4", "Partition: 3\t")
    tools("topics", "--alter", "--topic", name, "--partitions", "3").refuses("4 partition")


@case
def topics_delete(tools: Tools, name: str) -> None:
    topic(tools, name)
    tools("topics", "--delete", "--topic", name).tells().lacks("Error")
    tools("topics", "--list").tells().lacks(name)
    tools("topics", "--delete", "--topic", name).refuses("does not exist")
    tools("topics", "--delete", "--topic", name, "--if-exists").tells().lacks("Error")


@case
def topics_describe_what_ails(tools: Tools, name: str) -> None:
    topic(tools, name)
    for filtered in ("under-replicated", "unavailable", "under-min-isr"):
        tools("topics", "--describe", f"--{filtered}-partitions").tells().lacks(name)
    tools("topics", "--describe", "--at-min-isr-partitions").tells(f"Topic: {name}\t")
    tools("topics", "--describe", "--topic", f"{name}-none").refuses("does not exist")


@case
def topics_describe_by_id(tools: Tools, name: str) -> None:
    topic(tools, name)
    said = tools("topics", "--describe", "--topic", name).tells("TopicId: ")
    topic_id = said.out.partition("TopicId: ")[2].partition("\t")[0]
    tools("topics", "--describe", "--topic-id", topic_id).tells(f"Topic: {name}\t")


_OF_TOPIC = ("--entity-type", "topics", "--entity-name")


@case
def configs_of_a_topic(tools: Tools, name: str) -> None:
    topic(tools, name)
    describe = ["configs", "--describe", *_OF_TOPIC, name]
    tools(*describe).tells(f"^Dynamic configs for topic {name} are:$").lacks("retention.ms")
    tools(*describe, "--all").tells(
        "^  retention.ms=604800000 sensitive=false",
        "^  max.message.bytes=1048588 .*DEFAULT_CONFIG:message.max.bytes=1048588",
    )


@case
def configs_alter_a_topic(tools: Tools, name: str) -> None:
    topic(tools, name)
    alter = ["configs", "--alter", *_OF_TOPIC, name]
    tools(*alter, "--add-config", "retention.ms=7200000,max.message.bytes=5000").tells("^Completed")
    described = tools("configs", "--describe", *_OF_TOPIC, name)
    described.tells("^  retention.ms=7200000 .*DYNAMIC_TOPIC_CONFIG", "^  max.message.bytes=5000 ")
    tools(*alter, "--delete-config", "retention.ms").tells("^Completed")
    described = tools("configs", "--describe", *_OF_TOPIC, name)
    described.tells("^  max.message.bytes=5000 ").lacks("retention.ms")


@case
def configs_alter_a_list(tools: Tools, name: str) -> None:
    topic(tools, name)
    both = "cleanup.policy=[compact,delete]"
    tools("configs", "--alter", *_OF_TOPIC, name, "--add-config", both).tells("^Completed")
    tools("configs", "--describe", *_OF_TOPIC, name).tells("cleanup.policy=compact,delete")


@case
def configs_from_a_file(tools: Tools, name: str) -> None:
    topic(tools, name)
    path = tools.folder / f"{name}.properties"
    path.write_text("retention.ms=9000000\n")
    tools("configs", "--alter", *_OF_TOPIC, name, "--add-config-file", str(path)).tells("^Compl")
    tools("configs", "--describe", *_OF_TOPIC, name).tells("retention.ms=9000000")


@case
def configs_refused(tools: Tools, name: str) -> None:
    topic(tools, name)
    alter = ["configs", "--alter", *_OF_TOPIC, name, "--add-config"]
    tools(*alter, "no.such=1").refuses("InvalidConfigurationException", "no.such")
    tools(*alter, "retention.ms=often").refuses("InvalidConfigurationException", "retention.ms")
    tools("configs", "--alter", *_OF_TOPIC, f"{name}-none", "--add-config", "retention.ms=1")\
        .refuses("UnknownTopicOrPartition|does not exist")  # fmt: skip


@case
def configs_of_a_broker(tools: Tools, name: str) -> None:
    described = tools("configs", "--describe", "--entity-type", "brokers", "--entity-name", "1",
                      "--all")  # fmt: skip
    described.tells("^All configs for broker 1 are:$", "^  node.id=1 ", "^  num.partitions=1 ")
    tools("configs", "--describe", "--entity-type", "brokers", "--entity-default").tells(
        "^Default configs for brokers in the cluster are:$"
    )


@case
def configs_alter_a_broker(tools: Tools, name: str) -> None:
    of_broker = ["--entity-type", "brokers", "--entity-name", "1"]
    setting = "message.max.bytes=2000000"
    tools("configs", "--alter", *of_broker, "--add-config", setting).tells("^Completed")
    tools("configs", "--describe", *of_broker).tells("message.max.bytes=2000000")


@case
def configs_of_loggers(tools: Tools, name: str) -> None:
    of_loggers = ["--entity-type", "broker-loggers", "--entity-name", "1"]
    tools("configs", "--describe", *of_loggers).tells("^  root=[A-Z]+ ")


@case
def configs_alter_loggers(tools: Tools, name: str) -> None:
    of_loggers = ["--entity-type", "broker-loggers", "--entity-name", "1"]
    tools("configs", "--alter", *of_loggers, "--add-config", "root=WARN").tells("^Completed")
    tools("configs", "--describe", *of_loggers).tells("^  root=WARN ")


@case
def configs_of_a_group(tools: Tools, name: str) -> None:
    of_group = ["--entity-type", "groups", "--entity-name", name]
    setting = "consumer.session.timeout.ms=50000"
    tools("configs", "--alter", *of_group, "--add-config", setting).tells("^Completed")
    tools("configs", "--describe", *of_group).tells(setting)


@case
def configs_quota_of_a_client(tools: Tools, name: str) -> None:
    of_client = ["--entity-type", "clients", "--entity-name", name]
    setting = "producer_byte_rate=1000000"
    tools("configs", "--alter", *of_client, "--add-config", setting).tells("^Completed")
    tools("configs", "--describe", *of_client).tells("producer_byte_rate=1000000")


@case
def configs_password_of_a_user(tools: Tools, name: str) -> None:
    of_user = ["--entity-type", "users", "--entity-name", name]
    password = "SCRAM-SHA-256=[password=secret]"
    tools("configs", "--alter", *of_user, "--add-config", password).tells("^Completed")
    tools("configs", "--describe", *of_user).tells("SCRAM-SHA-256=iterations=4096")
