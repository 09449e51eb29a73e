"""UpdateFeatures: no level can be changed."""

from datetime import timedelta

import pytest
from kio.schema.update_features.v1 import request as v1
from kio.schema.update_features.v2 import request as v2
from kio.static.primitive import i32Timedelta

SECOND = i32Timedelta.parse(timedelta(seconds=1))


def update(version, *features: tuple[str, int], validate_only: bool = False):
    return version.UpdateFeaturesRequest(
        timeout=SECOND,
        feature_updates=tuple(
            version.FeatureUpdateKey(feature=name, max_version_level=level)
            for name, level in features
        ),
        validate_only=validate_only,
    )


@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_feature_keeps_its_level(client, validate_only) -> None:
    same, other = ("transaction.version", 2), ("transaction.version", 1)
    for features, error in (((same,), "none"), ((same, other), "invalid_update_version")):
        reply = await client.send(update(v2, *features, validate_only=validate_only))
        assert reply.error_code.name == error
        assert bool(reply.error_message) == (error != "none")


async def test_earlier_versions_are_answered_by_feature(client) -> None:
    reply = await client.send(update(v1, ("transaction.version", 2), ("no.such", 1)))
    assert reply.error_code.name == "none"
    assert [(r.feature, r.error_code.name) for r in reply.results] == [
        ("transaction.version", "none"),
        ("no.such", "invalid_update_version"),
    ]


async def test_who_may_not_is_told(client, deny_cluster) -> None:
    assert (await client.send(update(v2))).error_code.name == "cluster_authorization_failed"
