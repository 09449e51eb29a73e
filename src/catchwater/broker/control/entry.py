"""The one door of the control API: whose request it is, and whether its path may be asked at all.

Every path is an `Entry` and declares what it asks, as the APIs of the Kafka port do; the handler
gets a `Caller`, and has nothing else to ask the gate with. Whoever shows no password is
`User:ANONYMOUS`, for whom there may be rules. A password (HTTP Basic) is one of the users that
log in at the Kafka port, a token one of the same provider; without either the caller is whom the
certificate of the connection names, if it has shown one (`catchwater.control.ssl.client.auth`).

A browser on this machine must not be made to ask for others (DNS rebinding): the `Host` of a
request is an address, `localhost`, or a name of this broker.
"""

import asyncio
import base64
import binascii
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.access import Guard
from catchwater.broker.audit import Client
from catchwater.broker.broker import Broker
from catchwater.broker.control.replies import Refusal
from catchwater.broker.gate import (
    ANONYMOUS,
    THE_CLUSTER,
    ClusterDenied,
    Gate,
    Operation,
    Resource,
    ResourceType,
    TopicDenied,
)
from catchwater.broker.tls import NoName, distinguished_name, mapping
from catchwater.wire.security.verifiers import NotProved


class Caller(NamedTuple):
    """Who asks, and what lets them do it."""

    principal: str
    gate: Gate
    host: str = ""

    def note(
        self, broker: Broker, action: str, resource: str, before: Any = None, after: Any = None
    ) -> None:
        """Have what the caller has done written into the audit trail, if there is one."""
        if broker.audit is not None:
            client = Client(self.principal, broker.config.catchwater_control_protocol, self.host)
            broker.audit.note("action", client, action, resource, before=before, after=after)

    def may(self, operation: Operation, topic: str) -> bool:
        """Whether the caller may do this with the topic, which need not exist."""
        return self.may_with(operation, Resource(ResourceType.TOPIC, topic))

    def may_with(self, operation: Operation, resource: Resource) -> bool:
        """Whether the caller may do this."""
        return self.gate.may(self.principal, operation, resource)

    def check(self, operation: Operation, topic: str) -> None:
        """Raise `TopicDenied` unless the caller may do this with the topic."""
        if not self.may(operation, topic):
            raise TopicDenied(self.principal, operation, topic)

    def check_cluster(self, operation: Operation) -> None:
        """Raise `ClusterDenied` unless the caller may do this with the cluster."""
        if not self.may_with(operation, THE_CLUSTER):
            raise ClusterDenied(self.principal, operation)

    def check_pipeline(self, operation: Operation, pipeline: str) -> None:
        """Raise `Refusal` unless the caller may act as this pipeline.

        To the gate it is the transactional id of its name: who writes under it shuts others out.
        """
        if not self.may_with(operation, Resource(ResourceType.TRANSACTIONAL_ID, pipeline)):
            message = f"{self.principal} may not {operation} as the pipeline {pipeline}."
            raise Refusal(403, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", message)

    def may_group(self, operation: Operation, group: str) -> bool:
        """Whether the caller may do this with the consumer group, which need not exist."""
        return self.may_with(operation, Resource(ResourceType.GROUP, group))

    def check_group(self, operation: Operation, group: str) -> None:
        """Raise `Refusal` unless the caller may do this with the consumer group."""
        if not self.may_group(operation, group):
            message = f"{self.principal} may not {operation} the group {group}."
            raise Refusal(403, "GROUP_AUTHORIZATION_FAILED", message)


_LONGEST_PATH = 1_000
CERTIFICATE = "certificate"
"""In the state of a request: what the caller showed, and which authorities it was judged by."""


class Free:
    """The path says, and spends, only what is everybody's or the caller's own."""


class OfCluster(NamedTuple):
    """The path asks for this with the cluster."""

    operation: Operation


class ByHandler(NamedTuple):
    """The handler asks for this with each topic, pin or pipeline that it meets."""

    operation: Operation


class ByUrl:
    """The URL itself is the permission."""


Asks = Free | OfCluster | ByHandler | ByUrl
Handle = Callable[[Request, Caller], Awaitable[Response]]


def entry(broker: Broker, path: str, handle: Handle, asks: Asks, method: str = "GET") -> Route:
    """A path, and what it asks before its handler is called."""
    names = _names(broker)

    async def serve(request: Request) -> Response:
        _check_host(request, names)
        _check_origin(request)
        host = request.client.host if request.client else ""
        try:
            caller = await _caller(broker, request, asks)
        except Refusal:
            _refused(broker, "login", ANONYMOUS, host, request)
            raise
        try:
            if isinstance(asks, OfCluster):
                caller.check_cluster(asks.operation)
            if isinstance(asks, ByHandler) and broker.guard is not None and method != "GET":
                _check_any(caller, asks.operation)
            return await handle(request, caller)
        except (TopicDenied, ClusterDenied, Refusal) as denied:
            is_denied = not isinstance(denied, Refusal) or denied.status == 403
            if is_denied:
                _refused(broker, "refusal", caller.principal, host, request)
            if is_denied and broker.guard is not None and caller.principal == ANONYMOUS:
                raise Refusal(401, "NOT_AUTHENTICATED", f"{denied} Log in to do it.") from denied
            raise

    return Route(path, serve, methods=[method])


_NAMED = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)


def _check_any(caller: Caller, operation: Operation) -> None:
    """Refuse who may do this with nothing at all, before a body is read."""
    if not any(caller.gate.may_with_any(caller.principal, operation, kind) for kind in _NAMED):
        message = f"{caller.principal} may not {operation} any topic, group or pipeline."
        raise Refusal(403, "TOPIC_AUTHORIZATION_FAILED", message)


def _refused(broker: Broker, kind: str, principal: str, host: str, request: Request) -> None:
    if broker.audit is not None:
        client = Client(principal, broker.config.catchwater_control_protocol, host)
        broker.audit.note(kind, client, request.method, request.url.path[:_LONGEST_PATH])


async def _caller(broker: Broker, request: Request, asks: Asks) -> Caller:
    shown = request.headers.get("authorization")
    host = request.client.host if request.client else ""
    guard = broker.guard
    if guard is None or isinstance(asks, ByUrl):
        return Caller(ANONYMOUS, broker.gate_of(ANONYMOUS, host), host)
    if shown is None:
        principal = _by_certificate(broker, request)
        return Caller(principal, broker.gate_of(principal, host), host)
    try:
        principal = f"User:{await _user(guard, shown, host)}"
    except (binascii.Error, ValueError, NotProved) as error:
        message = "User name or password is wrong."
        raise Refusal(401, "NOT_AUTHENTICATED", message) from error
    return Caller(principal, broker.gate_of(principal, host), host)


def _by_certificate(broker: Broker, request: Request) -> str:
    """The principal that the connection's certificate names; `ANONYMOUS` without one."""
    shown, authorities = getattr(request.state, CERTIFICATE, (None, 0))
    if not shown or broker.control_certificate is None:
        return ANONYMOUS
    if authorities != broker.control_certificate.version:
        message = "Others sign certificates by now: connect again."
        raise Refusal(401, "NOT_AUTHENTICATED", message)
    try:
        user = mapping(broker.config.ssl_principal_mapping_rules)(distinguished_name(shown))
    except NoName as nobody:
        raise Refusal(401, "NOT_AUTHENTICATED", str(nobody)) from nobody
    return f"User:{user}"


async def _user(guard: Guard, shown: str, host: str) -> str:
    """Who shows this. Raises `NotProved` and ValueError."""
    kind, _, token = shown.partition(" ")
    if kind.lower() == "bearer" and guard.tokens is not None:
        return (await asyncio.to_thread(guard.tokens.check, token.strip())).user
    user, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
    if kind.lower() != "basic" or not colon:
        raise NotProved("Users log in by HTTP Basic or a token.")
    await guard.check_password(user, password, host)
    return user


def _names(broker: Broker) -> frozenset[str]:
    """The names by which clients may call this broker."""
    more = (each.strip() for each in broker.config.catchwater_control_hosts.split(","))
    ours = [broker.config.catchwater_control_listener.host, broker.kafka_address.host]
    for listener in broker.config.kafka_listeners:
        ours.append((listener.advertised or listener.address).host)
    url = urlsplit(broker.control_url).hostname or ""
    return frozenset(map(str.lower, (*more, *ours, url, socket.gethostname(), "localhost", "")))


def _check_origin(request: Request) -> None:
    """Refuse what a browser sends for a page of somebody else, and what changes something."""
    origin = request.headers.get("origin")
    if origin is None or request.method in ("GET", "HEAD"):
        return
    if origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
        message = "A browser asks for a page that is not of this broker."
        raise Refusal(403, "FOREIGN_PAGE", message)


def _check_host(request: Request, names: frozenset[str]) -> None:
    named = request.headers.get("host", "")
    try:
        host = (urlsplit(f"//{named}").hostname or "").lower()
        if host not in names:
            ip_address(host.partition("%")[0])
    except ValueError:
        message = f"This broker is not called {named[:100]!r}; see catchwater.control.hosts."
        raise Refusal(421, "NOT_THIS_HOST", message) from None
