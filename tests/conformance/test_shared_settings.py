"""What is altered on one broker is in force on every other, and outlives kill -9 of all.

Requests go to one broker by its address, so that no client's routing hides who answers.
"""

import threading
import time
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from benchmarks.load import NOW_MS, Connection, frame, frame_of_batch
from kio.schema.create_partitions.v3 import request as grow
from kio.schema.create_topics.v7 import request as create
from kio.schema.describe_configs.v4 import request as describe
from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.incremental_alter_configs.v1 import request as alter
from kio.static.primitive import i32Timedelta
from tests.cluster import Brokers

from catchwater.wire.arrow import encode_batch
from catchwater.wire.messages import decode_reply, encode

WAIT = i32Timedelta.parse(timedelta(seconds=10))
SPREAD_S = 60.0
"""How long a busy machine may take; the catalog tells in milliseconds."""
SET, APPEND = 0, 2


def ask(broker: Any, message: Any) -> Any:
    """One request to one broker, and its reply."""
    key, version = message.__api_key__, message.__version__
    with closing(Connection(broker.bootstrap)) as connection:
        flexible = message.__header_schema__.__flexible__
        answer = connection.call(frame(key, version, flexible, encode(message)))
    return decode_reply(key, version, memoryview(answer))[1]


def make(broker: Any, name: str, partitions: int = 1, factor: int = 1) -> str:
    topic = create.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=(),
        configs=(),
    )
    request = create.CreateTopicsRequest(topics=(topic,), timeout=WAIT, validate_only=False)
    return ask(broker, request).topics[0].error_code.name


def change(broker: Any, topic: str, operation: int, name: str, value: str) -> str:
    one = alter.AlterableConfig(name=name, config_operation=operation, value=value)
    resource = alter.AlterConfigsResource(resource_type=2, resource_name=topic, configs=(one,))
    request = alter.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    return ask(broker, request).responses[0].error_code.name


def settings(broker: Any, topic: str) -> dict[str, str]:
    """The settings that a topic has of its own."""
    resource = describe.DescribeConfigsResource(
        resource_type=2, resource_name=topic, configuration_keys=None
    )
    (result,) = ask(broker, describe.DescribeConfigsRequest(resources=(resource,))).results
    return {c.name: c.value for c in result.configs if c.config_source == 1}


def produce_error(broker: Any, topic: str, partition: int, size: int) -> int:
    batch = encode_batch([(b"k", b"x" * size, NOW_MS, ())])
    with closing(Connection(broker.bootstrap)) as connection:
        answer = connection.call(frame_of_batch(topic, partition, batch))
    reply: Any = decode_reply(0, 9, memoryview(answer))[1]
    return int(reply.responses[0].partition_responses[0].error_code)


def partitions_with_sizes(broker: Any) -> list[tuple[str, int]]:
    """The partitions whose sizes a broker reports."""
    (place,) = ask(broker, DescribeLogDirsRequest(topics=None)).results
    return [(each.name, one.partition_index) for each in place.topics for one in each.partitions]


def within(is_so: Any) -> None:
    deadline = time.monotonic() + SPREAD_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not become so"
        time.sleep(0.01)


@pytest.fixture
def brokers(tmp_path, postgres_url):
    cluster = Brokers(tmp_path, postgres_url, {}, ("a", "b"))
    try:
        cluster.start()
        yield cluster
        assert "Traceback" not in cluster.log()
    finally:
        cluster.close()


def test_alterations_are_in_force_on_every_broker_and_outlive_all_of_them(brokers):
    one, two = brokers.all.values()
    within(lambda: make(one, "t", factor=2) in ("none", "topic_already_exists"))
    assert make(one, "u", factor=3) == "invalid_replication_factor"
    within(lambda: produce_error(two, "t", 0, 900) == 0)
    assert change(one, "t", SET, "max.message.bytes", "500") == "none"
    assert produce_error(one, "t", 0, 900) == 10  # MESSAGE_TOO_LARGE, at once
    within(lambda: produce_error(two, "t", 0, 900) == 10)
    request = grow.CreatePartitionsRequest(
        topics=(grow.CreatePartitionsTopic(name="t", count=3, assignments=None),),
        timeout=WAIT,
        validate_only=False,
    )
    assert ask(two, request).results[0].error_code.name == "none"
    assert produce_error(two, "t", 2, 9) == 0
    within(lambda: produce_error(one, "t", 2, 9) == 0)
    # Brokers tell of what they lead, so once both see the same members each is told of once.
    within(
        lambda: (
            sorted([*partitions_with_sizes(one), *partitions_with_sizes(two)])
            == [("t", 0), ("t", 1), ("t", 2)]
        )
    )
    had = settings(one, "t")
    brokers.close()
    brokers.start()
    for broker in (one, two):
        assert settings(broker, "t") == had == {"max.message.bytes": "500"}
        assert produce_error(broker, "t", 2, 9) == 0
        assert produce_error(broker, "t", 2, 900) == 10


def test_changes_by_two_brokers_at_once_lose_nothing(brokers):
    one, two = brokers.all.values()
    assert make(one, "t") == "none"
    within(lambda: produce_error(two, "t", 0, 9) == 0)
    names = [
        *("segment.ms", "segment.bytes", "segment.jitter.ms", "segment.index.bytes"),
        *("flush.ms", "flush.messages", "index.interval.bytes", "file.delete.delay.ms"),
        *("retention.ms", "retention.bytes", "delete.retention.ms", "min.compaction.lag.ms"),
    ]
    errors: list[str] = []
    together = threading.Barrier(2)

    def alter_each(broker: Any, mine: list[str]) -> None:
        for name in mine:
            together.wait(SPREAD_S)
            errors.append(change(broker, "t", SET, name, "100"))

    threads = [
        threading.Thread(target=alter_each, args=each)
        for each in ((one, names[::2]), (two, names[1::2]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["none"] * 12
    for broker in (one, two):
        within(lambda at=broker: settings(at, "t") == dict.fromkeys(names, "100"))


def test_a_broker_alone_keeps_what_it_answered_through_kill_9(make_broker):
    broker = make_broker()
    assert make(broker, "t") == "none"
    assert change(broker, "t", APPEND, "cleanup.policy", "compact") == "none"
    request = grow.CreatePartitionsRequest(
        topics=(grow.CreatePartitionsTopic(name="t", count=2, assignments=None),),
        timeout=WAIT,
        validate_only=False,
    )
    assert ask(broker, request).results[0].error_code.name == "none"
    broker.kill()
    broker.start()
    assert settings(broker, "t") == {"cleanup.policy": "delete,compact"}
    assert produce_error(broker, "t", 1, 9) == 0
    broker.kill()
