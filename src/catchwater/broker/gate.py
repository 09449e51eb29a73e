"""Who may do what with a topic or the cluster: one question, asked before anything is done.

Operations and resources are Kafka's. Produce asks for WRITE, Fetch and the control API's plan for
READ, ListOffsets, OffsetForLeaderEpoch, Metadata and the control API's topics for DESCRIBE, each of
a topic; an epoch of a sink asks for WRITE of the topic it goes to, and for DESCRIBE to be shown. A
pin is set, renewed and released by who may READ every topic that it holds, and listed for who may
DESCRIBE them. A direct read has no question of its own: a query knows the URLs of objects from a
plan alone. What makes, changes and deletes topics asks for CREATE, ALTER, ALTER_CONFIGS and DELETE;
what belongs to no topic asks for the `CLUSTER`, as does where the storage lies.

A gate is asked on the event loop for every topic of every request, so it must answer from memory.
Whether a topic exists is told only to who may do with it what was asked. Of groups the gate is
asked in `coordination.access`; `/metrics` asks nothing, and who has the credentials of the storage
needs no gate.
"""

from enum import StrEnum
from typing import NamedTuple, Protocol

from catchwater.config import CatchwaterError

ANONYMOUS = "User:ANONYMOUS"
"""The principal of everybody whom nothing has authenticated, as in Kafka."""


class Operation(StrEnum):
    """What somebody wants to do, by Kafka's name."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"


class ResourceType(StrEnum):
    """What it is done to, by Kafka's name."""

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"


class Resource(NamedTuple):
    """One thing of a type, such as the topic `payments`."""

    type: ResourceType
    name: str


THE_CLUSTER = Resource(ResourceType.CLUSTER, "kafka-cluster")
"""The one resource of its type, by Kafka's name."""


class Gate(Protocol):
    """Decides; holds whatever it decides by."""

    def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Whether `principal`, such as `User:ANONYMOUS`, may do this. Does not block."""
        ...


class AllowAll:
    """Everybody may do everything."""

    def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
        return True


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
