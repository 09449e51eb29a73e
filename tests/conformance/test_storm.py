"""A rebalance storm in its short form; `make storm` is the long one."""

import asyncio

import pytest
from benchmarks.storm import SETTINGS, Storm


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_comes_through_a_storm(make_broker, protocol):
    broker = make_broker({key.replace("_", "."): value for key, value in SETTINGS.items()})
    verdict = asyncio.run(Storm(broker.bootstrap, protocol, 50, seed=1).run(1.0))
    broker.kill()
    assert verdict.lives > 50
    assert verdict.is_good, verdict
