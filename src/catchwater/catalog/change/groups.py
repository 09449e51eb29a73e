"""Consumer groups: their positions and who coordinates them."""

from collections.abc import Mapping, Sequence

from catchwater.catalog.change.commit import coordinator_moved, require_session
from catchwater.catalog.db import Db
from catchwater.catalog.rows import GroupClaim, OffsetCommit, Session


def commit_offsets(
    group: str, offsets: Mapping[tuple[str, int], OffsetCommit], claim_epoch: int | None, db: Db
) -> None:
    """Keep a group's positions. Raises `CoordinatorMoved`."""
    _require_claim(group, claim_epoch, db)
    rows = [(group, *key, *commit) for key, commit in sorted(offsets.items())]
    db.many("group_offset_upsert", rows)


def claim_group(group: str, session: Session | None, db: Db) -> GroupClaim:
    """Become the group's coordinator. Raises `SessionFenced`."""
    if session is not None:
        require_session(session, db)
    [(epoch,)] = db.query("epoch_take")
    [claim] = db.query("group_claim_set", group, epoch)
    return GroupClaim._make(claim)


def record_generation(group: str, claim: GroupClaim, db: Db) -> None:
    """Remember the claim's generation. Raises `CoordinatorMoved`."""
    if not db.query("group_claim_record", claim.generation, group, claim.epoch):
        raise coordinator_moved(group, claim.epoch)


def delete_group(group: str, claim_epoch: int | None, db: Db) -> bool:
    """Forget a group and its positions; whether it had any. Raises `CoordinatorMoved`."""
    _require_claim(group, claim_epoch, db)
    # The claim first: whoever commits positions locks it before he writes them.
    db.query("group_claim_delete", group)
    db.query("txn_offset_delete_group", group)
    return bool(db.query("group_offset_delete", group))


def delete_offsets(
    group: str, keys: Sequence[tuple[str, int]], claim_epoch: int | None, db: Db
) -> None:
    """Forget a group's positions in these partitions. Raises `CoordinatorMoved`."""
    _require_claim(group, claim_epoch, db)
    db.many("group_offset_forget", [(group, *key) for key in sorted(keys)])


def _require_claim(group: str, claim_epoch: int | None, db: Db) -> None:
    if claim_epoch is not None and db.query("group_claim_lock", group) != [(claim_epoch,)]:
        raise coordinator_moved(group, claim_epoch)
