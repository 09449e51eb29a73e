"""The list of cases: functions that ask one API, declared with its key."""

from collections.abc import Callable
from typing import NamedTuple

from conformance.differ.talk import Talk

Body = Callable[[Talk], None]


class Case(NamedTuple):
    """What to do in a talk about one API; the name is that of the function."""

    name: str
    api_key: int
    body: Body


CASES: list[Case] = []


def case(api_key: int) -> Callable[[Body], Body]:
    """Declare a case of this API."""

    def declare(body: Body) -> Body:
        CASES.append(Case(body.__name__, api_key, body))
        return body

    return declare


def empty_request(talk: Talk) -> None:
    """Every field as empty as it can be; asked of every API that both serve.

    What it lists is what other cases made, too: only the rest of the reply is compared.
    """
    talk.ask_of_mine()
