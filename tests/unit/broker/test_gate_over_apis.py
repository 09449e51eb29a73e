"""Behind a gate that denies everything, every API of the table is refused, and nothing changes."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema
from tests.samples import errors, sample, values

from catchwater.broker.access import Guard, Rule, with_rule
from catchwater.broker.broker import Api
from catchwater.broker.gate import (
    ByHandler,
    Operation,
    Resource,
    ResourceType,
    Whole,
    the_cluster,
)
from catchwater.broker.router import APIS
from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import OffsetCommit
from catchwater.catalog.topics import Topics
from catchwater.log.log import Log

TOPIC, GROUP, TXN, CLUSTER = (
    f"{kind}_authorization_failed" for kind in ("topic", "group", "transactional_id", "cluster")
)
NOTHING_TO_REFUSE: frozenset[str] = frozenset()

REFUSED = {
    "Produce": {TXN},
    "Fetch": {TOPIC},
    "ListOffsets": {TOPIC},
    "Metadata": {TOPIC},
    "OffsetCommit": {GROUP},
    "OffsetFetch": {GROUP},
    "FindCoordinator": {GROUP},
    "JoinGroup": {GROUP},
    "Heartbeat": {GROUP},
    "LeaveGroup": {GROUP},
    "SyncGroup": {GROUP},
    "DescribeGroups": {GROUP},
    "ListGroups": NOTHING_TO_REFUSE,  # lists what may be seen
    "SaslHandshake": {"illegal_sasl_state"},  # asks nothing: nobody logs in here
    "ApiVersions": NOTHING_TO_REFUSE,  # asks nothing
    "CreateTopics": {TOPIC},
    "DeleteTopics": {TOPIC},
    "DeleteRecords": {TOPIC},
    "InitProducerId": {TXN},
    "OffsetForLeaderEpoch": {TOPIC},
    "AddPartitionsToTxn": {TXN},
    "AddOffsetsToTxn": {TXN},
    "EndTxn": {TXN},
    "TxnOffsetCommit": {TXN},
    "DescribeAcls": {CLUSTER},
    "CreateAcls": {CLUSTER},
    "DeleteAcls": {CLUSTER},
    "DescribeUserScramCredentials": {CLUSTER},
    "AlterUserScramCredentials": {CLUSTER},
    "DescribeConfigs": {TOPIC},
    "AlterConfigs": {TOPIC},
    "AlterReplicaLogDirs": {CLUSTER},
    "DescribeLogDirs": {CLUSTER},
    "CreatePartitions": {TOPIC},
    "DeleteGroups": {GROUP},
    "ElectLeaders": {CLUSTER},
    "IncrementalAlterConfigs": {TOPIC},
    "AlterPartitionReassignments": {CLUSTER},
    "ListPartitionReassignments": {CLUSTER},
    "SaslAuthenticate": {"illegal_sasl_state"},  # as above
    "OffsetDelete": {GROUP},
    "DescribeClientQuotas": {CLUSTER},
    "AlterClientQuotas": {CLUSTER},
    "DescribeQuorum": {CLUSTER},
    "UpdateFeatures": {CLUSTER},
    "DescribeCluster": NOTHING_TO_REFUSE,  # the brokers are what any client may know
    "DescribeProducers": {TOPIC},
    "DescribeTransactions": {TXN},
    "ListTransactions": NOTHING_TO_REFUSE,  # lists what may be seen
    "ConsumerGroupHeartbeat": {GROUP},
    "ConsumerGroupDescribe": {GROUP},
    "GetTelemetrySubscriptions": NOTHING_TO_REFUSE,  # asks nothing
    "PushTelemetry": NOTHING_TO_REFUSE,  # asks nothing
    "ListConfigResources": {CLUSTER},
    "DescribeTopicPartitions": {TOPIC},
}
"""By API what Apache Kafka answers to who may do nothing."""

CHANGING = {
    *("Produce", "OffsetCommit", "CreateTopics", "DeleteTopics", "DeleteRecords", "InitProducerId"),
    *("AddPartitionsToTxn", "EndTxn", "TxnOffsetCommit", "AlterConfigs", "CreatePartitions"),
    *("DeleteGroups", "IncrementalAlterConfigs", "OffsetDelete", "JoinGroup"),
    *("ConsumerGroupHeartbeat", "CreateAcls", "DeleteAcls", "AlterUserScramCredentials"),
}
"""Those whose request, as it is made here, changes something where it is allowed."""


class Deny:
    """Lets nobody do anything with these types of resources, and notes what was asked."""

    def __init__(self, *denied: ResourceType) -> None:
        self.denied = denied
        self.asked: set[tuple[Operation, ResourceType]] = set()
        self.topics: set[str] = set()
        """Those that were named in a question."""

    def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
        self.asked.add((operation, resource.type))
        if resource.type is ResourceType.TOPIC:
            self.topics.add(resource.name)
        return resource.type not in self.denied

    def may_with_any(self, principal: str, operation: Operation, kind: ResourceType) -> bool:
        self.asked.add((operation, kind))
        return kind not in self.denied


@dataclass
class Served:
    """A broker over a log that has a topic, a group and an open transaction."""

    client: Any
    log: Log
    values: dict[str, Any]

    async def everything(self) -> Any:
        """All that a request may change."""
        topics = {
            topic.name: (
                dict(topic.config),
                [repr(self.log.state((topic.id, index))) for index in range(topic.partitions)],
            )
            for topic in self.log.topics
        }
        groups = {name: await self.log.committed(name) for name in await self.log.groups()}
        txns = await self.log.txns.rows()
        opened = {row.producer_id: await self.log.txns.open_on(row.producer_id) for row in txns}
        pending = await self.log.txns.unstable("g")
        coordinated = self.client.broker.groups
        members = {*coordinated.groups, *coordinated.consumer_groups}
        access = self.log.access()
        return topics, groups, txns, opened, pending, members, access


@pytest.fixture
async def served(tmp_path: Path, client: Any, batch: Any) -> AsyncGenerator[Served]:
    broker = client.broker
    broker.log = log = await Log.open(tmp_path, LogConfig(background=False), broker.clock)
    topic = await log.create_topic("t", 2)
    await log.commit_offsets("g", {("t", 0): OffsetCommit(5)})
    broker.guard = Guard(None, ["User:admin"], log)
    rule = Rule("User:a", "ALLOW", "READ", ResourceType.TOPIC, "t")
    await broker.change_access(lambda now: with_rule(now, rule))
    producer = await log.txns.init_producer("x", 60_000, None)
    await log.txns.add_partitions("x", producer, [(topic.id, 1)])
    served = Served(client, log, values(topic.id, producer.id, producer.epoch, batch(1)))
    await client.send(request("Produce", served))
    yield served
    await log.close()


def request(name: str, served: Served) -> Any:
    api = next(api for api in APIS.values() if api.name == name)
    return sample(name, load_request_schema(api.key, api.versions[-1]), served.values)


def test_the_table_of_refusals_is_that_of_the_apis() -> None:
    assert set(REFUSED) == {api.name for api in APIS.values()}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_is_denied_is_refused_and_changes_nothing(served: Served, name: str) -> None:
    before = await served.everything()
    served.client.broker.gate = Deny(*ResourceType)
    found = set(errors(await served.client.send(request(name, served))))
    assert found - {"none"} == REFUSED[name]
    assert await served.everything() == before


@pytest.mark.parametrize(
    ("name", "denied", "error"),
    [
        ("Produce", ResourceType.TOPIC, TOPIC),
        ("OffsetCommit", ResourceType.TOPIC, TOPIC),
        ("OffsetFetch", ResourceType.TOPIC, TOPIC),
        ("AddPartitionsToTxn", ResourceType.TOPIC, TOPIC),
        ("AddOffsetsToTxn", ResourceType.GROUP, GROUP),
        ("TxnOffsetCommit", ResourceType.GROUP, GROUP),
        ("TxnOffsetCommit", ResourceType.TOPIC, TOPIC),
        ("OffsetDelete", ResourceType.TOPIC, TOPIC),
        ("ConsumerGroupHeartbeat", ResourceType.TOPIC, TOPIC),
    ],
)
async def test_one_thing_that_is_denied_is_enough(
    served: Served, name: str, denied: ResourceType, error: str
) -> None:
    before = await served.everything()
    served.client.broker.gate = Deny(denied)
    assert set(errors(await served.client.send(request(name, served)))) - {"none"} == {error}
    assert await served.everything() == before


async def test_a_producer_without_an_id_needs_the_cluster_or_a_topic(served: Served) -> None:
    plain = replace(request("InitProducerId", served), transactional_id=None)
    for denied, error in (
        ((ResourceType.CLUSTER, ResourceType.TOPIC), CLUSTER),
        ((ResourceType.CLUSTER,), "none"),
        ((ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID), "none"),
    ):
        served.client.broker.gate = Deny(*denied)
        assert set(errors(await served.client.send(plain))) == {error}


@pytest.mark.parametrize("name", sorted(CHANGING))
async def test_the_same_request_changes_something_where_it_is_allowed(
    served: Served, name: str
) -> None:
    before = await served.everything()
    served.client.broker.gate = Deny()
    replied = served.client.send(request(name, served))
    found = set(errors(await asyncio.wait_for(replied, 10)))
    assert await served.everything() != before, found


class Watched(Topics):
    """Notes every topic that is given away."""

    def __init__(self, topics: Topics) -> None:
        super().__init__(topics)
        self.given: set[str] = set()
        self.get, self.by_id = self._noted(self.get), self._noted(self.by_id)

    def _noted(self, find: Any) -> Any:
        def found(key: Any) -> Any:
            topic = find(key)
            self.given |= set() if topic is None else {topic.name}
            return topic

        return found

    def find(self, name: str) -> Any:
        self.given.add(name)
        return super().find(name)

    def __iter__(self) -> Any:
        topics = [*super().__iter__()]
        self.given |= {topic.name for topic in topics}
        return iter(topics)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
async def test_what_is_asked_is_what_is_declared(served: Served, api: Api) -> None:
    """And no handler gets a topic that the gate was not asked about, unless it asked for all."""
    asks_for_all = any(isinstance(ask, Whole) and ask.resources is the_cluster for ask in api.asks)
    declared = set()
    for ask in api.asks:
        types = {ask.type} if isinstance(ask, ByHandler) else set(ResourceType)
        declared |= {(ask.operation, kind) for kind in types}
        if getattr(ask, "or_cluster", False):
            declared.add((ask.operation, ResourceType.CLUSTER))
        if isinstance(ask, Whole) and ask.or_any_topic:
            declared.add((ask.or_any_topic, ResourceType.TOPIC))
    for gate in (Deny(*ResourceType), Deny()):
        served.client.broker.gate = gate
        served.log.topics = watched = Watched(served.log.topics)
        await asyncio.wait_for(served.client.send(request(api.name, served)), 10)
        assert asks_for_all or watched.given <= gate.topics
        if api.name != "DescribeTopicPartitions":  # it lists all that the caller may do (KIP-430)
            assert gate.asked <= declared
        assert gate.asked or not REFUSED[api.name] or api.name.startswith("Sasl")
