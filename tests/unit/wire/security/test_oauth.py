"""Tokens: how they are asked for, how long they are kept, and how they are shown."""

import base64
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.secured_kafka import authority, certificate
from tests.token_endpoint import CLIENT_ID, CLIENT_SECRET, Provider, provider

from catchwater.clock import SYSTEM, Clock, ManualClock
from catchwater.config import ConfigError
from catchwater.wire.security import oauth as module
from catchwater.wire.security.oauth import (
    OAuth,
    Token,
    TokenRefused,
    Tokens,
    TokenUnavailable,
    opening,
    request_token,
)
from catchwater.wire.security.settings import parse_security

STEM = "kafka.sasl.oauthbearer."
LOGIN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "OAUTHBEARER",
    f"{STEM}token.endpoint.url": "https://idp.example/token",
}
JAAS = "kafka.sasl.jaas.config"
WANTED = OAuth("https://idp.example/token", "who", "s3cret", "read")
BY_NAMES = {
    **LOGIN,
    f"{STEM}client.credentials.client.id": "who",
    f"{STEM}client.credentials.client.secret": "s3cret",
    f"{STEM}scope": "read",
}


@pytest.fixture
def idp() -> Iterator[Provider]:
    with provider() as made:
        yield made


def test_options_by_javas_names_old_and_new_and_by_librdkafkas() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    old = f'{module} clientId="who" clientSecret="s3cret" scope="read";'
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    for given in (
        {**LOGIN, JAAS: old, "kafka.sasl.login.callback.handler.class": handler},
        {**BY_NAMES, JAAS: f"{module};"},
        {**LOGIN, f"{STEM}method": "oidc", f"{STEM}client.id": "who",
         f"{STEM}client.secret": "s3cret", f"{STEM}scope": "read"},
    ):  # fmt: skip
        security = parse_security(given)
        assert security.oauth == WANTED
        assert str(security) == "SASL_PLAINTEXT by OAUTHBEARER as 'who'"
        assert "s3cret" not in repr(security)


def test_extensions_are_shown_behind_the_token() -> None:
    login = 'OAuthBearerLoginModule required extension_logicalCluster="lkc-1";'
    given = {**BY_NAMES, JAAS: login, f"{STEM}extensions": "poolId=p=1, x="}
    oauth = parse_security(given).oauth
    assert oauth is not None
    assert oauth.extensions == (("poolId", "p=1"), ("x", ""), ("logicalCluster", "lkc-1"))
    said = b"n,,\x01auth=Bearer t\x01poolId=p=1\x01x=\x01logicalCluster=lkc-1\x01\x01"
    assert opening(oauth, "t") == said
    assert opening(WANTED, "t") == b"n,,\x01auth=Bearer t\x01\x01"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({f"{STEM}token.endpoint.url": ""}, "needs .*token.endpoint.url"),
        ({f"{STEM}token.endpoint.url": "ftp://h/"}, "needs .*token.endpoint.url"),
        ({f"{STEM}token.endpoint.url": "https://a:s3cret@h/"}, "needs .*token.endpoint.url"),
        ({f"{STEM}client.credentials.client.id": ""}, "needs .*client.credentials.client.id"),
        ({f"{STEM}client.secret": "s3cret"}, "are given: choose one"),
        ({f"{STEM}method": "default"}, "takes oidc"),
        ({"kafka.sasl.login.callback.handler.class": "a.MyHandler"}, "a.MyHandler, which is not"),
        ({f"{STEM}extensions": "auth=s3cret"}, "extension 'auth' is not of the form"),
        ({"kafka.sasl.password": "s3cret"}, "kafka.sasl.password has no effect with"),
        ({f"{STEM}sub.claim.name": "x"}, "sub.claim.name is not supported"),
        ({JAAS: "PlainLoginModule required username=a password=s3cret;"}, "which is not for"),
    ],
)
def test_a_mistake_is_named_without_the_secret(change: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse_security({**BY_NAMES, **change})
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


def test_a_token_is_asked_for_with_id_secret_and_scope(idp: Provider) -> None:
    login = OAuth(idp.url, CLIENT_ID, CLIENT_SECRET, "read write")
    token = request_token(login, SYSTEM, 5)
    assert token.text.count(".") == 2
    assert idp.lifetime_s - 10 < token.lifetime_s <= idp.lifetime_s
    assert idp.asked == [{"grant_type": ["client_credentials"], "scope": ["read write"]}]
    assert token.text not in repr(token)


def test_a_refusal_is_for_good_and_an_endpoint_that_is_away_is_not(idp: Provider) -> None:
    login = OAuth(idp.url, CLIENT_ID, "wr0ng")
    with pytest.raises(TokenRefused, match=r"'catchwater' 401 \(invalid_client\)") as caught:
        request_token(login, SYSTEM, 5)
    assert "client secret" in str(caught.value.hint)
    assert "wr0ng" not in f"{caught.value} {caught.value.hint}"
    idp.failures = [503, 429, 302]
    for status in (503, 429):
        with pytest.raises(TokenUnavailable, match=str(status)):
            request_token(login, SYSTEM, 5)
    with pytest.raises(TokenRefused, match="302"):
        request_token(login, SYSTEM, 5)
    with pytest.raises(TokenUnavailable, match="cannot be asked"):
        request_token(replace(login, endpoint="http://127.0.0.1:1/"), SYSTEM, 5)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates need openssl")
def test_an_endpoint_over_tls_has_to_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority(tmp_path, "ca")
    certificate(tmp_path, "server", "subjectAltName=IP:127.0.0.1")
    with provider(tmp_path / "server.pem") as idp:
        login = OAuth(idp.url, CLIENT_ID, CLIENT_SECRET)
        with pytest.raises(TokenRefused, match=r"https://.* is not trusted: ") as caught:
            request_token(login, SYSTEM, 5)
        assert "SSL_CERT_FILE" in str(caught.value.hint)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        assert request_token(login, SYSTEM, 5).text
        assert len(idp.asked) == 1


def test_a_tokens_time_is_the_answers_or_its_own_whichever_is_over_first() -> None:
    clock = ManualClock(1_000_000)
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 1030}).encode()).decode().rstrip("=")
    lifetime_s = module._lifetime_s
    assert lifetime_s({"expires_in": 7}, f"h.{claims}.s", clock) == 7
    assert lifetime_s({"expires_in": 60}, f"h.{claims}.s", clock) == 30
    assert lifetime_s({"expires_in": 60}, "opaque", clock) == 60
    assert lifetime_s({}, f"h.{claims}.s", clock) == 30
    for token in ("opaque", "h.!.s", "h.W10.s", "h.e30.s"):
        assert lifetime_s({}, token, clock) == 0


def test_what_is_no_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"", b"[]", b"{}", b'{"access_token": "a\\u0001b"}', b'{"access_token": 1}'):
        monkeypatch.setattr(module, "_post", lambda *asked, content=content: (200, content))
        with pytest.raises(TokenRefused, match="holds no access_token"):
            request_token(WANTED, SYSTEM, 5)


def test_a_token_is_kept_for_four_fifths_of_its_time() -> None:
    given: list[Token] = [Token("first", 10), Token("second", 0), Token("third", 10)]
    asked: list[OAuth] = []

    def request(oauth: OAuth, clock: Clock, timeout_s: float) -> Token:
        asked.append(oauth)
        return given.pop(0)

    tokens, clock = Tokens(request), ManualClock()
    assert [tokens.of(WANTED, clock, 1) for _ in range(2)] == ["first"] * 2
    clock.advance(7_900)
    assert tokens.of(WANTED, clock, 1) == "first"
    clock.advance(200)
    assert [tokens.of(WANTED, clock, 1) for _ in range(2)] == ["second", "third"]
    tokens.forget(WANTED)
    given.append(Token("fourth", 10))
    assert tokens.of(WANTED, clock, 1) == "fourth" and len(asked) == 4
