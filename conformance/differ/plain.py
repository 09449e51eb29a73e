"""A reply as dicts, lists and values that two brokers can agree on.

Out of it goes what differs between any two brokers: addresses, the cluster's id, throttling,
wording of messages, clock times. Ids that a broker gives out (topics, producers, members, sessions)
become names by order of appearance, so that the same id twice is still the same name twice; the
prefix of the names that a case gives becomes `~`.
"""

import hashlib
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from struct import Struct
from typing import Any
from uuid import UUID

DROPPED = {"throttle_time", "host", "port", "cluster_id", "client_host", "log_dir"}
WORDS = {"error_message", "batch_index_error_message", "documentation"}
GIVEN_OUT = {
    "topic_id": "topic",
    "producer_id": "producer",
    "ongoing_txn_producer_id": "producer",
    "member_id": "member",
    "leader": "member",
    "session_id": "session",
}
SIZES = {"total_bytes", "usable_bytes"}
_LENGTH = Struct(">i")


class Names:
    """Names for ids, by order of appearance; one for each target, case and version."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._names: dict[tuple[str, Any], str] = {}
        self._counts: dict[str, int] = {}

    def give(self, kind: str, value: Any, name: str) -> None:
        """Let an id have this name."""
        self._names[kind, value] = name

    def of(self, kind: str, value: Any) -> Any:
        """The name of an id; what means "none" stays as it is."""
        if value in (None, "", 0, -1):
            return value
        if (kind, value) not in self._names:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[kind, value] = f"<{kind} {self._counts[kind]}>"
        return self._names[kind, value]


def plain(value: Any, names: Names, field: str = "") -> Any:
    """The reply, or a part of it that stands in `field`."""
    if is_dataclass(value):
        return {
            f.name: plain(getattr(value, f.name), names, f.name)
            for f in fields(value)
            if f.name not in DROPPED
        }
    if isinstance(value, tuple | list):
        return [plain(each, names, field) for each in value]
    if field in GIVEN_OUT:
        return names.of(GIVEN_OUT[field], value)
    if isinstance(value, str):
        value = value.replace(names.prefix, "~")
    return _scalar(value, field)


def of_the_case(reply: Any, prefix: str) -> Any:
    """A reply, in whose lists only those elements are left whose names have the case's prefix."""
    if not is_dataclass(reply):
        return reply
    kept = {
        f.name: tuple(each for each in getattr(reply, f.name) if _is_named(each, prefix))
        for f in fields(reply)
        if isinstance(getattr(reply, f.name), tuple)
    }
    return replace(reply, **kept)  # type: ignore[type-var]


def _is_named(element: Any, prefix: str) -> bool:
    return not is_dataclass(element) or any(
        str(getattr(element, f.name)).startswith(prefix) for f in fields(element)
    )


def _scalar(value: Any, field: str) -> Any:
    if field in WORDS and value:
        return "<words>"
    if field in SIZES:
        return value > 0
    match value:
        case datetime():
            return "<time>"
        case timedelta():
            return value // timedelta(milliseconds=1)
        case bytes() | memoryview():
            return _records(bytes(value)) if field == "records" else _digest(bytes(value))
        case UUID():
            return str(value)
        case bool() | str() | None:
            return value
    return int(value) if isinstance(value, int) else value


def _digest(data: bytes) -> str:
    return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:12]}"


def _records(data: bytes) -> list[str]:
    """A digest of each batch, but for the leader epoch, which the checksum does not cover."""
    batches, at = [], 0
    while at + 17 <= len(data):
        end = at + 12 + _LENGTH.unpack_from(data, at + 8)[0]
        base_offset = int.from_bytes(data[at : at + 8], "big")
        batches.append(f"at {base_offset}: {_digest(data[at + 8 : at + 12] + data[at + 16 : end])}")
        at = end
    return batches
