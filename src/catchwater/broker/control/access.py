"""What whoever asks over HTTP may do: the gate's answers, for topics and for pins.

The control API knows no users yet: who asks is `ANONYMOUS`.
"""

from starlette.requests import Request

from catchwater.broker.broker import Broker
from catchwater.broker.control.replies import Refusal
from catchwater.broker.gate import ANONYMOUS, Operation, TopicDenied
from catchwater.catalog.rows import Pin, Topic


def check(broker: Broker, operation: Operation, topic: str) -> None:
    """Raise `TopicDenied` if the gate keeps the topic from who asks."""
    if not broker.may(ANONYMOUS, operation, topic):
        raise TopicDenied(ANONYMOUS, operation, topic)


def may_pin(broker: Broker, operation: Operation, pin: Pin) -> bool:
    """Whether the gate lets who asks do this to all topics of the pin."""
    topics = {topic for topic, _ in pin.positions}
    return all(broker.may(ANONYMOUS, operation, topic) for topic in topics)


async def check_pin(broker: Broker, request: Request) -> None:
    """Raise `Refusal` if the pin is there, of topics that who asks may not read.

    It does not name them: they may be kept from whoever asks.
    """
    pin_id = request.path_params["id"]
    for pin in await broker.log.pins():
        if pin.id == pin_id and not may_pin(broker, Operation.READ, pin):
            message = f"{ANONYMOUS} may not READ all topics of the pin {pin_id}."
            raise Refusal(403, "TOPIC_AUTHORIZATION_FAILED", message)


async def find(broker: Broker, name: str, operation: Operation) -> Topic:
    """The topic, its partitions seen as they are now, whoever has changed them.

    Raises `TopicDenied` before it is known whether there is such a topic.
    """
    check(broker, operation, name)
    await broker.log.look_up([name])
    topic = broker.log.topics.find(name)
    await broker.log.refresh((topic.id, index) for index in range(topic.partitions))
    return topic
