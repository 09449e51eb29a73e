"""SCRAM held against the example of RFC 7677, and against servers that break the rules."""

import pytest

from catchwater.wire.security.sasl import Scram, ScramFailed

NONCE = "rOprNGfwEbeRWgbNEkqO"
BOTH = f"{NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={BOTH},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.fixture
def scram() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_the_example_of_the_standard(scram: Scram) -> None:
    assert scram.first() == f"n,,n=user,r={NONCE}".encode()
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert scram.final(SERVER_FIRST) == f"c=biws,r={BOTH},p=".encode() + proof
    scram.verify(SERVER_FINAL)


def test_a_name_is_escaped() -> None:
    assert Scram("SCRAM-SHA-512", "a=b,c", "p", "n").first() == b"n,,n=a=3Db=2Cc,r=n"


@pytest.mark.parametrize(
    ("server_first", "reason"),
    [
        (SERVER_FIRST.replace(b"r=r", b"r=R"), "nonce differs"),
        (SERVER_FIRST.replace(BOTH.encode(), NONCE.encode()), "nonce differs"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "asks for 4095 iterations"),
        (SERVER_FIRST.replace(b"4096", b"999999999"), "asks for 999999999 iterations"),
        (SERVER_FIRST.replace(b"4096", b"-1"), "asks for -1 iterations"),
        (SERVER_FIRST.replace(b"s=W", b"s=!"), "no base64"),
        (SERVER_FIRST.replace(b"s=", b"t="), "no attribute s"),
        (b"m=must," + SERVER_FIRST, "not of the form"),
        (b"nonsense", "not of the form"),
        (b"", "not of the form"),
        (b"\xff", "no text"),
    ],
)
def test_a_server_that_breaks_the_rules_gets_no_proof(
    scram: Scram, server_first: bytes, reason: str
) -> None:
    with pytest.raises(ScramFailed, match=reason) as caught:
        scram.final(server_first)
    assert "pencil" not in str(caught.value)


@pytest.mark.parametrize(
    ("server_final", "reason"),
    [
        (b"v=" + b"A" * 43 + b"=", "somebody may pose as it"),
        (b"v=", "somebody may pose as it"),
        (b"e=invalid-proof", "refused the proof: invalid-proof"),
        (b"x=y", "no attribute v"),
    ],
)
def test_a_server_must_know_the_user_too(scram: Scram, server_final: bytes, reason: str) -> None:
    scram.final(SERVER_FIRST)
    with pytest.raises(ScramFailed, match=reason):
        scram.verify(server_final)
