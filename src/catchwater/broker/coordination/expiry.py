"""Positions of groups that are gone expire, after `offsets.retention.minutes` (KIP-211).

- A group without members keeps its positions for that long since the last member went, and each
  position since it was committed; one that never had members, since it was committed.
- A group with members keeps those of the topics they subscribe to, and all while it rebalances;
  of other topics, each since it was committed. A position that an open transaction may move stays.
- With its last position a group without members is forgotten; positions in a topic that is deleted
  go with the topic.

Every coordinator looks after its own groups. Ages are by the wall clock, so nothing expires right
after that has jumped.
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
    """Look every `offsets.retention.check.interval.ms`, until cancelled."""
    jumps = ClockJumps(broker.clock)
    while True:
        await broker.clock.sleep(broker.config.offsets_retention_check_interval_ms / 1000)
        if jumps.since_last() == 0:
            with suppress(CatalogFailure):  # there is a next time, or a next start
                await expire(broker)


async def expire(broker: Broker) -> None:
    """Forget what is old now. Raises `CatalogFailure`."""
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
        # From here until the change is asked for nobody else has a turn.
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
        if ends:  # before, for somebody may join a new group of this name meanwhile
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
