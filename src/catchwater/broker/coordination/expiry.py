"""Committed offsets expire after `offsets.retention.minutes` (KIP-211).

- In a group without members an offset expires that long after the last member left, and not before
  its own age is as high; in a group that never had members its own age decides.
- In a group with members, offsets of the topics they subscribe to do not expire, and none do while
  the group rebalances; of other topics, an offset's own age decides. An offset that an open
  transaction may replace does not expire.
- A group without members is deleted with its last offset. Deleting a topic deletes its offsets.

Every coordinator expires the offsets of its own groups. Ages are by the wall clock, so a pass is
skipped after that clock was set.
"""

import logging
from contextlib import suppress

from catchwater.broker.broker import Broker
from catchwater.broker.coordination.held import MOVED
from catchwater.catalog.errors import CatalogFailure
from catchwater.clock import ClockJumps
from catchwater.wire.errors import ErrorCode

_log = logging.getLogger(__name__)

_MINUTE_MS = 60_000


async def run(broker: Broker) -> None:
    """Expire offsets every `offsets.retention.check.interval.ms`, until cancelled."""
    jumps = ClockJumps(broker.clock)
    while True:
        await broker.clock.sleep(broker.config.offsets_retention_check_interval_ms / 1000)
        if jumps.since_last() == 0:
            with suppress(CatalogFailure):  # the next pass tries again
                await expire(broker)


async def expire(broker: Broker) -> None:
    """Delete the offsets that have expired now. Raises `CatalogFailure`."""
    until_ms = broker.clock.now_ms() - broker.config.offsets_retention_minutes * _MINUTE_MS
    for group_id in await broker.log.groups_to_expire(until_ms):
        if broker.groups.is_mine(group_id):
            with suppress(*MOVED):
                await _expire_group(broker, group_id, until_ms)


async def _expire_group(broker: Broker, group_id: str, until_ms: int) -> None:
    log, groups = broker.log, broker.groups
    async with groups.in_order(group_id):
        if await groups.hold(group_id) is not ErrorCode.NONE or not groups.is_saved(group_id):
            return
        had_members = groups.has_members(group_id)
        row = await log.group(group_id)
        unstable = await log.txns.unstable(group_id)
        committed = await log.committed(group_id)
        # No `await` from here until the change is submitted, so nothing changes in between.
        if groups.has_members(group_id) != had_members or (row.emptied_ms or 0) > until_ms:
            return
        epoch = groups.claim_epoch(group_id)
        keys = [
            key
            for key, commit in committed.items()
            if commit.committed_ms <= until_ms
            and key not in unstable
            and not groups.may_read(group_id, key[0])
        ]
        ends = len(keys) == len(committed) and not had_members
        if ends:  # before the deletion, during which a member may join a new group of this name
            groups.forget(group_id)
        gone = await log.expire_offsets(
            group_id, keys, until_ms, with_group=ends, claim_epoch=epoch
        )
    if gone:
        minutes = broker.config.offsets_retention_minutes
        _log.info(
            "Group %s has forgotten %d positions that nobody has used for %d minutes "
            "(offsets.retention.minutes): %s.",
            group_id, len(gone), minutes, ", ".join(f"{topic}-{index}" for topic, index in gone),
        )  # fmt: skip
