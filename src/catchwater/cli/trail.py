"""The audit trail of commands: who restored, rehearsed or changed what, on which machine.

Brokers have trails of their own, of what is asked of them; here is what people do beside a broker,
with files, checkpoints and drills. The folder is `CATCHWATER_AUDIT_DIR`, by default the user's
state folder. A trail that cannot be written does not keep anybody from a restore: it is said.
"""

import os
import pwd
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = "CATCHWATER_AUDIT_DIR"
AUDITED: Mapping[str, frozenset[str]] = {
    "access": frozenset(("user", "remove", "allow", "deny", "revoke")),
    "topic": frozenset(("create", "delete")),
    "table": frozenset(("rewind", "rebuild")),
    "group": frozenset(("reset",)),
    "txn": frozenset(("abort",)),
    "log": frozenset(("rebuild",)),
    "pipeline": frozenset(("stop", "upgrade", "rollback", "backfill", "rebuild")),
    "recovery": frozenset(("restore", "reset", "reprocess")),
    "savepoint": frozenset(("create", "restore", "export", "import", "delete", "sign")),
    "sink": frozenset(("repair", "moved")),
    "drill": frozenset(("run", "all", "undo")),
}
"""By noun the verbs that change something. What is a dry run changes nothing."""
RETENTION_MS = 10 * 365 * 24 * 60 * 60 * 1000
_UNDONE = frozenset(("--dry-run", "--help", "-h"))
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")

plans: list[str] = []
"""What this command was agreed to do, in words."""


def folder() -> Path:
    """Where the trail of this user's commands lies."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "catchwater" / "audit"


def is_audited(arguments: Sequence[str]) -> bool:
    """Whether a command with these arguments is one that changes something."""
    noun, verb = (*arguments, "", "")[:2]
    return verb in AUDITED.get(noun, ()) and not _UNDONE & set(arguments)


def record(arguments: Sequence[str], exit_code: int) -> None:
    """Write down that this command ran, what it was agreed to do, and how it ended."""
    from catchwater.audit import Event, Trail, TrailBroken
    from catchwater.clock import SYSTEM

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        user = str(os.getuid())
    given = [_PASSWORD.sub("***", each) for each in arguments[2:]]
    event = Event(
        time_ms=SYSTEM.now_ms(),
        kind="action",
        principal=f"OS:{user}",
        listener="command",
        host=socket.gethostname(),
        action=" ".join(arguments[:2]),
        resource=" ".join(given),
        before={"folder": str(Path.cwd())},
        after={"exit": exit_code, "did": list(plans)},
    )
    place = folder()
    try:
        trail = Trail(place, f"commands-{user}", SYSTEM, retention_ms=RETENTION_MS)
        try:
            trail.append([event])
        finally:
            trail.close()
    except (OSError, TrailBroken) as error:
        print(f"the audit trail {place} is not written: {error}", file=sys.stderr)  # noqa: T201
