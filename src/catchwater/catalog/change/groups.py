"""Consumer groups: their positions and who coordinates them."""

from collections.abc import Mapping

from catchwater.catalog.base import CoordinatorMoved
from catchwater.catalog.change.commit import require_session
from catchwater.catalog.db import Db
from catchwater.catalog.rows import GroupClaim, OffsetCommit, Session


def commit_offsets(
    group: str, offsets: Mapping[tuple[str, int], OffsetCommit], claim_epoch: int | None, db: Db
) -> None:
    """Keep a group's positions. Raises `CoordinatorMoved`."""
    if claim_epoch is not None and db.query("group_claim_lock", group) != [(claim_epoch,)]:
        raise _moved(group, claim_epoch)
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
        raise _moved(group, claim.epoch)


def delete_group(group: str, db: Db) -> bool:
    """Forget a group and its positions; whether there was anything."""
    db.query("txn_offset_delete_group", group)
    known = [*db.query("group_offset_delete", group), *db.query("group_claim_delete", group)]
    return bool(known)


def _moved(group: str, epoch: int) -> CoordinatorMoved:
    return CoordinatorMoved(
        f"The claim with epoch {epoch} on group {group!r} was superseded.",
        hint="Find the group's coordinator again.",
    )
