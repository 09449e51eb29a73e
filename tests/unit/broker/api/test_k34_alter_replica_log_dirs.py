"""AlterReplicaLogDirs: one place, in which everything is already."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from kio.schema.alter_replica_log_dirs.v1 import request as v1
from kio.schema.alter_replica_log_dirs.v2 import request as v2

from catchwater.broker.gate import Operation


@pytest.fixture(autouse=True)
async def topics(client, tmp_path: Path) -> None:
    client.broker.config = replace(client.broker.config, log_dirs=tmp_path)
    await client.log.create_topic("t", 2)


async def moved(
    client, plan: Mapping[str, Mapping[str, tuple[int, ...]]], version=v2
) -> dict[str, list[tuple[int, str]]]:
    dirs = tuple(
        version.AlterReplicaLogDir(
            path=path,
            topics=tuple(
                version.AlterReplicaLogDirTopic(name=name, partitions=indexes)
                for name, indexes in topics.items()
            ),
        )
        for path, topics in plan.items()
    )
    reply = await client.send(version.AlterReplicaLogDirsRequest(dirs=dirs))
    return {
        topic.topic_name: [(p.partition_index, p.error_code.name) for p in topic.partitions]
        for topic in reply.results
    }


@pytest.mark.parametrize("version", [v1, v2])
async def test_to_where_everything_is_nothing_has_to_move(client, tmp_path, version) -> None:
    plan = {str(tmp_path): {"t": (0, 1)}}
    assert await moved(client, plan, version) == {"t": [(0, "none"), (1, "none")]}


async def test_another_place_is_not_known_and_a_topic_is_answered_once(client, tmp_path) -> None:
    plan = {str(tmp_path): {"t": (0,)}, "/elsewhere": {"t": (1,), "x": (0,)}}
    assert await moved(client, plan) == {
        "t": [(0, "none"), (1, "log_dir_not_found")],
        "x": [(0, "log_dir_not_found")],
    }


async def test_what_is_not_there_is_told(client, tmp_path) -> None:
    plan = {str(tmp_path): {"t": (2, -1), "x": (0,)}}
    unknown = "unknown_topic_or_partition"
    assert await moved(client, plan) == {"t": [(2, unknown), (-1, unknown)], "x": [(0, unknown)]}


async def test_who_may_not_alter_the_cluster_is_told_so(client, deny, tmp_path) -> None:
    deny((Operation.ALTER.value, "kafka-cluster"))
    plan = {str(tmp_path): {"t": (0,)}}
    assert await moved(client, plan) == {"t": [(0, "cluster_authorization_failed")]}
