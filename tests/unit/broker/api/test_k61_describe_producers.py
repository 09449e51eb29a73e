"""DescribeProducers: who writes to a partition, as the log knows."""

from kio.schema.describe_producers.v0 import request as v0

from catchwater.catalog.rows import ProducerRow


def ask(*wanted: tuple[str, tuple[int, ...]]) -> v0.DescribeProducersRequest:
    return v0.DescribeProducersRequest(
        topics=tuple(v0.TopicRequest(name=n, partition_indexes=i) for n, i in wanted)
    )


async def test_producers_are_told_with_what_they_have_open(client) -> None:
    topic = await client.log.create_topic("t", 1)
    client.log.standing = [
        ProducerRow(topic.id, 0, 5, 3, ((0, 4, 7), (5, 9, 12)), 99),
        ProducerRow(topic.id, 0, 6, 0, (), 98),
    ]
    reply = await client.send(ask(("t", (0, 9)), ("x", (0,))))
    first, missing, unknown = [each for topic in reply.topics for each in topic.partitions]
    assert [
        (
            p.producer_id,
            p.producer_epoch,
            p.last_sequence,
            p.last_timestamp,
            p.coordinator_epoch,
            p.current_txn_start_offset,
        )
        for p in first.active_producers
    ] == [(5, 3, 9, 99, -1, 7), (6, 0, -1, 98, -1, -1)]
    assert first.error_code.name == "none"
    assert {missing.error_code.name, unknown.error_code.name} == {"unknown_topic_or_partition"}


async def test_who_may_not_read_is_told_and_learns_nothing(client, deny) -> None:
    await client.log.create_topic("t", 1)
    deny(("READ", "t"), ("READ", "x"))
    reply = await client.send(ask(("t", (0, 9)), ("x", (0,))))
    errors = {each.error_code.name for topic in reply.topics for each in topic.partitions}
    assert errors == {"topic_authorization_failed"}
