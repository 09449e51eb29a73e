"""Who changed what on an account, in an order that nobody can change afterwards.

Every entry is numbered and holds the digest of the one before it, so a missing, altered or invented
entry breaks the chain. Entries are only ever appended; number and digest are functions of the
input, so a replay after a crash writes the same entries or, where they are written, none.
"""

import hashlib
from dataclasses import dataclass

from catchwater import Context, Keyed, Out, function


@dataclass
class Change:
    """One change to an account, as the application says it; `at` in milliseconds since 1970."""

    account: str
    id: str
    at: int
    actor: str
    action: str
    detail: str = ""


@dataclass
class Entry:
    """One entry of an account's trail."""

    account: str
    number: int
    at: int
    actor: str
    action: str
    detail: str
    previous: str
    digest: str


@dataclass
class Trail:
    """Where an account's trail ends."""

    entries: int = 0
    digest: str = ""


def digest_of(previous: str, change: Change) -> str:
    """SHA-256 over the digest before and everything that the change says."""
    said = (change.id, str(change.at), change.actor, change.action, change.detail)
    return hashlib.sha256("\x1f".join((previous, change.account, *said)).encode()).hexdigest()


@function(
    name="audit-trail",
    key="account",
    event_time="at",
    late="process",
    dedup="id",
    dedup_ttl="30d",
    output_id=("account", "number"),
    needs_history="30d",
)
class AuditTrail(Keyed[Change, Trail, Entry]):
    """Every change once, however late it comes and however often it is sent."""

    def on_event(self, e: Change, s: Trail, ctx: Context) -> Out[Entry]:
        """Append an entry."""
        previous, s.digest = s.digest, digest_of(s.digest, e)
        s.entries += 1
        yield Entry(
            account=e.account,
            number=s.entries,
            at=e.at,
            actor=e.actor,
            action=e.action,
            detail=e.detail,
            previous=previous,
            digest=s.digest,
        )
