"""Topics come, grow and go; producer ids and pins."""

from collections.abc import Mapping

import msgspec

from catchwater.catalog.base import AlterConfig, TopicCollides, TopicExists, TopicUnknown
from catchwater.catalog.change.commit import json_text, lock_partitions
from catchwater.catalog.change.runs import mark_deleting
from catchwater.catalog.db import Db
from catchwater.catalog.rows import Notice, PartitionRow, Pin, PinState, Topic
from catchwater.catalog.topics import collision


def create_topic(topic: Topic, db: Db) -> None:
    """Raises `TopicExists` or `TopicCollides`."""
    # Kafka names metrics after topics, where a dot becomes an underscore: two would be one.
    plain = topic.name.replace(".", "_")
    db.query("name_lock", f"topic {plain}")
    found = [name for (name,) in db.query("topic_collision", plain) if name != topic.name]
    if found:
        raise TopicCollides(
            collision(topic.name, found[0]),
            hint="Use either dots or underscores in the names of topics, not both.",
        )
    row = (topic.id, topic.name, topic.partitions, json_text(dict(topic.config)))
    if not db.query("topic_insert", *row):
        raise TopicExists(f"There is a topic {topic.name} already.")
    _add(topic.id, range(topic.partitions), db)


def add_partitions(topic_id: bytes, partitions: int, db: Db) -> None:
    """Let a topic have so many partitions, never fewer. Raises `TopicUnknown`."""
    found = db.query("topic_lock", topic_id)
    if not found:
        raise _unknown(topic_id)
    [(count, _)] = found
    if partitions > count:
        db.query("topic_grow", partitions, topic_id)
        _add(topic_id, range(count, partitions), db)


def alter_topic_config(topic_id: bytes, alter: AlterConfig, db: Db) -> Mapping[str, str]:
    """Replace a topic's configuration by what `alter` makes of it; the new one.

    Raises `TopicUnknown`, and what `alter` raises.
    """
    found = db.query("topic_lock", topic_id)
    if not found:
        raise _unknown(topic_id)
    [(_, config)] = found
    altered = alter(msgspec.json.decode(config, type=dict[str, str]))
    db.query("topic_configure", json_text(dict(altered)), topic_id)
    db.tell(Notice("topics"))
    return altered


def delete_topic(topic_id: bytes, db: Db) -> None:
    """Forget a topic and all it had. Raises `TopicUnknown`."""
    found = db.query("topic_lock", topic_id)
    if not found:
        raise _unknown(topic_id)
    [(count, _)] = found
    lock_partitions([(topic_id, index) for index in range(count)], db)
    [(name,)] = db.query("topic_delete", topic_id)
    keys = [key for (key,) in db.query("run_objects", topic_id)]
    for table in ("run", "partition", "producer", "open_txn", "aborted_txn"):
        db.query(f"{table}_delete", topic_id)
    db.query("group_offset_delete_topic", name)
    db.query("txn_offset_delete_topic", name)
    mark_deleting([key for key in keys if not key.startswith("wal/")], db)
    db.tell(Notice("topics"))


def take_producer_ids(count: int, db: Db) -> int:
    """The first of `count` producer ids that nobody was ever given."""
    [(following,)] = db.query("producer_ids_take", count)
    return int(following) - count


def set_pin(pin: Pin, db: Db) -> None:
    """Create a pin, or replace the one with its id."""
    positions = [(*key, offset) for key, offset in sorted(pin.positions.items())]
    row = (pin.id, pin.owner, json_text(positions), pin.lease_until_ms, pin.created_ms)
    db.query("pin_upsert", *row, pin.max_bytes, pin.state)


def set_pin_states(states: Mapping[str, PinState], db: Db) -> None:
    """What retention has found out about pins."""
    db.many("pin_set_state", [(state, pin_id) for pin_id, state in sorted(states.items())])


def release_pin(pin_id: str, db: Db) -> bool:
    """Whether there was such a pin."""
    return bool(db.query("pin_delete", pin_id))


def pin_of(row: tuple[object, ...]) -> Pin:
    """A row of `pin_select`."""
    pin_id, owner, positions, *rest = row
    places = msgspec.json.decode(str(positions), type=list[tuple[str, int, int]])
    kept = {(topic, index): offset for topic, index, offset in places}
    return Pin(str(pin_id), str(owner), kept, *rest)  # type: ignore[arg-type]


def _add(topic_id: bytes, indexes: range, db: Db) -> None:
    db.many("partition_upsert", [PartitionRow(topic_id, index, 0, 0, 0, -1) for index in indexes])
    db.tell(Notice("topics"))


def _unknown(topic_id: bytes) -> TopicUnknown:
    return TopicUnknown(f"There is no topic with the id {topic_id.hex()}.")
