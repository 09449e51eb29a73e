"""Quotas of clients: whose they are, how long one waits, and how they are set over the protocol."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.alter_client_quotas.v1.request import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from kio.schema.create_topics.v5.request import CreatableTopic as OldTopic
from kio.schema.create_topics.v5.request import CreateTopicsRequest as OldCreateTopicsRequest
from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.describe_client_quotas.v1.request import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.produce.v8.request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kio.static.primitive import f64, i8, i16, i32, i32Timedelta, i64

from catchwater.broker.quotas import (
    ANY_OTHER,
    BURST_S,
    FETCH,
    LAGGING,
    PRODUCE,
    REPLAY,
    REQUEST,
    Accounts,
    ConfiguredLimits,
    Entity,
    Meter,
    Quota,
    QuotaRefused,
    Quotas,
    Rate,
    Settings,
    check_value,
    parsed_entity,
)
from catchwater.clock import ManualClock
from catchwater.wire.errors import ErrorCode


class Shown:
    def __init__(self) -> None:
        self.waits: dict[str, float] = {}
        self.lagging_bytes = 0

    def throttled(self, key: str, seconds: float) -> None:
        self.waits[key] = self.waits.get(key, 0.0) + seconds

    def lagging(self, size_bytes: int) -> None:
        self.lagging_bytes += size_bytes


# --- Whose quota applies


ORDER = [
    Entity("u", "c"), Entity("u", ANY_OTHER), Entity("u", None), Entity(ANY_OTHER, "c"),
    Entity(ANY_OTHER, ANY_OTHER), Entity(ANY_OTHER, None), Entity(None, "c"),
    Entity(None, ANY_OTHER),
]  # fmt: skip
"""Kafka's, the most specific first (KIP-55)."""


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_most_specific_quota_applies_in_kafkas_order(first: int) -> None:
    values = {entity: {PRODUCE: float(10 + at)} for at, entity in enumerate(ORDER) if at >= first}
    found = Settings(values).find(PRODUCE, "u", "c")
    assert found is not None and found.per_s == 10 + first
    assert Settings(values).find(FETCH, "u", "c") is None


def test_an_account_is_shared_by_those_whom_the_entity_does_not_tell_apart() -> None:
    settings = Settings({Entity("", None): {PRODUCE: 1.0}, Entity(None, ""): {FETCH: 1.0}})
    accounts = {
        (user, client): (settings.find(PRODUCE, user, client), settings.find(FETCH, user, client))
        for user in "ab"
        for client in "xy"
    }
    assert accounts["a", "x"][0] == accounts["a", "y"][0] != accounts["b", "x"][0]
    assert accounts["a", "x"][1] == accounts["b", "x"][1] != accounts["a", "y"][1]


def test_users_of_a_tenant_share_an_account_unless_a_longer_name_is_theirs() -> None:
    per_s = {"a-*": 1.0, "a-b-*": 2.0, "a-b-c": 3.0, ANY_OTHER: 4.0, "a-": 5.0}
    settings = Settings({Entity(user, None): {PRODUCE: rate} for user, rate in per_s.items()})
    found = {user: settings.find(PRODUCE, user, "c") for user in
             ("a-1", "a-2", "a-b-1", "a-b-2", "a-b-c", "b", "a", "a-", "a-*")}  # fmt: skip
    rates = {user: rate and rate.per_s for user, rate in found.items()}
    assert rates == {"a-1": 1, "a-2": 1, "a-b-1": 2, "a-b-2": 2, "a-b-c": 3, "b": 4, "a": 4,
                     "a-": 5, "a-*": 1}  # fmt: skip
    assert found["a-1"] == found["a-2"] != found["a-b-1"] == found["a-b-2"]
    of_one = Settings({Entity("a-*", "c"): {PRODUCE: 1.0}, Entity(None, "c"): {PRODUCE: 2.0}})
    assert [of_one.find(PRODUCE, user, "c").per_s for user in ("a-1", "b")] == [1, 2]  # type: ignore[union-attr]
    assert of_one.find(PRODUCE, "a-1", "d") is None


def test_nobody_runs_up_the_debt_of_another_s_replays() -> None:
    """A client id is what a client says it is: by it each user has an account of its own."""
    quotas = Quotas(ManualClock(), Shown(), -1)
    quotas.settings = Settings({Entity(None, "nightly"): {REPLAY: 1_000_000.0}})
    for limits in (
        ConfiguredLimits(-1, {}, quotas),
        ConfiguredLimits(-1, {"client-id:nightly": 1_000_000}),
    ):
        found = [limits.quota(f"User:{user}", "nightly") for user in ("alice", "ANONYMOUS", "bob")]
        assert len({each and each.account for each in found}) == 3
        assert {each and each.bytes_per_s for each in found} == {1_000_000}


# --- How long one waits


@pytest.mark.parametrize(
    ("size", "clients"), [(1_000, 1), (50_000, 1), (20_000, 8), (3_000_000, 2)]
)
def test_clients_of_an_account_come_to_its_rate_together(size: int, clients: int) -> None:
    clock, shown = ManualClock(), Shown()
    quotas = Quotas(clock, shown, -1)
    quotas.settings = Settings({Entity("u", None): {PRODUCE: 1_000_000.0}})
    ready_s = dict.fromkeys(range(clients), clock.monotonic_s())
    began_s, taken = clock.monotonic_s(), 0
    while clock.monotonic_s() - began_s < 30:
        at = min(ready_s, key=lambda each: ready_s[each])
        clock.advance(max(0, round((ready_s[at] - clock.monotonic_s()) * 1000)))
        meter = Meter(quotas, "User:u", f"c{at}")
        meter.take(PRODUCE, size)
        taken += size
        ready_s[at] = clock.monotonic_s() + max(meter.throttle_s, 0.001)
    rate = taken / (max(ready_s.values()) - began_s)
    assert rate == pytest.approx(1_000_000, rel=0.15)


def test_who_rests_has_earned_a_second_in_advance_and_no_more() -> None:
    accounts, rate = Accounts(), Rate(("k", "u", ""), 100.0)
    assert accounts.charge(rate, 100, 1_000.0) == pytest.approx(1 - BURST_S)
    assert accounts.charge(rate, 100, 1_000.0) == pytest.approx(1.0)
    assert accounts.charge(rate, 100, 9_000.0) == pytest.approx(1 - BURST_S)
    assert accounts.debt_s(rate, 9_000.0) == 0


def test_those_who_lag_are_bounded_together_and_hold_nobody_else_up() -> None:
    clock, shown = ManualClock(), Shown()
    quotas = Quotas(clock, shown, 1_000_000)
    for name in "abc":
        Meter(quotas, f"User:{name}", "").take_lagging(1_000_000)
    late = Meter(quotas, "User:d", "")
    late.take_lagging(1)
    assert late.throttle_s == pytest.approx(2.0, abs=0.01)
    at_the_tail = Meter(quotas, "User:a", "")
    at_the_tail.take(FETCH, 10**9)
    assert at_the_tail.throttle_s == 0
    assert shown.lagging_bytes == 3_000_001
    assert shown.waits.keys() == {LAGGING}


def test_without_quotas_nothing_is_metered() -> None:
    assert Quotas(ManualClock(), Shown(), 1).meter("User:a", "c") is None


# --- How they are set


@pytest.mark.parametrize(
    "named",
    [[], [("ip", "10.0.0.1")], [("user", "a"), ("user", "b")], [("user", "")], [("group", "a")]],
)
def test_what_is_no_entity_is_refused(named: Any) -> None:
    with pytest.raises(QuotaRefused):
        parsed_entity(named)


@pytest.mark.parametrize(
    ("key", "value"),
    [(PRODUCE, 0.0), (PRODUCE, -1.0), (PRODUCE, float("nan")), (FETCH, float("inf")), ("x", 1.0)],
)
def test_what_lets_nothing_pass_is_refused(key: str, value: float) -> None:
    with pytest.raises(QuotaRefused):
        check_value(key, value)


def alter(
    *entity: tuple[str, str | None], validate_only: bool = False, **values: float | None
) -> AlterClientQuotasRequest:
    ops = tuple(
        OpData(key=key, value=f64(value or 0.0), remove=value is None)
        for key, value in values.items()
    )
    named = tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity)
    entry = EntryData(entity=named, ops=ops)
    return AlterClientQuotasRequest(entries=(entry,), validate_only=validate_only)


def describe(*parts: tuple[str, int, str | None], strict: bool = False) -> Any:
    components = tuple(
        ComponentData(entity_type=kind, match_type=i8(match), match=name)
        for kind, match, name in parts
    )
    return DescribeClientQuotasRequest(components=components, strict=strict)


def shown_in(reply: Any) -> set[Any]:
    return {
        (
            tuple((each.entity_type, each.entity_name) for each in entry.entity),
            tuple((each.key, each.value) for each in entry.values),
        )
        for entry in reply.entries
    }


def test_quotas_are_set_described_and_removed_over_the_protocol(client: Any) -> None:
    async def scenario() -> None:
        for request in (
            alter(("user", "alice"), producer_byte_rate=1000.0, request_percentage=50.0),
            alter(("user", None), producer_byte_rate=2000.0),
            alter(("user", "alice"), ("client-id", "c"), consumer_byte_rate=5.0),
            alter(("client-id", "c"), consumer_byte_rate=9.0, validate_only=True),
        ):
            (entry,) = (await client.send(request)).entries
            assert entry.error_code == ErrorCode.NONE
        alice = ((("user", "alice"),), ((PRODUCE, 1000.0), (REQUEST, 50.0)))
        default = ((("user", None),), ((PRODUCE, 2000.0),))
        both = ((("user", "alice"), ("client-id", "c")), ((FETCH, 5.0),))
        assert shown_in(await client.send(describe())) == {alice, default, both}
        asked = describe(("user", 0, "alice"))
        assert shown_in(await client.send(asked)) == {alice, both}
        asked = describe(("user", 0, "alice"), strict=True)
        assert shown_in(await client.send(asked)) == {alice}
        assert shown_in(await client.send(describe(("user", 1, None)))) == {default}
        asked = describe(("user", 2, None), strict=True)
        assert shown_in(await client.send(asked)) == {alice, default}
        assert shown_in(await client.send(describe(("ip", 2, None)))) == set()
        await client.send(
            alter(("user", "alice"), producer_byte_rate=None, request_percentage=None)
        )
        assert shown_in(await client.send(describe())) == {default, both}
        (entry,) = (await client.send(alter(("ip", "10.0.0.1"), connection_rate=1.0))).entries
        assert entry.error_code == ErrorCode.INVALID_REQUEST and "user" in entry.error_message
        refused = await client.send(describe(("user", 0, None)))
        assert refused.error_code == ErrorCode.INVALID_REQUEST

    asyncio.run(scenario())


# --- What they do to requests


def produce(batch: bytes) -> ProduceRequest:
    data = PartitionProduceData(index=i32(0), records=batch)
    return ProduceRequest(
        transactional_id=None, acks=i16(1), timeout=i32Timedelta.parse(timedelta(seconds=1)),
        topic_data=(TopicProduceData(name="t", partition_data=(data,)),),
    )  # fmt: skip


def fetch(max_bytes: int = 50_000_000) -> FetchRequest:
    partition = FetchPartition(
        partition=i32(0), current_leader_epoch=i32(-1), fetch_offset=i64(0),
        last_fetched_epoch=i32(-1), log_start_offset=i64(-1), partition_max_bytes=i32(max_bytes),
    )  # fmt: skip
    return FetchRequest(
        max_wait=i32Timedelta.parse(timedelta(0)), min_bytes=i32(1), max_bytes=i32(max_bytes),
        isolation_level=i8(0), session_id=i32(0), session_epoch=i32(-1),
        topics=(FetchTopic(topic="t", partitions=(partition,)),), forgotten_topics_data=(),
        rack_id="",
    )  # fmt: skip


def ms(reply: Any) -> float:
    return float(reply.throttle_time / timedelta(milliseconds=1))


def test_a_producer_over_its_rate_is_taken_and_told_to_wait(client: Any, batch: Any) -> None:
    async def scenario() -> None:
        await client.log.create_topic("t", 1)
        await client.send(alter(("client-id", "slow"), producer_byte_rate=1000.0))
        data = batch(100)
        first = await client.send(produce(data), client_id="slow")
        assert ms(first) == pytest.approx(len(data) - 1000, abs=100)
        assert first.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        again = await client.send(produce(data), client_id="slow")
        assert ms(again) == pytest.approx(2 * len(data) - 1000, abs=200)
        assert ms(await client.send(produce(data), client_id="quick")) == 0
        assert client.log.state((client.log.topics.find("t").id, 0)).high_watermark == 300

    asyncio.run(scenario())


def test_a_consumer_gets_what_a_second_has_and_is_told_to_wait(client: Any, batch: Any) -> None:
    async def scenario() -> None:
        topic = await client.log.create_topic("t", 1)
        for _ in range(10):
            await client.send(produce(batch(100)))
        size = len(client.log.batches[topic.id, 0][0][2])
        await client.send(alter(("user", "ANONYMOUS"), consumer_byte_rate=float(size)))
        first = await client.send(fetch())
        records = first.responses[0].partitions[0].records
        assert len(records) == size, "not all that there is"
        assert ms(first) == 0
        assert ms(await client.send(fetch())) == pytest.approx(1000, abs=10)

    asyncio.run(scenario())


def test_what_lies_in_storage_is_a_class_of_its_own(client: Any, batch: Any) -> None:
    async def scenario() -> None:
        topic = await client.log.create_topic("t", 1)
        await client.send(produce(batch(100)))
        size = len(client.log.batches[topic.id, 0][0][2])
        client.broker.quotas.all_lagging = Rate((LAGGING, "", ""), float(size))
        assert [ms(await client.send(fetch())) for _ in range(3)] == [0, 0, 0]
        client.log.stored.add((topic.id, 0))
        assert ms(await client.send(fetch())) == 0
        assert ms(await client.send(fetch())) == pytest.approx(1000, abs=10)
        page = client.broker.metrics.page().decode()
        assert f"catchwater_lagging_bytes_total {2.0 * size}" in page
        assert 'catchwater_throttled_seconds_total{quota="lagging_byte_rate"}' in page

    asyncio.run(scenario())


def test_time_is_charged_and_told(client: Any) -> None:
    async def scenario() -> None:
        ticks = iter(range(10_000_000))
        client.broker.clock.monotonic_s = lambda: 1_000 + next(ticks) / 1000  # each look: 1 ms
        await client.send(alter(("user", "ANONYMOUS"), request_percentage=0.01))
        request = MetadataRequest(
            topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        await client.send(request)
        assert ms(await client.send(request)) > 0

    asyncio.run(scenario())


def create(name: str, partitions: int) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=name, num_partitions=i32(partitions), replication_factor=i16(-1), assignments=(),
        configs=(),
    )  # fmt: skip
    return CreateTopicsRequest(
        topics=(topic,), timeout=i32Timedelta.parse(timedelta(seconds=1)), validate_only=False
    )


def test_strict_clients_are_refused_over_the_rate_of_mutations_and_others_wait(client: Any) -> None:
    async def scenario() -> None:
        await client.send(alter(("user", "ANONYMOUS"), controller_mutation_rate=1.0))
        first = await client.send(create("a", 30))
        assert first.topics[0].error_code == ErrorCode.NONE
        assert ms(first) == pytest.approx(20_000, abs=100)
        second = await client.send(create("b", 1))
        assert second.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert ms(second) == pytest.approx(20_000, abs=100)
        assert client.log.topics.get("b") is None
        old = OldTopic(
            name="c", num_partitions=i32(1), replication_factor=i16(-1), assignments=(), configs=()
        )
        request = OldCreateTopicsRequest(
            topics=(old,), timeout=i32Timedelta.parse(timedelta(seconds=1)), validate_only=False
        )
        assert (await client.send(request)).topics[0].error_code == ErrorCode.NONE
        assert client.log.topics.get("c") is not None

    asyncio.run(scenario())


def test_a_replays_quota_may_be_set_over_the_protocol(client: Any) -> None:
    async def scenario() -> None:
        limits = client.broker.replay_quotas.limits
        assert limits.quota("User:alice", "nightly") is None
        await client.send(alter(("user", "alice"), **{REPLAY: 1000.0}))
        assert limits.quota("User:alice", "nightly") == Quota(f"{REPLAY} alice ", 1000)
        assert limits.quota("User:bob", "nightly") is None

    asyncio.run(scenario())
