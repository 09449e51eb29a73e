"""A rebalance storm in its short form; `make storm` is the long one."""

import asyncio

import pytest
from benchmarks import storm


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_comes_through_a_storm(make_broker, protocol, monkeypatch):
    monkeypatch.setattr(storm, "STABLE_S", 150.0)
    broker = make_broker({key.replace("_", "."): value for key, value in storm.SETTINGS.items()})
    verdict = asyncio.run(storm.Storm(broker.bootstrap, protocol, 50, seed=1).run(1.0))
    broker.kill()
    assert verdict.lives >= 50
    assert verdict.is_good, verdict
