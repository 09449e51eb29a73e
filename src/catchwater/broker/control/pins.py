"""Pins, which keep the log from deleting records: set, renewed and released."""

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control import replies
from catchwater.broker.control.replies import Refusal, json_reply, read_body
from catchwater.broker.gate import Operation
from catchwater.catalog.rows import Pin

LONGEST_NAME = 1_000


class _Position(msgspec.Struct):
    topic: str
    partition: int
    offset: int


class _PinBody(msgspec.Struct):
    owner: str
    positions: list[_Position]
    lease_until_ms: int | None = None
    lease_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """From now on, by this broker's clock; takes precedence over `lease_until_ms`."""
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _LeaseBody(msgspec.Struct):
    lease_ms: Annotated[int, msgspec.Meta(ge=1)]


class Pins:
    """The paths under `/api/v1/pins`; changing a pin needs READ of all its topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = broker.log

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/pins", self.pins),
            Route("/api/v1/pins/{id:path}", self.set_pin, methods=["PUT"]),
            Route("/api/v1/pins/{id:path}", self.renew_pin, methods=["PATCH"]),
            Route("/api/v1/pins/{id:path}", self.release_pin, methods=["DELETE"]),
        ]

    async def pins(self, request: Request) -> Response:
        pins = [
            _pin(pin)
            for pin in await self._log.pins()
            if replies.may_pin(self._broker, Operation.DESCRIBE, pin)
        ]
        return json_reply({"pins": pins})

    async def set_pin(self, request: Request) -> Response:
        body = await read_body(request, _PinBody)
        _check_name("id", request.path_params["id"])
        _check_name("owner", body.owner)
        positions = {(p.topic, p.partition): p.offset for p in body.positions}
        await replies.check_pin(self._broker, request)
        for topic, _ in positions:
            replies.check(self._broker, Operation.READ, topic)
        now_ms = self._broker.clock.now_ms()
        pin = Pin(
            request.path_params["id"],
            body.owner,
            positions,
            body.lease_until_ms if body.lease_ms is None else now_ms + body.lease_ms,
            now_ms,
            body.max_bytes,
        )
        await self._log.set_pin(pin)
        return json_reply(_pin(pin))

    async def renew_pin(self, request: Request) -> Response:
        body = await read_body(request, _LeaseBody)
        pin_id = request.path_params["id"]
        await replies.check_pin(self._broker, request)
        pin = await self._log.renew_pin(pin_id, self._broker.clock.now_ms() + body.lease_ms)
        if pin is None:
            message = f"There is no pin {pin_id} that still holds anything."
            raise Refusal(404, "UNKNOWN_PIN", message)
        return json_reply(_pin(pin))

    async def release_pin(self, request: Request) -> Response:
        await replies.check_pin(self._broker, request)
        if not await self._log.release_pin(request.path_params["id"]):
            raise Refusal(404, "UNKNOWN_PIN", f"There is no pin {request.path_params['id']}.")
        return json_reply({"released": request.path_params["id"]})


def _check_name(what: str, name: str) -> None:
    """Refuse what could not stand in a line of the log as it is."""
    if not (name.isprintable() and len(name) <= LONGEST_NAME):
        message = f"The {what} of a pin has up to {LONGEST_NAME} characters, all of which print."
        raise Refusal(400, "INVALID_PIN", message)


def _pin(pin: Pin) -> dict[str, Any]:
    return {
        "id": pin.id,
        "owner": pin.owner,
        "positions": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(pin.positions.items())
        ],
        "lease_until_ms": pin.lease_until_ms,
        "created_ms": pin.created_ms,
        "max_bytes": pin.max_bytes,
        "state": pin.state,
    }
