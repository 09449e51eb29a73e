"""DescribeLogDirs: every byte once, in the one place there is."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.describe_log_dirs.v1.request import DescribeLogDirsRequest as AskV1
from kio.schema.describe_log_dirs.v5 import request as v5

from catchwater.catalog.errors import CatalogUnavailable
from catchwater.catalog.rows import BrokerRow
from catchwater.log.write.writer import Submission
from catchwater.wire.batch import read_header

ALL = v5.DescribeLogDirsRequest(topics=None)


@pytest.fixture(autouse=True)
async def topics(client, batch, tmp_path: Path) -> None:
    client.broker.config = replace(client.broker.config, log_dirs=tmp_path)
    for name, count in (("a", 2), ("b", 40)):
        topic = await client.log.create_topic(name, count)
        data = memoryview(batch())
        client.log.submit([Submission((topic.id, 1), read_header(data), data)])


def sizes(result) -> dict[tuple[str, int], int]:
    return {
        (t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions
    }


async def test_all_partitions_are_told_with_their_bytes(client, batch, tmp_path: Path) -> None:
    reply = await client.send(ALL)
    (place,) = reply.results
    assert (reply.error_code.name, place.error_code.name) == ("none", "none")
    assert (place.log_dir, place.is_cordoned) == (str(tmp_path), False)
    assert place.total_bytes == shutil.disk_usage(tmp_path).total
    assert 0 < place.usable_bytes < place.total_bytes
    found = sizes(place)
    assert len(found) == 42
    assert {key for key, size in found.items() if size} == {("a", 1), ("b", 1)}
    assert found["a", 1] == len(batch())
    assert len((await client.send(AskV1(topics=None))).results[0].topics) == 2


async def test_of_what_is_asked_for_what_is_there_is_told(client) -> None:
    wanted = [("a", (1, 1, 7, -1)), ("x", (0,)), ("b", (9,))]
    topics = tuple(v5.DescribableLogDirTopic(topic=n, partitions=p) for n, p in wanted)
    (place,) = (await client.send(v5.DescribeLogDirsRequest(topics=topics))).results
    assert sizes(place).keys() == {("a", 1), ("b", 9)}


async def test_several_brokers_share_the_partitions(client) -> None:
    client.log.rows = [
        BrokerRow(number, 1, "", "h", 9000 + number, "", "object", True, "live", 9)
        for number in (1, 2, 3)
    ]
    url = "s3://key:hush@bucket/prefix?region=x"
    told = []
    for number in (1, 2, 3):
        config = replace(client.broker.config, node_id=number, catchwater_objects=url)
        client.broker.config = config
        (place,) = (await client.send(ALL)).results
        assert (place.log_dir, place.total_bytes) == ("s3://bucket/prefix", -1)
        told += list(sizes(place))
    assert len(told) == len(set(told)) == 42


async def test_who_may_not_and_who_cannot_now_are_told(client, deny_cluster, monkeypatch) -> None:
    assert (await client.send(ALL)).error_code.name == "cluster_authorization_failed"
    client.broker.gate = type("All", (), {"may": lambda *asked: True})()

    async def away(keys: object) -> None:
        raise CatalogUnavailable("It is away.")

    monkeypatch.setattr(client.log, "refresh", away)
    (place,) = (await client.send(ALL)).results
    assert (place.error_code.name, place.topics) == ("kafka_storage_error", ())
