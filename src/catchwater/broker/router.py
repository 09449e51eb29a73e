"""One request to its handler and one reply back: the table of what this broker serves.

Promises that a request of an API or version outside the table never reaches a handler: ApiVersions
is answered in v0 with the ranges (KIP-511), anything else ends the connection. What is slow in
proportion to its size, to decode a large request and to encode a large reply, happens in a thread.

A handler describes its reply once, as nested dicts with the fields of the newest version it
serves; here they become the message of the version that was asked for.
"""

import asyncio
import pkgutil
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from datetime import timedelta
from functools import cache, partial
from importlib import import_module
from itertools import islice
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast, get_args, get_origin
from uuid import UUID

from catchwater.broker import api as handlers
from catchwater.broker.api import k18_api_versions
from catchwater.broker.audit import Affected, Audit, differences, seen, shown
from catchwater.broker.audit import affected as audit_affected
from catchwater.broker.broker import (
    LARGE_REQUEST_BYTES,
    Api,
    Broker,
    Call,
    Cold,
    Fields,
    Later,
    LaterOf,
    Turns,
    as_it_is,
    error_fields,
)
from catchwater.broker.gate import (
    ANONYMOUS,
    DENIED,
    THE_CLUSTER,
    AllowAll,
    Each,
    Gate,
    Resource,
    ResourceType,
    Whole,
)
from catchwater.broker.login import Session
from catchwater.broker.quotas import MUTATIONS, Meter
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import Buffer
from catchwater.wire.errors import ErrorCode
from catchwater.wire.frames import Frame, RequestHeader, decode_header
from catchwater.wire.messages import (
    decode_request,
    encode_reply,
    reply_type,
)

LARGE_REPLY_VALUES = 5_000
"""To encode one of more values takes longer than about 10 ms."""

Build = Callable[[Any], Any]

APIS: Mapping[int, Api] = {
    module.API.key: module.API
    for found in sorted(pkgutil.iter_modules(handlers.__path__), key=attrgetter("name"))
    for module in (import_module(f"{handlers.__name__}.{found.name}"),)
}
"""Every module of the folder `api` serves the one that it declares as its `API`."""


class NotServed(CatchwaterError):
    """A request of an API or version that is not in the table."""


def start(
    broker: Broker,
    frame: Frame,
    client_host: str,
    session: Session | None = None,
    listener: str = "",
) -> Later:
    """Begin to answer a request. If anything is raised, the frame is still the caller's.

    `session` is the connection's; None where there are no users and rules. `listener` is the name
    of the one that it came by.

    Raises `MalformedMessage` for bytes that are no request, `NotServed`.
    """
    header = decode_header(frame.data)
    api = APIS.get(header.api_key)
    if api is None or header.api_version not in api.versions:
        if api is not k18_api_versions.API:
            raise NotServed(f"API {header.api_key} v{header.api_version} is not served here.")
        frame.release()
        later = Later(as_it_is)
        later.set_result(_encode(api, header, 0, k18_api_versions.unsupported(broker)))
    else:
        principal = ANONYMOUS if session is None else session.principal
        quotas = broker.quotas  # where none is set this costs a request nothing
        meter = quotas.meter(principal, header.client_id or "") if quotas.settings.keys else None
        if session is not None:
            session.check(header.api_key)
            call = Call(
                *(header, client_host, frame, session.principal, session.gate, session),
                *(broker.audit, api.name, listener, meter),
            )
        elif broker.audit is not None:
            call = Call(
                *(header, client_host, frame, ANONYMOUS, broker.gate, None, broker.audit),
                *(api.name, listener, meter),
            )
        else:
            gate = None if type(broker.gate) is AllowAll else broker.gate
            call = Call(header, client_host, frame, gate=gate, listener=listener, meter=meter)
        later = (api.start or _start_cold)(broker, call)
        if meter is not None:
            later.meter = meter
    later.api = api
    return later


def _start_cold(broker: Broker, call: Call) -> Later:
    """Begin to answer a request whose handler is a coroutine from message to fields."""
    if len(call.frame.data) > LARGE_REQUEST_BYTES:
        work = asyncio.ensure_future(_answer_large(broker, call))
        return LaterOf(as_it_is, future=work)
    request = decode_request(call.header, call.frame.data)
    call.frame.release()
    answer = _answer(broker, call, request)
    if call.meter is not None:
        answer = _timed(answer, call.meter, broker.clock)
    return LaterOf(as_it_is, future=asyncio.ensure_future(answer))


T = TypeVar("T")


async def _timed(work: Coroutine[Any, Any, T], meter: Meter, clock: Clock) -> T:
    """The coroutine's outcome; its time on the event loop is charged to the meter."""
    return await _Timed(work, meter, clock)


class _Timed(Generic[T]):
    def __init__(self, work: Coroutine[Any, Any, T], meter: Meter, clock: Clock) -> None:
        self._work, self._meter, self._clock = work, meter, clock

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            began_s = self._clock.monotonic_s()
            try:
                waits_for = step(value)
            except StopIteration as end:
                return cast(T, end.value)
            finally:
                self._meter.take_time(self._clock.monotonic_s() - began_s)
            try:
                value, step = (yield waits_for), self._work.send
            except (Exception, asyncio.CancelledError, GeneratorExit) as error:  # noqa: BLE001
                value, step = error, self._work.throw  # it is the work's to handle


async def _answer_large(broker: Broker, call: Call) -> Sequence[Buffer]:
    """Answer a request that a thread decodes, for to do it here would hold up everybody else."""
    try:
        request = await asyncio.to_thread(decode_request, call.header, call.frame.data)
    finally:
        call.frame.release()
    return await _answer(broker, call, request)


async def _answer(broker: Broker, call: Call, request: Any) -> Sequence[Buffer]:
    """The reply's bytes; a thread encodes a large one."""
    api = APIS[call.header.api_key]
    assert api.handle is not None
    if call.meter is not None and api.key in _MUTATING:
        refused = _refused_mutation(call.meter, api, call, request)
        if refused is not None:
            return _encode(api, call.header, call.version, refused)
        call.meter.take(MUTATIONS, _mutations(broker, api, request))
    if call.gate is None:
        fields = await api.handle(broker, call, request)
    elif call.audit is None:
        fields = await _answer_behind(call.gate, broker, api, call, request)
    else:
        fields = await _answer_audited(call.gate, call.audit, broker, api, call, request)
    if call.meter is not None:
        call.meter.take_time(0.0)  # what was charged before, and is not earned yet
        if call.meter.throttle_ms:
            fields = _throttled(api, call.version, fields, call.meter.throttle_ms)
    encode = partial(_encode, api, call.header, call.version, fields)
    return await asyncio.to_thread(encode) if _is_large(fields) else encode()


_MUTATING: Mapping[int, tuple[int, str]] = {
    19: (6, "topics"),
    20: (5, "responses"),
    37: (3, "results"),
}
"""By API key: from which version on a request is refused while the account of mutations is in debt
(KIP-599); older ones are let through, and wait longer. And where its reply has the refusals."""


def _refused_mutation(meter: Meter, api: Api, call: Call, request: Any) -> Fields | None:
    strict_since, answers = _MUTATING[api.key]
    if call.version < strict_since or meter.may_mutate():
        return None
    items = _named_topics(request)
    error = error_fields(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
    )
    named = [{"name": each} if isinstance(each, str) else {"name": each.name} for each in items]
    if api.key == 20 and call.version >= 6:
        named = [{"name": each.name, "topic_id": each.topic_id} for each in items]
    if api.key == 19:
        error |= {"num_partitions": -1, "replication_factor": -1, "topic_id": None, "configs": []}
    return {answers: [each | error for each in named], "throttle_time": meter.throttle_ms}


def _named_topics(request: Any) -> Sequence[Any]:
    """The topics of a request that creates, deletes or extends some; names of older versions."""
    return getattr(request, "topics", None) or getattr(request, "topic_names", None) or ()


def _mutations(broker: Broker, api: Api, request: Any) -> int:
    """How many partitions the request creates or deletes."""
    if getattr(request, "validate_only", False):
        return 0
    count = 0
    for each in _named_topics(request):
        name = each if isinstance(each, str) else each.name
        topic = broker.find_topic(name) if name else broker.find_named(each)
        there = topic.partitions if topic is not None else 0
        if api.key == 19:
            wanted = max(each.num_partitions, len(each.assignments))
            count += wanted if wanted > 0 else broker.config.num_partitions
        else:
            count += there if api.key == 20 else max(0, each.count - there)
    return count


@cache
def _has_throttle_time(api_key: int, version: int) -> bool:
    return "throttle_time" in {each.name for each in fields(reply_type(api_key, version))}


def _throttled(api: Api, version: int, answer: Any, throttle_ms: int) -> Any:
    """The reply with the time for which its client is not read from, if it has a place for it."""
    if isinstance(answer, Mapping):
        is_there = _has_throttle_time(api.key, version)
        return {**answer, "throttle_time": throttle_ms} if is_there else answer
    return answer._replace(throttle_ms=throttle_ms) if hasattr(answer, "throttle_ms") else answer


async def _answer_audited(
    gate: Gate, audit: Audit, broker: Broker, api: Api, call: Call, request: Any
) -> Any:
    """As `_answer_behind`, and a line for everything that is another afterwards."""
    allowed = partial(_may_change, gate, call.principal)
    affected = [*filter(allowed, audit_affected(broker, api.key, request))]
    before = await seen(affected)
    fields = await _answer_behind(gate, broker, api, call, request)
    for each, was, is_ in zip(affected, before, await seen(affected), strict=True):
        if each.tells(was, is_):
            was, is_ = differences(was, is_)
            audit.note(
                *("action", call.client, api.name, shown(each.resource)),
                operation=each.operation, named=each.resource, before=was, after=is_,
            )  # fmt: skip
    return fields


def _may_change(gate: Gate, principal: str, it: Affected) -> bool:
    """Whether the caller can change it: nobody else may make the broker look it up."""
    return any(gate.may(principal, it.operation, each) for each in (it.resource, THE_CLUSTER))


async def _answer_behind(gate: Gate, broker: Broker, api: Api, call: Call, request: Any) -> Any:
    """The reply to a request that has to pass a gate, by what its API declares that it asks."""
    assert api.handle is not None
    for ask in api.asks:
        if isinstance(ask, Whole):
            denied = _denied(broker, gate, call.principal, ask, request)
            if denied is not None:
                if call.audit is not None:
                    call.audit.refuse(call.client, api.name, ask.operation, denied)
                return api.refuse(call, request, DENIED[denied.type])
    eaches = [ask for ask in api.asks if isinstance(ask, Each)]
    assert len(eaches) <= 1
    if not eaches:
        return await api.handle(broker, call, request)
    return await _answer_each(gate, broker, api.handle, call, request, eaches[0])


def _denied(
    broker: Broker, gate: Gate, principal: str, ask: Whole, request: Any
) -> Resource | None:
    for resource in ask.resources(broker, request):
        if not gate.may(principal, ask.operation, resource):
            other = ask.or_any_topic
            if other is None or not gate.may_with_any(principal, other, ResourceType.TOPIC):
                return resource
    return None


async def _answer_each(
    gate: Gate,
    broker: Broker,
    handle: Cold,
    call: Call,
    request: Any,
    ask: Each,
) -> Any:
    if ask.or_cluster and gate.may(call.principal, ask.operation, THE_CLUSTER):
        return await handle(broker, call, request)
    items = getattr(request, ask.items) or ()
    refusals: list[Mapping[str, Any] | None] = []
    async for item in Turns(broker.clock).over(items):
        resource = next(
            (
                r
                for r in ask.resources(broker, item)
                if not gate.may(call.principal, ask.operation, r)
            ),
            None,
        )
        refusals.append(None if resource is None else ask.refused(item, DENIED[resource.type]))
        if resource is not None and call.audit is not None:
            call.audit.refuse(call.client, call.api_name, ask.operation, resource)
    if not any(refusals):
        return await handle(broker, call, request)
    allowed = tuple(item for item, no in zip(items, refusals, strict=True) if no is None)
    fields = await handle(broker, call, replace(request, **{ask.items: allowed}))
    if fields.get("error_code"):
        return fields  # an error of the request stands for all of it
    return {**fields, ask.answers: list(_in_order(refusals, fields.get(ask.answers, ())))}


def _in_order(
    refusals: Sequence[Mapping[str, Any] | None], answers: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Answers and refusals in the order of the request, as far as each item has one answer."""
    rest = iter(answers)
    for refusal in refusals:
        if refusal is not None:
            yield refusal
        else:
            yield from islice(rest, 1)
    yield from rest


def _encode(api: Api, header: RequestHeader, version: int, fields: Any) -> Sequence[Buffer]:
    if api.encode is not None:
        return api.encode(header.correlation_id, version, fields)
    return encode_reply(header.correlation_id, reply(api.key, version, fields))


def _is_large(fields: Mapping[str, Any] | tuple[Any, ...]) -> bool:
    """Whether a reply has more than `LARGE_REPLY_VALUES`; stops to count when it has."""
    left = LARGE_REPLY_VALUES
    waiting: list[Mapping[str, Any] | Sequence[Any]] = [fields]
    while waiting and left >= 0:
        inside = waiting.pop()
        left -= len(inside)
        values = inside.values() if isinstance(inside, Mapping) else inside
        waiting += [value for value in values if isinstance(value, Mapping | list | tuple)]
    return left < 0


# From here on: a message's fields, plain nested dicts, to the message of the version asked for.


def reply(api_key: int, version: int, values: Fields) -> Any:
    """The reply of this API and version, which takes of the fields those that it has.

    A field that no version served has is misspelt: an `AssertionError`. One that is left out must
    have a default in Kafka's description, or be an array (empty) or the throttle time (zero).
    """
    return _reply_builder(api_key, version)(values)


@cache
def _reply_builder(api_key: int, version: int) -> Build:
    others = [reply_type(api_key, other) for other in APIS[api_key].versions]
    return message_builder(reply_type(api_key, version), others)


def message_builder(entity: Any, others: Sequence[Any] = ()) -> Build:
    """What makes this message of a dict; `others` are its other versions, whose fields may stand
    in the dict as well.
    """
    known = {field.name for each in (entity, *others) for field in fields(each)}
    builders = [(field.name, _field(field, others), _default(field)) for field in fields(entity)]

    def build(values: Fields) -> Any:
        assert values.keys() <= known, f"{entity.__qualname__} has no {set(values) - known}"
        return entity(
            **{
                name: build_field(values[name]) if name in values else default
                for name, build_field, default in builders
            }
        )

    return build


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    if get_origin(field.type) is tuple:
        return ()
    # Kafka describes no default for these, yet there is only one thing to say.
    return timedelta(0) if field.name == "throttle_time" else None


def _field(field: Field[Any], others: Sequence[Any]) -> Build:
    inner = _inner_struct(field.type)
    if inner is not None:
        same = [other for each in others for other in fields(each) if other.name == field.name]
        build = message_builder(inner, [found for f in same if (found := _inner_struct(f.type))])
        if any(get_origin(t) is tuple for t in (field.type, *get_args(field.type))):
            return lambda values: None if values is None else tuple(map(build, values))
        return lambda values: None if values is None else build(values)
    match field.metadata.get("kafka_type"):
        case "uuid":
            return _uuid
        case "timedelta_i32" | "timedelta_i64":
            return lambda milliseconds: timedelta(milliseconds=milliseconds)
        case _:
            return lambda value: tuple(value) if isinstance(value, list) else value


def _inner_struct(annotation: Any) -> Any:
    """The dataclass inside a field's type, through arrays and unions with None; or None."""
    if is_dataclass(annotation):
        return annotation
    return next(filter(None, map(_inner_struct, get_args(annotation))), None)


def _uuid(value: bytes | UUID | None) -> UUID | None:
    return UUID(bytes=value) if isinstance(value, bytes) else value


def coverage_table() -> str:
    """The table of docs/protocol.md, in Markdown; a test keeps the page equal to it."""
    lines = ["| key | API | versions | notes |", "|---:|---|---|---|"]
    for key, api in sorted(APIS.items()):
        lines.append(f"| {key} | {api.name} | {api.versions[0]}–{api.versions[-1]} | {api.notes} |")
    return "\n".join(lines) + "\n"
