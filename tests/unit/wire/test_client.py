"""The client against a scripted cluster in memory: leaders that move, errors, lost connections."""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.fetch.v11 import response as fetch
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.list_offsets.v5 import response as list_offsets
from kio.schema.metadata.v9 import response as metadata
from kio.schema.produce.v7 import response as produce
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from catchwater.clock import ManualClock
from catchwater.config import CatchwaterError
from catchwater.wire import connection as connection_module
from catchwater.wire.client import (
    EARLIEST,
    Client,
    RequestRefused,
    RequestTimedOut,
    TopicDenied,
)
from catchwater.wire.connection import ConnectionLost, parse_bootstrap
from catchwater.wire.errors import ErrorCode
from catchwater.wire.frames import decode_header
from catchwater.wire.messages import decode_request, encode_reply
from catchwater.wire.security.sasl import LoginFailed
from catchwater.wire.security.settings import Security

NONE = KioErrorCode.none
MOVED = KioErrorCode.not_leader_or_follower
NO_WAIT = timedelta()


class Cluster:
    """Two brokers; `topic` has partitions 0 and 1. Tests script what they answer."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.leaders = {0: 1, 1: 2}
        self.asked: list[tuple[int, int]] = []
        self.errors: dict[int, deque[KioErrorCode]] = {}
        self.appended: list[bytes] = []
        self.down: set[int] = set()
        self.starting = 0
        """So many more Metadata replies list no broker."""
        self.lose_replies = 0
        self.stale: dict[int, dict[int, int]] = {}
        self.throttle_ms = 0
        self.login_s = 0.0
        self.login_error = NONE

    def error(self, partition: int) -> KioErrorCode:
        queue = self.errors.get(partition)
        return queue.popleft() if queue else NONE

    def answer(self, broker: int, request: Any) -> Any:
        self.asked.append((broker, int(request.__api_key__)))
        handlers: dict[int, Callable[[Any], Any]] = {
            0: self._produce,
            1: self._fetch,
            2: self._list_offsets,
            3: lambda request: self._metadata(request, self.stale.get(broker, self.leaders)),
            17: lambda _: SaslHandshakeResponse(error_code=NONE),
            22: self._init_producer_id,
            32: self._describe_configs,
            36: self._authenticate,
        }
        return handlers[int(request.__api_key__)](request)

    def _authenticate(self, request: Any) -> Any:
        return SaslAuthenticateResponse(
            error_code=self.login_error,
            error_message=None,
            auth_bytes=b"",
            session_lifetime=timedelta(seconds=self.login_s),
        )

    def _metadata(self, request: Any, leaders: dict[int, int]) -> Any:
        partitions = tuple(
            metadata.MetadataResponsePartition(
                error_code=NONE,
                partition_index=index,
                leader_id=leader,
                replica_nodes=(),
                isr_nodes=(),
                offline_replicas=(),
            )
            for index, leader in leaders.items()
        )
        known = metadata.MetadataResponseTopic(error_code=NONE, name="topic", partitions=partitions)
        names = ["topic"] if request.topics is None else [t.name for t in request.topics]
        absent = KioErrorCode.unknown_topic_or_partition
        listed = () if self.starting else (1, 2)
        self.starting = max(0, self.starting - 1)
        return metadata.MetadataResponse(
            throttle_time=NO_WAIT,
            brokers=tuple(
                metadata.MetadataResponseBroker(node_id=number, host="h", port=number)
                for number in listed
            ),
            cluster_id="c",
            controller_id=1,
            topics=tuple(
                known
                if name == "topic"
                else metadata.MetadataResponseTopic(error_code=absent, name=name, partitions=())
                for name in names
            ),
        )

    def _list_offsets(self, request: Any) -> Any:
        return list_offsets.ListOffsetsResponse(
            throttle_time=timedelta(seconds=2),
            topics=tuple(
                list_offsets.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        list_offsets.ListOffsetsPartitionResponse(
                            partition_index=each.partition_index,
                            error_code=self.error(each.partition_index),
                            offset=100 + each.partition_index,
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    def _fetch(self, request: Any) -> Any:
        return fetch.FetchResponse(
            throttle_time=timedelta(milliseconds=self.throttle_ms),
            error_code=NONE,
            responses=tuple(
                fetch.FetchableTopicResponse(
                    topic=topic.topic,
                    partitions=tuple(
                        fetch.PartitionData(
                            partition_index=each.partition,
                            error_code=self.error(each.partition),
                            high_watermark=9,
                            aborted_transactions=None,
                            preferred_read_replica=-1,
                            records=b"%d" % each.fetch_offset,
                        )
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    def _produce(self, request: Any) -> Any:
        answers = []
        for topic in request.topic_data:
            for each in topic.partition_data:
                error = self.error(each.index)
                if error is NONE:
                    self.appended.append(bytes(each.records))
                answers.append(
                    produce.PartitionProduceResponse(
                        index=each.index,
                        error_code=error,
                        base_offset=len(self.appended) - 1,
                        log_append_time=None,
                    )
                )
        return produce.ProduceResponse(
            responses=(
                produce.TopicProduceResponse(name="topic", partition_responses=tuple(answers)),
            ),
            throttle_time=NO_WAIT,
        )

    def _init_producer_id(self, request: Any) -> Any:
        return InitProducerIdResponse(
            throttle_time=NO_WAIT, error_code=NONE, producer_id=77, producer_epoch=0
        )

    def _describe_configs(self, request: Any) -> Any:
        (asked,) = request.resources
        found = DescribeConfigsResult(
            error_code=NONE,
            error_message=None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=(),
        )
        return DescribeConfigsResponse(throttle_time=NO_WAIT, results=(found,))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()

    class Connection:
        def __init__(self, host: str, port: int, **_: object) -> None:
            if port in cluster.down:
                raise ConnectionLost(f"No connection to a broker at {host}:{port}.")
            self.broker = port
            self.address = f"{host}:{port}"
            self.replies: deque[bytes] = deque()
            self.throttled_ms = 0
            cluster.connections.append(self)  # type: ignore[attr-defined]

        def correlation_id(self) -> int:
            return 5

        def send(self, parts: Sequence[bytes]) -> None:
            frame = memoryview(b"".join(parts))
            reply = cluster.answer(self.broker, decode_request(decode_header(frame), frame))
            self.replies.append(b"".join(encode_reply(5, reply)))

        def receive(self) -> memoryview:
            if cluster.lose_replies:
                cluster.lose_replies -= 1
                raise ConnectionLost("The connection broke.")
            return memoryview(self.replies.popleft())

        def throttle(self, milliseconds: int) -> None:
            self.throttled_ms += milliseconds

        def close(self) -> None:
            self.broker = -1

    cluster.connections = []  # type: ignore[attr-defined]
    monkeypatch.setattr(connection_module, "Connection", Connection)
    return cluster


@pytest.fixture
def client(cluster: Cluster) -> Client:
    return Client("h:1,h:2", timeout_s=10, clock=cluster.clock)


def test_topics_that_do_not_exist_are_left_out(client: Client) -> None:
    found = client.metadata(["topic", "nothing"])
    assert found.topics() == ["topic"]
    assert found.partitions("topic") == [0, 1] and found.partitions("nothing") == []
    assert client.metadata().brokers == {1: ("h", 1), 2: ("h", 2)}


def test_each_partition_is_asked_of_its_leader(client: Client, cluster: Cluster) -> None:
    wanted = {("topic", 0): EARLIEST, ("topic", 1): EARLIEST}
    assert client.list_offsets(wanted) == {("topic", 0): 100, ("topic", 1): 101}
    assert {(1, 2), (2, 2)} <= set(cluster.asked)


def test_throttling_is_passed_on(client: Client, cluster: Cluster) -> None:
    client.list_offsets({("topic", 0): EARLIEST})
    assert [each.throttled_ms for each in cluster.connections] == [2000]  # type: ignore[attr-defined]


def test_throttling_of_a_fetch_is_passed_on(client: Client, cluster: Cluster) -> None:
    cluster.throttle_ms = 700
    client.fetch({("topic", 0): 3})
    assert [each.throttled_ms for each in cluster.connections] == [700]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error",
    [
        MOVED,
        KioErrorCode.leader_not_available,
        KioErrorCode.fenced_leader_epoch,
        KioErrorCode.unknown_leader_epoch,
    ],
)
def test_a_leader_that_moved_is_looked_up_again(
    client: Client, cluster: Cluster, error: KioErrorCode
) -> None:
    client.fetch({("topic", 0): 3, ("topic", 1): 3})
    connections = list(cluster.connections)  # type: ignore[attr-defined]
    cluster.leaders[0] = 2
    cluster.errors[0] = deque([error])
    assert client.fetch({("topic", 0): 3})["topic", 0].records == b"3"
    assert cluster.asked[-1] == (2, 1)
    assert cluster.connections == connections, "and nobody has to log in anew"  # type: ignore[attr-defined]


def test_a_broker_that_knows_only_the_old_leader_is_not_asked_again(
    client: Client, cluster: Cluster
) -> None:
    client.fetch({("topic", 0): 3})
    cluster.stale = {1: dict(cluster.leaders)}
    cluster.leaders[0] = 2
    cluster.errors[0] = deque([MOVED])
    assert client.fetch({("topic", 0): 3})["topic", 0].records == b"3"
    assert cluster.asked[-2:] == [(2, 3), (2, 1)]


@pytest.mark.parametrize(
    "call",
    [Client.broker_config, Client.metadata],
    ids=["broker_config", "metadata"],
)
def test_a_cluster_that_lists_no_broker_yet_is_waited_for(
    client: Client, cluster: Cluster, call: Callable[[Client], object]
) -> None:
    cluster.starting = 2
    call(client)
    assert cluster.starting == 0
    assert [api for _, api in cluster.asked[:3]] == [3, 3, 3]
    cluster.starting = 10**6
    with pytest.raises(RequestTimedOut, match="lists no broker"):
        call(client)


def test_the_other_brokers_will_do_when_the_bootstrap_servers_are_gone(cluster: Cluster) -> None:
    client = Client("h:1", timeout_s=10, clock=cluster.clock)
    client.metadata()
    client.close()
    cluster.down = {1}
    assert client.metadata().cluster_id == "c"


def test_after_a_refusal_no_reply_is_taken_for_another(client: Client, cluster: Cluster) -> None:
    too_large = KioErrorCode.message_too_large
    cluster.errors[0] = deque([too_large])
    batches = [(("topic", 0), b"%d" % number) for number in range(3)]
    with pytest.raises(RequestRefused, match="MESSAGE_TOO_LARGE"):
        client.produce(batches)
    assert client.list_offsets({("topic", 0): EARLIEST}) == {("topic", 0): 100}


LOGIN = Security("SASL_PLAINTEXT", "PLAIN", "reader", "s3cret")


def test_a_login_is_renewed_before_it_ends(cluster: Cluster) -> None:
    cluster.login_s = 100
    client = Client("h:1", timeout_s=10, clock=cluster.clock, security=LOGIN)
    for waited_s, logins in ((0, 1), (84, 1), (1, 2), (84, 2), (1, 3)):
        cluster.clock.advance(waited_s * 1000)
        client.metadata()
        assert cluster.asked.count((1, 36)) == logins
    assert [each.broker for each in cluster.connections] == [-1, -1, 1]  # type: ignore[attr-defined]


def test_a_login_that_does_not_end_is_kept(cluster: Cluster) -> None:
    client = Client("h:1", timeout_s=10, clock=cluster.clock, security=LOGIN)
    client.metadata()
    cluster.clock.advance(10**9)
    client.metadata()
    assert cluster.asked.count((1, 36)) == 1


def test_a_refused_login_is_not_tried_again(cluster: Cluster) -> None:
    cluster.login_error = KioErrorCode.sasl_authentication_failed
    with pytest.raises(LoginFailed):
        Client("h:1,h:2", timeout_s=10, clock=cluster.clock, security=LOGIN).metadata()
    assert cluster.asked == [(1, 17), (1, 36)]
    assert [each.broker for each in cluster.connections] == [-1], "it is closed"  # type: ignore[attr-defined]


def test_an_offset_out_of_range_is_a_value(client: Client, cluster: Cluster) -> None:
    cluster.errors[0] = deque([KioErrorCode.offset_out_of_range])
    fetched = client.fetch({("topic", 0): 3})["topic", 0]
    assert fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_name_that_no_topic_can_have_is_refused_with_the_rule(
    client: Client, cluster: Cluster
) -> None:
    cluster.errors[1] = deque([KioErrorCode.invalid_topic_exception])
    with pytest.raises(RequestRefused, match="was answered INVALID_TOPIC_EXCEPTION") as caught:
        client.fetch({("topic", 1): 0})
    assert caught.value.hint and "1 to 249 of the characters" in caught.value.hint


def test_a_refusal_names_topic_and_partition(client: Client, cluster: Cluster) -> None:
    cluster.errors[1] = deque([KioErrorCode.topic_authorization_failed])
    with pytest.raises(RequestRefused, match="topic-1 was answered TOPIC_AUTHORIZATION") as caught:
        client.fetch({("topic", 1): 0})
    assert caught.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert isinstance(caught.value, TopicDenied)
    assert caught.value.topic == "topic"
    assert "READ" in (caught.value.hint or "")


def test_giving_up_says_what_was_met_last(client: Client, cluster: Cluster) -> None:
    cluster.leaders[0] = -1
    with pytest.raises(RequestTimedOut, match=r"10 s at h:1,h:2: Partition topic-0 .* no leader"):
        client.fetch({("topic", 0): 0})


def test_a_broken_connection_is_made_anew(client: Client, cluster: Cluster) -> None:
    client.metadata()
    cluster.lose_replies = 2
    assert client.list_offsets({("topic", 0): EARLIEST}) == {("topic", 0): 100}


def test_the_second_bootstrap_server_will_do(client: Client, cluster: Cluster) -> None:
    cluster.down = {1}
    assert client.metadata().cluster_id == "c"


def test_without_any_broker_the_address_is_named(client: Client, cluster: Cluster) -> None:
    cluster.down = {1, 2}
    with pytest.raises(ConnectionLost, match="h:2"):
        client.metadata()


def test_batches_travel_together_but_one_for_each_partition(
    client: Client, cluster: Cluster
) -> None:
    cluster.leaders = {0: 1, 1: 1}
    zero, one = ("topic", 0), ("topic", 1)
    offsets = client.produce([(zero, b"a"), (one, b"b"), (zero, b"c"), (one, b"d")])
    assert cluster.appended == [b"a", b"b", b"c", b"d"]
    assert offsets == [0, 1, 2, 3]
    assert [each for each in cluster.asked if each[1] == 0] == [(1, 0)] * 2


def test_only_what_failed_is_sent_again_and_in_order(client: Client, cluster: Cluster) -> None:
    out_of_order = KioErrorCode.out_of_order_sequence_number
    cluster.errors[0] = deque([NONE, MOVED, out_of_order, out_of_order])
    batches = [(("topic", 0), b"%d" % number) for number in range(4)]
    assert client.produce(batches) == [0, 1, 2, 3]
    assert cluster.appended == [b"0", b"1", b"2", b"3"]


def test_a_batch_that_arrived_before_counts_as_written(client: Client, cluster: Cluster) -> None:
    cluster.errors[0] = deque([KioErrorCode.duplicate_sequence_number])
    assert client.produce([(("topic", 0), b"a")]) == [-1]


def test_out_of_order_without_a_cause_is_refused(client: Client, cluster: Cluster) -> None:
    cluster.errors[0] = deque([KioErrorCode.out_of_order_sequence_number])
    with pytest.raises(RequestRefused, match="topic-0 was answered OUT_OF_ORDER"):
        client.produce([(("topic", 0), b"a")])


def test_a_producer_id_is_given_with_its_epoch(client: Client) -> None:
    assert client.init_producer_id() == (77, 0)


def test_bootstrap_servers_are_read_as_kafka_does() -> None:
    assert parse_bootstrap("a:1, b:2,[::1]:3") == [("a", 1), ("b", 2), ("::1", 3)]
    for wrong in ("", "a", "a:", ":1", "a:x", "a:1,,b:2", "a:0", "a:65536", "a:\u00b2"):
        with pytest.raises(CatchwaterError, match="host:port"):
            parse_bootstrap(wrong)
