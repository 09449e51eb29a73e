"""SCRAM from the server's side, against the client's and the RFC's examples."""

import base64
import hashlib
import hmac
from typing import Any

import pytest

from catchwater.wire.security.sasl import Scram
from catchwater.wire.security.verifiers import (
    HASHES,
    NotProved,
    ScramServer,
    check_password,
    verifier,
    verifiers,
)

USERS = {"al=i,ce": verifiers("secret"), "bob": verifiers("other")}


def converse(mechanism: str, user: str, password: str) -> ScramServer:
    client, server = Scram(mechanism, user, password, "cn"), ScramServer(mechanism, USERS, "sn")
    client.verify(server.final(client.final(server.first(client.first()))))
    return server


@pytest.mark.parametrize("mechanism", HASHES)
def test_both_sides_prove_what_they_know(mechanism: str) -> None:
    assert converse(mechanism, "al=i,ce", "secret").user == "al=i,ce"


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize(
    ("user", "password"), [("bob", "secret"), ("nobody", "secret"), ("bob", "")]
)
def test_whoever_does_not_know_the_password_is_not_told_why(
    mechanism: str, user: str, password: str
) -> None:
    with pytest.raises(NotProved, match="User name or password is wrong"):
        converse(mechanism, user, password)


def test_the_example_of_rfc_7677_is_answered() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    users = {"user": {"SCRAM-SHA-256": verifier("SCRAM-SHA-256", "pencil", salt, 4096)}}
    server = ScramServer("SCRAM-SHA-256", users, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = server.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first.decode() == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = server.final(f"c=biws,r={nonce},p={proof}".encode())
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_a_user_that_is_not_there_always_has_the_same_salt() -> None:
    def first(user: str) -> bytes:
        return ScramServer("SCRAM-SHA-256", USERS, "sn").first(f"n,,n={user},r=cn".encode())

    assert first("nobody") == first("nobody") != first("somebody")
    assert len(first("nobody")) == len(first("bob"))


def test_a_user_that_is_not_there_looks_like_those_that_are() -> None:
    """B8: Kafka's tools and librdkafka make salts of 26 and 64 bytes, with 4096 iterations."""
    mechanism = "SCRAM-SHA-512"
    kept = {
        "java": {mechanism: verifier(mechanism, "a", b"s" * 26, 4096)},
        "librdkafka": {mechanism: verifier(mechanism, "b", b"t" * 64, 4096)},
    }

    def said(user: str) -> tuple[int, str]:
        first = ScramServer(mechanism, kept, "sn").first(f"n,,n={user},r=cn".encode()).decode()
        _, salt, iterations = first.split(",")
        return len(salt), iterations

    there = {said("java"), said("librdkafka")}
    assert {said(f"nobody-{number}") for number in range(40)} == there


@pytest.mark.parametrize("by", ["password", *HASHES])
def test_a_wrong_proof_and_a_user_that_is_not_there_take_the_same_work(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """B8, counted; `test_own_security` measures it."""
    work: list[tuple[str, int]] = []
    pbkdf2, digest = hashlib.pbkdf2_hmac, hmac.digest

    def counted_pbkdf2(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        work.append((name, iterations))
        return pbkdf2(name, password, salt, iterations)

    def counted_digest(key: bytes, message: bytes, name: str) -> bytes:
        work.append((name, len(message) // 1_000))
        return digest(key, message, name)

    kept = {"few": {"SCRAM-SHA-512": verifier("SCRAM-SHA-512", "a", b"s" * 24, 4096)}, **USERS}
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted_pbkdf2)
    monkeypatch.setattr(hmac, "digest", counted_digest)

    def iterations(user: str) -> int:
        work.clear()
        if by == "password":
            with pytest.raises(NotProved):
                check_password(kept, user, "wrong")
        else:
            server = ScramServer(by, kept, "sn")
            first = server.first(f"n,,n={user},r=cn".encode()).decode()
            nonce = first.split(",")[0].removeprefix("r=")
            with pytest.raises(NotProved):
                server.final(f"c=biws,r={nonce},p={'A' * 43}=".encode())
        return sum(count for _, count in work) + len(work)

    assert len({iterations(user) for user in ("few", "bob", "nobody", "another")}) == 1


@pytest.mark.parametrize("kind", HASHES)
def test_a_password_of_nobody_is_hashed_as_those_of_others(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One hash is faster than the other, by up to a half."""
    users = {name: {kind: verifier(kind, "p", b"s" * 24, 4096)} for name in "ab"}
    used: set[str] = set()
    pbkdf2 = hashlib.pbkdf2_hmac

    def noted(name: str, *rest: Any) -> bytes:
        used.add(name)
        return pbkdf2(name, *rest)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", noted)
    for number in range(8):
        with pytest.raises(NotProved):
            check_password(users, f"nobody-{number}", "p")
    assert used == {HASHES[kind]}


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"n,,",
        b"n,,n=a",
        b"n,,r=x,n=a",
        b"n,,n=,r=x",
        b"p=tls,,n=a,r=x",
        b"n,,m=1,n=a,r=x",
        b"n,a=admin,n=bob,r=x",
    ],
)
def test_what_is_no_first_message_is_refused(message: bytes) -> None:
    with pytest.raises(NotProved):
        ScramServer("SCRAM-SHA-256", USERS, "sn").first(message)


def test_a_proof_for_another_conversation_is_refused() -> None:
    client = Scram("SCRAM-SHA-256", "bob", "other", "cn")
    proof = client.final(ScramServer("SCRAM-SHA-256", USERS, "old").first(client.first()))
    again = ScramServer("SCRAM-SHA-256", USERS, "new")
    again.first(client.first())
    with pytest.raises(NotProved):
        again.final(proof)
    again = ScramServer("SCRAM-SHA-256", USERS, "new")
    again.first(client.first())
    with pytest.raises(NotProved):
        again.final(proof.replace(b"cnold", b"cnnew"))


@pytest.mark.parametrize("proof", [b"", b"c=biws,r=cnsn,p=", b"c=biws,r=cnsn,p=!", b"p=AAAA"])
def test_what_is_no_proof_is_refused(proof: bytes) -> None:
    server = ScramServer("SCRAM-SHA-256", USERS, "sn")
    server.first(b"n,,n=bob,r=cn")
    with pytest.raises(NotProved):
        server.final(proof)


def test_a_password_is_checked_against_what_is_kept() -> None:
    check_password(USERS, "bob", "other")
    for user, password in (("bob", "wrong"), ("nobody", "other"), ("bob", "")):
        with pytest.raises(NotProved, match="User name or password is wrong"):
            check_password(USERS, user, password)
