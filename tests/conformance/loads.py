"""Loads for a broker that is killed: each goes on where it was, and knows what it was told.

Raw requests over one socket, so that what is sent and what is answered can be told apart: a
producer with its own sequence numbers, a group's positions, transactions over two partitions.
`run` works until the connection breaks; `verify` holds a restarted broker to what was answered.
"""

import socket
import struct
import time
from collections import deque
from datetime import timedelta

from confluent_kafka import Consumer, KafkaError, TopicPartition
from kio.schema.add_offsets_to_txn.v1 import request as add_group_v1
from kio.schema.add_partitions_to_txn.v1 import request as add_v1
from kio.schema.create_topics.v4 import request as create_v4
from kio.schema.end_txn.v1.request import EndTxnRequest
from kio.schema.fetch.v11 import request as fetch_v11
from kio.schema.init_producer_id.v1.request import InitProducerIdRequest
from kio.schema.offset_commit.v2 import request as commit_v2
from kio.schema.offset_fetch.v1 import request as offset_v1
from kio.schema.produce.v8 import request as produce_v8
from kio.schema.txn_offset_commit.v1 import request as txn_offset_v1
from kio.static.primitive import i32Timedelta

from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import split
from catchwater.wire.frames import prefixed
from catchwater.wire.messages import decode_reply, encode_request

IN_FLIGHT = 5
PARTITIONS = 2
RECORDS = 3
TOPIC, GROUP = "t", "g"
TXN, TXN_TOPIC = "x", "txn"
WAIT = i32Timedelta.parse(timedelta(seconds=60))
LONG = i32Timedelta.parse(timedelta(seconds=600))
PATIENCE_S = 60.0


class Client:
    """A connection, with requests and replies apart, so that requests can overlap."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.stream = self.socket.makefile("rb")

    def send(self, message) -> None:
        self.socket.sendall(b"".join(prefixed(encode_request(0, "kill", message))))

    def receive(self, message):
        head = self.stream.read(4)
        size = struct.unpack(">i", head)[0] if len(head) == 4 else 0
        body = self.stream.read(size)
        if not size or len(body) < size:
            raise ConnectionResetError
        return decode_reply(message.__api_key__, message.__version__, memoryview(body))[1]

    def call(self, message):
        self.send(message)
        return self.receive(message)

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


class Producer:
    """One idempotent producer; a request is a batch for each partition with the same numbers."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.next_sequence = 0
        self.unanswered: deque[int] = deque()
        self.acknowledged: dict[tuple[int, int], int] = {}
        """(partition, base sequence) -> base offset."""

    def request(self, sequence: int):
        values = [b"%d" % (sequence + i) for i in range(RECORDS)]
        batch = encode_batch(
            [(None, value, 1_700_000_000_000, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        partitions = tuple(
            produce_v8.PartitionProduceData(index=index, records=batch)
            for index in range(PARTITIONS)
        )
        topic = produce_v8.TopicProduceData(name=TOPIC, partition_data=partitions)
        return produce_v8.ProduceRequest(acks=-1, timeout=WAIT, topic_data=(topic,))

    def run(self, port: int) -> None:
        """Write until the connection breaks; first what was not answered before."""
        try:
            client = Client(port)
        except OSError:
            return
        try:
            if self.producer_id < 0:
                ask = InitProducerIdRequest(transactional_id=None, transaction_timeout=WAIT)
                self.producer_id = client.call(ask).producer_id
            for sequence in self.unanswered:
                client.send(self.request(sequence))
            while True:
                while len(self.unanswered) < IN_FLIGHT:
                    self.unanswered.append(self.next_sequence)
                    self.next_sequence += RECORDS
                    client.send(self.request(self.unanswered[-1]))
                self.note(client.receive(self.request(0)))
        except OSError:
            pass
        finally:
            client.close()

    def note(self, reply) -> None:
        sequence = self.unanswered[0]
        for partition in reply.responses[0].partition_responses:
            assert partition.error_code.name == "none", (sequence, partition)
            told = self.acknowledged.setdefault((partition.index, sequence), partition.base_offset)
            assert told == partition.base_offset
        self.unanswered.popleft()

    def verify(self, port: int) -> None:
        """Nothing twice, in order, and what was acknowledged where it was told."""
        for partition in range(PARTITIONS):
            found = read_all(port, partition)
            assert {times for _, times in found.values()} <= {1}, "nothing is there twice"
            offsets = {s: base for s, (base, _) in found.items()}
            by_offset = sorted(offsets, key=lambda s: offsets[s])
            assert by_offset == sorted(offsets), "in the order written"
            for (index, sequence), base_offset in self.acknowledged.items():
                if index == partition:
                    assert offsets.get(sequence) == base_offset
            assert set(offsets) <= set(range(0, self.next_sequence, RECORDS))


class Committer:
    """A group of one that moves its position up by one at a time."""

    def __init__(self) -> None:
        self.acknowledged = self.sent = 0

    def run(self, port: int) -> None:
        """Commit until the connection breaks."""
        try:
            client = Client(port)
        except OSError:
            return
        try:
            while True:
                self.sent += 1
                assert self.commit(client, self.sent) == "none"
                self.acknowledged = self.sent
        except OSError:
            pass
        finally:
            client.close()

    def commit(self, client: Client, offset: int) -> str:
        partition = commit_v2.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=None
        )
        topic = commit_v2.OffsetCommitRequestTopic(name=TOPIC, partitions=(partition,))
        request = commit_v2.OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=-1,
            member_id="",
            retention_time=i32Timedelta.parse(timedelta(milliseconds=-1)),
            topics=(topic,),
        )
        return client.call(request).topics[0].partitions[0].error_code.name

    def verify(self, port: int) -> None:
        """The group stands where it was last told, or where it was last sent."""
        assert self.acknowledged <= max(0, position(port, GROUP, TOPIC)) <= self.sent


def create_topics(port: int) -> None:
    """The topics that the loads write to."""
    client = Client(port)
    topics = tuple(
        create_v4.CreatableTopic(
            name=name, num_partitions=PARTITIONS, replication_factor=1, assignments=(), configs=()
        )
        for name in (TOPIC, TXN_TOPIC)
    )
    client.call(create_v4.CreateTopicsRequest(topics=topics))
    client.close()


def read_all(port: int, partition: int) -> dict[int, tuple[int, int]]:
    """Base sequence -> (base offset, how often it is there)."""
    client = Client(port)
    found: dict[int, tuple[int, int]] = {}
    offset = 0
    while True:
        wanted = fetch_v11.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=10_000_000
        )
        request = fetch_v11.FetchRequest(
            replica_id=-1,
            max_wait=i32Timedelta.parse(timedelta(0)),
            min_bytes=0,
            isolation_level=0,
            topics=(fetch_v11.FetchTopic(topic=TOPIC, partitions=(wanted,)),),
            forgotten_topics_data=(),
        )
        (answer,) = client.call(request).responses[0].partitions
        assert answer.error_code.name == "none"
        if not answer.records:
            assert offset == answer.high_watermark
            client.close()
            return found
        for header, _ in split(memoryview(answer.records)):
            assert header.base_offset == offset, "offsets are consecutive"
            offset += header.last_offset_delta + 1
            times = found.get(header.base_sequence, (0, 0))[1]
            found[header.base_sequence] = (header.base_offset, times + 1)


class Transactor:
    """Transactions of one record on each partition and a group's position; a third is aborted."""

    def __init__(self) -> None:
        self.number = 0
        self.outcomes: dict[int, bool | None] = {}
        """Number -> committed, aborted, or (None) nobody knows."""
        self.client: Client
        self.producer_id = self.epoch = -1

    def run(self, port: int) -> None:
        """Transactions until the connection breaks."""
        try:
            self.client = Client(port)
        except OSError:
            return
        try:
            self.begin()
            sequence = 0
            while True:
                self.transaction(sequence)
                sequence += 1
        except OSError:
            pass
        finally:
            self.client.close()

    def begin(self) -> None:
        """Take the transactional id over; what was left open is ended."""
        ask = InitProducerIdRequest(transactional_id=TXN, transaction_timeout=LONG)
        reply = self.until_possible(lambda: self.client.call(ask))
        self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch

    def transaction(self, sequence: int) -> None:
        self.number += 1
        number, commits = self.number, self.number % 3 > 0
        self.outcomes[number] = None
        who = {"transactional_id": TXN, "producer_id": self.producer_id}
        self.until_possible(self.announce)
        assert self.write(number, sequence) == {"none"}
        # The group of a committed transaction stands at its number.
        self.until_possible(lambda: self.client.call(self.position(number)))
        end = EndTxnRequest(**who, producer_epoch=self.epoch, committed=commits)
        reply = self.until_possible(lambda: self.client.call(end))
        assert reply.error_code.name == "none"
        self.outcomes[number] = commits

    def announce(self):
        topic = add_v1.AddPartitionsToTxnTopic(name=TXN_TOPIC, partitions=tuple(range(PARTITIONS)))
        group = add_group_v1.AddOffsetsToTxnRequest(
            transactional_id=TXN,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=TXN,
        )
        self.until_possible(lambda: self.client.call(group))
        return self.client.call(
            add_v1.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=TXN,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=(topic,),
            )
        )

    def write(self, number: int, sequence: int) -> set[str]:
        batch = encode_batch(
            [(None, b"%d" % number, 1_700_000_000_000, ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        partitions = tuple(
            produce_v8.PartitionProduceData(index=index, records=batch)
            for index in range(PARTITIONS)
        )
        topic = produce_v8.TopicProduceData(name=TXN_TOPIC, partition_data=partitions)
        reply = self.client.call(
            produce_v8.ProduceRequest(
                transactional_id=TXN, acks=-1, timeout=WAIT, topic_data=(topic,)
            )
        )
        return {p.error_code.name for p in reply.responses[0].partition_responses}

    def position(self, number: int):
        partition = txn_offset_v1.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=number, committed_metadata=None
        )
        topic = txn_offset_v1.TxnOffsetCommitRequestTopic(name=TXN_TOPIC, partitions=(partition,))
        return txn_offset_v1.TxnOffsetCommitRequest(
            transactional_id=TXN,
            group_id=TXN,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=(topic,),
        )

    @staticmethod
    def until_possible(call):
        """Again while the transaction before is still being ended."""
        while True:
            reply = call()
            if "concurrent_transactions" not in repr(reply):
                return reply
            time.sleep(0.002)

    def verify(self, port: int) -> None:
        """All or none of every transaction, and the position of the last that was committed."""
        self.client = Client(port)
        self.begin()
        self.client.close()
        found = [self.committed(port, partition) for partition in range(PARTITIONS)]
        assert found[0] == found[1], "all of a transaction or none of it"
        assert found[0] == sorted(set(found[0])), "nothing twice, all in order"
        there = set(found[0])
        for number, committed in self.outcomes.items():
            assert committed is None or committed == (number in there), number
        assert max(position(port, TXN, TXN_TOPIC), 0) == max(there, default=0)

    @staticmethod
    def committed(port: int, partition: int) -> list[int]:
        """The numbers that a consumer of committed records reads, in their order."""
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "group.id": "verify",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
            }
        )
        consumer.assign([TopicPartition(TXN_TOPIC, partition, 0)])
        found = []
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.05):
                error = message.error()
                if error is None:
                    found.append(int(message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    consumer.close()
                    return found
        raise AssertionError(f"the end of partition {partition} was not reached")


def position(port: int, group: str, topic: str) -> int:
    """A group's position on partition 0."""
    client = Client(port)
    wanted = offset_v1.OffsetFetchRequestTopic(name=topic, partition_indexes=(0,))
    answer = client.call(offset_v1.OffsetFetchRequest(group_id=group, topics=(wanted,)))
    client.close()
    return answer.topics[0].partitions[0].committed_offset
