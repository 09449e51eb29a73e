"""Parsing bodies, encoding replies and errors.

Promises that a body is bounded and of the requested type, and that every error has a code, a
sentence and, if there is one, a hint.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from catchwater.broker.broker import Broker
from catchwater.broker.gate import ClusterDenied, TopicDenied
from catchwater.catalog.errors import (
    CatalogFull,
    CatalogUnavailable,
    CatalogUncertain,
    EpochGap,
    SessionFenced,
    TooManyReports,
    TopicExists,
    TopicUnknown,
    WriterFenced,
)
from catchwater.catalog.rows import Topic
from catchwater.config import CatchwaterError
from catchwater.log.core import RangeMissing
from catchwater.log.read.history import PlanTooLarge
from catchwater.log.storage import StagedDamaged
from catchwater.log.tables.open import TableRefused, TableUnavailable, TableUnfit
from catchwater.objects.base import ObjectMissing
from catchwater.values.settings import BadSchema
from catchwater.wal.base import WalReadError

MAX_BODY_BYTES = 4 * 1024 * 1024

T = TypeVar("T")


class Refusal(CatchwaterError):
    """Answers a request with an HTTP error status."""

    def __init__(self, status: int, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


_STATUSES: Mapping[type[CatchwaterError], tuple[int, str]] = {
    TopicDenied: (403, "TOPIC_AUTHORIZATION_FAILED"),
    ClusterDenied: (403, "CLUSTER_AUTHORIZATION_FAILED"),
    TopicUnknown: (404, "UNKNOWN_TOPIC"),
    TopicExists: (409, "TOPIC_EXISTS"),
    ObjectMissing: (404, "NO_OBJECT"),
    WalReadError: (404, "NO_OBJECT"),
    PlanTooLarge: (413, "PLAN_TOO_LARGE"),
    EpochGap: (409, "EPOCH_GAP"),
    WriterFenced: (409, "WRITER_FENCED"),
    StagedDamaged: (422, "STAGED_DAMAGED"),
    TableRefused: (409, "TABLE_REFUSED"),
    TableUnavailable: (502, "TABLE_UNAVAILABLE"),
    TableUnfit: (409, "TABLE_UNFIT"),
    BadSchema: (409, "TABLE_REFUSED"),
    TooManyReports: (507, "TOO_MANY_REPORTS"),
    CatalogFull: (507, "STORAGE_FULL"),
    CatalogUnavailable: (503, "CATALOG_UNAVAILABLE"),
    CatalogUncertain: (503, "CATALOG_UNCERTAIN"),
    SessionFenced: (503, "SESSION_FENCED"),
}


async def read_body(request: Request, kind: type[T], most_bytes: int = MAX_BODY_BYTES) -> T:
    """The request's body as this type. Raises `Refusal` if it is too large or of another type."""
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > most_bytes:
                raise Refusal(413, "BODY_TOO_LARGE", f"A body has up to {most_bytes} bytes.")
    except ClientDisconnect:
        raise Refusal(400, "INVALID_BODY", "The client left before its body had come.") from None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Refusal(400, "INVALID_BODY", f"The body is not what is wanted: {problem}.") from None


def json_reply(content: Any, status: int = 200) -> Response:
    """The content as JSON."""
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _error(status: int, code: str, message: str, hint: str | None, **more: Any) -> Response:
    return json_reply({"error": code, "message": message, "hint": hint, **more}, status)


async def http_error(request: Request, error: Exception) -> Response:
    """The reply to an unknown path or method."""
    assert isinstance(error, HTTPException)
    code = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code, "HTTP_ERROR")
    message = f"{request.method} {request.url.path}: {error.detail}."
    return _error(error.status_code, code, message, "docs/control.md lists the paths.")


async def operating_error(request: Request, error: Exception) -> Response:
    """The reply to an error that a handler raised; each class has its status and code."""
    assert isinstance(error, CatchwaterError)
    if isinstance(error, Refusal):
        reply = _error(error.status, error.code, str(error), error.hint)
        if error.status == 401:
            reply.headers["www-authenticate"] = 'Basic realm="catchwater", charset="UTF-8"'
        return reply
    if isinstance(error, RangeMissing):
        missing = [{"partition": p, "start": s, "end": e} for p, s, e in error.missing]
        return _error(416, "OFFSET_OUT_OF_RANGE", str(error), error.hint, missing=missing)
    status, code = next(
        (found for kind, found in _STATUSES.items() if isinstance(error, kind)), (500, "FAILED")
    )
    return _error(status, code, str(error), error.hint)


async def find(broker: Broker, name: str) -> Topic:
    """The topic, with its partitions' states read anew from a shared catalog.

    Raises `TopicUnknown`; that the caller may know of it is checked before.
    """
    await broker.log.look_up([name])
    topic = broker.log.topics.find(name)
    await broker.log.refresh((topic.id, index) for index in range(topic.partitions))
    return topic
