"""What is done about an error that one request brings: its connection ends, nobody else notices."""

import logging
from typing import Protocol

from catchwater.broker.router import NotServed
from catchwater.config import CatchwaterError
from catchwater.wire.fields import MalformedMessage

_log = logging.getLogger("catchwater.broker")


class Guarded(Protocol):
    """A connection."""

    host: str

    def refuse(self, reason: str, message: str) -> None:
        """Close at once: one line in the log, one count in the metrics."""
        ...


class Guard:
    """Whatever goes wrong with one request ends its connection, and nothing else."""

    def __init__(self, connection: Guarded) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> bool:
        match error:
            case None:
                return False
            case MalformedMessage():
                self._connection.refuse("bad_request", str(error))
            case NotServed():
                self._connection.refuse("bad_api", str(error))
            case CatchwaterError():
                self._connection.refuse("failed", str(error))
            case Exception():
                text = "A request from %s failed; please report this."
                _log.error(text, self._connection.host, exc_info=error)
                self._connection.refuse("failed", "the request could not be answered.")
            case _:
                return False
        return True
