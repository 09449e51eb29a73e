"""Topics, and each one's offsets, bytes and places in storage."""

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control import access
from catchwater.broker.control.replies import json_reply
from catchwater.broker.gate import ANONYMOUS, Operation
from catchwater.catalog.rows import Topic


class Topics:
    """The paths under `/api/v1/topics`: those topics that who asks may describe."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = broker.log

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/topics", self.topics),
            Route("/api/v1/topics/{topic}", self.topic),
        ]

    async def topics(self, request: Request) -> Response:
        may = partial(self._broker.may, ANONYMOUS, Operation.DESCRIBE)
        return json_reply(
            {"topics": [_topic(topic) for topic in self._log.topics if may(topic.name)]}
        )

    async def topic(self, request: Request) -> Response:
        topic = await access.find(self._broker, request.path_params["topic"], Operation.DESCRIBE)
        places = {row.partition: row for row in await self._log.storage(topic.name)}
        states = [(index, self._log.state((topic.id, index))) for index in range(topic.partitions)]
        return json_reply(
            _topic(topic)
            | {
                "config": dict(topic.config),
                "offsets": [
                    {
                        "partition": index,
                        "log_start": state.log_start,
                        "high_watermark": state.high_watermark,
                        "bytes": state.bytes,
                        "earliest_timestamp": state.earliest_timestamp,
                    }
                    for index, state in states
                ],
                "storage": [row._asdict() for row in places.values()],
            }
        )


def _topic(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, "id": topic.id.hex(), "partitions": topic.partitions}
