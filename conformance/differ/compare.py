"""Where two plain replies differ: the path of a field, and what each broker has there.

Lists of structs are matched by what names their elements (a topic's name, a partition's number), so
that one missing element is one difference; the order of what both have is compared as well. Where
two structs differ in their error code, the rest follows from that and is not compared.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

NAMING = (
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "group_id",
    "partition_index",
    "partition",
    "partition_id",
    "index",
    "api_key",
    "resource_name",
    "key",
    "transactional_id",
    "node_id",
    "broker_id",
)
ABSENT = "<absent>"


class Difference(NamedTuple):
    """At `path` (names and numbers with dots between) Kafka has one value and we another."""

    path: str
    kafka: Any
    ours: Any
    error: int | None = None
    """The error code that both have in the innermost struct around it which has one."""


def differences(
    kafka: Any, ours: Any, path: str = "", error: int | None = None
) -> Iterator[Difference]:
    """All differences, in the order of Kafka's fields; `error` is that of the struct around."""
    if isinstance(kafka, dict) and isinstance(ours, dict):
        if kafka.get("error_code") != ours.get("error_code"):
            here = f"{path}.error_code".lstrip(".")
            yield Difference(here, kafka.get("error_code"), ours.get("error_code"), error)
            return
        error = kafka.get("error_code", error)
        for name in [*kafka, *(name for name in ours if name not in kafka)]:
            here = f"{path}.{name}".lstrip(".")
            yield from differences(kafka.get(name, ABSENT), ours.get(name, ABSENT), here, error)
    elif isinstance(kafka, list) and isinstance(ours, list):
        yield from _lists(kafka, ours, path, error)
    elif kafka != ours:
        yield Difference(path, kafka, ours, error)


def _lists(kafka: list[Any], ours: list[Any], path: str, error: int | None) -> Iterator[Difference]:
    naming = _naming(kafka, ours)
    if naming is None:
        if len(kafka) != len(ours):
            yield Difference(f"{path}.length", len(kafka), len(ours), error)
        for index, (theirs, mine) in enumerate(zip(kafka, ours, strict=False)):
            yield from differences(theirs, mine, f"{path}.{index}", error)
        return
    theirs = {each[naming]: each for each in kafka}
    mine = {each[naming]: each for each in ours}
    for name in [*theirs, *(name for name in mine if name not in theirs)]:
        here = f"{path}.{name}"
        if name in theirs and name in mine:
            yield from differences(theirs[name], mine[name], here, error)
        else:
            yield Difference(here, _presence(name in theirs), _presence(name in mine), error)
    shared = [name for name in theirs if name in mine]
    order = [name for name in mine if name in theirs]
    if shared != order:
        yield Difference(f"{path}.order", shared, order, error)


def _presence(is_there: bool) -> str:
    return "<present>" if is_there else ABSENT


def _naming(kafka: list[Any], ours: list[Any]) -> str | None:
    """The field that names each element of both lists, if there is one."""
    if not all(isinstance(each, dict) for each in [*kafka, *ours]) or not (kafka or ours):
        return None
    for name in NAMING:
        if all(
            len({each.get(name) for each in side} - {None}) == len(side) for side in (kafka, ours)
        ):
            return name
    return None
