"""How one member gets from what it holds to what it is meant to hold, a heartbeat at a time.

A member first gives up what is not its own any more, and says so; then it gets what is its own
now, as far as nobody else still holds it (KIP-848, "Member state machine"). While it gives up it
keeps its epoch; that it did is believed only from a heartbeat with the current epoch that came
after it was told to, so no late or repeated one of an earlier epoch can free a partition that is
in use. Kafka also believes a member that never reported a partition; that would save a heartbeat
when assignments follow each other quickly.

One gap is Kafka's too. Who has not begun with what it was given, misses the answer that takes it
away and only then begins is fenced by its next heartbeat; until then its commits are refused, for
its epoch is over.
"""

from collections.abc import Callable

from catchwater.broker.coordination.consumer.member import JOINS, NOTHING, Partitions, Standing
from catchwater.catalog.rows import PartitionKey


def reconcile(
    now: Standing,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_free: Callable[[PartitionKey], bool],
) -> Standing:
    """The next standing towards `target`; `owned` is what the member says it has, if it did.

    `is_free` tells of a partition that the member does not hold whether nobody else does.
    """
    epoch = now.epoch
    if now.revoking:
        if owned is None or owned & now.revoking:
            return now
        # On the way it counts epochs of its own, so that what was said before is known as old.
        epoch += 1
    elif epoch == target_epoch and not now.is_waiting:
        return now
    kept = now.assigned & target
    if now.epoch != JOINS and kept != now.assigned:
        return _moved(now, epoch, kept, revoking=now.assigned - kept)
    missing = target - kept
    given = frozenset(filter(is_free, missing))
    return _moved(now, target_epoch, kept | given, is_waiting=given != missing)


def _moved(
    now: Standing,
    epoch: int,
    assigned: Partitions,
    revoking: Partitions = NOTHING,
    is_waiting: bool = False,
) -> Standing:
    # The epoch before is the last one that the member was told of.
    previous_epoch = now.previous_epoch if epoch == now.epoch else now.epoch
    return Standing(epoch, previous_epoch, assigned, revoking, is_waiting)
