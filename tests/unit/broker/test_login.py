"""A connection's login: repeated in time, by the same user, and ended when it has to be."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.listeners import listener

from catchwater.broker.access import Access, Guard
from catchwater.broker.gate import ANONYMOUS
from catchwater.broker.login import Answer, NotLoggedIn, Session
from catchwater.broker.tokens import TokenUser
from catchwater.clock import ManualClock
from catchwater.kafka_listeners import Listener
from catchwater.wire.errors import ErrorCode
from catchwater.wire.security.verifiers import NotProved, verifier

HANDSHAKE, PRODUCE = 17, 0
KEPT = {
    "SCRAM-SHA-256": verifier("SCRAM-SHA-256", "secret", b"salt" * 6, 4096),
}
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


class Tokens:
    """Takes the tokens `NAME-SECONDS`."""

    def check_message(self, message: bytes) -> TokenUser:
        name, _, left_s = message.decode().partition("-")
        if not left_s:
            raise NotProved("no token")
        return TokenUser(name, float(left_s))


@pytest.fixture
def guard() -> Guard:
    guard = Guard(None, ["User:admin"], None, Tokens())  # type: ignore[arg-type]
    guard.access = Access({"alice": KEPT, "bob": KEPT})
    return guard


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def asks(reauth_ms: int = 0, *mechanisms: str) -> Listener:
    return listener(
        protocol="SASL_SSL", reauth_ms=reauth_ms,
        mechanisms=mechanisms or ("PLAIN", "OAUTHBEARER"),
    )  # fmt: skip


async def log_in(session: Session, user: str = "alice", password: str = "secret") -> Answer:
    assert session.handshake("PLAIN") is ErrorCode.NONE
    return await session.authenticate(f"\0{user}\0{password}".encode())


async def test_without_an_end_a_login_is_not_repeated(guard: Guard, clock: ManualClock) -> None:
    session = Session(guard, "h", asks(), clock)
    assert await log_in(session) == Answer(ErrorCode.NONE)
    assert session.handshake("PLAIN") is ErrorCode.ILLEGAL_SASL_STATE
    clock.advance(10000000000)
    session.check(PRODUCE)


async def test_a_login_that_is_repeated_in_time_goes_on(guard: Guard, clock: ManualClock) -> None:
    session = Session(guard, "h", asks(10_000), clock)
    assert (await log_in(session)).lifetime_ms == 10_000
    for _ in range(3):
        clock.advance(9000)
        session.check(PRODUCE)
        assert (await log_in(session)).lifetime_ms == 10_000
    clock.advance(10500)
    session.check(HANDSHAKE)  # it may still be repeated
    with pytest.raises(NotLoggedIn, match="has ended"):
        session.check(PRODUCE)


async def test_only_the_same_user_by_the_same_mechanism_repeats_a_login(
    guard: Guard, clock: ManualClock
) -> None:
    session = Session(guard, "h", asks(10_000), clock)
    await log_in(session)
    assert session.handshake("OAUTHBEARER") is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert (await log_in(session, "bob")).error is FAILED
    assert session.principal == "User:alice"
    with pytest.raises(NotLoggedIn, match="had failed"):
        session.check(PRODUCE)


async def test_a_repetition_that_fails_ends_the_connection(
    guard: Guard, clock: ManualClock
) -> None:
    session = Session(guard, "h", asks(10_000), clock)
    await log_in(session)
    assert (await log_in(session, password="wrong")).error is FAILED
    for key in (PRODUCE, HANDSHAKE):
        with pytest.raises(NotLoggedIn):
            session.check(key)


async def test_a_token_s_end_ends_the_session(guard: Guard, clock: ManualClock) -> None:
    session = Session(guard, "h", asks(60_000), clock)
    assert session.handshake("OAUTHBEARER") is ErrorCode.NONE
    assert await session.authenticate(b"carol-30") == Answer(ErrorCode.NONE, b"", 30_000)
    assert session.principal == "User:carol"
    clock.advance(29000)
    session.check(PRODUCE)
    clock.advance(2000)
    with pytest.raises(NotLoggedIn, match="has ended"):
        session.check(PRODUCE)


async def test_a_bad_token_is_told_so_and_then_refused(guard: Guard, clock: ManualClock) -> None:
    """RFC 7628: the client answers the reason before the login fails."""
    session = Session(guard, "h", asks(), clock)
    session.handshake("OAUTHBEARER")
    told = await session.authenticate(b"nothing")
    assert (told.error, told.message) == (ErrorCode.NONE, b'{"status":"invalid_token"}')
    with pytest.raises(NotLoggedIn):
        session.check(PRODUCE)
    assert (await session.authenticate(b"\x01")).error is FAILED


async def test_after_a_bad_token_a_good_one_is_too_late(guard: Guard, clock: ManualClock) -> None:
    session = Session(guard, "h", asks(), clock)
    session.handshake("OAUTHBEARER")
    await session.authenticate(b"nothing")
    assert (await session.authenticate(b"carol-30")).error is FAILED
    assert not session.is_in


SHOWN: dict[str, Any] = {"subject": ((("organizationName", "Acme"),), (("commonName", "dora"),))}


def test_a_certificate_names_its_user_until_other_authorities_sign(
    guard: Guard, clock: ManualClock
) -> None:
    rules = "RULE:^CN=(.*?),.*$/$1/U,DEFAULT"
    certified = listener(protocol="SSL", client_auth="required", principal_rules=rules)
    certificate: Any = SimpleNamespace(version=0)
    session = Session(guard, "h", certified, clock, SHOWN, certificate)
    assert session.principal == "User:DORA"
    session.check(PRODUCE)
    certificate.version = 1
    with pytest.raises(NotLoggedIn, match="show a certificate again"):
        session.check(PRODUCE)


def test_a_certificate_that_no_rule_names_is_refused(guard: Guard, clock: ManualClock) -> None:
    certified = listener(protocol="SSL", client_auth="required", principal_rules="RULE:^OU=x$/x/")
    with pytest.raises(NotLoggedIn, match="No rule"):
        Session(guard, "h", certified, clock, SHOWN)


def test_without_a_certificate_one_is_nobody(guard: Guard, clock: ManualClock) -> None:
    certified = listener(protocol="SSL", client_auth="requested")
    assert Session(guard, "h", certified, clock).principal == ANONYMOUS


async def test_where_users_log_in_a_certificate_names_nobody(
    guard: Guard, clock: ManualClock
) -> None:
    session = Session(guard, "h", asks(), clock, SHOWN)
    with pytest.raises(NotLoggedIn):
        session.check(PRODUCE)
    await log_in(session)
    assert session.principal == "User:alice"


@pytest.mark.parametrize(
    "message",
    [
        b"admin\0alice\0secret", b"\0\0", b"\0\0secret", b"\0alice\0", b"\0alice\0secret\0admin",
        b"alice\0secret", b"\0" + b"a" * 5_000 + b"\0secret", b"\xff\0alice\0secret",
    ],
)  # fmt: skip
async def test_a_message_that_names_another_user_or_none_lets_nobody_in(
    guard: Guard, clock: ManualClock, message: bytes
) -> None:
    """B9: who a client is comes of what it has proved (CVE-2017-12610), and of nothing else."""
    session = Session(guard, "h", asks(), clock)
    session.handshake("PLAIN")
    assert (await session.authenticate(message)).error is FAILED
    assert not session.is_in and session.principal == ANONYMOUS
    with pytest.raises(NotLoggedIn, match="had failed"):
        session.check(HANDSHAKE)


async def test_a_second_login_on_a_connection_is_refused(guard: Guard, clock: ManualClock) -> None:
    """B8: also within the first, between its steps."""
    session = Session(guard, "h", asks(0, "SCRAM-SHA-256", "PLAIN"), clock)
    assert session.handshake("SCRAM-SHA-256") is ErrorCode.NONE
    assert session.handshake("PLAIN") is ErrorCode.ILLEGAL_SASL_STATE
    other = Session(guard, "h", asks(), clock)
    await log_in(other)
    answer = await other.authenticate(b"\0bob\0secret")
    assert answer.error is ErrorCode.ILLEGAL_SASL_STATE and other.principal == "User:alice"
