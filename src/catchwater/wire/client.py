"""Enough of a Kafka client for replay, sinks, the demo and drills; synchronous, on any Kafka ≥ 2.8.

Every request has one fixed version, chosen so that Kafka 2.8 to 4.x and our broker all serve it.
Cold messages are kio's; Fetch and Produce are written by hand, so that record bytes are neither
copied nor decoded on their way in. A call is repeated with backoff, after looking up leaders anew,
until it succeeds, is refused for good, or `timeout_s` is over.

Promises: an error names topic and partition; a batch that carries a producer id and sequence is
written once however often it is sent. Batches without may be repeated or change places when a
connection breaks. Looks at groups and sets the positions of empty ones, but is no member of any;
does not do transactions. Not thread-safe.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

from kio.schema.consumer_group_describe.v0 import ConsumerGroupDescribeRequest
from kio.schema.consumer_protocol_assignment.v0 import ConsumerProtocolAssignment
from kio.schema.create_topics.v5 import CreateTopicsRequest
from kio.schema.create_topics.v5.request import CreatableTopic, CreatableTopicConfig
from kio.schema.delete_topics.v5 import DeleteTopicsRequest
from kio.schema.describe_configs.v4 import DescribeConfigsRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsResource
from kio.schema.describe_groups.v5 import DescribeGroupsRequest
from kio.schema.describe_log_dirs.v2 import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v2.request import DescribableLogDirTopic
from kio.schema.describe_producers.v0 import DescribeProducersRequest
from kio.schema.describe_producers.v0.request import TopicRequest
from kio.schema.find_coordinator.v3 import FindCoordinatorRequest
from kio.schema.init_producer_id.v4 import InitProducerIdRequest
from kio.schema.list_groups.v4 import ListGroupsRequest
from kio.schema.list_offsets.v5 import ListOffsetsRequest
from kio.schema.list_offsets.v5.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.list_transactions.v0 import ListTransactionsRequest
from kio.schema.metadata.v9 import MetadataRequest
from kio.schema.metadata.v9.request import MetadataRequestTopic
from kio.schema.offset_commit.v8 import OffsetCommitRequest
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v7 import OffsetFetchRequest
from kio.schema.types import BrokerId, GroupId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64
from kio.static.protocol import RequestPayload

from catchwater import retries
from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.wire import fetch, produce
from catchwater.wire.connection import Address, Connection, ConnectionLost, Connections, Watch, ask
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import Fetched
from catchwater.wire.fields import ApiVersion, Buffer, TopicPartition, encode_header
from catchwater.wire.messages import decode
from catchwater.wire.security.settings import UNSECURED, Security

_Answer = TypeVar("_Answer")

EARLIEST = -2
LATEST = -1
"""Timestamps that `list_offsets` takes for the two ends of a partition."""

_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 1.0
_MOST_IN_FLIGHT = 5
_REQUEST_BYTES = 2**20
_TOPIC, _BROKER = 2, 4  # resource types of DescribeConfigs
_ANY_COUNT = -1  # KIP-464: the broker's default number of replicas
_CONSUMERS = "consumer"
"""The protocol type of groups whose assignments are partitions; Connect's are its own."""
_HINTS = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: "A topic's name has 1 to 249 of the characters a-z, A-Z, "
    "0-9, '.', '_' and '-', and is not '.' or '..'.",
}
"""What to do where the broker says no more than an error's code."""


class RequestRefused(CatchwaterError):
    """The broker answered with an error that repeating the request would not change."""

    def __init__(self, message: str, *, code: ErrorCode, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class TopicDenied(RequestRefused):
    """The brokers do not let us do what we want with a topic; `refusal` is their sentence."""

    def __init__(self, topic: str, refusal: str) -> None:
        super().__init__(
            f"Topic {topic} is denied to this client: {refusal}",
            code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            hint="Who administers the log may allow READ and DESCRIBE on the topic, and WRITE to "
            "write to it; until then leave it out.",
        )
        self.topic = topic


class RequestTimedOut(CatchwaterError):
    """The call did not succeed in time; the message says what the last attempt met."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a Metadata reply says: where brokers are, and which of them leads each partition."""

    cluster_id: str | None
    brokers: Mapping[int, tuple[str, int]]
    leaders: Mapping[TopicPartition, int]

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions in order; empty if it does not exist."""
        return sorted(partition for name, partition in self.leaders if name == topic)

    def topics(self) -> list[str]:
        return sorted({name for name, _ in self.leaders})


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A consumer that is in a group now, and what it reads."""

    member_id: str
    client_id: str
    host: str
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What a producer has open on a partition: readers of committed records wait there."""

    topic: str
    partition: int
    producer_id: int
    first_offset: int
    last_ms: int
    """When its last batch was written, by the batch's timestamp."""


class _Again(Exception):
    """The attempt failed in a way that a repetition may cure; says what it met."""


class Client:
    """A connection to each broker it has needed so far; `bootstrap` is "host:port[,host:port]"."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "catchwater",
        timeout_s: float = 30.0,
        clock: Clock = SYSTEM,
        security: Security = UNSECURED,
    ) -> None:
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._connections, waiting = (
            Connections(
                bootstrap, client_id=client_id, timeout_s=timeout_s, clock=clock, security=security
            )
            for _ in range(2)
        )
        self._watch = Watch(waiting, client_id, clock)
        # What the last Metadata reply said, for the topics asked for since a leader last moved.
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, int] = {}
        # Who gave that reply; a broker that knows no better yet is not the next to be asked.
        self._informant: Address | None = None
        self._avoided: Address | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the client may be used again and then connects anew."""
        self._connections.close()
        self._watch.close()

    def metadata(self, topics: Sequence[str] | None = None) -> Cluster:
        """Brokers and leaders, of all topics unless some are named; absent ones are left out."""
        return self._repeat(lambda: self._metadata(topics))

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """The first offset at or after each timestamp (ms), EARLIEST or LATEST; -1 if none."""
        found: dict[TopicPartition, int] = {}

        def attempt() -> dict[TopicPartition, int]:
            left = {key: wanted[key] for key in wanted if key not in found}
            for broker, keys in self._by_leader(left).items():
                request = _list_offsets({key: left[key] for key in keys}, read_committed)
                reply = self._exchange(self._brokers[broker], request)
                for topic in reply.topics:
                    for partition in topic.partitions:
                        key = (str(topic.name), int(partition.partition_index))
                        _check(partition.error_code, "ListOffsets", key)
                        found[key] = int(partition.offset)
            return found

        return self._repeat(attempt)

    def fetch(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 64 * 2**20,
        max_partition_bytes: int = 8 * 2**20,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        read_committed: bool = False,
    ) -> dict[TopicPartition, Fetched]:
        """Raw batches from each partition's offset on, in one round over the leaders.

        Partitions may be left out of the answer when `max_bytes` is used up; the first batch of an
        answer is always whole. The broker waits `max_wait_ms` for `min_bytes` to be there.
        """
        limits = fetch.FetchLimits(
            max_bytes, max_partition_bytes, min_bytes, max_wait_ms, read_committed
        )

        def attempt() -> dict[TopicPartition, Fetched]:
            asked = [
                (self._connections.to(self._brokers[broker]), keys)
                for broker, keys in self._by_leader(wanted).items()
            ]
            for connection, keys in asked:
                request = fetch.encode_fetch({key: wanted[key] for key in keys}, limits)
                self._send(connection, fetch.FETCH, request)
            fetched: dict[TopicPartition, Fetched] = {}
            for connection, _ in asked:
                throttle_ms, part = fetch.parse_fetch_reply(connection.receive())
                connection.throttle(throttle_ms)
                fetched.update(part)
            for key, answer in fetched.items():
                if answer.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    _check(answer.error, "Fetch", key)
            return fetched

        return self._repeat(attempt)

    def wait(
        self,
        ends: Mapping[TopicPartition, int],
        timeout_s: float,
        *,
        read_committed: bool = False,
    ) -> bool:
        """Wait until there may be a record at or behind one of these offsets; False if not by then.

        True also where that cannot be known: ask again. Raises nothing of what befalls brokers.
        """
        try:
            by_leader = self._by_leader(ends)
        except (_Again, CatchwaterError):
            self._leaders.clear()
            self._connections.close()  # a reply may still be under way
            self._clock.pause(min(_FIRST_BACKOFF_S, timeout_s))
            return True
        places = {
            self._brokers[broker]: {key: ends[key] for key in sorted(keys)}
            for broker, keys in by_leader.items()
        }
        return self._watch.wait(places, timeout_s, read_committed=read_committed)

    def produce(self, batches: Sequence[tuple[TopicPartition, Buffer]]) -> list[int]:
        """Append the batches; the base offset each was given, in the same order.

        Neighbours for different partitions travel in one request, and several requests at a time.
        An offset is -1 for a batch with a sequence number that the broker had already and no
        longer remembers where.
        """
        offsets: list[int | None] = [None] * len(batches)

        def attempt() -> list[int]:
            left = [index for index, offset in enumerate(offsets) if offset is None]
            by_leader = self._by_leader(batches[index][0] for index in left)
            failure = ErrorCode.NONE
            for broker, keys in by_leader.items():
                mine = [index for index in left if batches[index][0] in keys]
                requests = _requests(mine, batches)
                failure = self._produce_to(broker, requests, batches, offsets) or failure
            if None in offsets:
                raise _Again(f"Produce was answered {failure.name}")
            return [offset for offset in offsets if offset is not None]

        return self._repeat(attempt)

    def create_topics(
        self, topics: Mapping[str, int], config: Mapping[str, str] | None = None
    ) -> None:
        """Create topics with so many partitions; one that exists already is left as it is."""
        request = CreateTopicsRequest(
            topics=tuple(
                CreatableTopic(
                    name=TopicName(name),
                    num_partitions=i32(partitions),
                    replication_factor=i16(_ANY_COUNT),
                    assignments=(),
                    configs=tuple(
                        CreatableTopicConfig(name=key, value=value)
                        for key, value in (config or {}).items()
                    ),
                )
                for name, partitions in topics.items()
            ),
            timeout=_milliseconds(self._timeout_s),
        )

        def attempt() -> None:
            for topic in self._exchange(self._controller(), request).topics:
                if topic.error_code.value != ErrorCode.TOPIC_ALREADY_EXISTS:
                    _check(topic.error_code, "CreateTopics", str(topic.name), topic.error_message)

        self._repeat(attempt)

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics and their records; one that does not exist is passed over."""
        request = DeleteTopicsRequest(
            topic_names=tuple(map(TopicName, names)), timeout=_milliseconds(self._timeout_s)
        )

        def attempt() -> None:
            for topic in self._exchange(self._controller(), request).responses:
                if topic.error_code.value != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _check(topic.error_code, "DeleteTopics", str(topic.name), topic.error_message)

        self._repeat(attempt)

    def init_producer_id(self, transactional_id: str | None = None) -> tuple[int, int]:
        """A new producer id and its epoch, for batches that must be written once.

        Of a transactional id: the next epoch; what earlier ones have open is aborted (KIP-98).
        """
        name = None if transactional_id is None else TransactionalId(transactional_id)
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout=_milliseconds(self._timeout_s),
            producer_id=ProducerId(-1),
            producer_epoch=i16(-1),
        )

        def attempt() -> tuple[int, int]:
            reply = self._exchange(self._any_broker(), request)
            _check(reply.error_code, "InitProducerId", transactional_id or "a new producer")
            return int(reply.producer_id), int(reply.producer_epoch)

        return self._repeat(attempt)

    def transactions(self) -> dict[str, tuple[int, str]]:
        """Transactional id -> (producer id, state as Kafka names it) (ListTransactions)."""
        request = ListTransactionsRequest(state_filters=(), producer_id_filters=())

        def attempt() -> dict[str, tuple[int, str]]:
            reply = self._exchange(self._any_broker(), request)
            _check(reply.error_code, "ListTransactions", "all transactional ids")
            return {
                str(found.transactional_id): (int(found.producer_id), found.transaction_state)
                for found in reply.transaction_states
            }

        return self._repeat(attempt)

    def open_transactions(self, keys: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """What producers have open on these partitions (DescribeProducers)."""
        wanted = sorted(set(keys))

        def attempt() -> list[OpenTransaction]:
            found = []
            for broker, mine in self._by_leader(wanted).items():
                by_topic: dict[str, list[i32]] = defaultdict(list)
                for topic, partition in sorted(mine):
                    by_topic[topic].append(i32(partition))
                request = DescribeProducersRequest(
                    topics=tuple(
                        TopicRequest(name=TopicName(topic), partition_indexes=tuple(indexes))
                        for topic, indexes in by_topic.items()
                    )
                )
                for each in self._exchange(self._brokers[broker], request).topics:
                    for part in each.partitions:
                        key = (str(each.name), int(part.partition_index))
                        _check(part.error_code, "DescribeProducers", key, part.error_message)
                        found += [
                            OpenTransaction(
                                *key,
                                int(producer.producer_id),
                                int(producer.current_txn_start_offset),
                                int(producer.last_timestamp),
                            )
                            for producer in part.active_producers
                            if producer.current_txn_start_offset >= 0
                        ]
            return sorted(found, key=lambda each: (each.topic, each.partition, each.first_offset))

        return self._repeat(attempt)

    def broker_config(self) -> dict[str, str]:
        """The configuration of one broker of the cluster (DescribeConfigs)."""

        def attempt() -> dict[str, str]:
            cluster = self._metadata(())
            broker = min(cluster.brokers)
            found = self._configs(cluster.brokers[broker], _BROKER, [str(broker)])
            return found[str(broker)]

        return self._repeat(attempt)

    def topic_configs(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Topic -> its settings, those of the broker where it has none (DescribeConfigs)."""
        return self._repeat(lambda: self._configs(self._any_broker(), _TOPIC, topics))

    def sizes(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """Bytes of each partition, of its largest replica (DescribeLogDirs).

        Without those that no broker tells, as where the client may not DESCRIBE the cluster.
        """
        wanted = tuple(
            DescribableLogDirTopic(
                topic=TopicName(name),
                partitions=tuple(map(i32, self._metadata([name]).partitions(name))),
            )
            for name in topics
        )
        request = DescribeLogDirsRequest(topics=wanted)

        def attempt() -> dict[TopicPartition, int]:
            found: dict[TopicPartition, int] = {}
            for address in self._metadata(()).brokers.values():
                for folder in self._exchange(address, request).results:
                    for topic in folder.topics:
                        for each in topic.partitions:
                            key = (str(topic.name), int(each.partition_index))
                            found[key] = max(found.get(key, 0), int(each.partition_size))
            return found

        return self._repeat(attempt)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The positions that a group has committed; none for a group that does not exist."""
        request = OffsetFetchRequest(group_id=GroupId(group), topics=None)

        def attempt() -> dict[TopicPartition, int]:
            reply = self._exchange(self._coordinator(group), request)
            _check(reply.error_code, "OffsetFetch", f"group {group}")
            return {
                (str(topic.name), int(each.partition_index)): int(each.committed_offset)
                for topic in reply.topics
                for each in topic.partitions
                if each.committed_offset >= 0
            }

        return self._repeat(attempt)

    def unsettled(self, group: str) -> set[TopicPartition]:
        """Where an open transaction holds a new position of the group (KIP-447)."""
        request = OffsetFetchRequest(group_id=GroupId(group), topics=None, require_stable=True)

        def attempt() -> set[TopicPartition]:
            reply = self._exchange(self._coordinator(group), request)
            _check(reply.error_code, "OffsetFetch", f"group {group}")
            return {
                (str(topic.name), int(each.partition_index))
                for topic in reply.topics
                for each in topic.partitions
                if int(each.error_code) == ErrorCode.UNSTABLE_OFFSET_COMMIT
            }

        return self._repeat(attempt)

    def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        """Set positions of a group that has no members.

        Raises `RequestRefused` with UNKNOWN_MEMBER_ID where it has some, which would go on from
        their own. Positions of a topic that exists are taken all or, where one is refused, in part.
        """
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
        for (topic, partition), offset in sorted(positions.items()):
            by_topic[topic].append(
                OffsetCommitRequestPartition(
                    partition_index=i32(partition),
                    committed_offset=i64(offset),
                    committed_metadata="",
                )
            )
        request = OffsetCommitRequest(
            group_id=GroupId(group),
            member_id="",
            topics=tuple(
                OffsetCommitRequestTopic(name=TopicName(topic), partitions=tuple(partitions))
                for topic, partitions in by_topic.items()
            ),
        )

        def attempt() -> None:
            for topic in self._exchange(self._coordinator(group), request).topics:
                for each in topic.partitions:
                    key = (str(topic.name), int(each.partition_index))
                    _check(each.error_code, f"OffsetCommit of group {group}", key)

        self._repeat(attempt)

    def groups(self) -> dict[str, tuple[str, str]]:
        """Every group of the cluster -> its state and protocol type, as Kafka names them."""

        def attempt() -> dict[str, tuple[str, str]]:
            found: dict[str, tuple[str, str]] = {}
            for address in self._metadata(()).brokers.values():
                reply = self._exchange(address, ListGroupsRequest())
                _check(reply.error_code, "ListGroups", "all groups")
                for each in reply.groups:
                    found[str(each.group_id)] = (each.group_state, each.protocol_type)
            return found

        return self._repeat(attempt)

    def members(self, group: str) -> list[GroupMember]:
        """Who is in a group now, of either protocol; nobody where there is no such group."""
        classic = DescribeGroupsRequest(
            groups=(GroupId(group),), include_authorized_operations=False
        )

        def attempt() -> list[GroupMember]:
            address = self._coordinator(group)
            (reply,) = self._exchange(address, classic).groups
            if int(reply.error_code) != ErrorCode.GROUP_ID_NOT_FOUND:
                _check(reply.error_code, "DescribeGroups", f"group {group}")
            if reply.members or reply.group_state != "Dead":
                is_consumer = reply.protocol_type == _CONSUMERS
                return [_classic_member(each, is_consumer) for each in reply.members]
            # Dead is also what this request is answered of a group of the newer protocol (KIP-848).
            return self._newer_members(address, group)

        return self._repeat(attempt)

    def group_state(self, group: str) -> tuple[str, str] | None:
        """A group's state and protocol type as Kafka names them; None: there is no such group."""

        def attempt() -> tuple[str, str] | None:
            reply = self._exchange(self._coordinator(group), ListGroupsRequest())
            _check(reply.error_code, "ListGroups", f"group {group}")
            for each in reply.groups:
                if each.group_id == group:
                    return each.group_state, each.protocol_type
            return None

        return self._repeat(attempt)

    def _coordinator(self, group: str) -> Address:
        reply = self._exchange(self._any_broker(), FindCoordinatorRequest(key=group))
        _check(reply.error_code, "FindCoordinator", f"group {group}", reply.error_message)
        return reply.host, int(reply.port)

    def _newer_members(self, address: Address, group: str) -> list[GroupMember]:
        listed = self._exchange(address, ListGroupsRequest()).groups
        if all(each.group_id != group for each in listed):
            return []
        request = ConsumerGroupDescribeRequest(
            group_ids=(GroupId(group),), include_authorized_operations=False
        )
        (reply,) = self._exchange(address, request).groups
        _check(reply.error_code, "ConsumerGroupDescribe", f"group {group}", reply.error_message)
        return [
            GroupMember(
                str(member.member_id),
                member.client_id,
                member.client_host,
                [
                    (str(topic.topic_name), int(partition))
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ],
            )
            for member in reply.members
        ]

    def _configs(
        self, address: Address, kind: int, names: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        resources = (
            DescribeConfigsResource(
                resource_type=i8(kind), resource_name=name, configuration_keys=None
            )
            for name in names
        )
        reply = self._exchange(address, DescribeConfigsRequest(resources=tuple(resources)))
        found = {}
        for result in reply.results:
            name = str(result.resource_name)
            subject = f"broker {name}" if kind == _BROKER else name
            _check(result.error_code, "DescribeConfigs", subject, result.error_message)
            found[name] = {c.name: c.value for c in result.configs if c.value is not None}
        return found

    def _repeat(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Call until it succeeds or is refused; raises `RequestTimedOut`, `ConnectionLost`."""
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                return attempt()
            except _Again as error:
                # It is raised between requests, so the connections are as good as new.
                self._avoided = self._informant
                if self._clock.monotonic_s() + backoff_s > deadline_s:
                    raise RequestTimedOut(
                        f"Gave up after {self._timeout_s:g} s at {self._connections}: {error}."
                    ) from error
            except CatchwaterError as error:
                # Replies still under way would be taken for those of the next attempt.
                self.close()
                late = self._clock.monotonic_s() + backoff_s > deadline_s
                if late or not isinstance(error, ConnectionLost):
                    raise
            self._leaders.clear()
            retries.count("kafka")
            self._clock.pause(backoff_s * self._clock.random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    def _metadata(self, topics: Sequence[str] | None) -> Cluster:
        named = (MetadataRequestTopic(name=TopicName(name)) for name in topics or ())
        request = MetadataRequest(
            topics=None if topics is None else tuple(named),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        self._informant = self._any_broker()
        reply = self._exchange(self._informant, request)
        if not reply.brokers:
            # One that is still starting (3.3, KIP-500) does not list itself before it may lead.
            raise _Again(f"Metadata of {self._informant[0]}:{self._informant[1]} lists no broker")
        absent = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE)
        leaders = {}
        for topic in reply.topics:
            if topic.error_code.value not in absent:
                _check(topic.error_code, "Metadata", str(topic.name))
            for partition in topic.partitions:
                # A partition without a leader is listed all the same: it exists.
                leaders[str(topic.name), int(partition.partition_index)] = int(partition.leader_id)
        self._brokers = {int(b.node_id): (b.host, int(b.port)) for b in reply.brokers}
        self._controller_id = int(reply.controller_id)
        return Cluster(reply.cluster_id, dict(self._brokers), leaders)

    def _by_leader(self, keys: Iterable[TopicPartition]) -> dict[int, set[TopicPartition]]:
        wanted = set(keys)
        unknown = {topic for topic, partition in wanted if (topic, partition) not in self._leaders}
        if unknown:
            self._leaders.update(self._metadata(sorted(unknown)).leaders)
        by_leader: dict[int, set[TopicPartition]] = defaultdict(set)
        for key in wanted:
            leader = self._leaders.get(key, -1)
            if leader not in self._brokers:
                raise _Again(f"Partition {key[0]}-{key[1]} does not exist or has no leader")
            by_leader[leader].add(key)
        return by_leader

    def _produce_to(
        self,
        broker: int,
        requests: Iterable[dict[TopicPartition, int]],
        batches: Sequence[tuple[TopicPartition, Buffer]],
        offsets: list[int | None],
    ) -> ErrorCode:
        """Send batches, given by their indices, to one broker in order, and note their offsets.

        Returns the last error that is worth a repetition.
        """
        connection = self._connections.to(self._brokers[broker])
        failure = ErrorCode.NONE
        unsent = deque(requests)
        sent: deque[dict[TopicPartition, int]] = deque()
        while sent or (unsent and not failure):
            if unsent and not failure and len(sent) < _MOST_IN_FLIGHT:
                sent.append(unsent.popleft())
                content = {key: batches[index][1] for key, index in sent[-1].items()}
                body = produce.encode_produce(content, timeout_ms=int(self._timeout_s * 1000))
                self._send(connection, produce.PRODUCE, body)
                continue
            indices = sent.popleft()
            throttle_ms, produced = produce.parse_produce_reply(connection.receive())
            connection.throttle(throttle_ms)
            for key, (error, offset) in produced.items():
                # A batch behind one that must be sent again is out of order until that arrives.
                out_of_order = failure and error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                if error.is_retriable or out_of_order:
                    failure = error
                    continue
                if error is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    _check(error, "Produce", key)
                offsets[indices[key]] = offset
        return failure

    def _any_broker(self) -> Address:
        return self._connections.any(self._brokers.values(), self._avoided)

    def _controller(self) -> Address:
        self._metadata(())
        return self._brokers.get(self._controller_id) or self._any_broker()

    def _send(self, connection: Connection, api: ApiVersion, body: Sequence[Buffer]) -> None:
        header = encode_header(api, connection.correlation_id(), self._client_id)
        connection.send([header, *body])

    def _exchange(self, address: Address, request: RequestPayload) -> Any:
        return ask(self._connections.to(address), self._client_id, request)


def _check(
    code: Any, request: str, subject: TopicPartition | str, message: str | None = None
) -> None:
    """Nothing for NONE; `_Again` or `RequestRefused` for an error about a partition or a name."""
    error = ErrorCode(int(code))
    if error is ErrorCode.NONE:
        return
    about = subject if isinstance(subject, str) else f"{subject[0]}-{subject[1]}"
    text = f"{request} for {about} was answered {error.name}"
    if error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise TopicDenied(subject if isinstance(subject, str) else subject[0], f"{text}.")
    if error.is_retriable:
        raise _Again(text)
    hint = None if message else _HINTS.get(error)
    raise RequestRefused(f"{text}: {message}" if message else f"{text}.", code=error, hint=hint)


def _classic_member(member: Any, is_consumer: bool) -> GroupMember:
    partitions: list[TopicPartition] = []
    if is_consumer and member.member_assignment:
        version_bytes = 2  # all versions there are begin with the same fields
        assigned = decode(ConsumerProtocolAssignment, member.member_assignment[version_bytes:])
        partitions = [
            (str(each.topic), int(partition))
            for each in assigned.assigned_partitions
            for partition in each.partitions
        ]
    return GroupMember(str(member.member_id), member.client_id, member.client_host, partitions)


def _requests(
    indices: Iterable[int], batches: Sequence[tuple[TopicPartition, Buffer]]
) -> list[dict[TopicPartition, int]]:
    """Which batches travel together: one for each partition, and about a megabyte in all."""
    requests: list[dict[TopicPartition, int]] = []
    size_bytes = 0
    for index in indices:
        key, batch = batches[index]
        size_bytes += len(batch)
        if not requests or key in requests[-1] or size_bytes > _REQUEST_BYTES:
            requests.append({})
            size_bytes = len(batch)
        requests[-1][key] = index
    return requests


def _milliseconds(seconds: float) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(seconds=seconds))


def _list_offsets(wanted: Mapping[TopicPartition, int], read_committed: bool) -> ListOffsetsRequest:
    by_topic: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for (topic, partition), timestamp in wanted.items():
        by_topic[topic].append(
            ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(timestamp))
        )
    return ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(read_committed),
        topics=tuple(
            ListOffsetsTopic(name=TopicName(topic), partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
    )
