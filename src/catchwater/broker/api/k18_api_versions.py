"""ApiVersions (18), v0-4: which APIs and versions this broker serves.

Version notes: v3 sends the client's name and version and is flexible, but its reply keeps the
header of v0 so that any client can read it (KIP-511). A version we do not serve is answered in v0
with UNSUPPORTED_VERSION and the ranges.

The one feature level that clients look for is `transaction.version` 2: they then leave out
AddPartitionsToTxn and take a new epoch from every EndTxn (KIP-890).
"""

from typing import Any

from catchwater.broker.broker import Api, Broker, Call, Fields
from catchwater.wire.errors import ErrorCode

_TXN_VERSION = "transaction.version"


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
        "supported_features": [{"name": _TXN_VERSION, "min_version": 0, "max_version": 2}],
        "finalized_features_epoch": 1,
        "finalized_features": [
            {"name": _TXN_VERSION, "max_version_level": 2, "min_version_level": 2}
        ],
    }


API = Api(18, "ApiVersions", range(0, 5), handle)
