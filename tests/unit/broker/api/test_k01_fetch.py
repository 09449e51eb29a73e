"""Fetch: whole batches, in the client's order, with a bound, waiting when there is nothing."""

import asyncio
import threading
import uuid
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from kio.schema.fetch.v9 import request as v9
from kio.schema.fetch.v11 import request as v11
from kio.schema.fetch.v13 import request as v13
from kio.static.primitive import i32Timedelta

from catchwater.broker.api import k01_fetch
from catchwater.broker.router import start
from catchwater.catalog.rows import AbortedRow, BrokerRow
from catchwater.log.write.writer import Submission
from catchwater.wire.batch import read_single
from catchwater.wire.fields import MalformedMessage
from catchwater.wire.messages import decode_reply, encode_request

LARGE = 10_000_000


def fetch(*partitions, topic="t", **changes: Any) -> v11.FetchRequest:
    """Each partition is (index, offset) or (index, offset, max_bytes)."""
    wait_ms = changes.pop("wait_ms", 0)
    values = {"min_bytes": 1, "max_bytes": LARGE, "isolation_level": 0} | changes
    wanted = [p if len(p) == 3 else (*p, LARGE) for p in partitions]
    return v11.FetchRequest(
        replica_id=values.pop("replica_id", -1),
        max_wait=i32Timedelta.parse(timedelta(milliseconds=wait_ms)),
        topics=(
            v11.FetchTopic(
                topic=topic,
                partitions=tuple(
                    v11.FetchPartition(partition=i, fetch_offset=o, partition_max_bytes=m)
                    for i, o, m in wanted
                ),
            ),
        )
        if wanted
        else (),
        forgotten_topics_data=(),
        **values,
    )


def answers(reply) -> list[tuple[int, str, int]]:
    return [
        (p.partition_index, p.error_code.name, len(p.records or b""))
        for p in reply.responses[0].partitions
    ]


@pytest.fixture
async def topic(client):
    return await client.log.create_topic("t", 3)


@pytest.fixture
def append(client, topic, batch):
    def append(index: int, data: bytes | None = None) -> int:
        view = memoryview(data or batch(10))
        client.log.submit([Submission((topic.id, index), read_single(view), view)])
        return len(view)

    return append


async def test_whole_batches_are_sent_with_their_final_offsets(client, append) -> None:
    size = append(0)
    append(0)
    reply = await client.send(fetch((0, 5)))
    assert answers(reply) == [(0, "none", 2 * size)]
    partition = reply.responses[0].partitions[0]
    assert (partition.high_watermark, partition.last_stable_offset) == (20, 20)
    first, second = partition.records[:8], partition.records[size : size + 8]
    assert (int.from_bytes(first, "big"), int.from_bytes(second, "big")) == (0, 10)


async def test_only_the_first_batch_of_a_request_may_exceed_its_bounds(client, append) -> None:
    size = append(0)
    append(1)
    assert answers(await client.send(fetch((0, 0, 1), (1, 0, 1)))) == [
        (0, "none", size),
        (1, "none", 0),
    ]
    # The client's order decides who is first.
    assert answers(await client.send(fetch((1, 0), (0, 0), max_bytes=0))) == [
        (1, "none", size),
        (0, "none", 0),
    ]


@pytest.mark.parametrize("stored", [(), (0,), (1,), (0, 1)])
async def test_what_is_in_memory_is_answered_at_once_and_the_rest_in_a_task(
    client, append, topic, stored
) -> None:
    sizes = [append(0), append(1)]
    client.log.stored = {(topic.id, index) for index in stored}
    request = b"".join(encode_request(7, "test", fetch((0, 0), (1, 0))))
    later = start(client.broker, client.frame(request), "10.0.0.1")
    assert later.is_done == (not stored)
    _, reply = decode_reply(1, 11, memoryview(await client.reply(later)))
    assert answers(reply) == [(0, "none", sizes[0]), (1, "none", sizes[1])]


@pytest.mark.parametrize("offset", [-1, 11, 2**63 - 1])
async def test_an_offset_out_of_range_is_answered_at_once(client, append, offset) -> None:
    append(0)
    reply = await client.send(fetch((0, offset), wait_ms=60_000))
    assert answers(reply) == [(0, "offset_out_of_range", 0)]
    (refused,) = reply.responses[0].partitions
    offsets = (refused.high_watermark, refused.last_stable_offset, refused.log_start_offset)
    assert (offsets, refused.aborted_transactions) == ((-1, -1, 0), None)


async def test_an_append_ends_the_wait(client, append) -> None:
    waiting = asyncio.ensure_future(client.send(fetch((0, 0), wait_ms=60_000)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    size = append(0)
    assert answers(await waiting) == [(0, "none", size)]


async def test_the_wait_goes_on_until_there_is_enough(client, append) -> None:
    waiting = asyncio.ensure_future(client.send(fetch((0, 0), wait_ms=60_000, min_bytes=300)))
    sizes = 0
    while not waiting.done():
        assert sizes < 1000
        sizes += append(0)
        for _ in range(10):
            await asyncio.sleep(0)
    assert answers(await waiting) == [(0, "none", sizes)]


async def test_the_wait_ends_empty_when_its_time_is_over(client, topic) -> None:
    reply = await client.send(fetch((0, 0), wait_ms=1))
    assert answers(reply) == [(0, "none", 0)]


async def test_unknown_topics_partitions_and_epochs_are_named(client, topic) -> None:
    assert answers(await client.send(fetch((0, 0), topic="x", wait_ms=9))) == [
        (0, "unknown_topic_or_partition", 0)
    ]
    assert answers(await client.send(fetch((7, 0), wait_ms=9))) == [
        (7, "unknown_topic_or_partition", 0)
    ]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"session_id": 5, "session_epoch": 1}, "fetch_session_id_not_found"),
        ({"session_id": 0, "session_epoch": 3}, "fetch_session_id_not_found"),
        ({"replica_id": 1}, "cluster_authorization_failed"),
    ],
)
async def test_unknown_sessions_and_replicas_are_refused(client, topic, changes, error) -> None:
    reply = await client.send(fetch((0, 0), **changes))
    assert reply.error_code.name == error
    assert not reply.responses


async def test_a_session_tells_what_is_new_and_nothing_else(client, append) -> None:
    sizes = [append(0), append(1)]
    full = await client.send(fetch((0, 0), (1, 10), (2, 0), session_id=0, session_epoch=0))
    assert answers(full) == [(0, "none", sizes[0]), (1, "none", 0), (2, "none", 0)]
    session_id = full.session_id
    assert session_id > 0

    async def go_on(epoch: int, *partitions: Any, **changes: Any) -> Any:
        return await client.send(
            fetch(*partitions, session_id=session_id, session_epoch=epoch, **changes)
        )

    assert (await go_on(1, (0, 10))).responses == ()
    size = append(2)
    second = await go_on(2)
    assert second.session_id == session_id
    assert answers(second) == [(2, "none", size)]
    assert answers(await go_on(3)) == [(2, "none", size)], "it was not told that this was read"
    assert (await go_on(4, (2, 10))).responses == ()
    assert answers(await go_on(5, (7, 0))) == [(7, "unknown_topic_or_partition", 0)]
    assert (await go_on(5)).error_code.name == "invalid_fetch_session_epoch"


async def test_a_session_waits_for_any_of_its_partitions(client, append) -> None:
    full = await client.send(fetch((0, 0), (1, 0), session_id=0, session_epoch=0))
    session = {"session_id": full.session_id, "session_epoch": 1}
    waiting = asyncio.ensure_future(client.send(fetch(wait_ms=60_000, **session)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    size = append(1)
    assert answers(await waiting) == [(1, "none", size)]


async def test_a_partition_that_had_records_lets_the_others_go_first(client, append) -> None:
    size = append(0)
    append(1)
    full = await client.send(fetch((0, 0), (1, 0), session_id=0, session_epoch=0, max_bytes=1))
    assert answers(full) == [(0, "none", size), (1, "none", 0)]
    order = []
    for epoch in (1, 2, 3, 4):
        session = {"session_id": full.session_id, "session_epoch": epoch, "max_bytes": 1}
        order += [index for index, _, had in answers(await client.send(fetch(**session))) if had]
    assert order == [0, 1, 0, 1]


async def test_a_full_fetch_ends_the_session_it_names(client, topic) -> None:
    first = await client.send(fetch((0, 0), session_id=0, session_epoch=0))
    again = await client.send(fetch((0, 0), session_id=first.session_id, session_epoch=0))
    assert again.session_id not in (0, first.session_id)
    last = await client.send(fetch((0, 0), session_id=again.session_id, session_epoch=-1))
    assert last.session_id == 0
    assert len(client.broker.fetch_sessions) == 0


async def test_a_session_on_two_connections_is_refused_to_the_slower_one(client, append) -> None:
    full = await client.send(fetch((0, 0), session_id=0, session_epoch=0))
    session_id = full.session_id
    slow = asyncio.ensure_future(
        client.send(fetch(session_id=session_id, session_epoch=1, wait_ms=60_000))
    )
    for _ in range(10):
        await asyncio.sleep(0)
    await client.send(fetch(session_id=session_id, session_epoch=2))
    append(0)
    assert (await slow).error_code.name == "invalid_fetch_session_epoch"


async def test_a_session_by_ids_goes_on_by_ids_only(client, topic) -> None:
    partition = v13.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=LARGE)
    wanted = v13.FetchTopic(topic_id=uuid.UUID(bytes=topic.id), partitions=(partition,))
    request = v13.FetchRequest(
        replica_id=-1,
        max_wait=i32Timedelta.parse(timedelta(0)),
        min_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=0,
        topics=(wanted,),
        forgotten_topics_data=(),
    )
    session_id = (await client.send(request)).session_id
    by_name = await client.send(fetch(session_id=session_id, session_epoch=1))
    assert by_name.error_code.name == "fetch_session_topic_id_error"


async def test_a_deleted_topic_is_told_in_a_session(client, append) -> None:
    full = await client.send(fetch((0, 0), session_id=0, session_epoch=0))
    await client.log.delete_topic("t")
    session = {"session_id": full.session_id, "session_epoch": 1}
    reply = await client.send(fetch(wait_ms=60_000, **session))
    assert answers(reply) == [(0, "unknown_topic_or_partition", 0)]


async def test_thousands_of_named_partitions_and_duplicates_have_a_bounded_answer(
    client, append
) -> None:
    size = append(0)
    reply = await client.send(fetch(*[(0, 0)] * 3, *[(index, 0) for index in range(3, 5_000)]))
    assert answers(reply)[0] == (0, "none", size)
    assert [name for _, name, _ in answers(reply)[1:]] == ["unknown_topic_or_partition"] * 4_997


async def test_an_old_client_is_told_that_it_cannot_read_zstd(client, batch) -> None:
    zstd = await client.log.create_topic("z", 1, {"compression.type": "zstd"})
    view = memoryview(batch(1))
    client.log.submit([Submission((zstd.id, 0), read_single(view), view)])
    old = v9.FetchRequest(
        replica_id=-1,
        max_wait=i32Timedelta.parse(timedelta(0)),
        min_bytes=1,
        isolation_level=0,
        topics=(
            v9.FetchTopic(
                topic="z",
                partitions=(
                    v9.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=LARGE),
                ),
            ),
        ),
        forgotten_topics_data=(),
    )
    assert answers(await client.send(old)) == [(0, "unsupported_compression_type", 0)]
    assert answers(await client.send(fetch((0, 0), topic="z"))) == [(0, "none", len(view))]


async def test_an_empty_fetch_is_answered_at_once(client, topic) -> None:
    assert (await client.send(fetch(wait_ms=60_000))).responses == ()


async def test_topics_are_found_by_id(client, append, topic) -> None:
    size = append(0)
    for topic_id, expected in (
        (topic.id, (0, "none", size)),
        (b"\x09" * 16, (0, "unknown_topic_id", 0)),
    ):
        partition = v13.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=LARGE)
        request = v13.FetchRequest(
            replica_id=-1,
            max_wait=i32Timedelta.parse(timedelta(0)),
            min_bytes=1,
            isolation_level=0,
            topics=(v13.FetchTopic(topic_id=uuid.UUID(bytes=topic_id), partitions=(partition,)),),
            forgotten_topics_data=(),
        )
        assert answers(await client.send(request)) == [expected]


async def test_a_stopping_broker_ends_all_waits(client, topic) -> None:
    waiting = asyncio.ensure_future(client.send(fetch((0, 0), wait_ms=60_000)))
    for _ in range(10):
        await asyncio.sleep(0)
    client.broker.draining.set()
    assert answers(await waiting) == [(0, "none", 0)]


async def test_a_client_in_a_zone_is_sent_to_a_broker_there(client, topic) -> None:
    client.log.rows = [
        BrokerRow(number, 1, zone, "h", 9092, "", "object", True, "live", 0)
        for number, zone in ((1, "a"), (2, "b"), (3, "b"))
    ]

    async def preferred(rack: str) -> int:
        (answer,) = (await client.send(fetch((0, 0), rack_id=rack))).responses[0].partitions
        assert answer.error_code.name == "none"
        return answer.preferred_read_replica

    assert await preferred("b") in (2, 3)
    assert [await preferred(rack) for rack in ("a", "c", "")] == [-1, -1, -1]


async def test_committed_readers_stop_at_the_last_stable_offset_and_are_told_what_to_drop(
    client, topic, append
) -> None:
    append(0), append(0)
    key = (topic.id, 0)
    client.log.stable[key] = 10
    client.log.aborted = [AbortedRow(*key, 7, 3, 9)]
    reply = await client.send(fetch((0, 0), isolation_level=1))
    (found,) = reply.responses[0].partitions
    assert (found.high_watermark, found.last_stable_offset) == (20, 10)
    assert [(a.producer_id, a.first_offset) for a in found.aborted_transactions] == [(7, 3)]
    every = (await client.send(fetch((0, 0)))).responses[0].partitions[0]
    assert every.aborted_transactions is None
    assert len(every.records) == 2 * len(found.records)


async def test_a_reply_that_has_something_does_not_wait_for_what_is_far_away(
    client, append, monkeypatch
) -> None:
    size = append(0)
    append(1)
    topic = client.log.topics.find("t")
    client.log.stored = {(topic.id, index) for index in range(topic.partitions)}
    read = client.log.read

    async def slow(*place: Any, **limits: Any) -> Any:
        client.broker.clock.advance(1_000)
        return await read(*place, **limits)

    monkeypatch.setattr(client.log, "read", slow)
    assert answers(await client.send(fetch((0, 0), (1, 0)))) == [(0, "none", size), (1, "none", 0)]
    assert answers(await client.send(fetch((2, 0), (1, 0)))) == [(2, "none", 0), (1, "none", size)]


@pytest.mark.parametrize("count", [10, 5_000])
async def test_a_thread_parses_and_encodes_what_is_large(
    client, append, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    here = threading.get_ident()
    elsewhere: list[bool] = []

    def noted(real: Any, *args: Any, **named: Any) -> Any:
        elsewhere.append(threading.get_ident() != here)
        return real(*args, **named)

    for name in ("parse_fetch", "encode_fetch_reply"):
        monkeypatch.setattr(k01_fetch, name, partial(noted, getattr(k01_fetch, name)))
    size = append(0)
    reply = await client.send(fetch(*((index, 0) for index in range(count))))
    assert elsewhere == [count > 10] * 2
    assert answers(reply) == [
        (0, "none", size), (1, "none", 0), (2, "none", 0),
        *((index, "unknown_topic_or_partition", 0) for index in range(3, count)),
    ]  # fmt: skip


async def test_a_large_fetch_that_is_cut_short_is_malformed(client, append) -> None:
    whole = b"".join(encode_request(7, "test", fetch(*((0, n) for n in range(5_000)))))
    later = start(client.broker, client.frame(whole[:-50]), "10.0.0.1")
    with pytest.raises(MalformedMessage):
        await client.reply(later)
