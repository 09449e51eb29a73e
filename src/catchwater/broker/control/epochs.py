"""Epochs of sinks: committed once, and shown."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control.entry import ByHandler, Caller, entry
from catchwater.broker.control.replies import Refusal, json_reply, read_body
from catchwater.broker.gate import Operation
from catchwater.catalog.rows import EpochCommit, SinkFence


class _Fence(msgspec.Struct):
    name: str
    number: int


class _FenceBody(msgspec.Struct):
    topic: str
    fence: _Fence


class _EpochBody(msgspec.Struct):
    topic: str
    staged: list[str]
    checksum: str = ""
    fence: _Fence | None = None


class Epochs:
    """The paths under `/api/v1/sinks/{pipeline}/{sink}`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = broker.log

    def routes(self) -> list[Route]:
        sink = "/api/v1/sinks/{pipeline}/{sink}"
        epoch, shows = sink + "/epochs/{epoch:int}", ByHandler(Operation.DESCRIBE)
        return [
            entry(self._broker, sink, self.last_epoch, shows),
            entry(self._broker, epoch, self.epoch, shows),
            entry(self._broker, epoch, self.commit_epoch, ByHandler(Operation.WRITE), "PUT"),
            entry(self._broker, sink + "/fence", self.fence, ByHandler(Operation.WRITE), "PUT"),
        ]

    async def last_epoch(self, request: Request, caller: Caller) -> Response:
        path = request.path_params
        commit = await self._log.epochs.last(path["pipeline"], path["sink"])
        return _shown(caller, path, commit, "written no epoch yet")

    async def epoch(self, request: Request, caller: Caller) -> Response:
        path = request.path_params
        commit = await self._log.epochs.find(path["pipeline"], path["sink"], path["epoch"])
        return _shown(caller, path, commit, f"not written epoch {path['epoch']}")

    async def commit_epoch(self, request: Request, caller: Caller) -> Response:
        body = await read_body(request, _EpochBody)
        path = request.path_params
        caller.check_pipeline(Operation.WRITE, path["pipeline"])
        caller.check(Operation.WRITE, body.topic)
        await self._log.look_up([body.topic])
        commit = await self._log.epochs.commit(
            path["pipeline"], path["sink"], path["epoch"], body.topic, body.staged, body.checksum,
            _fence(path["sink"], body.fence, body.topic) if body.fence else None,
        )  # fmt: skip
        return json_reply(_epoch(commit))

    async def fence(self, request: Request, caller: Caller) -> Response:
        body = await read_body(request, _FenceBody)
        path = request.path_params
        caller.check_pipeline(Operation.WRITE, path["pipeline"])
        caller.check(Operation.WRITE, body.topic)
        await self._log.epochs.fence(path["pipeline"], _fence(path["sink"], body.fence, body.topic))
        return json_reply({"fence": body.fence.number})


def _fence(sink: str, fence: _Fence, topic: str) -> SinkFence:
    """One name for all generations of a sink, which are `<sink>@<generation>` here."""
    return SinkFence(f"{sink.partition('@')[0]}:driver:{fence.name}", fence.number, topic)


def _shown(
    caller: Caller, path: Mapping[str, Any], commit: EpochCommit | None, otherwise: str
) -> Response:
    """The epoch, for who may DESCRIBE its topic; only who may DESCRIBE the pipeline learns whether
    there is one. Raises `Refusal`.
    """
    if commit is not None and caller.may(Operation.DESCRIBE, commit.topic):
        return json_reply(_epoch(commit))
    pipeline, sink = path["pipeline"], path["sink"]
    caller.check_pipeline(Operation.DESCRIBE, pipeline)
    if commit is None:
        raise Refusal(404, "NO_EPOCH", f"Sink {sink} of {pipeline} has {otherwise}.")
    message = f"{caller.principal} may not DESCRIBE the topic of sink {sink} of {pipeline}."
    raise Refusal(403, "TOPIC_AUTHORIZATION_FAILED", message)


def _epoch(commit: EpochCommit) -> dict[str, Any]:
    return {
        "already": commit.already,
        "epoch": commit.epoch,
        "topic": commit.topic,
        "records": commit.records,
        "checksum": commit.checksum,
        "offsets": {str(p): list(offsets) for p, offsets in commit.offsets.items()},
    }
