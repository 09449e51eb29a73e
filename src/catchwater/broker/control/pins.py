"""Pins, which keep the log from deleting records: set, renewed and released."""

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control.entry import ByHandler, Caller, entry
from catchwater.broker.control.replies import Refusal, json_reply, read_body
from catchwater.broker.gate import Operation
from catchwater.catalog.rows import Pin
from catchwater.log.keep.tables import PIN as PIN_OF_TABLE

LONGEST_NAME = 1_000
MOST_PINS = 10_000
"""Every one of them is read whenever one is set, and whenever records are deleted."""


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
        one, reads = "/api/v1/pins/{id:path}", ByHandler(Operation.READ)
        return [
            entry(self._broker, "/api/v1/pins", self.pins, ByHandler(Operation.DESCRIBE)),
            entry(self._broker, one, self.set_pin, reads, "PUT"),
            entry(self._broker, one, self.renew_pin, reads, "PATCH"),
            entry(self._broker, one, self.release_pin, reads, "DELETE"),
        ]

    async def _check(self, caller: Caller, pin_id: str, *, sets: bool = False) -> Pin | None:
        """The pin of this id, if there is one.

        Raises `Refusal` if there is and the caller may not READ all its topics, without their
        names, which the caller may not know; and if there is none to be set any more.
        """
        pins = await self._log.pins()
        pin = next((each for each in pins if each.id == pin_id), None)
        if sets and pin is None and len(pins) >= MOST_PINS:
            hint = "Release some, or give them leases."
            raise Refusal(507, "TOO_MANY_PINS", f"There are {MOST_PINS} pins.", hint=hint)
        if pin is not None and not _may(caller, Operation.READ, pin):
            message = f"{caller.principal} may not READ all topics of the pin {pin_id}."
            raise Refusal(403, "TOPIC_AUTHORIZATION_FAILED", message)
        return pin

    async def pins(self, request: Request, caller: Caller) -> Response:
        pins = [
            _pin(pin) for pin in await self._log.pins() if _may(caller, Operation.DESCRIBE, pin)
        ]
        return json_reply({"pins": pins})

    async def set_pin(self, request: Request, caller: Caller) -> Response:
        body = await read_body(request, _PinBody)
        _check_name("id", request.path_params["id"])
        if request.path_params["id"].startswith(PIN_OF_TABLE):
            message = f"Pins whose ids begin with {PIN_OF_TABLE} are the log's own, for tables."
            raise Refusal(400, "INVALID_PIN", message)
        _check_name("owner", body.owner)
        positions = {(p.topic, p.partition): p.offset for p in body.positions}
        for topic in {topic for topic, _ in positions}:
            caller.check(Operation.READ, topic)
        before = await self._check(caller, request.path_params["id"], sets=True)
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
        caller.note(*(self._broker, "PUT pin", f"PIN {pin.id}", before and _pin(before), _pin(pin)))
        return json_reply(_pin(pin))

    async def renew_pin(self, request: Request, caller: Caller) -> Response:
        body = await read_body(request, _LeaseBody)
        pin_id = request.path_params["id"]
        await self._check(caller, request.path_params["id"])
        pin = await self._log.renew_pin(pin_id, self._broker.clock.now_ms() + body.lease_ms)
        if pin is None:
            message = f"There is no pin {pin_id} that still holds anything."
            raise Refusal(404, "UNKNOWN_PIN", message)
        return json_reply(_pin(pin))

    async def release_pin(self, request: Request, caller: Caller) -> Response:
        before = await self._check(caller, request.path_params["id"])
        if not await self._log.release_pin(request.path_params["id"]):
            raise Refusal(404, "UNKNOWN_PIN", f"There is no pin {request.path_params['id']}.")
        caller.note(
            *(self._broker, "DELETE pin", f"PIN {request.path_params['id']}"),
            *(before and _pin(before), None),
        )
        return json_reply({"released": request.path_params["id"]})


def _may(caller: Caller, operation: Operation, pin: Pin) -> bool:
    """Whether the caller may do this with all topics of the pin."""
    return all(caller.may(operation, topic) for topic in {topic for topic, _ in pin.positions})


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
