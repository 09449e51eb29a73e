"""Connections that have not asked for anything yet: at a full port they give way to others.

Who connects to be served says so at once. So where there is no place left, the connection that has
been silent longest is closed for a new one, unless all of them have only just come.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

SILENT_S = 1.0
"""How long a connection may say nothing before another one may take its place."""

C = TypeVar("C")


class Newcomers(Generic[C]):
    """Those of one port. Pure: times are seconds on a clock that does not go back."""

    def __init__(self) -> None:
        self._since_s: dict[C, float] = {}
        """In the order in which they came."""

    def add(self, connection: C, now_s: float) -> None:
        """It was opened."""
        self._since_s[connection] = now_s

    def drop(self, connection: C) -> None:
        """It has asked for something, or is closed."""
        self._since_s.pop(connection, None)

    def silent_longest(self, now_s: float, among: Callable[[C], bool]) -> C | None:
        """The one to be closed for another, if there is one."""
        for connection, since_s in self._since_s.items():
            if now_s - since_s <= SILENT_S:
                return None
            if among(connection):
                return connection
        return None
