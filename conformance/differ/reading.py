"""Cases of what consumers ask without a group: Fetch, ListOffsets, Metadata, epochs."""

from typing import Any

from conformance.differ.cases import case
from conformance.differ.talk import NO_TOPIC_ID, Talk, Topic
from conformance.differ.writing import BEGAN_MS, PRODUCE, batch, written

FETCH, LIST_OFFSETS, METADATA, DELETE_RECORDS, EPOCHS, DESCRIBE_PARTITIONS = 1, 2, 3, 21, 23, 75


def filled(talk: Talk, batches: int = 2) -> Topic:
    """A topic with batches of three records."""
    topic = talk.topic()
    for _ in range(batches):
        talk.prepare(PRODUCE, **written(topic, batch()))
    return topic


def fetched(topic: Topic, *partitions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A Fetch request of one topic, in whatever version, that waits for nothing."""
    defaults = {"partition_max_bytes": 1_000_000, "current_leader_epoch": -1}
    asked = [defaults | each for each in partitions]
    return {
        "topics": [{"topic": topic.name, "topic_id": topic.id, "partitions": asked}],
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 10_000_000,
    } | fields


@case(FETCH)
def from_offsets(talk: Talk) -> None:
    topic = filled(talk)
    for offset in (0, 4, 6, 7, -1, -2):
        talk.ask(**fetched(topic, {"partition": 0, "fetch_offset": offset}))


@case(FETCH)
def within_bytes(talk: Talk) -> None:
    topic = filled(talk)
    at_start = {"partition": 0, "fetch_offset": 0}
    talk.ask(**fetched(topic, at_start | {"partition_max_bytes": 1}))
    talk.ask(**fetched(topic, at_start, max_bytes=1))
    talk.ask(**fetched(topic, at_start | {"partition_max_bytes": 0}))


@case(FETCH)
def read_committed(talk: Talk) -> None:
    topic = filled(talk)
    talk.ask(**fetched(topic, {"partition": 0, "fetch_offset": 0}, isolation_level=1))


@case(FETCH)
def what_does_not_exist(talk: Talk) -> None:
    nothing = Topic(talk.name("no"), NO_TOPIC_ID)
    talk.ask(**fetched(nothing, {"partition": 0, "fetch_offset": 0}))
    talk.ask(**fetched(filled(talk), {"partition": 5, "fetch_offset": 0}))


@case(FETCH)
def leader_epochs(talk: Talk) -> None:
    topic = filled(talk)
    for epoch in (0, 1, 99):
        at_start = {"partition": 0, "fetch_offset": 0, "current_leader_epoch": epoch}
        talk.ask(**fetched(topic, at_start))
    talk.ask(**fetched(topic, {"partition": 0, "fetch_offset": 3, "last_fetched_epoch": 0}))


@case(FETCH)
def sessions(talk: Talk) -> None:
    topic = filled(talk)
    at_end = {"partition": 0, "fetch_offset": 6}
    first = talk.ask(**fetched(topic, at_end, session_id=0, session_epoch=0))
    session = getattr(first, "session_id", 0)
    talk.ask(**fetched(topic, session_id=session, session_epoch=1, topics=[]))
    talk.ask(**fetched(topic, session_id=session, session_epoch=7, topics=[]))
    talk.ask(**fetched(topic, session_id=12_345, session_epoch=1, topics=[]))
    talk.ask(**fetched(topic, at_end, session_id=session, session_epoch=-1))


@case(LIST_OFFSETS)
def by_time(talk: Talk) -> None:
    topic = filled(talk)
    special = [-1, -2, -3, -4, -5, -6]
    for timestamp in [*special, -7, 0, BEGAN_MS + 500, BEGAN_MS + 2_000, BEGAN_MS + 2_001]:
        asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        talk.ask(topics=[{"name": topic.name, "partitions": [asked]}])


@case(LIST_OFFSETS)
def of_an_empty_partition(talk: Talk) -> None:
    topic = talk.topic()
    for timestamp in (-1, -2, -3, 0):
        asked = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        talk.ask(topics=[{"name": topic.name, "partitions": [asked]}])


@case(LIST_OFFSETS)
def offsets_of_what_does_not_exist(talk: Talk) -> None:
    asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    talk.ask(topics=[{"name": talk.name("no"), "partitions": [asked]}])
    topic = talk.topic()
    talk.ask(topics=[{"name": topic.name, "partitions": [asked | {"partition_index": 4}]}])
    talk.ask(topics=[{"name": topic.name, "partitions": [asked, asked]}])


@case(LIST_OFFSETS)
def offsets_with_epochs(talk: Talk) -> None:
    topic = talk.topic()
    for epoch in (0, 1):
        asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": epoch}
        talk.ask(topics=[{"name": topic.name, "partitions": [asked]}])
        talk.ask(topics=[{"name": topic.name, "partitions": [asked]}], isolation_level=1)


@case(METADATA)
def topics_by_name(talk: Talk) -> None:
    first, second = talk.topic("b", 2), talk.topic("a")
    talk.ask(
        topics=[{"name": name} for name in (first.name, second.name)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )


@case(METADATA)
def topics_that_do_not_exist(talk: Talk) -> None:
    if talk.version < 4:
        return  # they would be created
    for name in (talk.name("no"), "a/b", "", ".", "x" * 250):
        talk.ask(topics=[{"name": name}], allow_auto_topic_creation=False)


@case(METADATA)
def topics_by_id(talk: Talk) -> None:
    if talk.version < 12:
        return
    topic = talk.topic()
    talk.ask(topics=[{"name": None, "topic_id": topic.id}], allow_auto_topic_creation=False)
    talk.ask(topics=[{"name": None, "topic_id": NO_TOPIC_ID}], allow_auto_topic_creation=False)


@case(DELETE_RECORDS)
def records_before(talk: Talk) -> None:
    topic = filled(talk)
    for offset in (2, 1, 7, -1, -2):
        asked = {"partition_index": 0, "offset": offset}
        talk.ask(topics=[{"name": topic.name, "partitions": [asked]}])


@case(DELETE_RECORDS)
def records_of_what_does_not_exist(talk: Talk) -> None:
    asked = {"partition_index": 0, "offset": 0}
    talk.ask(topics=[{"name": talk.name("no"), "partitions": [asked]}])
    topic = talk.topic()
    talk.ask(topics=[{"name": topic.name, "partitions": [asked | {"partition_index": 4}]}])
    compacted = talk.topic("c", cleanup_policy="compact")
    talk.ask(topics=[{"name": compacted.name, "partitions": [asked]}])


@case(EPOCHS)
def ends_of_epochs(talk: Talk) -> None:
    topic = filled(talk)
    for leader_epoch in (-1, 0, 5):
        for current in (-1, 0, 3):
            asked = {
                "partition": 0, "leader_epoch": leader_epoch, "current_leader_epoch": current,
            }  # fmt: skip
            talk.ask(topics=[{"topic": topic.name, "partitions": [asked]}])
    asked = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}
    talk.ask(topics=[{"topic": talk.name("no"), "partitions": [asked]}])
    talk.ask(topics=[{"topic": topic.name, "partitions": [asked | {"partition": 4}]}])


@case(DESCRIBE_PARTITIONS)
def partitions_described(talk: Talk) -> None:
    topic, other = talk.topic("a", 3), talk.topic("b")
    both = [{"name": other.name}, {"name": topic.name}, {"name": talk.name("no")}]
    talk.ask(topics=both, response_partition_limit=2000)
    talk.ask(topics=both, response_partition_limit=2)
    cursor = {"topic_name": topic.name, "partition_index": 1}
    talk.ask(topics=both, response_partition_limit=2, cursor=cursor)
