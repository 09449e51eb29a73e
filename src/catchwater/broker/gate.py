"""Authorization: who may do what with a topic, a group, a transactional id or the cluster.

Operations and resources are Kafka's. Every handler declares its checks (`Api.asks`):

- `Whole`: the router refuses the whole request unless all of it is allowed (EndTxn);
- `Each`: the router takes denied items out of the request, so that the handler never sees them,
  and puts their refusals into the reply (DeleteRecords);
- `ByHandler`: the handler itself asks `Call.may`, and leaves out or marks what is denied, because
  only it knows what the reply would show (Metadata, Fetch).

The control API asks the same gate (`control.entry`): READ for a plan and for the topics of a pin,
DESCRIBE for what it lists, WRITE for an epoch of a sink. A direct read is not checked by itself: a
query learns the URLs of objects from a plan only. The gate does not protect the storage from
somebody who has its credentials.

The event loop asks the gate for every topic of every request, so it must answer from memory;
with `AllowAll` it is not asked at all. A caller learns whether a topic exists only if the gate
allows what the caller asked to do with it.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from catchwater.audit import AUDIT_TOPIC
from catchwater.config import CatchwaterError
from catchwater.wire.errors import ErrorCode

if TYPE_CHECKING:
    from catchwater.broker.broker import Broker

ANONYMOUS = "User:ANONYMOUS"
"""The principal of every client that has not authenticated, as in Kafka."""


class Operation(StrEnum):
    """What a client asks to do, by Kafka's name."""

    __hash__ = str.__hash__  # Enum's own is Python, and verdicts are looked up by it

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"


class ResourceType(StrEnum):
    """The kind of resource, by Kafka's name."""

    __hash__ = str.__hash__

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    DELEGATION_TOKEN = "DELEGATION_TOKEN"
    USER = "USER"


class Resource(NamedTuple):
    """One thing of a type, such as the topic `payments`."""

    type: ResourceType
    name: str


THE_CLUSTER = Resource(ResourceType.CLUSTER, "kafka-cluster")
"""The one resource of its type, by Kafka's name."""


class Gate(Protocol):
    """Decides who may do what; an implementation holds its own rules."""

    def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Whether `principal`, such as `User:ANONYMOUS`, may do this. Does not block."""
        ...

    def may_with_any(self, principal: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether there could be a resource of this type with which `principal` may do this."""
        ...


class AllowAll:
    """Everybody may do everything."""

    def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
        return True

    def may_with_any(self, principal: str, operation: Operation, kind: ResourceType) -> bool:
        return True


_OF_THE_TRAIL = {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}


def is_sealed(operation: Operation, resource: Resource) -> bool:
    """Whether nobody may do it, super users neither: change the topic of the audit trail."""
    return (
        resource.name == AUDIT_TOPIC
        and resource.type is ResourceType.TOPIC
        and operation not in _OF_THE_TRAIL
    )


class AllButSealed:
    """Everybody may do everything that is not sealed: the gate of a broker with an audit trail."""

    def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
        return not is_sealed(operation, resource)

    def may_with_any(self, principal: str, operation: Operation, kind: ResourceType) -> bool:
        return True


Resources = Callable[["Broker", Any], Iterable[Resource]]
"""The resources that a request, or one item of it, names; only these are checked."""


class Whole(NamedTuple):
    """Every resource must be allowed, else the request is refused; `Api.refuse` makes the reply."""

    operation: Operation
    resources: Resources
    or_any_topic: Operation | None = None
    """A principal that may do this with any one topic, there or not, is let through as well."""


class Each(NamedTuple):
    """Checked item by item: denied items are refused, the handler gets the others."""

    operation: Operation
    resources: Resources
    """Of one item."""
    items: str
    """The field of the request with the items."""
    answers: str
    """The field of the reply with their answers."""
    refused: Callable[[Any, ErrorCode], Mapping[str, Any]]
    """The answer to an item that is denied."""
    or_cluster: bool = False
    """Whether a principal that may do this with the cluster may do it with every item."""


class ByHandler(NamedTuple):
    """The handler asks `Call.may` for each resource that it meets."""

    operation: Operation
    type: ResourceType
    or_cluster: bool = False


Ask = Whole | Each | ByHandler

DENIED: Mapping[ResourceType, ErrorCode] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def the_cluster(broker: "Broker", request: Any) -> Iterable[Resource]:
    """The cluster, for any request."""
    return (THE_CLUSTER,)


def the_group(broker: "Broker", request: Any) -> Iterable[Resource]:
    """The request's group."""
    return (Resource(ResourceType.GROUP, request.group_id),)


def the_transactional_id(broker: "Broker", request: Any) -> Iterable[Resource]:
    """The request's transactional id, if there is one."""
    name = request.transactional_id
    return () if name is None else (Resource(ResourceType.TRANSACTIONAL_ID, name),)


def the_topic(broker: "Broker", item: Any) -> Iterable[Resource]:
    """The topic that an item is about; nothing for an id that no topic has."""
    name = getattr(item, "name", None) or getattr(item, "topic", None)
    if name is None and (topic := broker.find_named(item)) is not None:
        name = topic.name
    return () if name is None else (Resource(ResourceType.TOPIC, name),)


def named(kind: ResourceType) -> Resources:
    """The resource whose name an item is."""
    return lambda broker, name: (Resource(kind, name),)


_BITS = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
}
_OPERATIONS: Mapping[ResourceType, Iterable[Operation]] = {
    ResourceType.TOPIC: _BITS.keys(),
    ResourceType.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    ResourceType.CLUSTER: _BITS.keys() - {Operation.READ, Operation.WRITE, Operation.DELETE},
}


def allowed_operations(gate: Gate, principal: str, resource: Resource) -> int:
    """The operations that the principal may do with the resource, as a set of bits (KIP-430)."""
    may = (each for each in _OPERATIONS[resource.type] if gate.may(principal, each, resource))
    return sum(1 << _BITS[each] for each in may)


class ClusterDenied(CatchwaterError):
    """A principal asks for what it may not do with the cluster."""

    def __init__(self, principal: str, operation: Operation) -> None:
        super().__init__(
            f"{principal} may not {operation} the cluster.",
            hint=f"Who administers the log may allow {operation} on the cluster.",
        )


class TopicDenied(CatchwaterError):
    """A principal asks for what it may not do with a topic."""

    def __init__(self, principal: str, operation: Operation, topic: str) -> None:
        super().__init__(
            f"{principal} may not {operation} topic {topic}.",
            hint=f"Who administers the log may allow {operation} on the topic, or name another "
            "principal to use.",
        )
