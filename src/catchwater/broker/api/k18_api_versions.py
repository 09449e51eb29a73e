"""ApiVersions (18), v0-4: which APIs and versions this broker serves.

Version notes: v3 sends the client's name and version and is flexible, but its reply keeps the
header of v0 so that any client can read it (KIP-511). A version we do not serve is answered in v0
with UNSUPPORTED_VERSION and the ranges.

Two feature levels are told: with `transaction.version` 2 clients leave out AddPartitionsToTxn and
take a new epoch from every EndTxn (KIP-890); `group.version` 1 says that the consumer protocol is
served (KIP-848), which tools show.
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.wire.errors import ErrorCode

_FEATURES = {"transaction.version": 2, "group.version": 1}


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """List the router's table."""
    return _fields(broker, ErrorCode.NONE)


def unsupported(broker: Broker) -> Fields:
    """The reply, in v0, to a version outside our range."""
    return _fields(broker, ErrorCode.UNSUPPORTED_VERSION)


def _fields(broker: Broker, error: ErrorCode) -> Fields:
    return {
        "error_code": error,
        "api_keys": [
            {"api_key": a.key, "min_version": a.versions[0], "max_version": a.versions[-1]}
            for a in broker.apis.values()
        ],
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": level}
            for name, level in _FEATURES.items()
        ],
        "finalized_features_epoch": 1,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in _FEATURES.items()
        ],
    }


API = Api(18, "ApiVersions", range(0, 5), handle)
