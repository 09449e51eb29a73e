"""UpdateFeatures (57), v0-2: levels of features belong to the release and cannot be changed.

Setting a feature to its present level succeeds; anything else is refused by name. Nothing changes,
so `validate_only` (v1) makes no difference. ApiVersions lists the levels (KIP-584).

Version notes: v1 has kinds of upgrades, v2 answers the request as a whole and not each feature.
"""

from collections.abc import Mapping
from typing import Any

from catchwater.broker.api import k18_api_versions
from catchwater.broker.broker import Api, Broker, Call, Fields, error_fields
from catchwater.broker.gate import Operation, Whole, the_cluster
from catchwater.wire.errors import ErrorCode

_BY_FEATURE = 1
"""The last version with an answer for each feature."""


async def handle(broker: Broker, call: Call, request: Any) -> Fields:
    """Compare each feature with its present level."""
    versions = await k18_api_versions.handle(broker, call, request)
    levels = {each["name"]: each["max_version_level"] for each in versions["finalized_features"]}
    reasons = [(update.feature, _refusal(update, levels)) for update in request.feature_updates]
    results = [{"feature": feature, **_answer(reason)} for feature, reason in reasons]
    first = next((reason for _, reason in reasons if reason), None)
    summary = None if call.version <= _BY_FEATURE else first
    return _answer(summary) | {"results": results}


def _refusal(update: Any, levels: Mapping[str, int]) -> str | None:
    level = levels.get(update.feature)
    if level is None:
        return f"There is no feature {update.feature[:100]!r}."
    if update.max_version_level == level:
        return None
    return f"Feature {update.feature} has level {level}, and no other in this release."


def _answer(reason: str | None) -> dict[str, Any]:
    return error_fields(ErrorCode.INVALID_UPDATE_VERSION if reason else ErrorCode.NONE, reason)


API = Api(
    57,
    "UpdateFeatures",
    range(0, 3),
    handle,
    notes="no level can be changed",
    asks=[Whole(Operation.ALTER, the_cluster)],
)
