"""Tokens: what is let in, and the attacks that are not."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from tests.token_endpoint import AUDIENCE, CLIENT_ID, Provider

from catchwater.broker.tokens import Tokens, check_settings
from catchwater.broker_config import BrokerConfig, load_broker_config
from catchwater.clock import ManualClock
from catchwater.config import ConfigError
from catchwater.wire.security.verifiers import NotProved

SETTINGS = {
    "sasl_oauthbearer_expected_issuer": "tests",
    "sasl_oauthbearer_expected_audience": AUDIENCE,
}


def text(data: Any) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class Now(ManualClock):
    """Tells the provider's time."""

    def now_ms(self) -> int:
        return int(time.time() * 1000) + self.later_ms

    later_ms = 0


@pytest.fixture
def clock() -> Now:
    return Now()


@pytest.fixture
def made(tmp_path: Path) -> Provider:
    made = Provider()
    (tmp_path / "jwks.json").write_text(made.jwks())
    return made


@pytest.fixture
def tokens(made: Provider, tmp_path: Path, clock: Now) -> Callable[..., Tokens]:
    def tokens(**more: Any) -> Tokens:
        url = f"file://{tmp_path / 'jwks.json'}"
        given = {"sasl_oauthbearer_jwks_endpoint_url": url, **SETTINGS}
        return Tokens(BrokerConfig(**(given | more)), clock)

    return tokens


def test_a_good_token_names_its_user_for_as_long_as_it_holds(made: Provider, tokens: Any) -> None:
    known = tokens().check(made.token())
    assert known.user == CLIENT_ID
    assert 50 < known.left_s <= 60
    message = f"n,,\x01auth=Bearer {made.token()}\x01traceId=7\x01\x01".encode()
    assert tokens().check_message(message).user == CLIENT_ID


def forged(made: Provider, algorithm: str, sign: Callable[[bytes], bytes]) -> str:
    head, claims, _ = made.token().split(".")
    header = json.loads(base64.urlsafe_b64decode(head + "=="))
    signed = f"{text(header | {'alg': algorithm})}.{claims}"
    return f"{signed}.{text(sign(signed.encode()))}"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", ""])
def test_a_token_without_a_signature_is_refused(made: Any, tokens: Any, algorithm: str) -> None:
    with pytest.raises(NotProved):
        tokens().check(forged(made, algorithm, lambda _: b""))


def test_the_public_key_is_no_shared_secret(made: Provider, tokens: Any) -> None:
    pem = made._key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for secret in (pem, pem.strip(), made.jwks().encode()):
        token = forged(made, "HS256", lambda data, s=secret: hmac.digest(s, data, hashlib.sha256))
        with pytest.raises(NotProved):
            tokens().check(token)


def test_a_shared_secret_in_the_published_keys_is_passed_over(
    made: Provider, tokens: Any, tmp_path: Path
) -> None:
    keys = json.loads(made.jwks())["keys"]
    secret = {"kty": "oct", "kid": "k", "k": text(b"secret" * 8)}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [secret, *keys]}))
    assert tokens().check(made.token()).user == CLIENT_ID
    with pytest.raises(NotProved):
        tokens().check(forged(made, "HS256", lambda d: hmac.digest(b"secret" * 8, d, "sha256")))


def test_another_audience_issuer_and_provider_are_refused(made: Provider, tokens: Any) -> None:
    with pytest.raises(NotProved):
        tokens(sasl_oauthbearer_expected_issuer="others").check(made.token())
    made.audience = "another"
    with pytest.raises(NotProved):
        tokens().check(made.token())
    made.audience = AUDIENCE
    with pytest.raises(NotProved):
        tokens().check(Provider().token())


def test_a_token_that_has_ended_or_never_ends_is_refused(
    made: Provider, tokens: Any, clock: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, checker = made.token(), tokens()
    clock.later_ms = 80_000
    assert checker.check(token).left_s == 0.0, "within the skew of clocks"
    clock.later_ms = 100_000
    with pytest.raises(NotProved):
        checker.check(token)
    clock.later_ms = 0
    whole = json.dumps
    monkeypatch.setattr(
        "tests.token_endpoint.json.dumps",
        lambda part: whole({k: v for k, v in part.items() if k != "exp"}),
    )
    endless = made.token()
    monkeypatch.undo()
    with pytest.raises(NotProved):
        checker.check(endless)


def test_where_the_keys_are_not_to_be_had_nobody_comes_in_and_old_ones_stay(
    made: Provider, tokens: Any, tmp_path: Path, clock: Now
) -> None:
    checker = tokens()
    (tmp_path / "jwks.json").unlink()
    clock.advance(11_000)
    checker.refresh()
    assert checker.check(made.token()).user == CLIENT_ID
    with pytest.raises(NotProved):
        tokens().check(made.token())


def test_new_keys_are_asked_for_when_a_token_needs_them_and_not_for_every_token(
    made: Provider, tokens: Any, tmp_path: Path, clock: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker, renewed = tokens(), Provider()
    asked: list[int] = []
    fetch = checker._fetch
    monkeypatch.setattr(checker, "_fetch", lambda: (asked.append(1), fetch())[1])
    for _ in range(5):
        with pytest.raises(NotProved):
            checker.check(renewed.token())
    assert not asked, "it was asked only just now"
    (tmp_path / "jwks.json").write_text(renewed.jwks())
    clock.advance(11000)
    assert checker.check(renewed.token()).user == CLIENT_ID
    assert len(asked) == 1


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01auth=Basic abc\x01\x01", b"p=x,,\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01\x01more", b"\x01" * 16_000,
    ],
)  # fmt: skip
def test_what_is_no_message_of_a_token_is_refused(tokens: Any, message: bytes) -> None:
    with pytest.raises(NotProved):
        tokens().check_message(message)


OAUTH = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "super.users": "User:admin",
    "sasl.oauthbearer.jwks.endpoint.url": "https://idp.example/keys",
    "sasl.oauthbearer.expected.issuer": "https://idp.example",
    "sasl.oauthbearer.expected.audience": "kafka",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, "jwks.endpoint.url has to say"),
        ({"sasl.oauthbearer.jwks.endpoint.url": "http://idp.example/keys"}, "has to say where"),
        ({"sasl.oauthbearer.expected.issuer": ""}, "expected.issuer has to be set"),
        ({"sasl.oauthbearer.expected.audience": ""}, "expected.audience has to be set"),
        ({"catchwater.oauth.algorithms": "RS256,HS256"}, "cannot have HS256"),
        ({"catchwater.oauth.algorithms": "none"}, "cannot have none"),
    ],
)
def test_settings_that_would_let_others_in_stop_the_start(
    changed: dict[str, str], expected: str
) -> None:
    check_settings(load_broker_config(None, {}, OAUTH))
    config = load_broker_config(None, {}, OAUTH | changed)
    assert config.takes_tokens
    with pytest.raises(ConfigError, match=expected):
        check_settings(config)
