"""One change of a checkpoint's version at a time: an upgrade, cold or warm, or a rollback.

A warm upgrade runs beside the pipeline for a while, so neither the pipeline's lock nor its
supervisor's can say that one is under way. This lock goes with its process, as they do.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.recovery import handover
from catchwater.recovery.lock import CheckpointInUse, holder, lock

CHANGE = "change.lock"
"""The file that the process holds which changes the version."""


class AnotherChange(CatchwaterError):
    """Another upgrade or rollback of this checkpoint is under way."""


@contextmanager
def alone(checkpoint: Path, clock: Clock) -> Iterator[None]:
    """Let nobody else change the version meanwhile. Raises `AnotherChange`."""
    with ExitStack() as held:
        try:
            held.enter_context(lock(checkpoint, clock, name=CHANGE, wait_s=0))
        except CheckpointInUse as error:
            raise AnotherChange(
                f"Process {holder(checkpoint, CHANGE) or 'unknown'} is upgrading {checkpoint}, or "
                "rolling it back, already.",
                hint="Wait until it has ended, or end it: Ctrl-C, or SIGTERM.",
            ) from error
        yield


def forget_the_dead(checkpoint: Path) -> None:
    """Let a checkpoint go on whose successor died before it was handed over to.

    The caller holds the checkpoint's lock. Raises `HandedOver` where nobody may go on any more.
    """
    handover.check_leads(checkpoint)
    if handover.fenced_by(checkpoint) is not None and holder(checkpoint, CHANGE) is None:
        handover.lift_fence(checkpoint)


@contextmanager
def stopped(checkpoint: Path, clock: Clock) -> Iterator[None]:
    """Hold a checkpoint that still leads, and stays so; the pipeline was asked to stop.

    The caller is `alone`, so a version that had asked to take over and did not is gone, and its
    fence would only let a later start hand over to it. Raises `CheckpointInUse`, `HandedOver`.
    """
    with lock(checkpoint, clock):
        handover.check_leads(checkpoint)  # it may have handed over when it was stopped
        handover.lift_fence(checkpoint)
        yield
