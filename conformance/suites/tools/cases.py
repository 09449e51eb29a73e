"""The list of cases: functions that run tools and hold what they said against what it should be."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from conformance.suites.tools.jvm import Tools

Body = Callable[[Tools, str], None]


class Case(NamedTuple):
    """`body` gets the tools and a name that is the case's own, for topics, groups and ids."""

    name: str
    body: Body


CASES: list[Case] = []


def case(body: Body) -> Body:
    """Declare a case; its name is the function's."""
    CASES.append(Case(body.__name__.replace("_", "-"), body))
    return body


def topic(tools: Tools, name: str, partitions: int = 1, *arguments: str) -> None:
    """Make a topic. Raises `Wrong`."""
    tools("topics", "--create", "--topic", name, "--partitions", str(partitions), *arguments)


def records(tools: Tools, name: str, count: int) -> None:
    """Append `v0`, `v1`, ... in one batch, hence to one partition. Raises `Wrong`."""
    lines = "".join(f"v{n}\n" for n in range(count))
    tools("console-producer", "--topic", name, stdin=lines).tells()


def read(tools: Tools, name: str, *arguments: str, within_ms: int = 15_000) -> list[str]:
    """What the console consumer prints of a topic's records, in its order. Raises `Wrong`."""
    bound = ["--timeout-ms", str(within_ms)]
    said = tools("console-consumer", "--topic", name, *bound, *arguments)
    return said.tells().out.splitlines()


def written(tools: Tools, name: str, content: Any) -> str:
    """The path of a JSON file for a tool that wants one."""
    path = tools.folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return str(path)
