"""DeleteRecords: what may go goes, and what was promised to stay is refused."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.delete_records.v2 import request as v2
from kio.static.primitive import i32Timedelta

from catchwater.catalog.errors import CatalogUnavailable, SessionFenced
from catchwater.catalog.rows import Pin


def delete(*wanted: tuple[int, int], topic: str = "t") -> v2.DeleteRecordsRequest:
    partitions = tuple(
        v2.DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in wanted
    )
    return v2.DeleteRecordsRequest(
        topics=(v2.DeleteRecordsTopic(name=topic, partitions=partitions),),
        timeout=i32Timedelta.parse(timedelta(seconds=1)),
    )


def answers(reply: Any) -> list[tuple[int, str, int]]:
    return [
        (p.partition_index, p.error_code.name, p.low_watermark) for p in reply.topics[0].partitions
    ]


@pytest.fixture(autouse=True)
async def topic(client, batch):
    topic = await client.log.create_topic("t", 2)
    client.log.batches[topic.id, 0] = [(0, 9, batch(10))]
    return topic


async def test_log_starts_move_up_to_what_is_asked_for(client) -> None:
    assert answers(await client.send(delete((0, 4), (1, 0)))) == [(0, "none", 4), (1, "none", 0)]
    assert answers(await client.send(delete((0, -1)))) == [(0, "none", 10)]


@pytest.mark.parametrize(
    ("index", "offset", "error"),
    [
        (0, 11, "offset_out_of_range"),
        (0, -2, "offset_out_of_range"),
        (2, 0, "unknown_topic_or_partition"),
        (-1, 0, "unknown_topic_or_partition"),
    ],
)
async def test_what_cannot_be_is_refused(client, index: int, offset: int, error: str) -> None:
    assert answers(await client.send(delete((index, offset)))) == [(index, error, -1)]
    assert client.log.keeping.log_starts == {}


async def test_what_a_pin_holds_stays(client, topic, caplog) -> None:
    client.log.keeping.pins[topic.id, 0] = Pin("p/1", "pipeline", {("t", 0): 3}, None, 0)
    wanted = await client.send(delete((0, 4), (1, 0)))
    assert answers(wanted) == [(0, "policy_violation", -1), (1, "none", 0)]
    assert "t-0 up to offset 4 are not deleted: the pin p/1 of pipeline holds them" in caplog.text


@pytest.mark.parametrize("error", [CatalogUnavailable, SessionFenced])
async def test_without_a_catalog_or_a_session_it_is_to_be_tried_again(
    client, monkeypatch, error
) -> None:
    async def refuse(offsets: Any) -> Any:
        raise error("Not now.")

    monkeypatch.setattr(client.log.keeping, "delete_records", refuse)
    assert answers(await client.send(delete((0, 4)))) == [(0, "kafka_storage_error", -1)]


async def test_a_topic_that_is_only_compacted_is_left_whole(client) -> None:
    await client.log.create_topic("c", 1, {"cleanup.policy": "compact"})
    assert answers(await client.send(delete((0, 0), topic="c"))) == [(0, "policy_violation", -1)]
    await client.log.create_topic("both", 1, {"cleanup.policy": "compact,delete"})
    assert answers(await client.send(delete((0, 0), topic="both"))) == [(0, "none", 0)]
