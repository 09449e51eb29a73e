"""The page without a browser: its three forms, and who sees what of it."""

import base64
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import BrokerProcess, until

from catchwater.broker.access import Rule, change, with_rule, with_user
from catchwater.broker.gate import ResourceType
from catchwater.wire.client import Client
from catchwater.wire.security.verifiers import verifiers

PATIENCE_S = 60.0
LISTS = ["/", "/topics", "/groups", "/transactions", "/timeline"]
OF_THE_CLUSTER = ["/brokers", "/drills", "/audit"]


def get(
    broker: BrokerProcess, path: str, accept: str = "application/json", login: str = "", **more: str
) -> tuple[int, Any, bytes]:
    headers = {"accept": accept, **more}
    if login:
        headers["authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    request = urllib.request.Request(broker.control_url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def rows(broker: BrokerProcess, path: str, login: str = "") -> list[str]:
    """The first cells of a page's first table."""
    status, _, body = get(broker, path, login=login)
    assert status == 200, body
    tables = [p["table"] for p in json.loads(body)["panels"] if p["table"]]
    return [row[0]["text"] for row in tables[0]["rows"]]


def events(broker: BrokerProcess, path: str, count: int) -> list[dict[str, Any]]:
    """The first events of a page's stream."""
    request = urllib.request.Request(
        broker.control_url + path, headers={"accept": "text/event-stream"}
    )
    found = []
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        for line in reply:
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
            if len(found) == count:
                break
    return found


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    process = make_broker()
    with Client(process.bootstrap, timeout_s=PATIENCE_S) as client:
        client.create_topics({"payments": 2, "refunds": 1})
        client.commit("billing", {("payments", 0): 0})
    return process


def test_a_page_has_three_forms_of_one_record(broker: BrokerProcess) -> None:
    status, headers, body = get(broker, "/topics", "text/html,*/*")
    assert (status, headers.get_content_type()) == (200, "text/html")
    assert b">payments</a>" in body
    assert rows(broker, "/topics") == ["payments", "refunds"]
    first, _, third = events(broker, "/topics", 3)
    assert "payments" in first["parts"]["panel-topics"]
    assert first["order"] == ["panel-topics"]
    assert third["parts"] == {}, "nothing has changed"


def test_a_command_line_gets_the_page_and_errors_as_json(broker: BrokerProcess) -> None:
    status, headers, _ = get(broker, "/topics/none", "*/*")
    assert (status, headers.get_content_type()) == (404, "application/json")
    status, headers, body = get(broker, "/topics/none", "text/html")
    assert (status, headers.get_content_type()) == (404, "text/html")
    assert b"There is no topic none." in body


def test_an_unknown_path_of_the_api_is_still_answered_as_before(broker: BrokerProcess) -> None:
    status, _, body = get(broker, "/api/v1/nothing")
    assert (status, json.loads(body)["error"]) == (404, "NOT_FOUND")


def test_a_request_for_another_host_is_refused(broker: BrokerProcess) -> None:
    status, _, _ = get(broker, "/", "text/html", host="evil.example")
    assert status == 421


def test_names_are_escaped_wherever_they_stand(broker: BrokerProcess) -> None:
    bad = "<img src=x onerror=alert(1)>"
    with Client(broker.bootstrap, timeout_s=PATIENCE_S) as client:
        client.commit(bad, {("refunds", 0): 0})
    until(lambda: bad in rows(broker, "/groups"))
    for path in ("/groups", "/groups/%3Cimg%20src=x%20onerror=alert(1)%3E", "/topics/refunds"):
        status, _, body = get(broker, path, "text/html")
        assert status == 200
        assert b"<img src=x" not in body
        assert b"&lt;img src=x" in body


def test_a_broker_ends_at_once_though_pages_are_open(
    make_broker: Callable[..., BrokerProcess],
) -> None:
    broker = make_broker()
    host, port = broker.control_url.removeprefix("http://").split(":")
    opened = []
    for _ in range(5):
        page = socket.create_connection((host, int(port)), PATIENCE_S)
        page.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n")
        assert page.recv(100)
        opened.append(page)
    began_s = time.monotonic()
    broker.stop()
    assert time.monotonic() - began_s < PATIENCE_S / 2
    assert "Traceback" not in broker.log()
    for page in opened:
        page.close()


@pytest.fixture(scope="module")
def guarded(
    make_broker: Callable[..., BrokerProcess], tmp_path_factory: pytest.TempPathFactory
) -> BrokerProcess:
    """With users: admin may do everything, alice what begins with alices-."""
    access = tmp_path_factory.mktemp("access") / "access.json"

    def decide(now: Any) -> Any:
        for user in ("admin", "alice"):
            now = with_user(now, user, verifiers(f"{user}-password"))
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
            now = with_rule(now, Rule("User:alice", "ALLOW", "ALL", kind, "alices-", "PREFIXED"))
        return now

    change(access, decide)
    broker = make_broker(start=False)
    broker.settings |= {
        "listeners": broker.settings["listeners"].replace("PLAINTEXT:", "SASL_PLAINTEXT:"),
        "catchwater.access.file": str(access),
        "super.users": "User:admin",
    }
    broker.start()
    admin = AdminClient({
        "bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "admin",
        "sasl.password": "admin-password",
    })  # fmt: skip
    made = admin.create_topics([NewTopic("alices-orders", 1), NewTopic("salaries", 1)])
    for each in made.values():
        each.result(PATIENCE_S)
    return broker


def test_nobody_sees_anything_without_logging_in(guarded: BrokerProcess) -> None:
    for path in [*LISTS, *OF_THE_CLUSTER, "/topics/salaries", "/history?series=broker/1/cpu"]:
        status, headers, body = get(guarded, path, "text/html")
        assert (status, b"<table" in body) == (401, False), path
        assert headers["www-authenticate"].startswith("Basic")
    assert get(guarded, "/", login="alice:wrong")[0] == 401


def test_a_user_sees_what_the_rules_let_them_describe(guarded: BrokerProcess) -> None:
    alice, admin = "alice:alice-password", "admin:admin-password"
    assert rows(guarded, "/topics", alice) == ["alices-orders"]
    assert {"alices-orders", "salaries"} <= set(rows(guarded, "/topics", admin))
    for path in LISTS:
        status, _, body = get(guarded, path, "text/html", alice)
        assert (status, b"salaries" in body) == (200, False), path
    for path in [
        *OF_THE_CLUSTER, "/topics/salaries", "/groups/payroll", "/pipelines/payroll",
        "/history?series=broker/1/cpu", "/history?series=group/payroll/lag",
    ]:  # fmt: skip
        assert get(guarded, path, login=alice)[0] == 403, path
    assert get(guarded, "/brokers", login=admin)[0] == 200


def test_what_was_refused_stands_on_the_audit_page(guarded: BrokerProcess) -> None:
    get(guarded, "/topics/salaries", login="alice:alice-password")

    def told() -> bool:
        _, _, body = get(guarded, "/audit", login="admin:admin-password")
        return b"User:alice" in body

    until(told)


def test_our_files_need_no_login_and_stay_for_ever(guarded: BrokerProcess) -> None:
    status, headers, body = get(guarded, "/static/page.css", "*/*")
    assert (status, "immutable" in headers["cache-control"]) == (200, True)
    assert b"--ink" in get(guarded, "/static/palette.css", "*/*")[2]
    assert get(guarded, "/static/..%2Fpages.py", "*/*")[0] == 404
    folder = Path(__file__).parents[2] / "src/catchwater/web/static"
    assert body == (folder / "page.css").read_bytes()
