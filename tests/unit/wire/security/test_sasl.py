"""Logging in at a scripted broker."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from catchwater.wire.security.oauth import OAuth
from catchwater.wire.security.sasl import LoginFailed, log_in
from catchwater.wire.security.settings import Security

PLAIN = Security("SASL_SSL", "PLAIN", "reader", "s3cret")
SCRAM = Security("SASL_SSL", "SCRAM-SHA-256", "user", "pencil")
NONE = KioErrorCode.none
TOKEN = Security(
    "SASL_SSL", "OAUTHBEARER", "who", oauth=OAuth("https://idp.example/", "who", "s3cret")
)


class Broker:
    """Answers what it is told, and remembers what it was sent."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.sent: list[Any] = []
        self.handshake = NONE
        self.error = NONE
        self.message: str | None = None

    def __call__(self, request: Any) -> Any:
        if request.__api_key__ == 17:
            self.sent.append(request.mechanism)
            return SaslHandshakeResponse(error_code=self.handshake, mechanisms=("A", "B"))
        self.sent.append(request.auth_bytes)
        return SaslAuthenticateResponse(
            error_code=self.error,
            error_message=self.message,
            auth_bytes=self.answers.pop(0),
            session_lifetime=timedelta(minutes=1),
        )


def test_a_plain_password_goes_out_once_and_the_login_may_end() -> None:
    broker = Broker(b"")
    assert log_in(broker, PLAIN, "h:1", "nonce") == 60
    assert broker.sent == ["PLAIN", b"\0reader\0s3cret"]


def test_a_broker_without_the_mechanism_says_what_it_offers() -> None:
    broker = Broker()
    broker.handshake = KioErrorCode.unsupported_sasl_mechanism
    said = r"'reader' at h:1 by PLAIN .* UNSUPPORTED_SASL_MECHANISM"
    with pytest.raises(LoginFailed, match=said) as caught:
        log_in(broker, PLAIN, "h:1", "nonce")
    assert "offers: A, B" in str(caught.value.hint)
    assert broker.sent == ["PLAIN"], "no password goes to who does not want it"


def test_a_refused_login_is_named_without_the_password() -> None:
    broker = Broker(b"")
    broker.error, broker.message = KioErrorCode.sasl_authentication_failed, "Go away."
    with pytest.raises(LoginFailed, match=r"SASL_AUTHENTICATION_FAILED \(Go away.\)") as caught:
        log_in(broker, PLAIN, "h:1", "nonce")
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


def test_a_broker_that_cannot_prove_itself_is_left() -> None:
    first = b"r=nonceAndMore,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    with pytest.raises(LoginFailed, match=r"'user' at h:1 by SCRAM-SHA-256 failed. .* pose as it"):
        log_in(Broker(first, b"v=AAAA"), SCRAM, "h:1", "nonce")


def test_a_token_is_shown_once() -> None:
    broker = Broker(b"")
    assert log_in(broker, TOKEN, "h:1", "nonce", "t0ken") == 60
    assert broker.sent == ["OAUTHBEARER", b"n,,\x01auth=Bearer t0ken\x01\x01"]


def test_a_token_that_is_not_taken_is_named_and_not_shown() -> None:
    class Refusing(Broker):
        def __call__(self, request: Any) -> Any:
            if self.sent[1:]:
                self.error = KioErrorCode.sasl_authentication_failed
                self.message = '{"status":"invalid_token"}'
            return super().__call__(request)

    broker = Refusing(b'{"status":"invalid_token"}', b"")
    said = r"'who' at h:1 by OAUTHBEARER .* \({\"status\":\"invalid_token\"}\)"
    with pytest.raises(LoginFailed, match=said) as caught:
        log_in(broker, TOKEN, "h:1", "nonce", "t0ken")
    assert broker.sent[2] == b"\x01"
    assert "audience" in str(caught.value.hint) and "t0ken" not in str(caught.value)
    with pytest.raises(LoginFailed, match="gave a reason"):
        log_in(Broker(b"x", b""), TOKEN, "h:1", "nonce", "t0ken")
