"""What a broker writes into its audit trail, and how: at once counted, soon written, never waited.

`Audit.note` takes what happened on the event loop and costs a few microseconds. A task writes it a
moment later, in a thread, to the trail's files (`catchwater.audit`), and submits the same lines to
the topic `AUDIT_TOPIC`; from time to time the trail's head is anchored in the object store.

Refusals are bounded in rate. Beyond it those of one client for one thing are summed into one line
with their number, and beyond `MOST_SUMS` such sums into one for all; none is lost. Actions are
summed only when far more of them wait than a disk leaves waiting. A trail that cannot be written
(a full disk) is said so in the log, and what was not written is kept to be written later.

What an API changes is seen from outside: `AFFECTED` says which resources a request may change and
what there is to see of each; a line is written for every one that is another afterwards.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from operator import ne
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from catchwater.audit import AUDIT_TOPIC, Event, Line, Trail, encoded
from catchwater.broker.gate import THE_CLUSTER, Operation, Resource, ResourceType
from catchwater.broker.pressure import TokenBucket
from catchwater.catalog.errors import CatalogRetriable, TopicExists
from catchwater.config import CatchwaterError
from catchwater.log.write.writer import Submission
from catchwater.wire.batch import (
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    assembled,
    encode_zigzag,
)

if TYPE_CHECKING:
    from catchwater.broker.broker import Broker

FLUSH_S = 0.2
SUMMED_S = 10.0
"""How often the sums are written."""
ANCHOR_S = 60.0
LINES_A_SECOND, FIRST_LINES = 100, 1_000
"""Of refusals that get a line of their own."""
MOST_SUMS = 1_000
MOST_WAITING = 20_000
"""Events that are not written yet."""
_A_BATCH = 100

_LOG = logging.getLogger("catchwater.broker")

_Kind = tuple[str, str, str, str, str]
"""Kind, principal, listener, host and action: what is summed."""
_OTHERS: _Kind = ("refusal", "*", "*", "*", "*")


class Client(NamedTuple):
    """Who asks, and where."""

    principal: str
    listener: str
    host: str


class Unwritten:
    """Events to be written, and the sums of those that are too many. Pure."""

    def __init__(self, now_s: float) -> None:
        self._bucket = TokenBucket(LINES_A_SECOND, FIRST_LINES, now_s)
        self._events: list[Event] = []
        self._sums: dict[_Kind, Event] = {}
        self._summed_s = now_s

    def add(self, event: Event, now_s: float) -> None:
        """Have it written by itself, or as a part of a sum."""
        is_action = event.kind == "action"
        if len(self._events) < MOST_WAITING and (is_action or self._bucket.take(now_s)):
            self._events.append(event)
            return
        kind = (event.kind, event.principal, event.listener, event.host, event.action)
        if kind not in self._sums and len(self._sums) >= MOST_SUMS:
            kind = _OTHERS
            names = dict(
                zip(("kind", "principal", "listener", "host", "action"), kind, strict=True)
            )
            event = msgspec.structs.replace(event, resource="*", rule="", **names)
        known = self._sums.get(kind)
        if known is None:
            plain = msgspec.structs.replace(event, before=None, after=None)
            self._sums[kind] = plain
        else:
            self._sums[kind] = msgspec.structs.replace(known, count=known.count + event.count)

    def take(self, now_s: float, *, all_: bool = False) -> list[Event]:
        """What is to be written now; the caller gives it back if it could not be."""
        events, self._events = self._events, []
        if self._sums and (all_ or now_s - self._summed_s >= SUMMED_S):
            events += self._sums.values()
            self._sums, self._summed_s = {}, now_s
        return events

    def give_back(self, events: list[Event], now_s: float) -> None:
        """These could not be written: they come first the next time, or are summed."""
        later, self._events = self._events, events[:MOST_WAITING]
        for event in (*events[MOST_WAITING:], *later):
            self.add(event, now_s)


class Audit:
    """The trail of one broker."""

    def __init__(self, broker: "Broker", trail: Trail) -> None:
        self._broker = broker
        self._trail = trail
        self._unwritten = Unwritten(broker.clock.monotonic_s())
        self._anchored_s = float("-inf")
        self._has_failed = False
        self._unsent: list[Line] = []
        """Written to the file, and not in the topic yet."""

    def note(
        self,
        kind: str,
        client: Client,
        action: str,
        resource: str,
        *,
        operation: Operation | None = None,
        named: Resource | None = None,
        before: Any = None,
        after: Any = None,
    ) -> None:
        """Have a line written. With `operation` on `named` the rule that decides stands in it."""
        rule, guard = "", self._broker.guard
        if guard is not None and operation is not None and named is not None:
            rule = guard.rule(client.principal, client.host, operation, named)
        self._unwritten.add(
            Event(
                time_ms=self._broker.clock.now_ms(),
                kind=kind,
                principal=client.principal,
                listener=client.listener,
                host=client.host,
                action=action,
                resource=resource,
                rule=rule,
                before=before,
                after=after,
            ),
            self._broker.clock.monotonic_s(),
        )
        self._broker.metrics.audited.labels(kind).inc()

    def refuse(self, client: Client, api: str, operation: Operation, named: Resource) -> None:
        """A client was refused."""
        action = f"{api} {operation}"
        self.note("refusal", client, action, shown(named), operation=operation, named=named)

    async def run(self) -> None:
        """Until cancelled: write what was noted."""
        while True:
            await self._broker.clock.sleep(FLUSH_S)
            await self.flush()

    async def flush(self, *, all_: bool = False) -> None:
        """Write what was noted, and anchor the head if it is time to; never raises what a disk,
        a store or the log has against it.
        """
        now_s = self._broker.clock.monotonic_s()
        events = self._unwritten.take(now_s, all_=all_)
        try:
            if events:
                self._unsent += await asyncio.to_thread(self._trail.append, events)
                self._has_failed = False
        except OSError as error:
            self._unwritten.give_back(events, now_s)
            if not self._has_failed:
                _LOG.error("The audit trail is not written: %s. It is tried again.", error)
            self._has_failed = True
        await self._publish()
        if all_ or now_s - self._anchored_s >= ANCHOR_S:
            self._anchored_s = now_s
            try:
                await asyncio.to_thread(self._trail.anchor, self._broker.log.objects)
            except CatchwaterError as error:
                _LOG.warning("The audit trail is anchored later: %s", error)

    async def _publish(self) -> None:
        """Send the lines to the topic; what it does not take is sent the next time, up to a bound:
        the files have all of it.
        """
        self._unsent = self._unsent[-MOST_WAITING:]
        while self._unsent and (part := self._unsent[:_A_BATCH]):
            try:
                if not await self._submit(part):
                    return
            except CatchwaterError as error:
                _LOG.warning("Lines of the audit trail come into its topic later: %s", error)
                return
            del self._unsent[: len(part)]

    async def _submit(self, lines: list[Line]) -> bool:
        log = self._broker.log
        await log.look_up([AUDIT_TOPIC])
        topic = log.topics.get(AUDIT_TOPIC)
        if topic is None:
            kept_ms = str(self._broker.config.catchwater_audit_retention_ms)
            settings = {
                "retention.ms": kept_ms,
                "retention.bytes": "-1",
                "cleanup.policy": "delete",
            }
            with suppress(TopicExists):
                await log.create_topic(AUDIT_TOPIC, 1, settings)
            topic = log.topics.find(AUDIT_TOPIC)
        header, data = _batch(lines)
        answers = await log.submit([Submission((topic.id, 0), header, memoryview(data))])
        return not answers[0].error

    async def close(self) -> None:
        """Write all, and anchor the head."""
        await self.flush(all_=True)
        self._trail.close()


def _batch(lines: list[Line]) -> tuple[BatchHeader, bytes]:
    """A record a line, with the chain as its key; a broker has no Arrow to make it with."""
    first_ms, latest_ms = lines[0].time_ms, max(line.time_ms for line in lines)
    records: list[bytes] = []
    for index, line in enumerate(lines):
        parts = [b"\0", encode_zigzag(line.time_ms - first_ms), encode_zigzag(index)]
        for field in (line.chain.encode(), encoded(line)):
            parts += encode_zigzag(len(field)), field
        body = b"".join((*parts, encode_zigzag(0)))
        records += encode_zigzag(len(body)), body
    header = BatchHeader(
        *(0, 0, -1, MAGIC, 0, 0, len(lines) - 1, first_ms, latest_ms),
        *(NO_PRODUCER_ID, -1, NO_SEQUENCE, len(lines)),
    )
    return assembled(header, b"".join(records))


def shown(resource: Resource) -> str:
    """The resource as lines name it: `TOPIC payments`."""
    return f"{resource.type} {resource.name}"


# --- What an API may change


class Affected(NamedTuple):
    """One resource, what is done with it, and what there is to see of it."""

    resource: Resource
    operation: Operation
    see: Callable[[], Awaitable[Any]]
    tells: Callable[[Any, Any], bool] = ne
    """Of before and after: whether it is worth a line."""


Affects = Callable[["Broker", Any], Iterable[Affected]]


def affected(broker: "Broker", api_key: int, request: Any) -> list[Affected]:
    """The resources that the request may change."""
    of = AFFECTED.get(api_key)
    return [] if of is None else list(of(broker, request))


async def seen(asked: Iterable[Affected]) -> list[Any]:
    """What there is to see of each; None where there is none."""
    found = []
    for each in asked:
        try:
            found.append(await each.see())
        except CatalogRetriable as error:
            found.append(f"not known: {error}")
    return found


def differences(before: Any, after: Any) -> tuple[Any, Any]:
    """What was before and is no more, and what is new: of things with parts these parts only."""
    match before, after:
        case dict(), dict():
            changed = {key for key in (*before, *after) if before.get(key) != after.get(key)}
            parts = {key: differences(before.get(key), after.get(key)) for key in sorted(changed)}
            return {k: was for k, (was, _) in parts.items()}, {
                k: now for k, (_, now) in parts.items()
            }
        case list(), list():
            had, has = frozenset(before), frozenset(after)
            return sorted(had - has), sorted(has - had)
    return before, after


def _of_topics(operation: Operation, items: str) -> Affects:
    """Partitions and settings of the topics that the items name."""

    def of(broker: "Broker", request: Any) -> Iterable[Affected]:
        for item in getattr(request, items) or ():
            name = item if isinstance(item, str) else item.name
            if name is None and (topic := broker.find_named(item)) is not None:
                name = topic.name
            if name is not None:
                yield _topic(broker, name, operation)

    return of


def _topic(broker: "Broker", name: str, operation: Operation) -> Affected:
    async def see() -> Any:
        topic = broker.log.topics.get(name)
        if topic is None:
            return None
        return {
            "id": topic.id.hex(), "partitions": topic.partitions, "settings": dict(topic.config)
        }  # fmt: skip

    return Affected(Resource(ResourceType.TOPIC, name), operation, see)


def _deleted_topics(broker: "Broker", request: Any) -> Iterable[Affected]:
    # Before v6 there are names only.
    return _of_topics(Operation.DELETE, "topics" if hasattr(request, "topics") else "topic_names")(
        broker, request
    )


def _starts(broker: "Broker", request: Any) -> Iterable[Affected]:
    for wanted in request.topics:
        indexes = [each.partition_index for each in wanted.partitions]
        yield _log_starts(broker, wanted.name, indexes)


def _log_starts(broker: "Broker", name: str, indexes: list[int]) -> Affected:
    async def see() -> Any:
        topic = broker.log.topics.get(name)
        if topic is None:
            return None
        known = [index for index in indexes if 0 <= index < topic.partitions]
        return {"log_start": {str(at): broker.log.state((topic.id, at)).log_start for at in known}}

    return Affected(Resource(ResourceType.TOPIC, name), Operation.DELETE, see)


_TOPIC_KIND = 2  # of Kafka's ConfigResource.Type


def _configured(broker: "Broker", request: Any) -> Iterable[Affected]:
    if request.validate_only:
        return
    for each in request.resources:
        if each.resource_type == _TOPIC_KIND:
            yield _topic(broker, each.resource_name, Operation.ALTER_CONFIGS)


def _group(broker: "Broker", name: str) -> Affected:
    async def see() -> Any:
        committed = await broker.log.committed(name)
        return {
            f"{topic}-{index}": commit.offset for (topic, index), commit in committed.items()
        } or None

    return Affected(Resource(ResourceType.GROUP, name), Operation.DELETE, see)


def _reset(broker: "Broker", request: Any) -> Iterable[Affected]:
    """A group's positions, where they are set from outside (`kafka-consumer-groups`).

    Consumers that belong to no group's protocol commit in the same way: only what goes back tells.
    """
    if not request.member_id and not getattr(request, "group_instance_id", None):
        group = _group(broker, request.group_id)
        yield group._replace(operation=Operation.READ, tells=_goes_back)


def _goes_back(before: Any, after: Any) -> bool:
    had, has = before or {}, after or {}
    return any(has.get(place, offset) < offset for place, offset in had.items())


def _access(broker: "Broker", request: Any) -> Iterable[Affected]:
    async def see() -> Any:
        guard = broker.guard
        if guard is None:
            return None
        rules = [" ".join(rule) for rule in guard.access.rules.all]
        users = {
            f"{name} {mechanism}": f"salt {hashlib.sha256(kept.salt).hexdigest()[:8]}"
            for name, kinds in guard.access.users.items()
            for mechanism, kept in kinds.items()
        }  # a new password has a new salt
        return {"users": users, "rules": rules}

    yield Affected(THE_CLUSTER, Operation.ALTER, see)


AFFECTED: Mapping[int, Affects] = {
    8: _reset,
    19: _of_topics(Operation.CREATE, "topics"),
    20: _deleted_topics,
    21: _starts,
    30: _access,
    31: _access,
    33: _configured,
    37: _of_topics(Operation.ALTER, "topics"),
    42: lambda broker, request: [_group(broker, name) for name in request.groups_names],
    44: _configured,
    47: lambda broker, request: [_group(broker, request.group_id)],
    51: _access,
}
"""By API key; what is not here changes nothing that somebody administers."""
