"""A savepoint that was restored with a claim: it goes when the checkpoint can do without it."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.objects.base import StoreError
from catchwater.recovery.ledger import FOLDER, read_json, write_whole
from catchwater.recovery.savepoint.storage import Shelf


class Claim(msgspec.Struct, frozen=True):
    """What a checkpoint has taken over."""

    shelf: str
    """URL."""
    savepoint: str
    epoch: int
    """The savepoint's own: any later one makes it dispensable."""
    pin: str = ""
    """The savepoint's."""


def keep_claim(checkpoint: Path, claim: Claim) -> None:
    """Remember it, durably."""
    write_whole(_path(checkpoint), msgspec.json.encode(claim))


def read_claim(checkpoint: Path) -> Claim | None:
    """What was remembered. Raises `LedgerDamaged`."""
    return read_json(_path(checkpoint), Claim)


def settle_claim(
    checkpoint: Path, last_epoch: int, release: Callable[[str], None], clock: Clock
) -> None:
    """Delete a claimed savepoint once an epoch after it is done, and release its pin.

    Costs nothing where nothing was claimed; may be repeated. A pipeline does not fail for a place
    that is away: it is asked again behind the next epoch.
    """
    path = _path(checkpoint)
    if not path.exists():
        return
    claim = read_claim(checkpoint)
    if claim is None or last_epoch <= claim.epoch:
        return
    try:
        Shelf.at(claim.shelf, clock).delete(claim.savepoint)
    except StoreError:
        return
    if claim.pin:
        release(claim.pin)
    path.unlink()


def _path(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "claimed.json"
