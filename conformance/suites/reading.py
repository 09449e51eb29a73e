"""All that stands in a topic, read without a group."""

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from conformance.suites.jvm import until

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
READ_S = 30.0
QUIET = 0
"""librdkafka's `log_level`: a broker that is killed is no news."""


def reader(bootstrap: str, topic: str, partitions: int, isolation: str = COMMITTED) -> Consumer:
    """At the beginning of all partitions; it tells the end of each."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": "none", "isolation.level": isolation,
        "enable.auto.commit": False, "enable.partition.eof": True, "log_level": QUIET,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    return consumer


def whole(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[Message]:
    """Every record, those of a partition in its order. Raises `Late`, `KafkaException`."""
    consumer = reader(bootstrap, topic, partitions, isolation)
    found: list[Message] = []
    ended: set[int | None] = set()

    def at_the_end() -> bool:
        for message in consumer.consume(100_000, 0.5):
            if (error := message.error()) is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise KafkaException(error)
        return len(ended) == partitions

    try:
        until(at_the_end, f"the end of {topic}", READ_S)
    finally:
        consumer.close()
    return found
