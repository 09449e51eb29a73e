"""What `make differences` rests on: requests of any version, plain replies, and what differs."""

from datetime import timedelta
from uuid import UUID

import pytest
from conformance.differ.__main__ import EXPECTED, Found, cases_of, report
from conformance.differ.compare import Difference, differences
from conformance.differ.expected import Expected, read_expected
from conformance.differ.plain import Names, of_the_case, plain
from conformance.differ.requests import exists, request

from catchwater.broker.router import reply
from catchwater.wire.messages import encode_request

METADATA, FETCH, LIST_GROUPS = 3, 1, 16


@pytest.mark.parametrize("api_key", [0, 1, 2, 3, 8, 9, 10, 11, 19, 20, 24, 28, 32, 44, 60, 68, 75])
def test_an_empty_request_of_every_version_can_be_sent(api_key):
    versions = [version for version in range(30) if exists(api_key, version)]
    assert versions
    for version in versions:
        assert encode_request(1, "test", request(api_key, version, {}))


def test_a_request_takes_the_fields_its_version_knows():
    fields = {"topics": [{"topic": "t", "topic_id": UUID(int=7)}], "max_wait": 5, "replica_id": -1}
    older, newer = request(FETCH, 12, fields), request(FETCH, 13, fields)
    assert older.topics[0].topic == "t"
    assert newer.topics[0].topic_id == UUID(int=7)
    assert newer.max_wait == timedelta(milliseconds=5)
    with pytest.raises(KeyError, match="max_weight"):
        request(FETCH, 13, {"max_weight": 5})


def test_what_differs_between_any_two_brokers_is_taken_out():
    def shown(host, topic_id):
        broker = {"node_id": 1, "host": host, "port": 9092, "rack": None}
        topic = {"error_code": 0, "name": "case-x", "topic_id": topic_id, "partitions": []}
        made = {"brokers": [broker], "topics": [topic], "cluster_id": host, "controller_id": 1}
        return plain(reply(METADATA, 12, made), Names("case-"))

    one = shown("a", UUID(int=1))
    assert one == shown("b", UUID(int=2))
    assert one["topics"][0]["name"] == "~x"
    assert one["topics"][0]["topic_id"] == "<topic 1>"


def test_a_list_can_be_cut_down_to_what_a_case_has_named():
    groups = [
        {"group_id": name, "protocol_type": "consumer", "group_state": "Empty"}
        for name in ("case-g", "another")
    ]
    made = reply(LIST_GROUPS, 4, {"error_code": 0, "groups": groups})
    assert [group.group_id for group in of_the_case(made, "case-").groups] == ["case-g"]


def test_differences_are_found_by_name_and_in_the_order():
    kafka = {"topics": [{"name": "a", "size": 1}, {"name": "b", "size": 2}, {"name": "c"}]}
    ours = {"topics": [{"name": "b", "size": 3}, {"name": "a", "size": 1}, {"name": "d"}]}
    assert list(differences(kafka, kafka)) == []
    assert list(differences(kafka, ours)) == [
        Difference("topics.b.size", 2, 3),
        Difference("topics.c", "<present>", "<absent>"),
        Difference("topics.d", "<absent>", "<present>"),
        Difference("topics.order", ["a", "b"], ["b", "a"]),
    ]


def test_where_the_error_differs_the_rest_is_not_compared():
    kafka, ours = {"error_code": 3, "offset": -1}, {"error_code": 0, "offset": 5}
    assert list(differences(kafka, ours)) == [Difference("error_code", 3, 0)]


def test_an_explanation_may_hold_only_beside_an_error():
    def answer(start):
        partitions = [
            {"partition_index": 0, "error_code": 0, "log_start_offset": start},
            {"partition_index": 1, "error_code": 1, "log_start_offset": start},
        ]
        return {"error_code": 0, "topics": [{"name": "t", "partitions": partitions}]}

    fine, beyond = differences(answer(-1), answer(5))
    assert (fine.error, beyond.error) == (0, 1)
    gone = Expected("a reason", path="*.log_start_offset", error=1)
    explained = [
        gone.explains(Found("Fetch", "any", each.path, "-1", "5", each.error), [4])
        for each in (fine, beyond)
    ]
    assert explained == [False, True]


def test_a_difference_that_nothing_explains_is_a_failure(capsys):
    found = {Found("Fetch", "from_offsets", "0.offset", "1", "2"): [4, 5, 6]}
    assert report(found, [Expected("a reason", api="Fetch", path="*.offset")], True) == 0
    assert "expected    1: a reason" in capsys.readouterr().out
    assert report(found, [Expected("a reason", api="Fetch", path="*.error")], True) == 1
    said = capsys.readouterr().out
    assert "Fetch v4-6 from_offsets 0.offset: Kafka 1, Catchwater 2" in said
    assert "stale: " in said


def test_every_explanation_can_be_read_and_every_case_is_declared_once():
    assert all(each.reason for each in read_expected(EXPECTED))
    names = [(case.api_key, case.name) for case in cases_of([])]
    assert len(names) == len(set(names)) > 60
