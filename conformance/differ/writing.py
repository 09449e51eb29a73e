"""Cases of what producers ask: Produce, InitProducerId, transactions."""

import time
from typing import Any

from catchwater.wire.arrow import encode_batch
from conformance.differ.cases import case
from conformance.differ.talk import NO_TOPIC_ID, Talk, Topic

PRODUCE, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 0, 22, 24, 25, 26, 28
DESCRIBE_PRODUCERS, DESCRIBE_TXN, LIST_TXN = 61, 65, 66
BEGAN_MS = int(time.time() * 1000) - 60_000
"""The time of the first record that a case writes; the same for both brokers."""


def batch(count: int = 3, **settings: Any) -> bytes:
    """One batch of so many records, a second apart."""
    records = [(b"k%d" % i, b"v%d" % i, BEGAN_MS + 1000 * i, []) for i in range(count)]
    return encode_batch(records, **settings)


def written(topic: Topic, records: bytes, partition: int = 0, **fields: Any) -> dict[str, Any]:
    """A Produce request of one partition, in whatever version."""
    data = [{"index": partition, "records": records}]
    return {
        "topic_data": [{"name": topic.name, "topic_id": topic.id, "partition_data": data}],
        **fields,
    }


def producer(talk: Talk, transactional_id: str | None = None) -> dict[str, int]:
    """Id and epoch of a new producer."""
    told: Any = None

    def is_told() -> bool:
        nonlocal told
        told = talk.prepare(INIT, transactional_id=transactional_id, transaction_timeout=60_000)
        return int(told.error_code) == 0

    talk.until(is_told, "a producer id")
    return {"producer_id": told.producer_id, "producer_epoch": told.producer_epoch}


@case(PRODUCE)
def records_twice(talk: Talk) -> None:
    topic = talk.topic()
    talk.ask(**written(topic, batch()))
    talk.ask(**written(topic, batch()))


@case(PRODUCE)
def by_the_leader(talk: Talk) -> None:
    talk.ask(**written(talk.topic(), batch(), acks=1))


@case(PRODUCE)
def bad_acks(talk: Talk) -> None:
    talk.ask(**written(talk.topic(), batch(), acks=2))


@case(PRODUCE)
def unknown_topic(talk: Talk) -> None:
    talk.ask(**written(Topic(talk.name(), NO_TOPIC_ID), batch()))


@case(PRODUCE)
def unknown_partition(talk: Talk) -> None:
    topic = talk.topic()
    talk.ask(**written(topic, batch(), partition=7))
    talk.ask(**written(topic, batch(), partition=-1))


@case(PRODUCE)
def damaged(talk: Talk) -> None:
    topic = talk.topic()
    good = batch()
    talk.ask(**written(topic, good[:-1] + bytes([good[-1] ^ 1])))
    talk.ask(**written(topic, good[:16] + b"\x01" + good[17:]))
    talk.ask(**written(topic, good[:-5]))
    talk.ask(**written(topic, good + good))
    talk.ask(**written(topic, b""))


@case(PRODUCE)
def too_large(talk: Talk) -> None:
    topic = talk.topic(max_message_bytes="100")
    talk.ask(**written(topic, batch()))


@case(PRODUCE)
def compacted_without_key(talk: Talk) -> None:
    topic = talk.topic(cleanup_policy="compact")
    talk.ask(**written(topic, encode_batch([(None, b"v", BEGAN_MS, [])])))


@case(PRODUCE)
def idempotent(talk: Talk) -> None:
    topic, who = talk.topic(), producer(talk)
    for sequence in (0, 0, 3, 9):  # twice, the next, a gap
        talk.ask(**written(topic, batch(**who, base_sequence=sequence)))
    older = {"producer_id": who["producer_id"], "producer_epoch": -1}
    talk.ask(**written(topic, batch(**older, base_sequence=0)))


@case(PRODUCE)
def unknown_producer(talk: Talk) -> None:
    who = {"producer_id": 987_654_321, "producer_epoch": 3}
    talk.ask(**written(talk.topic(), batch(**who, base_sequence=5)))
    talk.ask(**written(talk.topic("u"), batch(**who, base_sequence=0)))


@case(PRODUCE)
def transactional_without_begin(talk: Talk) -> None:
    topic, name = talk.topic(), talk.name("txn")
    who = producer(talk, name)
    records = batch(**who, base_sequence=0, transactional=True)
    talk.ask(**written(topic, records, transactional_id=name))
    talk.ask(**written(topic, records))


@case(INIT)
def idempotent_producer(talk: Talk) -> None:
    talk.ask(transaction_timeout=60_000)


@case(INIT)
def transactional_producer_twice(talk: Talk) -> None:
    name = talk.name("txn")
    producer(talk, name)
    first = talk.ask(transactional_id=name, transaction_timeout=60_000)
    talk.ask(
        transactional_id=name,
        transaction_timeout=60_000,
        producer_id=getattr(first, "producer_id", -1),
        producer_epoch=getattr(first, "producer_epoch", -1),
    )
    talk.ask(transactional_id=name, transaction_timeout=60_000, producer_id=77, producer_epoch=3)


@case(INIT)
def bad_timeouts(talk: Talk) -> None:
    for timeout_ms in (0, -1, 2**31 - 1):
        talk.ask(transactional_id=talk.name("txn"), transaction_timeout=timeout_ms)


@case(INIT)
def empty_id(talk: Talk) -> None:
    talk.ask(transactional_id="", transaction_timeout=60_000)


@case(ADD_PARTITIONS)
def partitions_join(talk: Talk) -> None:
    if talk.version > 3:
        return  # from here on between brokers
    topic, name = talk.topic(), talk.name("txn")
    who = producer(talk, name)
    for id_, topic_name in ((name, topic.name), (name, talk.name("no")), (name + "-", topic.name)):
        topics = [{"name": topic_name, "partitions": [0]}]
        talk.ask(transactional_id=id_, **who, topics=topics)
    newer = who | {"producer_epoch": who["producer_epoch"] + 5}
    talk.ask(transactional_id=name, **newer, topics=[{"name": topic.name, "partitions": [0]}])
    talk.ask(transactional_id=name, **who, topics=[{"name": topic.name, "partitions": [0, 9]}])


@case(ADD_OFFSETS)
def a_group_joins(talk: Talk) -> None:
    name, group = talk.name("txn"), talk.name("group")
    who = producer(talk, name)
    talk.ask(transactional_id=name, **who, group_id=group)
    talk.ask(transactional_id=name + "-", **who, group_id=group)
    talk.ask(transactional_id=name, producer_id=5, producer_epoch=0, group_id=group)
    older = who | {"producer_epoch": who["producer_epoch"] + 1}
    talk.ask(transactional_id=name, **older, group_id=group)


@case(END)
def without_begin(talk: Talk) -> None:
    name = talk.name("txn")
    who = producer(talk, name)
    talk.ask(transactional_id=name, **who, committed=True)
    talk.ask(transactional_id=name, **who, committed=False)


@case(END)
def commit_and_again(talk: Talk) -> None:
    if talk.version > 4:
        return  # there a batch begins the transaction
    topic, name = talk.topic(), talk.name("txn")
    who = producer(talk, name)
    talk.prepare_version(
        ADD_PARTITIONS, 3, transactional_id=name, **who,
        topics=[{"name": topic.name, "partitions": [0]}],
    )  # fmt: skip
    for committed in (True, True, False):
        talk.ask(transactional_id=name, **who, committed=committed)


@case(END)
def of_unknown(talk: Talk) -> None:
    talk.ask(transactional_id=talk.name(), producer_id=1, producer_epoch=0, committed=True)
    name = talk.name("txn")
    who = producer(talk, name)
    older = who | {"producer_epoch": who["producer_epoch"] + 1}
    talk.ask(transactional_id=name, **older, committed=True)


@case(COMMIT_OFFSETS)
def positions_of_a_transaction(talk: Talk) -> None:
    if talk.version > 4:
        return  # there the commit itself begins the transaction
    topic, name, group = talk.topic(), talk.name("txn"), talk.name("group")
    who = producer(talk, name)
    partitions = [
        {"partition_index": i, "committed_offset": 3, "committed_metadata": "m"} for i in (0, 9)
    ]
    fields: dict[str, Any] = {
        "transactional_id": name, "group_id": group, **who, "generation_id": -1,
        "topics": [{"name": topic.name, "partitions": partitions}],
    }  # fmt: skip
    talk.ask(**fields)
    talk.prepare(ADD_OFFSETS, transactional_id=name, **who, group_id=group)
    talk.ask(**fields)
    talk.ask(**fields | {"generation_id": 4, "member_id": "nobody"})
    talk.ask(**fields | {"producer_epoch": who["producer_epoch"] + 3})


@case(DESCRIBE_PRODUCERS)
def producers_of_a_partition(talk: Talk) -> None:
    topic, who = talk.topic(), producer(talk)
    talk.prepare(PRODUCE, **written(topic, batch(**who, base_sequence=0)))
    talk.ask(
        topics=[
            {"name": topic.name, "partition_indexes": [0, 5]},
            {"name": talk.name("no"), "partition_indexes": [0]},
        ]
    )


@case(DESCRIBE_TXN)
def described(talk: Talk) -> None:
    name = talk.name("txn")
    producer(talk, name)
    talk.ask(transactional_ids=[name, talk.name("no"), ""])


@case(LIST_TXN)
def listed(talk: Talk) -> None:
    producer(talk, talk.name("txn"))
    talk.ask_of_mine()
    talk.ask_of_mine(state_filters=["Empty"])


@case(LIST_TXN)
def filtered(talk: Talk) -> None:
    talk.ask(state_filters=["NoSuchState", "Dead"], producer_id_filters=[])
    talk.ask(state_filters=[], producer_id_filters=[123_456_789])
