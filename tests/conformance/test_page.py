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
from urllib.parse import urlencode

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import BrokerProcess, until

from catchwater.broker.access import Rule, change, with_rule, with_user
from catchwater.broker.gate import ResourceType
from catchwater.wire.arrow import encode_batch
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


# --- a group is moved ----------------------------------------------------------------------------


def post(
    broker: BrokerProcess, path: str, body: Any, login: str = "", **headers: str
) -> tuple[int, Any]:
    headers = {"content-type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    if login:
        headers["authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(broker.control_url + path, data, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


RESET = "/api/v1/groups/movers/reset"


@pytest.fixture
def movers(broker: BrokerProcess) -> Client:
    """A group that stands at 3 of 10 records in one partition, and nowhere in the other."""
    with Client(broker.bootstrap, timeout_s=PATIENCE_S) as client:
        if "moves" not in client.metadata().topics():
            # Its records bear times of 1970, and stay however long the tests take.
            client.create_topics({"moves": 2}, {"retention.ms": "-1"})
            records = [(None, b"x", 1_000_000 + at, []) for at in range(10)]
            for record in records:
                client.produce([(("moves", 0), encode_batch([record]))])
        client.commit("movers", {("moves", 0): 3})
        return client


def stands(broker: BrokerProcess, group: str = "movers") -> dict[tuple[str, int], int]:
    with Client(broker.bootstrap, timeout_s=PATIENCE_S) as client:
        return dict(client.committed(group))


@pytest.mark.parametrize(
    ("to", "goals"),
    [
        ("earliest", [0, 0]),
        ("latest", [10, 0]),
        ("1970-01-01T00:16:40.004Z", [4, 0]),
        ("1m ago", [10, 0]),
        ("current", [3]),
    ],
)
def test_a_dry_run_says_where_a_group_would_go_on_and_changes_nothing(
    broker: BrokerProcess, movers: Client, to: str, goals: list[int]
) -> None:
    status, _, body = get(broker, f"{RESET}?{urlencode({'to': to})}")
    assert status == 200, body
    moves = json.loads(body)["moves"]
    assert [each["to"] for each in moves] == goals
    assert (moves[0]["from"], moves[0]["again"]) == (3, 3 - goals[0])
    assert stands(broker) == {("moves", 0): 3}


def test_what_was_shown_is_done_and_once_only(broker: BrokerProcess, movers: Client) -> None:
    _, _, body = get(broker, f"{RESET}?to=earliest&topic=moves:0")
    shown = {"moves": json.loads(body)["moves"]}
    assert post(broker, RESET, shown) == (200, {"group": "movers", "moved": 1})
    assert stands(broker)["moves", 0] == 0
    status, said = post(broker, RESET, shown)
    assert (status, said["error"]) == (409, "GROUP_HAS_MOVED")
    assert said["hint"] == "Show again what it would do."


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ("to=soon", 400, "BAD_GOAL"),
        ("to=", 400, "BAD_GOAL"),
        ("to=2026-03-01T12:00:00", 400, "BAD_GOAL"),
        ("to=11", 409, "NO_SUCH_POSITION"),
        ("to=earliest&topic=none", 404, "NO_POSITIONS"),
        ("to=earliest&topic=moves:7", 404, "NO_POSITIONS"),
        ("to=earliest&topic=moves:x", 400, "BAD_GOAL"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    broker: BrokerProcess, movers: Client, query: str, status: int, error: str
) -> None:
    found, _, body = get(broker, f"{RESET}?{query}")
    assert (found, json.loads(body)["error"]) == (status, error)
    assert json.loads(body)["message"].endswith(".")


def test_a_group_with_members_is_left_alone(broker: BrokerProcess, movers: Client) -> None:
    _, _, body = get(broker, f"{RESET}?to=earliest")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "movers"})
    consumer.subscribe(["moves"])
    until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
    status, _, refused = get(broker, f"{RESET}?to=earliest")
    assert (status, json.loads(refused)["error"]) == (409, "GROUP_BUSY")
    status, said = post(broker, RESET, {"moves": json.loads(body)["moves"]})
    assert (status, said["error"]) == (409, "GROUP_BUSY")
    consumer.close()


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"{", 400, "INVALID_BODY"),
        ({"moves": [{"topic": "moves", "partition": 0}]}, 400, "INVALID_BODY"),
        ({"moves": [{"topic": "none", "partition": 0, "from": None, "to": 0}]}, 404,
         "UNKNOWN_TOPIC"),
        ({"moves": [{"topic": "moves", "partition": 9, "from": None, "to": 0}]}, 404,
         "UNKNOWN_TOPIC"),
        ({"moves": [{"topic": "moves", "partition": 0, "from": 3, "to": 11}]}, 409,
         "NO_SUCH_POSITION"),
        ({"moves": 2 * [{"topic": "moves", "partition": 0, "from": 3, "to": 1}]}, 400,
         "INVALID_BODY"),
    ],
)  # fmt: skip
def test_moves_that_nobody_has_shown_are_checked_all_the_same(
    broker: BrokerProcess, movers: Client, body: Any, status: int, error: str
) -> None:
    found, said = post(broker, RESET, body)
    assert (found, said["error"]) == (status, error)
    assert stands(broker)["moves", 0] == 3


def test_a_page_of_somebody_else_moves_no_group(broker: BrokerProcess, movers: Client) -> None:
    shown = {"moves": [{"topic": "moves", "partition": 0, "from": 3, "to": 0}]}
    for headers, status in (
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "evil.example"}, 421),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
    ):
        assert post(broker, RESET, shown, **headers)[0] == status, headers
    assert stands(broker)["moves", 0] == 3


def test_a_group_is_moved_by_who_may_read_it_and_its_topics(guarded: BrokerProcess) -> None:
    alice, admin = "alice:alice-password", "admin:admin-password"

    def shown(group: str, topic: str) -> Any:
        moves = [{"topic": topic, "partition": 0, "from": None, "to": 0}]
        return f"/api/v1/groups/{group}/reset", {"moves": moves}

    assert post(guarded, *shown("alices-g", "alices-orders"))[0] == 401
    assert post(guarded, *shown("payroll", "alices-orders"), alice)[0] == 403
    assert post(guarded, *shown("alices-g", "salaries"), alice)[0] == 403
    assert get(guarded, "/api/v1/groups/payroll/reset?to=earliest", login=alice)[0] == 403
    path = "/api/v1/groups/alices-g/reset?to=earliest&topic=salaries"
    assert get(guarded, path, login=alice)[0] == 403
    assert get(guarded, "/reset/payroll", "text/html", alice)[0] == 403
    assert post(guarded, *shown("alices-g", "alices-orders"), alice)[0] == 200
    assert post(guarded, *shown("payroll", "salaries"), admin)[0] == 200

    def told() -> bool:
        _, _, body = get(guarded, "/audit?find=POST+reset", login=admin)
        return b"GROUP alices-g" in body

    until(told)
    _, _, page = get(guarded, "/reset/alices-g?to=latest", "text/html", alice)
    assert b"What it would do" in page and b"salaries" not in page
