"""Cases of consumer groups: members of the classic protocol and of KIP-848, positions, admin."""

from typing import Any

from conformance.differ.cases import case
from conformance.differ.talk import NO_TOPIC_ID, Talk, Topic

COMMIT, FETCH_OFFSETS, FIND, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
DESCRIBE, LIST, DELETE, DELETE_OFFSETS, CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = (
    15,
    16,
    42,
    47,
    68,
    69,
)

JOINING: dict[str, Any] = {
    "session_timeout": 30_000,
    "rebalance_timeout": 30_000,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"\0\1"}],
}
OUTSIDE = {"generation_id_or_member_epoch": -1, "member_id": ""}


class Member:
    """The one member of a new group that is stable, of the classic protocol."""

    def __init__(self, talk: Talk, group: str) -> None:
        first = talk.prepare(JOIN, group_id=group, member_id="", **JOINING)
        self.id: str = first.member_id
        self.group = group
        joined = talk.prepare(JOIN, group_id=group, member_id=self.id, **JOINING)
        self.generation: int = joined.generation_id
        talk.prepare(
            SYNC,
            group_id=group,
            generation_id=self.generation,
            member_id=self.id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": self.id, "assignment": b"\7"}],
        )

    def fields(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.id,
            "generation_id": self.generation,
        }


def committed(topic: Topic, offset: int = 5, *partitions: int, **fields: Any) -> dict[str, Any]:
    """An OffsetCommit of some partitions (0 by default), in whatever version."""
    asked = [
        {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "m",
        }
        for index in partitions or (0,)
    ]
    topics = [{"name": topic.name, "topic_id": topic.id, "partitions": asked}]
    return {"topics": topics, "retention_time": -1, **OUTSIDE, **fields}


def positions(group: str, topic: Topic | None, *partitions: int, **fields: Any) -> dict[str, Any]:
    """An OffsetFetch of one group, in whatever version; of all topics for None."""
    topics = None
    if topic is not None:
        asked = list(partitions or (0,))
        topics = [{"name": topic.name, "topic_id": topic.id, "partition_indexes": asked}]
    one = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
    return {"group_id": group, "topics": topics, "groups": [one], **fields}


@case(FIND)
def coordinators(talk: Talk) -> None:
    for key_type in (0, 1, 2, 9):
        for key in ("some", ""):
            talk.ask(key=key, key_type=key_type, coordinator_keys=[key])


@case(JOIN)
def a_first_member(talk: Talk) -> None:
    group = talk.name("group")
    first = talk.ask(group_id=group, member_id="", **JOINING)
    member_id = getattr(first, "member_id", "")
    joined = talk.ask(group_id=group, member_id=member_id, **JOINING)
    generation = getattr(joined, "generation_id", -1)
    for number in (generation + 1, generation):
        talk.also(
            SYNC, group_id=group, generation_id=number, member_id=member_id,
            protocol_type="consumer", protocol_name="range",
            assignments=[{"member_id": member_id, "assignment": b"\7"}],
        )  # fmt: skip
    talk.ask(group_id=group, member_id=member_id, **JOINING)


@case(JOIN)
def what_may_not_join(talk: Talk) -> None:
    group = talk.name("group")
    talk.ask(group_id="", member_id="", **JOINING)
    talk.ask(group_id=group, member_id="nobody", **JOINING)
    for timeout_ms in (1, 2**31 - 1):
        talk.ask(group_id=group, member_id="", **JOINING | {"session_timeout": timeout_ms})
    talk.ask(group_id=group, member_id="", **JOINING | {"protocols": []})
    talk.ask(group_id=group, member_id="", **JOINING | {"protocol_type": ""})


@case(JOIN)
def of_another_kind(talk: Talk) -> None:
    member = Member(talk, talk.name("group"))
    talk.ask(group_id=member.group, member_id="", **JOINING | {"protocol_type": "connect"})
    other = [{"name": "sticky", "metadata": b""}]
    talk.ask(group_id=member.group, member_id="", **JOINING | {"protocols": other})


@case(JOIN)
def a_static_member(talk: Talk) -> None:
    if talk.version < 5:
        return
    group = talk.name("group")
    talk.ask(group_id=group, member_id="", group_instance_id="i", **JOINING)
    talk.ask(group_id=group, member_id="nobody", group_instance_id="i", **JOINING)


@case(SYNC)
def out_of_turn(talk: Talk) -> None:
    member = Member(talk, talk.name("group"))
    same = {"protocol_type": "consumer", "protocol_name": "range"}
    talk.ask(**member.fields(), **same)
    talk.ask(**member.fields() | {"member_id": "nobody"}, **same)
    talk.ask(**member.fields() | {"generation_id": 9}, **same)
    talk.ask(**member.fields() | {"group_id": talk.name("no")}, **same)
    talk.ask(**member.fields(), protocol_type="connect", protocol_name="range")
    talk.ask(**member.fields(), protocol_type="consumer", protocol_name="sticky")


@case(HEARTBEAT)
def signs_of_life(talk: Talk) -> None:
    member = Member(talk, talk.name("group"))
    talk.ask(**member.fields())
    talk.ask(**member.fields() | {"member_id": "nobody"})
    talk.ask(**member.fields() | {"generation_id": 9})
    talk.ask(**member.fields() | {"group_id": talk.name("no")})
    talk.ask(**member.fields() | {"group_id": ""})


@case(LEAVE)
def leaving(talk: Talk) -> None:
    member = Member(talk, talk.name("group"))
    for name in ("nobody", member.id, member.id):
        talk.ask(group_id=member.group, member_id=name, members=[{"member_id": name}])
    talk.ask(group_id=talk.name("no"), member_id="x", members=[{"member_id": "x"}])
    talk.ask(group_id="", member_id="x", members=[{"member_id": "x"}])


@case(COMMIT)
def positions_from_outside(talk: Talk) -> None:
    topic, group = talk.topic(), talk.name("group")
    talk.ask(**committed(topic, 5, 0, 9, group_id=group))
    talk.ask(**committed(topic, -1, group_id=group))
    talk.ask(**committed(Topic(talk.name("no"), NO_TOPIC_ID), group_id=group))
    talk.also(FETCH_OFFSETS, **positions(group, topic, 0, 9))


@case(COMMIT)
def positions_of_members(talk: Talk) -> None:
    topic, member = talk.topic(), Member(talk, talk.name("group"))
    good = {
        "group_id": member.group,
        "member_id": member.id,
        "generation_id_or_member_epoch": member.generation,
    }
    talk.ask(**committed(topic, **good))
    talk.ask(**committed(topic, **good | {"member_id": "nobody"}))
    talk.ask(**committed(topic, **good | {"generation_id_or_member_epoch": 9}))
    talk.ask(**committed(topic, group_id=member.group))
    talk.ask(**committed(topic, **good | {"group_id": talk.name("no")}))
    talk.ask(**committed(topic, **good | {"group_id": ""}))


@case(COMMIT)
def long_metadata(talk: Talk) -> None:
    fields = committed(talk.topic(), group_id=talk.name("group"))
    fields["topics"][0]["partitions"][0]["committed_metadata"] = "m" * 5_000
    talk.ask(**fields)


@case(FETCH_OFFSETS)
def positions_read(talk: Talk) -> None:
    topic, group = talk.topic("t", 2), talk.name("group")
    talk.prepare(COMMIT, **committed(topic, 5, 1, group_id=group))
    talk.ask(**positions(group, topic, 0, 1, 7))
    if talk.version >= 2:
        talk.ask(**positions(group, None))
        talk.ask(**positions(talk.name("no"), None))
    talk.ask(**positions(talk.name("no"), topic))
    talk.ask(**positions(group, Topic(talk.name("no"), NO_TOPIC_ID)))
    talk.ask(**positions("", topic))


@case(FETCH_OFFSETS)
def positions_read_by_a_member(talk: Talk) -> None:
    topic, member = talk.topic(), Member(talk, talk.name("group"))
    for name, epoch in ((member.id, member.generation), (member.id, 9), ("nobody", 1), (None, 5)):
        asked = positions(member.group, topic)
        asked["groups"][0] |= {"member_id": name, "member_epoch": epoch}
        talk.ask(**asked)


@case(DESCRIBE)
def groups_described(talk: Talk) -> None:
    member = Member(talk, talk.name("group"))
    talk.ask(groups=[member.group, talk.name("no"), ""], include_authorized_operations=True)


@case(LIST)
def groups_listed(talk: Talk) -> None:
    topic, member = talk.topic(), Member(talk, talk.name("member"))
    talk.prepare(COMMIT, **committed(topic, group_id=talk.name("empty")))
    talk.ask_of_mine()
    talk.ask_of_mine(states_filter=["Stable"], types_filter=["classic"])
    talk.also(HEARTBEAT, **member.fields())


@case(LIST)
def groups_by_state(talk: Talk) -> None:
    for states, types in ((["NoSuchState"], []), (["Dead"], []), ([], ["no-such-type"])):
        talk.ask_of_mine(states_filter=states, types_filter=types)


@case(DELETE)
def groups_deleted(talk: Talk) -> None:
    topic, group = talk.topic(), talk.name("empty")
    member = Member(talk, talk.name("group"))
    talk.prepare(COMMIT, **committed(topic, group_id=group))
    talk.ask(groups_names=[member.group, group, talk.name("no"), ""])
    talk.ask(groups_names=[group, group])


@case(DELETE_OFFSETS)
def positions_deleted(talk: Talk) -> None:
    topic, group = talk.topic("t", 2), talk.name("group")
    talk.prepare(COMMIT, **committed(topic, 5, 0, 1, group_id=group))
    partitions = [{"partition_index": index} for index in (0, 7)]
    talk.ask(group_id=group, topics=[{"name": topic.name, "partitions": partitions}])
    talk.also(FETCH_OFFSETS, **positions(group, topic, 0, 1))
    nowhere = [{"name": talk.name("no"), "partitions": [{"partition_index": 0}]}]
    talk.ask(group_id=group, topics=nowhere)
    talk.ask(group_id=talk.name("no"), topics=nowhere)
    talk.ask(group_id="", topics=nowhere)


def beat(talk: Talk, group: str, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
    """A ConsumerGroupHeartbeat; what is null says that nothing has changed."""
    unchanged: dict[str, Any] = {
        "rebalance_timeout": -1,
        "subscribed_topic_names": None,
        "topic_partitions": None,
        "server_assignor": None,
    }
    return {"group_id": group, "member_id": member, "member_epoch": epoch} | unchanged | fields


@case(CONSUMER_HEARTBEAT)
def life_of_a_member(talk: Talk) -> None:
    topic, group, member = talk.topic("t", 2), talk.name("group"), "AAAAAAAAAAAAAAAAAAAAAA"
    joining = {
        "rebalance_timeout": 30_000,
        "subscribed_topic_names": [topic.name],
        "topic_partitions": [],
    }
    first = talk.ask(**beat(talk, group, member, 0, **joining))
    epoch = getattr(first, "member_epoch", 1)
    owned = [{"topic_id": topic.id, "partitions": [0, 1]}]
    talk.ask(**beat(talk, group, member, epoch, topic_partitions=owned))
    talk.ask(**beat(talk, group, member, epoch + 5))
    talk.ask(**beat(talk, group, "nobody", 1))
    talk.also(CONSUMER_DESCRIBE, group_ids=[group])
    talk.also(DESCRIBE, groups=[group])
    talk.ask(**beat(talk, group, member, -1))
    talk.also(CONSUMER_DESCRIBE, group_ids=[group])


@case(CONSUMER_HEARTBEAT)
def what_may_not_beat(talk: Talk) -> None:
    group, member = talk.name("group"), "AAAAAAAAAAAAAAAAAAAAAA"
    joining = {"rebalance_timeout": 30_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    talk.ask(**beat(talk, "", member, 0, **joining))
    talk.ask(**beat(talk, group, member, 0, **joining | {"rebalance_timeout": -1}))
    talk.ask(**beat(talk, group, member, 0, **joining | {"topic_partitions": None}))
    talk.ask(**beat(talk, group, member, 0, **joining | {"subscribed_topic_names": None}))
    talk.ask(**beat(talk, group, member, 0, **joining, server_assignor="none-such"))
    talk.ask(**beat(talk, group, member, -2, **joining))
    talk.ask(**beat(talk, group, member, 3))
    classic = Member(talk, talk.name("classic"))
    talk.ask(**beat(talk, classic.group, member, 0, **joining))


@case(CONSUMER_DESCRIBE)
def consumer_groups_described(talk: Talk) -> None:
    classic = Member(talk, talk.name("classic"))
    talk.ask(group_ids=[classic.group, talk.name("no")], include_authorized_operations=True)
