"""ApiVersions (18), v0-4: which APIs and versions this broker serves.

Version notes: v3 sends the client's name and version and is flexible, but its reply keeps the
header of v0 so that any client can read it (KIP-511); a name or version with other characters than
letters, digits, dots and dashes is INVALID_REQUEST. A version we do not serve is answered in v0
with UNSUPPORTED_VERSION and the ranges. Before v4 the supported features leave out those whose
lowest level is 0, because Java clients of that time cannot read them (KAFKA-17011).

Two feature levels are announced: with `transaction.version` 2 clients leave out AddPartitionsToTxn
and take a new epoch from every EndTxn (KIP-890); `group.version` 1 says that the consumer protocol
is served (KIP-848), which tools show.

Produce is announced from v0 on, as Kafka does: older librdkafka compresses only for such brokers
(KAFKA-18659), and never sends v0. The telemetry APIs are served but not announced, as by a Kafka
broker without a telemetry receiver: clients would send metrics that nobody uses.
"""

import re
from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.wire.errors import ErrorCode

_FEATURES = {"transaction.version": 2, "group.version": 1}
_LOWEST_LEVEL = 0
_NAMES_SINCE, _LEVEL_0_SINCE = 3, 4
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
_PRODUCE = 0
UNANNOUNCED = {71, 72}


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List the APIs that the router serves."""
    if call.version >= _NAMES_SINCE:
        names = (request.client_software_name, request.client_software_version)
        if not all(_NAME.fullmatch(name) for name in names):
            return {"error_code": ErrorCode.INVALID_REQUEST}
    return _fields(broker, ErrorCode.NONE, call.version)


def unsupported(broker: Broker) -> Fields:
    """The reply, in v0, to a version outside our range."""
    return _fields(broker, ErrorCode.UNSUPPORTED_VERSION, 0)


def _fields(broker: Broker, error: ErrorCode, version: int) -> Fields:
    supported = _FEATURES if version >= _LEVEL_0_SINCE else {}
    return {
        "error_code": error,
        "api_keys": [
            {
                "api_key": a.key,
                "min_version": 0 if a.key == _PRODUCE else a.versions[0],
                "max_version": a.versions[-1],
            }
            for a in broker.apis.values()
            if a.key not in UNANNOUNCED
        ],
        "supported_features": [
            {"name": name, "min_version": _LOWEST_LEVEL, "max_version": level}
            for name, level in supported.items()
        ],
        "finalized_features_epoch": 1,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in _FEATURES.items()
        ],
    }


API = Api(18, "ApiVersions", range(0, 5), handle, asks=[])
