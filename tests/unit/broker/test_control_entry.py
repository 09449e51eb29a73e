"""The control API's one door: who asks, what every path declares, and by which name."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from catchwater.broker.access import Guard, Rule, change, with_rule, with_user
from catchwater.broker.broker import Broker
from catchwater.broker.control import epochs, pins, plans, tables
from catchwater.broker.control.app import create_app
from catchwater.broker.gate import ResourceType
from catchwater.broker.tokens import TokenUser
from catchwater.catalog.rows import EpochCommit
from catchwater.wire.security.verifiers import NotProved, verifiers

TOPIC, PIPELINE = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
RULES = [
    Rule("User:alice", "ALLOW", "READ", TOPIC, "open"),
    Rule("User:alice", "ALLOW", "WRITE", TOPIC, "open"),
    Rule("User:alice", "ALLOW", "WRITE", PIPELINE, "alices-", "PREFIXED"),
]
ALICE, ADMIN = ("alice", "secret"), ("admin", "root")


@pytest.fixture
def guarded(broker: Broker, tmp_path: Path) -> Broker:
    path = tmp_path / "access.json"

    def decide(now: Any) -> Any:
        for user, password in (ALICE, ADMIN, ("bob", "none")):
            now = with_user(now, user, verifiers(password))
        for rule in RULES:
            now = with_rule(now, rule)
        return now

    change(path, decide)

    async def pins() -> list[Any]:
        return []

    broker.log.pins = pins  # type: ignore[method-assign]
    broker.guard = Guard(path, ["User:admin"])
    return broker


async def call(
    broker: Broker, method: str, path: str, body: Any = None, login: tuple[str, str] | None = None,
    shown: tuple[Any, int] | None = None, **headers: str,
) -> tuple[int, Any, dict[bytes, bytes]]:  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return {"type": "http.request", "body": data}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    if login:
        text = base64.b64encode(":".join(login).encode()).decode()
        headers["authorization"] = f"Basic {text}"
    named = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    path, _, query = path.partition("?")
    scope = {
        "type": "http", "method": method, "path": path, "headers": named,
        "query_string": query.encode(),
        "client": ("127.0.0.1", 1), "state": {"certificate": shown} if shown else {},
    }  # fmt: skip
    await create_app(broker)(scope, receive, send)
    text = b"".join(each.get("body", b"") for each in sent)
    return sent[0]["status"], text, dict(sent[0]["headers"])


PIN = {"owner": "o", "positions": [{"topic": "open", "partition": 0, "offset": 0}]}
EPOCH = {"topic": "open", "staged": []}
FENCE = {"topic": "open", "fence": {"name": "f", "number": 1}}
REQUESTS = [
    ("GET", "/metrics", None),
    ("GET", "/api/v1/cluster", None),
    ("GET", "/api/v1/storage", None),
    ("GET", "/api/v1/topics/open", None),
    ("POST", "/api/v1/plans", {"topic": "open", "ranges": []}),
    ("PUT", "/api/v1/pins/p", PIN),
    ("PUT", "/api/v1/sinks/alices-p/s/epochs/1", EPOCH),
    ("PUT", "/api/v1/sinks/others/s/epochs/9000000000000000", EPOCH),
    ("PUT", "/api/v1/sinks/alices-p/s/fence", FENCE),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS, ids=lambda each: str(each)[:30])
async def test_nobody_who_has_not_logged_in_is_served(
    guarded: Broker, method: str, path: str, body: Any
) -> None:
    status, text, headers = await call(guarded, method, path, body)
    assert (status, json.loads(text)["error"]) == (401, "NOT_AUTHENTICATED")
    assert headers[b"www-authenticate"].startswith(b"Basic")


@pytest.mark.parametrize("login", [("alice", "wrong"), ("nobody", "secret"), ("alice", "")])
async def test_a_wrong_password_is_refused_whatever_is_asked(
    guarded: Broker, login: tuple[str, str]
) -> None:
    for path in ("/api/v1/pins", "/api/v1/topics", "/healthz"):
        status, text, _ = await call(guarded, "GET", path, login=login)
        assert (status, json.loads(text)["message"]) == (401, "User name or password is wrong.")


@pytest.mark.parametrize("shown", ["Bearer x", "Basic", "Basic !", "Basic eA==", "Basic /w=="])
async def test_what_is_no_password_is_refused(guarded: Broker, shown: str) -> None:
    status, _, _ = await call(guarded, "GET", "/api/v1/pins", authorization=shown)
    assert status == 401


async def test_health_is_for_everybody(guarded: Broker) -> None:
    assert (await call(guarded, "GET", "/healthz"))[0] == 200


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS, ids=lambda each: str(each)[:30])
async def test_who_has_logged_in_may_do_what_rules_say(
    guarded: Broker, method: str, path: str, body: Any
) -> None:
    """What comes after the door may fail here, where there is no log: it is not refused."""

    async def refused(login: tuple[str, str]) -> bool:
        try:
            return (await call(guarded, method, path, body, login))[0] in (401, 403)
        except (AttributeError, TypeError):
            return False

    is_hers = not ("others" in path or path in ("/metrics", "/api/v1/cluster", "/api/v1/storage"))
    assert await refused(ALICE) != is_hers
    assert not await refused(ADMIN)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9644", 200),
        ("[::1]:9644", 200),
        ("localhost", 200),
        ("10.1.2.3:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:9644", 421),
        ("127.0.0.1@evil.example", 421),
        ("[", 421),
        ("[::1", 421),
        ("a\N{VULGAR FRACTION ONE HALF}", 421),
    ],
)
async def test_a_name_that_is_not_ours_is_refused(broker: Broker, host: str, status: int) -> None:
    assert (await call(broker, "GET", "/healthz", host=host))[0] == status


async def test_what_is_sent_is_not_read_of_who_may_do_nothing(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a pin of no topic set, for which no topic would be asked."""

    async def read_body(*_: Any) -> None:
        raise AssertionError("4 MB would be read and taken apart")

    for module in (pins, plans, epochs, tables):
        monkeypatch.setattr(module, "read_body", read_body)
    for login, expected in ((None, 401), (("bob", "none"), 403)):
        for method, path in (
            ("PUT", "/api/v1/pins/p"), ("PATCH", "/api/v1/pins/p"), ("POST", "/api/v1/plans"),
            ("PUT", "/api/v1/sinks/p/s/epochs/1"), ("POST", "/api/v1/topics/open/table/rewind"),
        ):  # fmt: skip
            assert (await call(guarded, method, path, {}, login))[0] == expected, path


async def test_the_pin_of_a_table_is_set_by_the_log_alone(guarded: Any) -> None:
    """Who set it first would say from where on the log keeps what the table lacks."""
    status, text, _ = await call(guarded, "PUT", "/api/v1/pins/table/alices-t", PIN, ALICE)
    assert (status, json.loads(text)["error"]) == (400, "INVALID_PIN")


async def test_there_are_not_too_many_pins(
    guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [SimpleNamespace(id=f"p{number}", positions={}) for number in range(3)]

    async def all_of_them() -> list[Any]:
        return kept

    guarded.log.pins = all_of_them  # type: ignore[method-assign]
    monkeypatch.setattr(pins, "MOST_PINS", len(kept))
    status, text, _ = await call(guarded, "PUT", "/api/v1/pins/x", PIN, ALICE)
    assert (status, json.loads(text)["error"]) == (507, "TOO_MANY_PINS")
    with pytest.raises(AttributeError, match="set_pin"):  # it got as far as the log
        await call(guarded, "PUT", "/api/v1/pins/p1", PIN, ALICE)


async def test_whether_a_pipeline_writes_is_not_told_to_who_may_not_know(guarded: Broker) -> None:
    """What is there and what is not are refused alike, and no topic is named."""

    async def last(pipeline: str, sink: str) -> EpochCommit | None:
        topic = {"theirs": "secret", "alices-p": "secret", "others": "open"}.get(pipeline)
        return topic and EpochCommit(False, 1, 0, {}, "", topic)  # type: ignore[return-value]

    async def find(pipeline: str, sink: str, epoch: int) -> EpochCommit | None:
        return await last(pipeline, sink)

    guarded.log.epochs = SimpleNamespace(last=last, find=find)  # type: ignore[misc]
    for end in ("", "/epochs/1"):
        answers = [
            await call(guarded, "GET", f"/api/v1/sinks/{name}/s{end}", login=ALICE)
            for name in ("theirs", "nobodys", "alices-p", "alices-q", "others")
        ]
        assert [status for status, *_ in answers] == [403, 403, 403, 404, 200]
        assert answers[0][1].replace(b"theirs", b"nobodys") == answers[1][1]
        assert not [text for _, text, _ in answers[:4] if b"secret" in text]


@pytest.mark.parametrize("depth", [500, 100_000])
async def test_a_body_that_is_too_deep_is_refused_in_a_line(guarded: Broker, depth: int) -> None:
    body = b'{"x":' + b"[" * depth + b"]" * depth + b"}"
    status, text, _ = await call(guarded, "POST", "/api/v1/plans", body, ALICE)
    assert (status, json.loads(text)["error"]) == (400, "INVALID_BODY")


@pytest.mark.parametrize("key", ["", "%C3%A9", "x" * 64])
async def test_a_url_that_nobody_has_signed_opens_nothing(broker: Broker, key: str) -> None:
    path = f"/api/v1/bytes/a?from=0&size=1&until=99999999999&key={key}"
    status, text, _ = await call(broker, "GET", path)
    assert (status, json.loads(text)["error"]) == (403, "NOT_GRANTED")


def test_every_path_declares_what_it_asks(broker: Broker) -> None:
    for route in create_app(broker).routes:
        assert route.endpoint.__qualname__ == "entry.<locals>.serve", route


async def test_a_token_names_its_user_as_at_the_kafka_port(guarded: Broker) -> None:
    class Tokens:
        def check(self, token: str) -> TokenUser:
            if token != "alices":
                raise NotProved("no token")
            return TokenUser("alice", 60.0)

    assert guarded.guard is not None
    path = "/api/v1/topics/open"
    status, *_ = await call(guarded, "GET", path, authorization="Bearer alices")
    assert status == 401, "without a provider there are no tokens"
    guarded.guard.tokens = Tokens()  # type: ignore[assignment]
    for token, expected in (("alices", 404), ("others", 401)):
        status, *_ = await call(guarded, "GET", path, authorization=f"Bearer {token}")
        assert status == expected


@pytest.mark.parametrize(
    ("method", "origin", "status"),
    [
        ("POST", None, 200),
        ("POST", "http://localhost:9644", 200),
        ("POST", "https://evil.example", 403),
        ("POST", "http://localhost:8080", 403),
        ("POST", "null", 403),
        ("POST", "http://[", 403),
        ("GET", "https://evil.example", 405),
    ],
)
async def test_a_page_of_somebody_else_changes_nothing(
    broker: Broker, method: str, origin: str | None, status: int
) -> None:
    headers = {"host": "localhost:9644"} | ({"origin": origin} if origin else {})
    body = {"bytes": 1, "client_id": "victim"}
    assert (await call(broker, method, "/api/v1/grants", body, **headers))[0] == status


async def test_a_certificate_names_the_caller_until_other_authorities_sign(
    guarded: Broker,
) -> None:
    """Who logs in besides is the user of the login; a certificate that no rule fits is refused."""
    own: Any = SimpleNamespace(version=0)
    guarded.control_certificate = own
    guarded.config = replace(guarded.config, ssl_principal_mapping_rules="RULE:^CN=(.*)$/$1/")

    def named(name: str) -> Any:
        return {"subject": ((("commonName", name),),)}

    async def status(shown: Any, login: tuple[str, str] | None = None) -> int:
        try:
            return (await call(guarded, "GET", "/api/v1/cluster", None, login, (shown, 0)))[0]
        except AttributeError:  # behind the door there is no log here
            return 200

    assert [await status(named(name)) for name in ("admin", "alice")] == [200, 403]
    assert await status(None) == 401
    assert await status(named("admin"), ALICE) == 403
    assert await status(named("alice"), ADMIN) == 200
    assert await status({"subject": ((("organizationName", "admin"),),)}) == 401
    own.version = 1
    assert await status(named("admin")) == 401
    guarded.control_certificate = None
    assert await status(named("admin")) == 401
