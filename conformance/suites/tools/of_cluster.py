"""The cluster: brokers, log directories, features, the quorum, elections, reassignments."""

from conformance.suites.tools.cases import case, records, topic, written
from conformance.suites.tools.jvm import Tools


@case
def cluster_id_and_endpoints(tools: Tools, name: str) -> None:
    at = ["--bootstrap-server", tools.bootstrap]
    tools.bare("cluster", "cluster-id", *at).tells(r"^Cluster ID: [\w-]{22}$")
    host, _, port = tools.bootstrap.partition(":")
    tools.bare("cluster", "list-endpoints", *at).tells(rf"^1 +{host} +{port} +.* broker *$")


@case
def cluster_unregister(tools: Tools, name: str) -> None:
    at = ["--bootstrap-server", tools.bootstrap]
    tools.bare("cluster", "unregister", "--id", "77", *at).refuses("is not currently registered")


@case
def broker_api_versions(tools: Tools, name: str) -> None:
    served = tools("broker-api-versions")
    served.tells(
        r"\(id: 1 rack: ", r"Produce\(0\): .*\[usable: 13\]", r"Fetch\(1\): .*usable: 18\]"
    )


@case
def log_dirs(tools: Tools, name: str) -> None:
    topic(tools, name, 2)
    records(tools, name, 10)
    described = tools("log-dirs", "--describe", "--topic-list", name)
    described.tells('"broker":1', f'"partition":"{name}-0"', f'"partition":"{name}-1"')
    described.tells(r'"size":[1-9]').lacks('"error":"')
    none = tools("log-dirs", "--describe", "--topic-list", name, "--broker-list", "7")
    none.complains("7")


@case
def features_describe(tools: Tools, name: str) -> None:
    tools("features", "describe").tells(
        r"^Feature: transaction.version\s.*FinalizedVersionLevel: 2\s",
        r"^Feature: group.version\s.*FinalizedVersionLevel: 1\s",
    )


@case
def features_of_the_metadata(tools: Tools, name: str) -> None:
    tools("features", "describe").tells(r"^Feature: metadata.version\s.*FinalizedVersionLevel: 4\.")


@case
def features_alter(tools: Tools, name: str) -> None:
    tools("features", "upgrade", "--feature", "transaction.version=2").tells("upgraded|already")
    tools("features", "upgrade", "--feature", "transaction.version=9").refuses(
        "transaction.version"
    )


@case
def quorum_status(tools: Tools, name: str) -> None:
    tools("metadata-quorum", "describe", "--status").tells(
        r"^ClusterId: +[\w-]{22}$", r"^LeaderId: +1$", r"^LeaderEpoch: +\d+$",
        r"^HighWatermark: +\d+$", r"^CurrentVoters: .*\b1\b", r"^CurrentObservers: +\[\]$",
    )  # fmt: skip


@case
def quorum_replication(tools: Tools, name: str) -> None:
    describe = ["metadata-quorum", "describe", "--replication"]
    tools(*describe).tells(r"^1\s+.*\s0\s+-?\d+\s+-?\d+\s+Leader\s*$")
    tools(*describe, "--human-readable").tells(r"^1\s+.*Leader\s*$")


@case
def leader_election(tools: Tools, name: str) -> None:
    topic(tools, name)
    elect = ["leader-election", "--topic", name, "--partition", "0", "--election-type"]
    tools(*elect, "preferred").tells(f"Valid replica already elected for partitions? {name}-0")
    tools(*elect, "unclean").tells(f"Valid replica already elected for partitions? {name}-0")
    every = ["leader-election", "--election-type", "preferred", "--all-topic-partitions"]
    tools(*every).tells().lacks("Error")
    none = ["--topic", f"{name}-none", "--partition", "0"]
    unknown = tools("leader-election", "--election-type", "preferred", *none)
    unknown.refuses("UnknownTopicOrPartition|does not exist")


@case
def reassign_in_place(tools: Tools, name: str) -> None:
    topic(tools, name)
    to_move = {"topics": [{"topic": name}], "version": 1}
    path = written(tools, f"{name}-topics", to_move)
    generate = ["--generate", "--topics-to-move-json-file", path, "--broker-list", "1"]
    tools("reassign-partitions", *generate).tells(
        "Current partition replica assignment",
        "Proposed partition reassignment",
        '"replicas":\\[1\\]',
    )
    one = {"topic": name, "partition": 0, "replicas": [1]}
    plan = ["--reassignment-json-file", written(tools, name, {"partitions": [one], "version": 1})]
    execute = tools("reassign-partitions", "--execute", *plan)
    execute.tells(f"Successfully started partition reassignment for {name}-0")
    verify = tools("reassign-partitions", "--verify", *plan)
    verify.tells(f"Reassignment of partition {name}-0 is completed")
    tools("reassign-partitions", "--list").tells("No partition reassignments found")
    cancel = tools("reassign-partitions", "--cancel", *plan)
    cancel.tells("None of the specified partition reassignments are active")


@case
def reassign_to_log_directories(tools: Tools, name: str) -> None:
    topic(tools, name)
    told = tools("log-dirs", "--describe", "--topic-list", name).tells('"logDir":"')
    here = told.out.partition('"logDir":"')[2].partition('"')[0]
    one = {"topic": name, "partition": 0, "replicas": [1], "log_dirs": [here]}
    plan = ["--reassignment-json-file", written(tools, name, {"partitions": [one], "version": 1})]
    execute = tools("reassign-partitions", "--execute", *plan)
    execute.tells(f"Successfully started moving log directory to {here} for replica {name}-0 ")
    verify = tools("reassign-partitions", "--verify", *plan)
    verify.tells(f"Reassignment of replica {name}-0-1 completed successfully")
    one["log_dirs"] = ["/no/such/directory"]
    plan = ["--reassignment-json-file", written(tools, name, {"partitions": [one], "version": 1})]
    elsewhere = tools("reassign-partitions", "--execute", "--timeout", "2000", *plan)
    elsewhere.complains("LogDirNotFoundException")


@case
def reassign_to_an_unknown_broker(tools: Tools, name: str) -> None:
    topic(tools, name)
    one = {"topic": name, "partition": 0, "replicas": [7]}
    plan = ["--reassignment-json-file", written(tools, name, {"partitions": [one], "version": 1})]
    tools("reassign-partitions", "--execute", *plan).refuses("Unknown broker")


@case
def acls(tools: Tools, name: str) -> None:
    of_topic = ["--allow-principal", "User:alice", "--operation", "Read", "--topic", name]
    allowed = r"principal=User:alice, host=\*, operation=READ, permissionType=ALLOW"
    tools("acls", "--add", *of_topic).tells(allowed)
    tools("acls", "--list", "--topic", name).tells(allowed)
    tools("acls", "--remove", "--force", *of_topic).tells()
    tools("acls", "--list", "--topic", name).tells().lacks(allowed)


@case
def client_metrics(tools: Tools, name: str) -> None:
    wanted = ["--metrics", "org.apache.kafka.", "--interval", "10000"]
    tools("client-metrics", "--alter", "--name", name, *wanted).tells("Altered|Updated")
    tools("client-metrics", "--list").tells(f"^{name}$")
