"""A topic's history as Parquet holds what consumers were given, record for record.

Every codec, a transaction that is committed and one that is aborted, values that are null, headers;
then DeleteRecords takes the Parquet along.
"""

import io
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from catchwater.clock import SYSTEM
from catchwater.log.repair.fsck import fsck_directory
from catchwater.objects.local import LocalStore
from catchwater.replay.control import Control
from catchwater.replay.plan import OffsetRange
from catchwater.values.settings import ValueFormat, ValueSettings, identity

DEADLINE_S = 60.0
TOPIC = "history"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KILLS = 5
SETTING = {"catchwater.history.parquet": "true"}


@pytest.fixture(scope="module")
def written(make_broker):
    """A broker that packs at once and waits for nothing, and how many offsets there are."""
    broker = make_broker(
        {
            "catchwater.pack.interval.ms": "100",
            "catchwater.history.parquet.after.ms": "0",
            "catchwater.retention.interval.ms": "100",
            "catchwater.delete.grace.ms": "1",
        }
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, config=SETTING)])[TOPIC].result(DEADLINE_S)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec})
        for n in range(400):
            headers = [("codec", codec.encode()), ("none", None)] if n % 3 else None
            value = None if n % 7 == 0 else b"%s %d" % (codec.encode(), n)
            producer.produce(TOPIC, value, None if n % 5 == 0 else f"k{n}", headers=headers)
        assert producer.flush(DEADLINE_S) == 0
    for commit in (True, False):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(TOPIC, b"in a transaction", b"%d" % commit)
        producer.flush(DEADLINE_S)
        if commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
    return broker


def consumed(broker, end):
    """What a consumer of everything is given up to `end`, in the columns of the Parquet."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    rows = []
    while True:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        headers = message.headers()
        rows.append(
            {
                "topic": TOPIC,
                "partition": 0,
                "offset": message.offset(),
                "timestamp": message.timestamp()[1],
                "timestampType": 0,
                "key": message.key(),
                "value": message.value(),
                "headers": headers and [{"key": k, "value": v} for k, v in headers],
            }
        )
    consumer.close()
    assert rows[-1]["offset"] == end - 2, "an abort marker is the last"
    return rows


def plan(broker, start, end):
    return Control(broker.control_url).plan([OffsetRange(TOPIC, 0, start, end)]).ranges


def until(reached):
    deadline = time.monotonic() + DEADLINE_S
    while not (found := reached()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def path_of(url):
    return Path(unquote(urlsplit(url).path))


def end_of(broker):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), DEADLINE_S)
    consumer.close()
    return end


def everywhere(broker, end):
    ranges = plan(broker, 0, end)
    return ranges if all(each.parquet for each in ranges) else None


def test_the_parquet_of_all_segments_is_what_a_consumer_is_given(written):
    end = end_of(written)
    assert end == len(CODECS) * 400 + 4
    ranges = until(lambda: everywhere(written, end))
    files = list(dict.fromkeys(each.parquet for each in ranges))
    tables = [pq.read_table(io.BytesIO(path_of(url).read_bytes())) for url in files]
    found = pa.concat_tables(tables)
    times = found.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    assert found.set_column(3, "timestamp", times).to_pylist() == consumed(written, end)
    data_dir = path_of(files[0]).parents[4]
    report = fsck_directory(
        data_dir, LocalStore(data_dir / "objects"), deep=True, clock=SYSTEM,
        progress=lambda done, of: None,
    )  # fmt: skip
    assert report.is_good, report.damaged
    assert report.objects >= 2


def test_deleted_records_take_their_parquet_along(written):
    end = end_of(written)
    files = {path_of(each.parquet) for each in until(lambda: everywhere(written, end))}
    assert all(path.exists() for path in files)
    admin = AdminClient({"bootstrap.servers": written.bootstrap})
    [deleting] = admin.delete_records([TopicPartition(TOPIC, 0, end)]).values()
    deleting.result(DEADLINE_S)
    until(lambda: not any(path.exists() for path in files))


def test_declared_values_are_columns_of_a_real_brokers_parquet(written):
    schema = "id long, card string"
    config = SETTING | {
        "catchwater.history.value.format": "json",
        "catchwater.history.value.schema": schema,
    }
    admin = AdminClient({"bootstrap.servers": written.bootstrap})
    admin.create_topics([NewTopic("typed", 1, config=config)])["typed"].result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": written.bootstrap})
    for n in range(300):
        producer.produce("typed", b'{"id": %d, "card": "c%d"}' % (n, n % 7))
    assert producer.flush(DEADLINE_S) == 0
    control = Control(written.control_url)
    wanted = [OffsetRange("typed", 0, 0, 300)]

    def planned():
        ranges = control.plan(wanted).ranges
        return ranges if all(each.parquet for each in ranges) else None

    ranges = until(planned)
    assert {each.parquet_schema for each in ranges} == {
        identity(ValueSettings(ValueFormat.JSON, schema))
    }
    files = dict.fromkeys(each.parquet for each in ranges)
    rows = pa.concat_tables([pq.read_table(io.BytesIO(path_of(url).read_bytes())) for url in files])
    assert rows.column("fields").to_pylist() == [{"id": n, "card": f"c{n % 7}"} for n in range(300)]


def test_a_topic_takes_the_setting_only_as_a_switch(written):
    admin = AdminClient({"bootstrap.servers": written.bootstrap})
    wrong = NewTopic("other", 1, config={"catchwater.history.parquet": "maybe"})
    with pytest.raises(KafkaException, match=r"catchwater\.history\.parquet is one of true, false"):
        admin.create_topics([wrong])["other"].result(DEADLINE_S)


@pytest.mark.slow
def test_a_broker_that_is_killed_again_and_again_has_each_segments_parquet_once(make_broker):
    """kill -9 at times spread over the packing, while a producer goes on."""
    broker = make_broker(
        {
            "catchwater.pack.interval.ms": "50",
            "catchwater.pack.min.bytes": "1",
            "catchwater.pack.backlog.bytes": "1",
            "catchwater.history.parquet.after.ms": "0",
        }
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, config=SETTING)])[TOPIC].result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    objects = broker.data_dir / "objects" / "parquet"
    for kill in range(KILLS):
        known = set(objects.glob("*/*/*"))
        for n in range(200):
            producer.produce(TOPIC, b"%d %d" % (kill, n))
            producer.poll(0)
        until(lambda known=known: set(objects.glob("*/*/*")) - known)
        for n in range(200):
            producer.produce(TOPIC, b"%d again %d" % (kill, n))
        producer.poll(0)
        time.sleep(0.03 * kill)
        broker.kill()
        broker.start()
    assert producer.flush(DEADLINE_S) == 0
    end = end_of(broker)
    assert end == KILLS * 400
    ranges = until(lambda: everywhere(broker, end))
    broker.stop()
    report = fsck_directory(
        broker.data_dir, LocalStore(broker.data_dir / "objects"), deep=True, clock=SYSTEM,
        progress=lambda done, of: None,
    )  # fmt: skip
    assert report.is_good, report.damaged
    files = [path_of(url) for url in dict.fromkeys(each.parquet for each in ranges)]
    offsets = [
        pq.read_table(io.BytesIO(path.read_bytes()), columns=["offset"]).column(0).to_pylist()
        for path in files
    ]
    assert [offset for each in offsets for offset in each] == list(range(end))
    left = {str(path.relative_to(broker.data_dir / "objects")) for path in objects.glob("*/*/*")}
    named = {str(path.relative_to(broker.data_dir / "objects")) for path in files}
    swept_later = {key for key in report.orphans if key.startswith("parquet/")}
    assert left == named | swept_later
