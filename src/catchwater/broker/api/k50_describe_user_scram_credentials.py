"""DescribeUserScramCredentials (50), v0: by which mechanisms users can log in (KIP-554).

Of passwords, and of what is kept of them, nothing is shown. Users of a file are shown as well.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from catchwater.broker.access import of_rows
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.catalog.errors import CatalogRetriable
from catchwater.wire.errors import ErrorCode
from catchwater.wire.security.verifiers import Verifiers

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""By Kafka's number."""


async def users(broker: Broker) -> Mapping[str, Verifiers]:
    """All users. Raises `CatalogRetriable`."""
    if broker.guard is not None:
        return broker.guard.access.users
    return of_rows(await asyncio.to_thread(broker.log.access)).users


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Show the users that are named, or all."""
    try:
        known = await users(broker)
    except CatalogRetriable as reason:
        return error_fields(ErrorCode.KAFKA_STORAGE_ERROR, str(reason)) | {"results": ()}
    times = Counter(user.name for user in request.users or ())
    results = [_result(name, times[name], known.get(name)) for name in times or sorted(known)]
    return error_fields(ErrorCode.NONE) | {"results": results}


def _result(name: str, times: int, kept: Verifiers | None) -> Fields:
    error, message = ErrorCode.NONE, None
    if times > 1:
        error, message = ErrorCode.DUPLICATE_RESOURCE, "Name each user once."
    elif not kept:
        error, message = ErrorCode.RESOURCE_NOT_FOUND, "There is no such user with a password."
    infos = [
        {"mechanism": number, "iterations": kept[mechanism].iterations}
        for number, mechanism in MECHANISMS.items()
        if kept and mechanism in kept and not error
    ]
    return {"user": name, **error_fields(error, message), "credential_infos": infos}


def _refuse(call: Call, request: Any, error: ErrorCode) -> Fields:
    results = [{"user": user.name, **error_fields(error)} for user in request.users or ()]
    return error_fields(error) | {"results": results}


API = Api(
    50,
    "DescribeUserScramCredentials",
    range(1),
    handle,
    refuse=_refuse,
    asks=[Whole(Operation.DESCRIBE, the_cluster)],
)
