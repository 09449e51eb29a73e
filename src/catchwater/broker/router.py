"""API key and version to handler: the table of what this broker serves.

Promises that a request of an API or version outside the table never reaches a handler: ApiVersions
is answered in v0 with the ranges (KIP-511), anything else ends the connection.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from catchwater.broker.api import (
    k00_produce,
    k01_fetch,
    k02_list_offsets,
    k03_metadata,
    k08_offset_commit,
    k09_offset_fetch,
    k10_find_coordinator,
    k11_join_group,
    k12_heartbeat,
    k13_leave_group,
    k14_sync_group,
    k15_describe_groups,
    k16_list_groups,
    k18_api_versions,
    k19_create_topics,
    k20_delete_topics,
    k21_delete_records,
    k22_init_producer_id,
    k23_offset_for_leader_epoch,
    k24_add_partitions_to_txn,
    k25_add_offsets_to_txn,
    k26_end_txn,
    k28_txn_offset_commit,
    k29_describe_acls,
    k32_describe_configs,
    k33_alter_configs,
    k34_alter_replica_log_dirs,
    k35_describe_log_dirs,
    k37_create_partitions,
    k42_delete_groups,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k45_alter_partition_reassignments,
    k46_list_partition_reassignments,
    k47_offset_delete,
    k55_describe_quorum,
    k57_update_features,
    k60_describe_cluster,
    k61_describe_producers,
    k65_describe_transactions,
    k66_list_transactions,
    k68_consumer_group_heartbeat,
    k69_consumer_group_describe,
    k71_get_telemetry_subscriptions,
    k72_push_telemetry,
    k74_list_config_resources,
    k75_describe_topic_partitions,
)
from catchwater.broker.broker import Api, Broker, Call, Cold, Fields, Later
from catchwater.broker.limits.large import LARGE_REQUEST_BYTES, decode_aside, is_large
from catchwater.broker.reply import reply
from catchwater.config import CatchwaterError
from catchwater.objects.base import Buffer
from catchwater.wire.frames import Frame
from catchwater.wire.messages import decode_header, decode_request, encode_reply

APIS: Mapping[int, Api] = {
    module.API.key: module.API
    for module in (
        k00_produce,
        k01_fetch,
        k02_list_offsets,
        k03_metadata,
        k08_offset_commit,
        k09_offset_fetch,
        k10_find_coordinator,
        k11_join_group,
        k12_heartbeat,
        k13_leave_group,
        k14_sync_group,
        k15_describe_groups,
        k16_list_groups,
        k18_api_versions,
        k19_create_topics,
        k20_delete_topics,
        k21_delete_records,
        k22_init_producer_id,
        k23_offset_for_leader_epoch,
        k24_add_partitions_to_txn,
        k25_add_offsets_to_txn,
        k26_end_txn,
        k28_txn_offset_commit,
        k29_describe_acls,
        k32_describe_configs,
        k33_alter_configs,
        k34_alter_replica_log_dirs,
        k35_describe_log_dirs,
        k37_create_partitions,
        k42_delete_groups,
        k43_elect_leaders,
        k44_incremental_alter_configs,
        k45_alter_partition_reassignments,
        k46_list_partition_reassignments,
        k47_offset_delete,
        k55_describe_quorum,
        k57_update_features,
        k60_describe_cluster,
        k61_describe_producers,
        k65_describe_transactions,
        k66_list_transactions,
        k68_consumer_group_heartbeat,
        k69_consumer_group_describe,
        k71_get_telemetry_subscriptions,
        k72_push_telemetry,
        k74_list_config_resources,
        k75_describe_topic_partitions,
    )
}


class NotServed(CatchwaterError):
    """A request of an API or version that is not in the table."""


def start(broker: Broker, frame: Frame, client_host: str) -> tuple[Api, Later]:
    """Begin to answer a request. Whatever is raised, the frame is then still the caller's.

    Raises `MalformedMessage` for bytes that are no request, `NotServed`.
    """
    header = decode_header(frame.data)
    api = APIS.get(header.api_key)
    if api is None or header.api_version not in api.versions:
        if api is not k18_api_versions.API:
            raise NotServed(f"API {header.api_key} v{header.api_version} is not served here.")
        frame.release()
        return api, _done(header.correlation_id, k18_api_versions.unsupported(broker))
    call = Call(header, client_host, frame)
    if api.start is not None:
        return api, api.start(broker, call)
    assert api.handle is not None
    if len(frame.data) > LARGE_REQUEST_BYTES:
        return api, Later(asyncio.ensure_future(_aside(broker, api.handle, call)), _as_it_is)
    request = decode_request(header, frame.data)
    frame.release()
    return api, Later(asyncio.ensure_future(_answer(broker, api.handle, call, request)), _as_it_is)


async def _aside(broker: Broker, handle: Cold, call: Call) -> Sequence[Buffer]:
    """Answer a large request, which a thread decodes."""
    return await _answer(broker, handle, call, await decode_aside(call))


async def _answer(broker: Broker, handle: Cold, call: Call, request: Any) -> Sequence[Buffer]:
    """The reply's bytes; a thread encodes a large one."""
    fields = await handle(broker, call, request)
    header = call.header
    encode = partial(_encode, header.api_key, header.api_version, header.correlation_id, fields)
    return await asyncio.to_thread(encode) if is_large(fields) else encode()


def _as_it_is(encoded: Sequence[Buffer]) -> Sequence[Buffer]:
    return encoded


def _done(correlation_id: int, fields: Fields) -> Later:
    future: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
    future.set_result(fields)
    return Later(future, partial(_encode, k18_api_versions.API.key, 0, correlation_id))


def _encode(api_key: int, version: int, correlation_id: int, fields: Fields) -> Sequence[Buffer]:
    return encode_reply(correlation_id, reply(api_key, version, fields))


def coverage_table() -> str:
    """The table of docs/protocol.md, in Markdown; a test keeps the page equal to it."""
    lines = ["| key | API | versions | notes |", "|---:|---|---|---|"]
    for key, api in sorted(APIS.items()):
        lines.append(f"| {key} | {api.name} | {api.versions[0]}–{api.versions[-1]} | {api.notes} |")
    return "\n".join(lines) + "\n"
