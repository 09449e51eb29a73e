"""Consumer groups: who coordinates them, their members, their positions."""

from collections.abc import Mapping, Sequence

from catchwater.catalog.change.commit import coordinator_moved, json_text, require_session
from catchwater.catalog.db import Db, Rows
from catchwater.catalog.rows import GroupChanges, GroupRow, OffsetCommit, Session


def commit_offsets(
    group: str, offsets: Mapping[tuple[str, int], OffsetCommit], claim_epoch: int | None, db: Db
) -> None:
    """Keep a group's positions. Raises `CoordinatorMoved`."""
    _require_claim(group, claim_epoch, db)
    rows = [(group, *key, *commit) for key, commit in sorted(offsets.items())]
    db.many("group_offset_upsert", rows)


def claim_group(group: str, session: Session | None, db: Db) -> GroupRow:
    """Become the group's coordinator. Raises `SessionFenced`."""
    if session is not None:
        require_session(session, db)
    [(epoch,)] = db.query("epoch_take")
    # Whoever changes the group holds this row: what is read next is what he left.
    return _row(db.query("group_claim_set", group, epoch), group, db)


def find_group(group: str, db: Db) -> GroupRow:
    """The group as it is kept; epoch and generation 0 where nothing is."""
    return _row(db.query("group_claim_select", group), group, db)


def keep_group(group: str, changes: GroupChanges, claim_epoch: int | None, db: Db) -> None:
    """Write what has changed of a group. Raises `CoordinatorMoved`."""
    if claim_epoch is None:
        [(claim_epoch,)] = db.query("group_claim_find", group)
    if not db.query("group_claim_record", changes.generation, group, claim_epoch):
        raise coordinator_moved(group, claim_epoch)
    now_ms = db.now_ms() if changes.is_empty else 0
    states = [] if changes.state is None else [json_text(changes.state)]
    members = changes.members.items()
    with db.in_one_trip():
        is_empty = changes.is_empty
        db.many("group_claim_keep", [(state, is_empty, now_ms, group) for state in states])
        if changes.is_whole:
            db.many("group_member_delete_all", [(group,)])
        gone = [(group, member_id) for member_id, state in members if state is None]
        db.many("group_member_delete", [] if changes.is_whole else gone)
        there = [(group, m, json_text(state)) for m, state in members if state is not None]
        db.many("group_member_upsert", there)


def delete_group(group: str, claim_epoch: int | None, db: Db) -> bool:
    """Forget a group and its positions; whether it had any. Raises `CoordinatorMoved`."""
    _require_claim(group, claim_epoch, db)
    # The claim first: whoever commits positions locks it before he writes them.
    db.query("group_claim_delete", group)
    db.many("group_member_delete_all", [(group,)])
    db.query("txn_offset_delete_group", group)
    return bool(db.query("group_offset_delete", group))


def delete_offsets(
    group: str, keys: Sequence[tuple[str, int]], claim_epoch: int | None, db: Db
) -> None:
    """Forget a group's positions in these partitions. Raises `CoordinatorMoved`."""
    _require_claim(group, claim_epoch, db)
    db.many("group_offset_forget", [(group, *key) for key in sorted(keys)])


def expire_offsets(
    group: str,
    keys: Sequence[tuple[str, int]],
    committed_until_ms: int,
    with_group: bool,
    claim_epoch: int | None,
    db: Db,
) -> list[tuple[str, int]]:
    """Forget those of the positions that are so old; which. Raises `CoordinatorMoved`."""
    _require_claim(group, claim_epoch, db)
    wanted = [(group, *key, committed_until_ms) for key in sorted(keys)]
    gone = [(topic, index) for topic, index in db.each("group_offset_expire", wanted)]
    if with_group:
        db.many("group_claim_forget", [(group,)])
    return gone


def _row(claims: Rows, group: str, db: Db) -> GroupRow:
    if not claims:
        return GroupRow(0, 0)
    [(epoch, generation, state, emptied_ms)] = claims
    members = {member_id: kept for member_id, kept in db.query("group_member_select", group)}
    return GroupRow(epoch, generation, state, emptied_ms, members)


def _require_claim(group: str, claim_epoch: int | None, db: Db) -> None:
    if claim_epoch is not None and db.query("group_claim_lock", group) != [(claim_epoch,)]:
        raise coordinator_moved(group, claim_epoch)
