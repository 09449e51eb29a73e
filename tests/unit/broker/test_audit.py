"""What a broker writes into its audit trail: refusals, logins that failed, and what was changed."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.delete_records.v2.request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64
from tests.listeners import listener
from tests.unit.broker.test_control_entry import call

from catchwater.audit import AUDIT_TOPIC, Event, Line, Trail, lines_of, verify
from catchwater.broker.access import Guard, Rule, change, with_rule, with_user
from catchwater.broker.audit import MOST_WAITING, Audit, Unwritten
from catchwater.broker.gate import (
    AllButSealed,
    Operation,
    Resource,
    ResourceType,
)
from catchwater.broker.login import Session
from catchwater.broker.router import start
from catchwater.objects.memory import MemoryStore
from catchwater.wire.batch import HEADER_BYTES, check, read_header, walk_plainly
from catchwater.wire.errors import ErrorCode
from catchwater.wire.security.verifiers import verifiers

TOPIC = ResourceType.TOPIC
LISTENER = listener(protocol="SASL_SSL", mechanisms=("PLAIN", "SCRAM-SHA-256"))
TIMEOUT = i32Timedelta.parse(timedelta(seconds=10))


def event(**more: Any) -> Event:
    plain = {
        "time_ms": 1, "kind": "refusal", "principal": "User:eve", "listener": "SASL_SSL",
        "host": "10.0.0.9", "action": "Fetch READ", "resource": "TOPIC t",
    }  # fmt: skip
    return Event(**(plain | more))


# --- What waits to be written


def test_a_flood_of_refusals_is_summed_and_none_is_lost() -> None:
    unwritten = Unwritten(0.0)
    for number in range(50_000):
        unwritten.add(event(resource=f"TOPIC t{number}"), number / 10_000)
    written = unwritten.take(5.0)
    assert len(written) <= 1_600, "so many a second, and a beginning"
    written += unwritten.take(20.0)
    assert sum(each.count for each in written) == 50_000


def test_a_flood_of_many_clients_is_summed_for_all() -> None:
    unwritten = Unwritten(0.0)
    for number in range(30_000):
        unwritten.add(event(host=f"10.{number // 250}.{number % 250}.1"), 0.0)
    written = unwritten.take(20.0)
    assert len(written) <= 2_001
    assert sum(each.count for each in written) == 30_000
    assert ("*", "*") in [(each.principal, each.resource) for each in written]


def test_a_flood_of_refusals_hides_no_action() -> None:
    unwritten = Unwritten(0.0)
    for _ in range(20_000):
        unwritten.add(event(), 0.0)
    unwritten.add(event(kind="action", action="DeleteTopics"), 0.0)
    assert "DeleteTopics" in [each.action for each in unwritten.take(0.0)]


def test_what_could_not_be_written_comes_first_the_next_time() -> None:
    unwritten = Unwritten(0.0)
    for number in range(MOST_WAITING + 10):
        unwritten.add(event(kind="action", resource=f"TOPIC t{number}"), 0.0)
    taken = unwritten.take(0.0)
    unwritten.add(event(kind="action", resource="later"), 0.0)
    unwritten.give_back(taken, 0.0)
    again = unwritten.take(60.0)
    assert again[0] == taken[0]
    assert sum(each.count for each in again) == MOST_WAITING + 11


# --- A broker's


class Audited:
    def __init__(self, client: Any, folder: Path) -> None:
        self.client, self.broker = client, client.broker
        self.folder = folder
        self.objects = MemoryStore(self.broker.clock)
        self.broker.log.objects = self.objects
        self.trail = Trail(folder, "broker-1", self.broker.clock, retention_ms=86_400_000)
        self.broker.audit = Audit(self.broker, self.trail)
        self.broker.gate = AllButSealed()

    def guard(self, folder: Path, *rules: Rule) -> None:
        path = folder / "access.json"

        def decide(now: Any) -> Any:
            now = with_user(now, "alice", verifiers("secret"))
            for rule in rules:
                now = with_rule(now, rule)
            return now

        change(path, decide)
        self.broker.guard = Guard(path, ["User:admin"])

    async def send_as(self, user: str, message: Any) -> Any:
        """As the client does, over a connection of this user."""
        session = Session(self.broker.guard, "10.0.0.1", LISTENER, self.broker.clock)
        session._enter(user)
        from catchwater.wire.messages import decode_reply, encode_request

        data = b"".join(encode_request(7, "c", message))
        frame = self.client.frame(data)
        later = start(self.broker, frame, "10.0.0.1", session, LISTENER.name)
        reply = memoryview(await self.client.reply(later))
        return decode_reply(message.__api_key__, message.__version__, reply)[1]

    async def lines(self) -> list[Line]:
        await self.broker.audit.flush(all_=True)
        assert verify(lines_of(self.folder)).findings == []
        found = [msgspec.json.decode(data, type=Line) for _, data in lines_of(self.folder)]
        return [line for line in found if line.kind != "trail"]


@pytest.fixture
def audited(client: Any, tmp_path: Path) -> Audited:
    return Audited(client, tmp_path / "audit")


def create(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=name, num_partitions=i32(2), replication_factor=i16(-1), assignments=(), configs=()
    )
    return CreateTopicsRequest(topics=(topic,), timeout=TIMEOUT)


def alter(name: str, value: str) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name="retention.ms", config_operation=i8(0), value=value)
    resource = AlterConfigsResource(resource_type=i8(2), resource_name=name, configs=(config,))
    return IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)


def shorten(name: str) -> DeleteRecordsRequest:
    partition = DeleteRecordsPartition(partition_index=i32(0), offset=i64(-1))
    topic = DeleteRecordsTopic(name=name, partitions=(partition,))
    return DeleteRecordsRequest(topics=(topic,), timeout=TIMEOUT)


def delete(name: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topic_names=(name,), timeout=TIMEOUT)


def grow(name: str) -> CreatePartitionsRequest:
    topic = CreatePartitionsTopic(name=name, count=i32(5), assignments=None)
    return CreatePartitionsRequest(topics=(topic,), timeout=TIMEOUT, validate_only=False)


def test_what_was_there_before_and_after_stands_in_a_line(audited: Audited) -> None:
    async def scenario() -> None:
        await audited.client.send(create("payments"))
        await audited.client.send(alter("payments", "1000"))
        await audited.client.send(alter("payments", "1000"))
        await audited.client.send(grow("payments"))
        await audited.client.send(delete("payments"))
        page = audited.broker.metrics.page().decode()
        assert 'catchwater_audited_total{kind="action"}' in page
        made, altered, grown, gone = await audited.lines()
        assert (made.action, made.resource, made.before) == (
            "CreateTopics", "TOPIC payments", None
        )  # fmt: skip
        assert made.after["partitions"] == 2
        assert (altered.before, altered.after) == (
            {"settings": {"retention.ms": None}},
            {"settings": {"retention.ms": "1000"}},
        )
        assert (grown.before, grown.after) == ({"partitions": 2}, {"partitions": 5})
        assert (gone.action, gone.before["partitions"], gone.after) == ("DeleteTopics", 5, None)
        assert (gone.principal, gone.host) == ("User:ANONYMOUS", "10.0.0.1")

    asyncio.run(scenario())


def test_positions_that_are_set_back_from_outside_are_a_line(audited: Audited) -> None:
    from kio.schema.offset_commit.v8.request import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )

    async def commit(offset: int) -> None:
        partition = OffsetCommitRequestPartition(
            partition_index=i32(0), committed_offset=i64(offset), committed_metadata=None
        )
        topic = OffsetCommitRequestTopic(name="payments", partitions=(partition,))
        reply = await audited.client.send(
            OffsetCommitRequest(
                group_id="g", generation_id_or_member_epoch=i32(-1), member_id="", topics=(topic,)
            )
        )
        assert not reply.topics[0].partitions[0].error_code

    async def scenario() -> None:
        await audited.broker.log.create_topic("payments", 1)
        for offset in (5, 7, 2):
            await commit(offset)
        (line,) = await audited.lines()
        assert (line.action, line.resource) == ("OffsetCommit", "GROUP g")
        assert (line.before, line.after) == ({"payments-0": 7}, {"payments-0": 2})

    asyncio.run(scenario())


def test_a_refusal_names_who_what_and_the_rule(audited: Audited, tmp_path: Path) -> None:
    async def scenario() -> None:
        audited.guard(
            tmp_path,
            Rule("User:alice", "ALLOW", "ALL", TOPIC, "pay", "PREFIXED"),
            Rule("User:alice", "DENY", "DELETE", TOPIC, "payments"),
        )
        await audited.broker.log.create_topic("payments", 1)
        await audited.send_as("alice", delete("payments"))
        await audited.send_as("alice", alter("others", "1"))
        await audited.send_as("alice", alter("payments", "1"))
        denied, other, allowed = await audited.lines()
        assert (denied.kind, denied.action, denied.resource, denied.principal, denied.listener) == (
            "refusal", "DeleteTopics DELETE", "TOPIC payments", "User:alice", "SASL_SSL"
        )  # fmt: skip
        assert denied.rule == "User:alice DENY DELETE TOPIC payments LITERAL *"
        assert (other.action, other.rule) == ("IncrementalAlterConfigs ALTER_CONFIGS", "no rule")
        assert (allowed.kind, allowed.rule) == (
            "action", "User:alice ALLOW ALL TOPIC pay PREFIXED *"
        )  # fmt: skip

    asyncio.run(scenario())


def test_the_control_api_is_audited_too(audited: Audited, tmp_path: Path) -> None:
    async def scenario() -> None:
        audited.guard(tmp_path)

        async def pins() -> list[Any]:
            return []

        audited.broker.log.pins = pins
        path = "/api/v1/pins/p"
        body = {"owner": "o", "positions": [{"topic": "t", "partition": 0, "offset": 0}]}
        status, *_ = await call(
            audited.broker, "PUT", path, body, ("alice", "secret"), host="localhost"
        )
        assert status == 403
        status, *_ = await call(
            audited.broker, "PUT", path, body, ("alice", "wrong"), host="localhost"
        )
        assert status == 401
        refused, login = await audited.lines()
        assert (refused.kind, refused.principal, refused.action, refused.resource) == (
            "refusal", "User:alice", "PUT", path
        )  # fmt: skip
        assert (login.kind, login.host) == ("login", "127.0.0.1")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("mechanism", "messages", "tried"),
    [
        ("PLAIN", [b"\0alice\0wrong"], "USER alice"),
        ("PLAIN", [b"\0" + b"x" * 900 + b"\0wrong"], "USER " + "x" * 100),
        ("PLAIN", [b"wrong"], ""),
        ("SCRAM-SHA-256", [b"n,,n=bob=2C jr,r=wrong", b"c=biws,r=wrong,p=wrong"], "USER bob, jr"),
    ],
    ids=["a password", "a long name", "no name", "a proof"],
)
def test_a_failed_login_is_a_line_that_says_who_it_claimed_to_be(
    audited: Audited, tmp_path: Path, mechanism: str, messages: list[bytes], tried: str
) -> None:
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

    from catchwater.wire.messages import encode_request

    async def scenario() -> None:
        audited.guard(tmp_path)
        session = Session(audited.broker.guard, "10.0.0.1", LISTENER, audited.broker.clock)

        async def at_once(seconds: float) -> None: ...

        audited.broker.clock.sleep = at_once
        for message in (
            SaslHandshakeRequest(mechanism=mechanism),
            *(SaslAuthenticateRequest(auth_bytes=each) for each in messages),
        ):
            data = b"".join(encode_request(7, "c", message))
            later = start(audited.broker, audited.client.frame(data), "10.0.0.1", session)
            await audited.client.reply(later)
        (line,) = await audited.lines()
        assert (line.kind, line.action, line.host) == ("login", "SaslAuthenticate", "10.0.0.1")
        assert (line.principal, line.resource) == ("User:ANONYMOUS", tried)
        assert "wrong" not in audited.trail.folder.joinpath("audit-000000000001.jsonl").read_text()

    asyncio.run(scenario())


def test_the_topic_has_the_same_lines_and_nobody_changes_it(
    audited: Audited, tmp_path: Path
) -> None:
    async def scenario() -> None:
        audited.guard(tmp_path)
        await audited.send_as("admin", create("payments"))
        await audited.lines()
        topic = audited.broker.log.topics.find(AUDIT_TOPIC)
        assert topic.config["retention.ms"] == str(365 * 86_400_000)
        ((_, _, batch),) = audited.broker.log.batches[topic.id, 0]
        (own, line) = [
            msgspec.json.decode(data, type=Line)
            for _, data in lines_of(audited.folder)
            if data in batch or b"BEGIN" in data
        ]
        assert own.action == "BEGIN"
        header, rows = read_header(memoryview(batch)), memoryview(batch)[HEADER_BYTES:]
        check(memoryview(batch), header, max_bytes=10_000, latest_timestamp_ms=2**60)
        assert walk_plainly(rows, header.record_count)[0] == 0
        assert (line.principal, line.action, line.rule) == (
            "User:admin", "CreateTopics", "super.users"
        )  # fmt: skip
        before = topic, audited.broker.log.state((topic.id, 0))
        replies = [
            (await audited.send_as("admin", delete(AUDIT_TOPIC))).responses[0].error_code,
            (await audited.send_as("admin", shorten(AUDIT_TOPIC)))
            .topics[0]
            .partitions[0]
            .error_code,
            (await audited.send_as("admin", alter(AUDIT_TOPIC, "1"))).responses[0].error_code,
            (await audited.send_as("admin", grow(AUDIT_TOPIC))).results[0].error_code,
        ]
        assert replies == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 4
        now = audited.broker.log.topics.find(AUDIT_TOPIC)
        assert (now, audited.broker.log.state((topic.id, 0))) == before

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", Operation)
def test_the_trail_s_topic_is_only_read(operation: Operation) -> None:
    reads = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}
    resource = Resource(TOPIC, AUDIT_TOPIC)
    assert AllButSealed().may("User:a", operation, resource) == (operation in reads)


def test_a_disk_that_is_full_loses_no_line(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await audited.client.send(create("payments"))
        append = audited.trail.append

        def full(events: Any) -> Any:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(audited.trail, "append", full)
        await audited.broker.audit.flush()
        monkeypatch.setattr(audited.trail, "append", append)
        assert [line.action for line in await audited.lines()] == ["CreateTopics"]

    asyncio.run(scenario())


def test_nothing_is_written_on_the_event_loop(audited: Audited, is_on_loop: Any) -> None:
    seen = is_on_loop((Trail, "append"), (Trail, "anchor"))

    async def scenario() -> None:
        await audited.client.send(create("payments"))
        await audited.broker.audit.flush(all_=True)

    asyncio.run(scenario())
    assert seen == [False, False]


def test_changes_of_rules_are_shown_by_what_is_other() -> None:
    from catchwater.broker.audit import differences

    many = [f"r{number}" for number in range(7_000)]
    was = {"users": ["a"], "rules": many}
    now = {"users": ["a", "b"], "rules": many[1:]}
    assert differences(was, now) == (
        {"rules": ["r0"], "users": []},
        {"rules": [], "users": ["b"]},
    )
