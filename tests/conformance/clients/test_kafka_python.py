"""kafka-python against a real broker: produce, subscribe, seek."""

import io
import warnings
from types import SimpleNamespace

import cramjam
import pytest

with warnings.catch_warnings():
    # It reads its message schemas by a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka import codec as kafka_codec

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves sockets to the collector when it connects anew.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def codecs(monkeypatch):
    """kafka-python's optional codecs, out of the library that we have anyway."""
    snappy = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(bytes(data))),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(bytes(data))),
    )
    zstd = SimpleNamespace(
        ZstdCompressor=lambda: SimpleNamespace(
            compress=lambda data: bytes(cramjam.zstd.compress(bytes(data)))
        ),
        ZstdDecompressor=lambda: SimpleNamespace(
            stream_reader=lambda stream, **_: io.BytesIO(
                bytes(cramjam.zstd.decompress(stream.read()))
            )
        ),
    )
    monkeypatch.setattr(kafka_codec, "snappy", snappy)
    monkeypatch.setattr(kafka_codec, "zstd", zstd)


def test_what_is_written_is_read_by_a_group(broker, codec, wanted, assert_read):
    topic = f"kafka-python-{codec}"
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=20,
        batch_size=65_536,
    )
    futures = [producer.send(topic, v.encode(), k.encode()) for k, v in wanted]
    producer.flush(60)
    assert futures[-1].get(60).offset == len(wanted) - 1
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        group_id=f"kafka-python-{codec}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    messages = (next(consumer) for _ in wanted)
    assert_read(((m.offset, m.key.decode(), m.value.decode()) for m in messages), wanted)
    consumer.close()


def test_an_assigned_consumer_seeks(broker):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for index in range(100):
        producer.send("kafka-python-seek", b"%d" % index)
    producer.flush(60)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=60_000)
    partition = TopicPartition("kafka-python-seek", 0)
    consumer.assign([partition])
    consumer.seek(partition, 90)
    assert [int(next(consumer).value) for _ in range(10)] == list(range(90, 100))
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 100}
    consumer.close()


def test_an_aborted_transaction_is_not_read(broker):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="kafka-python")
    producer.init_transactions()
    for value, commits in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin_transaction()
        producer.send("kafka-python-txn", value, partition=0)
        producer.flush()
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    consumer = KafkaConsumer(
        "kafka-python-txn",
        bootstrap_servers=broker.bootstrap,
        group_id="kafka-python-txn",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=60_000,
    )
    assert [next(consumer).value for _ in range(2)] == [b"a", b"c"]
    consumer.close()
