"""Transactions request by request, over a real log: both versions, and what Kafka refuses."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.add_offsets_to_txn.v3 import request as add_offsets
from kio.schema.add_partitions_to_txn.v3 import request as add_partitions
from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.end_txn import v1, v3, v5
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_offsets.v6 import request as list_offsets
from kio.schema.list_transactions.v1.request import ListTransactionsRequest
from kio.schema.offset_fetch.v8 import request as offset_fetch
from kio.schema.produce.v9 import request as produce_v9
from kio.schema.produce.v11 import request as produce_v11
from kio.schema.produce.v13 import request as produce_v13
from kio.schema.txn_offset_commit.v3 import request as commit_v3
from kio.schema.txn_offset_commit.v4 import request as commit_v4
from kio.schema.txn_offset_commit.v5 import request as commit_v5
from kio.static.primitive import i32Timedelta

from catchwater.broker.broker import Broker
from catchwater.broker_config import LogConfig
from catchwater.log.log import Log

SECOND = i32Timedelta.parse(timedelta(seconds=1))
TXN = "id"


@pytest.fixture
async def served(broker: Broker, client: Any, tmp_path: Path) -> AsyncIterator[Any]:
    """The client, with a real log behind the handlers."""
    quiet = LogConfig(background=False)
    broker.log = await Log.open(tmp_path, quiet, broker.clock)
    await broker.log.create_topic("t", 2)
    yield client
    await broker.log.close()


async def init(client: Any, name: str | None = TXN, **changes: Any) -> Any:
    fields = {"producer_id": -1, "producer_epoch": -1, "transaction_timeout": SECOND} | changes
    return await client.send(InitProducerIdRequest(transactional_id=name, **fields))


async def produce(
    client: Any,
    producer: Any,
    batch: Any,
    *,
    version: int = 2,
    index: int = 0,
    base: int = 0,
    of: Any = produce_v9,
) -> str:
    records = batch(
        1,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=base,
        transactional=True,
    )
    if version == 2:
        of, topic_id = produce_v13, client.log.topics.find("t").id
        topic: Any = {"topic_id": UUID(bytes=topic_id)}
    else:
        topic = {"name": "t"}
    data = of.PartitionProduceData(index=index, records=records)
    reply = await client.send(
        of.ProduceRequest(
            transactional_id=TXN,
            acks=-1,
            timeout=SECOND,
            topic_data=(of.TopicProduceData(partition_data=(data,), **topic),),
        )
    )
    return reply.responses[0].partition_responses[0].error_code.name


async def end(
    client: Any, producer: Any, committed: bool = True, of: Any = v5, named: str = TXN
) -> Any:
    return await client.send(
        of.request.EndTxnRequest(
            transactional_id=named,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=committed,
        )
    )


async def announce(client: Any, producer: Any, *indexes: int) -> list[str]:
    topic = add_partitions.AddPartitionsToTxnTopic(name="t", partitions=indexes)
    reply = await client.send(
        add_partitions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TXN,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=(topic,),
        )
    )
    (answer,) = reply.results_by_topic_v3_and_below
    return [p.partition_error_code.name for p in answer.results_by_partition]


async def commit(client: Any, producer: Any, offset: int, of: Any = commit_v5) -> str:
    partition = of.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
    )
    topic = of.TxnOffsetCommitRequestTopic(name="t", partitions=(partition,))
    reply = await client.send(
        of.TxnOffsetCommitRequest(
            transactional_id=TXN,
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=(topic,),
        )
    )
    return reply.topics[0].partitions[0].error_code.name


async def position(client: Any) -> tuple[str, int]:
    topic = offset_fetch.OffsetFetchRequestTopics(name="t", partition_indexes=(0,))
    group = offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=(topic,))
    request = offset_fetch.OffsetFetchRequest(groups=(group,), require_stable=True)
    partition = (await client.send(request)).groups[0].topics[0].partitions[0]
    return partition.error_code.name, partition.committed_offset


async def latest(client: Any, level: int) -> int:
    partition = list_offsets.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=-1
    )
    topic = list_offsets.ListOffsetsTopic(name="t", partitions=(partition,))
    reply = await client.send(
        list_offsets.ListOffsetsRequest(replica_id=-1, isolation_level=level, topics=(topic,))
    )
    return reply.topics[0].partitions[0].offset


async def test_what_is_asked_again_because_the_reply_was_lost_is_answered_alike(
    served: Any, batch: Any
) -> None:
    first = await init(served)
    ids = {"producer_id": first.producer_id, "producer_epoch": first.producer_epoch}
    producer = await init(served, **ids)
    assert (producer.error_code.name, producer.producer_epoch) == ("none", 1)
    assert await init(served, **ids) == producer
    assert await produce(served, producer, batch) == "none"
    assert (await init(served, **ids)).error_code.name == "producer_fenced"
    given = await end(served, producer)
    assert (given.error_code.name, given.producer_epoch) == ("none", 2)
    assert await end(served, producer) == given
    assert (await end(served, producer, False)).error_code.name == "invalid_txn_state"


async def test_version_2_is_told_of_and_needs_three_requests(served: Any, batch: Any) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    features = (await served.send(request)).finalized_features
    assert ("transaction.version", 2) in [(f.name, f.max_version_level) for f in features]
    producer = await init(served)
    assert await produce(served, producer, batch) == "none"
    assert await commit(served, producer, 17) == "none"
    assert (await latest(served, 0), await latest(served, 1)) == (1, 0)
    assert await position(served) == ("unstable_offset_commit", -1)
    given = await end(served, producer)
    assert (given.error_code.name, given.producer_id) == ("none", producer.producer_id)
    assert given.producer_epoch == producer.producer_epoch + 1
    assert (await latest(served, 0), await latest(served, 1)) == (2, 2)
    assert await position(served) == ("none", 17)


async def test_version_1_announces_what_it_writes_to(served: Any, batch: Any) -> None:
    producer = await init(served)
    assert await produce(served, producer, batch, version=1) == "invalid_txn_state"
    assert await commit(served, producer, 17, commit_v3) == "invalid_txn_state"
    # From KIP-890 on clients know that they have only to abort.
    outside = await produce(served, producer, batch, version=1, of=produce_v11)
    assert outside == await commit(served, producer, 17, commit_v4) == "transaction_abortable"
    assert await announce(served, producer, 0, 2) == [
        "operation_not_attempted",
        "unknown_topic_or_partition",
    ]
    assert await announce(served, producer, 0) == ["none"]
    assert await produce(served, producer, batch, version=1) == "none"
    asked = add_offsets.AddOffsetsToTxnRequest(
        transactional_id=TXN,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        group_id="g",
    )
    assert (await served.send(asked)).error_code.name == "none"
    assert await commit(served, producer, 17, commit_v3) == "none"
    assert (await end(served, producer, of=v3)).error_code.name == "none"
    assert await position(served) == ("none", 17)
    # The epoch stays, and with it the sequence.
    assert await announce(served, producer, 0) == ["none"]
    assert await produce(served, producer, batch, version=1, base=1) == "none"
    assert (await end(served, producer, committed=False, of=v3)).error_code.name == "none"
    assert (await end(served, producer, committed=False, of=v3)).error_code.name == "none"
    assert (await end(served, producer, of=v3)).error_code.name == "invalid_txn_state"


async def test_a_fenced_producer_is_told_so_in_every_request(served: Any, batch: Any) -> None:
    old = await init(served)
    assert await produce(served, old, batch) == "none"
    await init(served)
    assert await produce(served, old, batch, base=1) == "invalid_producer_epoch"
    assert await commit(served, old, 3) == "invalid_producer_epoch"
    assert await announce(served, old, 0) == ["producer_fenced"]
    assert (await end(served, old)).error_code.name == "producer_fenced"
    # Under the name it had before KIP-588.
    assert (await end(served, old, of=v1)).error_code.name == "invalid_producer_epoch"
    again = await init(served, producer_id=old.producer_id, producer_epoch=old.producer_epoch)
    assert again.error_code.name == "producer_fenced"
    assert served.broker.metrics.txn_errors.labels("PRODUCER_FENCED")._value.get() == 5


async def test_unknown_ids_and_odd_timeouts_are_refused(served: Any, batch: Any) -> None:
    producer = await init(served, None)
    assert await produce(served, producer, batch) == "invalid_producer_id_mapping"
    assert await announce(served, producer, 0) == ["invalid_producer_id_mapping"]
    assert (await end(served, producer)).error_code.name == "invalid_producer_id_mapping"
    assert (await init(served, "")).error_code.name == "invalid_request"
    hour = i32Timedelta.parse(timedelta(hours=1))
    assert (await end(served, producer, named="")).error_code.name == "invalid_request"
    unnamed = add_offsets.AddOffsetsToTxnRequest(
        transactional_id="", producer_id=1, producer_epoch=0, group_id="g"
    )
    assert (await served.send(unnamed)).error_code.name == "invalid_request"
    refused = await init(served, transaction_timeout=hour)
    assert refused.error_code.name == "invalid_transaction_timeout"


async def test_what_is_open_is_listed_and_described(served: Any, batch: Any) -> None:
    producer = await init(served)
    assert await produce(served, producer, batch, index=1) == "none"
    every = ListTransactionsRequest(state_filters=(), producer_id_filters=(), duration_filter=-1)
    (listed,) = (await served.send(every)).transaction_states
    assert (listed.transactional_id, listed.transaction_state) == (TXN, "Ongoing")
    filtered = ListTransactionsRequest(
        state_filters=("Empty", "Odd"), producer_id_filters=(), duration_filter=-1
    )
    reply = await served.send(filtered)
    assert (reply.transaction_states, reply.unknown_state_filters) == ((), ("Odd",))
    long = ListTransactionsRequest(state_filters=(), producer_id_filters=(), duration_filter=60_000)
    assert (await served.send(long)).transaction_states == ()
    ask = DescribeTransactionsRequest(transactional_ids=(TXN, "nobody"))
    found, missing = (await served.send(ask)).transaction_states
    assert (found.transaction_state, found.producer_epoch) == ("Ongoing", producer.producer_epoch)
    assert [(t.topic, t.partitions) for t in found.topics] == [("t", (1,))]
    assert missing.error_code.name == "transactional_id_not_found"
