"""The application: every path of the control API, and what becomes of what its handlers raise."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from catchwater.broker.broker import Broker
from catchwater.broker.control.epochs import Epochs
from catchwater.broker.control.health import Health
from catchwater.broker.control.pins import Pins
from catchwater.broker.control.plans import Plans
from catchwater.broker.control.replies import http_error, operating_error
from catchwater.broker.control.topics import Topics
from catchwater.config import CatchwaterError


def create_app(broker: Broker) -> Starlette:
    """The application; it keeps nothing of its own."""
    chapters = (Health(broker), Topics(broker), Plans(broker), Pins(broker), Epochs(broker))
    return Starlette(
        routes=[route for chapter in chapters for route in chapter.routes()],
        exception_handlers={HTTPException: http_error, CatchwaterError: operating_error},
    )
