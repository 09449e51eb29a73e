"""What a broker keeps of a password, and SCRAM from the server's side (RFC 5802, 7677; KIP-84).

A verifier proves that a password is known and cannot be used to log in. One for each hash serves
SCRAM; PLAIN, and HTTP's Basic, hash what they are given and compare.

No I/O. Promises the same work, and the same refusal, for a wrong proof and for a user that is not
there: such a user has a salt, always the same, as long as another user's is, and their iterations.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from catchwater.config import CatchwaterError

HASHES: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS = 8192
LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 16384
"""As Kafka's brokers allow."""
_SALT_BYTES, _LONGEST_SALT = 24, 256
_LONGEST_NAME = 1_000
_BINDINGS = ("n,,", "y,,")
_UNKNOWN = os.urandom(32)
"""Makes the salts of users that are not there."""
_MODELS = 64
"""How many real users are looked at to make one that is not there look like them."""


class NotProved(CatchwaterError):
    """The client has not proved that it knows the password of a user that is there."""


class Verifier(NamedTuple):
    """What is kept of a password, for one hash."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


Verifiers = Mapping[str, Verifier]
"""Of one user, by mechanism."""


def verifier(mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    """What to keep of a password; takes some milliseconds."""
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return of_salted(mechanism, salted, salt, iterations)


def of_salted(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Verifier:
    """What to keep of a password that the client has salted (KIP-554)."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return Verifier(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", name))


def verifiers(password: str) -> dict[str, Verifier]:
    """What to keep of a new password, for every mechanism, with fresh salts."""
    return {name: verifier(name, password, os.urandom(_SALT_BYTES)) for name in HASHES}


def check_password(users: Mapping[str, Verifiers], user: str, password: str) -> None:
    """Raise `NotProved` unless this is the user's password; takes some milliseconds."""
    known = users.get(user)
    # A user that is not there takes the time of a hash that others have, always of the same.
    models = [next(iter(kinds)) for kinds in islice(users.values(), _MODELS) if kinds]
    models = models or [*HASHES]
    chosen = hmac.digest(_UNKNOWN, user.encode(), "sha256")[0] % len(models)
    mechanism = next(iter(known)) if known else models[chosen]
    kept = _kept(known, mechanism, user)
    given = verifier(mechanism, password, kept.salt, kept.iterations)
    # However few iterations this user's verifier has, all users take the same time.
    more = MOST_ITERATIONS - kept.iterations
    if more > 0:
        hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), kept.salt, more)
    if not hmac.compare_digest(given.stored_key, kept.stored_key) or not known:
        raise NotProved("User name or password is wrong.")


def _kept(
    known: Verifiers | None,
    mechanism: str,
    user: str,
    users: Mapping[str, Verifiers] = MappingProxyType({}),
) -> Verifier:
    """The user's verifier, or one that looks like those of `users` and that no password fits.

    Tools choose iterations and the length of salts each in their own way, and both are sent before
    a proof is asked for: were they always ours, they would say who is not there.
    """
    models = [kinds[mechanism] for kinds in islice(users.values(), _MODELS) if mechanism in kinds]
    made = hashlib.shake_256(_UNKNOWN + f"{mechanism} {user}".encode()).digest(_LONGEST_SALT + 2)
    if known and mechanism in known:
        return known[mechanism]
    chosen = int.from_bytes(made[-2:], "big") % max(1, len(models))
    salt_bytes, iterations = _SALT_BYTES, ITERATIONS
    if models:
        salt_bytes, iterations = len(models[chosen].salt), models[chosen].iterations
    salt = made[: min(salt_bytes, _LONGEST_SALT)]
    return Verifier(salt, iterations, os.urandom(hashlib.new(HASHES[mechanism]).digest_size), b"")


class ScramServer:
    """One conversation: `first` answers the client's first message, `final` its proof."""

    def __init__(self, mechanism: str, users: Mapping[str, Verifiers], nonce: str) -> None:
        """`nonce` has never been used."""
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._users = users
        self._nonce = nonce
        self._talk = ""
        self._binding = ""
        self.user = ""

    def first(self, message: bytes) -> bytes:
        """The salt and what else a proof needs. Raises `NotProved` for what is no first message."""
        text = _text(message)
        self._binding = next((each for each in _BINDINGS if text.startswith(each)), "")
        bare = text.removeprefix(self._binding)
        name, nonce, *_ = [*_fields(bare, "nr"), "", ""]
        if not self._binding or not name or not nonce or len(name) > _LONGEST_NAME:
            raise NotProved("The first message of SCRAM is not of the form n,,n=user,r=nonce.")
        self.user = name.replace("=2C", ",").replace("=3D", "=")
        known = self._users.get(self.user)
        self._kept = _kept(known, self._mechanism, self.user, self._users)
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(self._kept.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._kept.iterations}"
        self._talk = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """The proof that we know the user, too. Raises `NotProved`."""
        text = _text(message)
        bare, _, proof_text = text.rpartition(",p=")
        binding, nonce, *_ = [*_fields(bare, "cr"), "", ""]
        expected = base64.b64encode(self._binding.encode()).decode()
        talk = f"{self._talk},{bare}".encode()
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except (binascii.Error, ValueError):
            proof = b""
        kept = self._kept
        signature = hmac.digest(kept.stored_key, talk, self._hash)
        padded = proof.ljust(len(signature), b"\0")[: len(signature)]
        key = bytes(a ^ b for a, b in zip(signature, padded, strict=True))
        is_proved = hmac.compare_digest(hashlib.new(self._hash, key).digest(), kept.stored_key)
        # librdkafka before 2.3 puts its own nonce in front once more; Apache Kafka lets it.
        is_ours = binding == expected and nonce.endswith(self._nonce)
        is_whole = len(proof) == len(signature) and is_ours
        if not (is_proved and is_whole and kept.server_key):
            raise NotProved("User name or password is wrong.")
        answer = hmac.digest(kept.server_key, talk, self._hash)
        return b"v=" + base64.b64encode(answer)


def _text(message: bytes) -> str:
    try:
        return bytes(message).decode()
    except UnicodeDecodeError as error:
        raise NotProved("What came is no text.") from error


def _fields(text: str, names: str) -> list[str]:
    """The values of the first fields, if they have these names in this order."""
    parts = [part.partition("=") for part in text.split(",")[: len(names)]]
    if [name for name, _, _ in parts] != list(names):
        return []
    return [value for _, _, value in parts]
