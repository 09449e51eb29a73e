"""The control API's answers: refusals kept whole, brokers that are on their way waited for."""

import http.client
import json
from collections import deque
from typing import Any

import pytest

from catchwater.clock import ManualClock
from catchwater.config import CatchwaterError
from catchwater.replay.control import (
    Control,
    ControlRefused,
    ControlUnreachable,
    PlanUncommitted,
    TransactionOpen,
)
from catchwater.replay.plan import CHUNK, Aborted, Missing, OffsetRange, PlanRange, Quota
from catchwater.wire.client import TopicDenied


class Api:
    """Answers in the order given; an exception is raised instead."""

    def __init__(self) -> None:
        self.answers: deque[tuple[int, Any] | Exception] = deque()
        self.calls: list[tuple[str, str, Any]] = []

    def __call__(self, host: str, port: int, timeout: float) -> "Api":
        self.address = (host, port)
        return self

    def request(self, method: str, path: str, body: str | None, headers: object) -> None:
        self.calls.append((method, path, None if body is None else json.loads(body)))

    def getresponse(self) -> "Api":
        answer = self.answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        self.status, self.content = answer
        return self

    def read(self) -> bytes:
        return (
            self.content if isinstance(self.content, bytes) else json.dumps(self.content).encode()
        )

    def close(self) -> None:
        pass


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    api = Api()
    monkeypatch.setattr(http.client, "HTTPConnection", api)
    return api


@pytest.fixture
def control() -> Control:
    return Control("http://127.0.0.1:9644/", timeout_s=5, clock=ManualClock(), client_id="nightly")


CLIENT = {"client_id": "nightly"}
RANGE = {
    "partition": 1,
    "kind": "chunk",
    "url": "file:///x",
    "byte_offset": 1,
    "byte_size": 2,
    "base_offset": 3,
    "last_offset": 4,
    "max_timestamp": 5,
}


def test_a_plan_says_where_the_bytes_lie(api: Api, control: Control) -> None:
    api.answers.append((200, {"topic": "t", "ranges": [RANGE], "log_start": {}}))
    plan = control.plan([OffsetRange("t", 1, 3, 5)])
    assert plan.ranges == (PlanRange("t", 1, CHUNK, "file:///x", 1, 2, 3, 4),)
    assert plan.missing == ()
    body = {**CLIENT, "topic": "t", "ranges": [{"partition": 1, "start": 3, "end": 5}]}
    assert api.calls == [("POST", "/api/v1/plans", body)]
    assert api.address == ("127.0.0.1", 9644)


def committed(stable: int) -> tuple[int, dict[str, Any]]:
    void = {"partition": 1, "producer_id": 7, "first_offset": 2, "last_offset": 4}
    content = {"isolation": "read_committed", "last_stable_offset": {"1": stable}}
    return 200, {"topic": "t", "ranges": [RANGE], "aborted": [void], **content}


def test_a_plan_says_what_its_readers_pay_from(api: Api, control: Control) -> None:
    api.answers.append(
        (200, {"ranges": [RANGE], "quota": {"bytes_per_s": 7, "url": "http://127.0.0.1:1"}})
    )
    assert control.plan([OffsetRange("t", 1, 3, 5)]).quota == Quota(
        7, "http://127.0.0.1:1", "nightly"
    )


def test_a_grant_is_of_bytes_and_says_when(api: Api, control: Control) -> None:
    api.answers.append((200, {"bytes": 50, "throttle_ms": 250}))
    assert control.grant(80) == (50, 0.25)
    assert api.calls == [("POST", "/api/v1/grants", {**CLIENT, "bytes": 80})]


def test_a_plan_for_committed_records_says_what_was_aborted(api: Api, control: Control) -> None:
    api.answers.append(committed(5))
    plan = control.plan([OffsetRange("t", 1, 3, 5)], read_committed=True)
    assert plan.ranges == (PlanRange("t", 1, CHUNK, "file:///x", 1, 2, 3, 4),)
    assert plan.aborted == (Aborted("t", 1, 7, 2, 4),)
    body = {**CLIENT, "topic": "t", "ranges": [{"partition": 1, "start": 3, "end": 5}]}
    assert api.calls == [("POST", "/api/v1/plans", body | {"isolation": "read_committed"})]


def test_an_open_transaction_is_waited_for_and_named_when_it_stays(
    api: Api, control: Control
) -> None:
    api.answers += [committed(3), committed(4), committed(5)]
    assert control.plan([OffsetRange("t", 1, 3, 5)], read_committed=True).aborted
    assert len(api.calls) == 3
    api.answers += [committed(4)] * 100
    with pytest.raises(TransactionOpen, match=r"up to 4 of t-1 .* since offset 4, for 5 s"):
        control.plan([OffsetRange("t", 1, 3, 5)], read_committed=True)
    api.answers.clear()
    api.answers.append((416, {"error": "X", "missing": [{"partition": 1, "start": 3, "end": 4}]}))
    plan = control.plan([OffsetRange("t", 1, 3, 5)], read_committed=True)
    assert plan.missing == (Missing("t", 1, 3, 4),)


def test_a_broker_that_does_not_know_of_isolation_is_not_believed(
    api: Api, control: Control
) -> None:
    api.answers.append((200, {"topic": "t", "ranges": [RANGE]}))
    with pytest.raises(PlanUncommitted, match="does not say in its plans what was aborted"):
        control.plan([OffsetRange("t", 1, 3, 5)], read_committed=True)


def test_what_is_gone_is_named(api: Api, control: Control) -> None:
    gap = {"partition": 1, "start": 3, "end": 4}
    api.answers.append(
        (416, {"error": "OFFSET_OUT_OF_RANGE", "message": "Gone.", "missing": [gap]})
    )
    assert control.plan([OffsetRange("t", 1, 3, 5)]).missing == (Missing("t", 1, 3, 4),)


def test_a_refusal_keeps_code_sentence_and_hint(api: Api, control: Control) -> None:
    api.answers.append((404, {"error": "NO_TOPIC", "message": "There is none.", "hint": "Look."}))
    with pytest.raises(ControlRefused, match="There is none") as caught:
        control.plan([OffsetRange("t", 1, 3, 5)])
    assert (caught.value.status, caught.value.code) == (404, "NO_TOPIC")
    assert caught.value.hint == "Look."


def test_an_answer_that_is_no_json_is_a_refusal(api: Api, control: Control) -> None:
    api.answers.append((500, b"<html>"))
    with pytest.raises(ControlRefused, match="status 500"):
        control.request("GET", "/")
    api.answers.append((200, b"[]"))
    with pytest.raises(ControlRefused, match="status 200"):
        control.request("GET", "/")


def test_a_broker_on_its_way_up_is_waited_for(api: Api, control: Control) -> None:
    api.answers += [
        ConnectionRefusedError("refused"),
        http.client.RemoteDisconnected("gone"),
        (503, {"error": "NOT_READY", "message": "Starting."}),
        (200, {"pins": []}),
    ]
    assert control.pins() == []
    assert len(api.calls) == 4


def test_a_broker_that_stays_away_is_named(api: Api, control: Control) -> None:
    api.answers += [ConnectionRefusedError("refused")] * 100
    with pytest.raises(
        ControlUnreachable, match=r"http://127.0.0.1:9644 did not answer GET .* 5 s: refused"
    ):
        control.pins()


def test_pins_are_set_and_released_by_name(api: Api, control: Control) -> None:
    api.answers += [(200, {"id": "a/b"}), (200, {}), (404, {"error": "NO_PIN", "message": "No."})]
    control.set_pin("a/b", {"owner": "me"})
    control.release_pin("a/b")
    control.release_pin("a/b")
    assert api.calls[0] == ("PUT", "/api/v1/pins/a%2Fb", {"owner": "me"})
    assert api.calls[1][:2] == ("DELETE", "/api/v1/pins/a%2Fb")
    api.answers.append((400, {"error": "INVALID", "message": "No."}))
    with pytest.raises(ControlRefused):
        control.release_pin("x")


def test_a_pin_is_renewed_while_it_holds(api: Api, control: Control) -> None:
    api.answers += [(200, {"id": "a/b"}), (404, {"error": "UNKNOWN_PIN", "message": "No."})]
    assert control.renew_pin("a/b", 5000)
    assert not control.renew_pin("a/b", 5000)
    assert api.calls == [("PATCH", "/api/v1/pins/a%2Fb", {"lease_ms": 5000})] * 2
    api.answers.append((400, {"error": "INVALID_BODY", "message": "No."}))
    with pytest.raises(ControlRefused):
        control.renew_pin("x", 0)


def test_an_epoch_is_committed_by_pipeline_sink_and_number(api: Api, control: Control) -> None:
    api.answers += [(200, {"already": False}), (200, {"epoch": 3}), (404, {"message": "None."})]
    answer = control.commit_epoch("p", "s", 3, topic="t", staged=["k"], checksum="c")
    assert answer == {"already": False}
    body = {"topic": "t", "staged": ["k"], "checksum": "c"}
    assert api.calls[0] == ("PUT", "/api/v1/sinks/p/s/epochs/3", body)
    assert control.last_epoch("p", "s") == {"epoch": 3}
    assert control.last_epoch("p", "s") is None


def test_a_refused_look_at_the_last_epoch_is_no_absence(api: Api, control: Control) -> None:
    api.answers.append((400, {"error": "INVALID", "message": "No."}))
    with pytest.raises(ControlRefused):
        control.last_epoch("p", "s")


def test_staged_objects_have_a_place(api: Api, control: Control) -> None:
    api.answers.append((200, {"objects": "file:///data/objects"}))
    assert control.objects_url() == "file:///data/objects"


@pytest.mark.parametrize("url", ["", "h:9644", "https://", "http://", "ftp://h"])
def test_a_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(CatchwaterError, match="control URL"):
        Control(url)


def test_a_plan_that_is_denied_is_not_asked_for_again(api: Api, control: Control) -> None:
    refusal = {"error": "TOPIC_AUTHORIZATION_FAILED", "message": "No.", "hint": "Ask."}
    api.answers.append((403, refusal))
    with pytest.raises(TopicDenied, match=r"Topic t is denied to this client: No\.") as caught:
        control.plan([OffsetRange("t", 1, 0, 10)])
    assert caught.value.topic == "t"
    assert "READ" in (caught.value.hint or "")
    assert len(api.calls) == 1


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://al%40ice:s%3Acret@h:9644", "Basic YWxAaWNlOnM6Y3JldA=="),
        ("http://al%40ice:s%3Acret@127.0.0.1:9644", "Basic YWxAaWNlOnM6Y3JldA=="),
        ("http://al%40ice:s%3Acret@203.0.113.9:9644", None),
        ("https://h:9644", None),
    ],
)
def test_a_login_goes_to_nobody_who_could_be_overheard(url: str, shown: str | None) -> None:
    control = Control(url)
    assert control._headers.get("authorization") == shown
    assert "cret" not in control.url


def test_the_keeper_of_a_quota_is_asked_by_the_same_user() -> None:
    class Answering(Control):
        def request(self, method: str, path: str, content: object = None) -> dict[str, Any]:
            return {"ranges": [], "quota": {"bytes_per_s": 1, "url": "https://h:9645"}}

    quota = Answering("https://alice:secret@h:9644").plan([OffsetRange("t", 0, 0, 1)]).quota
    assert quota is not None
    assert quota.keeper_url == "https://alice:secret@h:9645"


def test_why_a_table_does_not_stand_in_for_its_topic_is_told(api: Api, control: Control) -> None:
    unfit = {"error": "TABLE_UNFIT", "message": "A column of lake.t was renamed."}
    absent = {"error": "NO_TABLE", "message": "t is no table."}
    api.answers += [(409, unfit), (404, absent), (200, {"spans": []})]
    found = [control.table_files("t", {0: (3, 9)}) for _ in range(3)]
    assert found[0] is not None
    assert (found[0].spans, found[0].why) == ({}, "A column of lake.t was renamed.")
    assert found[1:] == [None, None]
    assert api.calls[0][2] == {
        "ranges": [{"partition": 0, "start": 3, "end": 9}],
        "as_bytes": False,
        "by_url": False,
    }
