"""Signs `savepoint.json`, and with it every object that it names by its checksum.

A savepoint brings state and code, so where there are keys (those of encryption, `objects.keys`)
only what was signed with one of them is restored. The signature is an HMAC-SHA-256 under a key of
its own, wrapped by the master key of the day: so keys from files and from a KMS sign alike, and a
rotated key still vouches for what it has signed, for as long as it is among the keys.
"""

import base64
import binascii
import hashlib
import hmac
import os
from typing import TYPE_CHECKING

import msgspec

from catchwater.config import CatchwaterError
from catchwater.objects.base import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from catchwater.objects.keys import Keys

_KEY_BYTES = 32
_PURPOSE = b"signature of a catchwater savepoint"
"""No key of an object, so what wraps a data key never passes for this."""


class SavepointUntrusted(CatchwaterError):
    """There are keys, and none of them has signed this savepoint."""

    exit_code = 5


class Signature(msgspec.Struct, frozen=True):
    """Who vouches for the bytes of a savepoint."""

    key: str
    """The master key's id."""
    wrapped: str
    """The key of the HMAC, wrapped by it, in base64."""
    hmac: str
    """In hexadecimal digits."""


def sign(body: bytes, keys: "Keys") -> Signature:
    """A signature of these bytes, with the present key."""
    own = os.urandom(_KEY_BYTES)
    key_id, wrapped = keys.wrap(own, _PURPOSE)
    return Signature(key_id, base64.b64encode(wrapped).decode(), _mac(own, body))


def check_signature(body: bytes, signature: Signature | None, keys: "Keys", where: str) -> None:
    """Raise `SavepointUntrusted` unless one of these keys has signed these bytes."""
    if signature is None:
        why = "is not signed, and there are keys"
    else:
        try:
            own = keys.unwrap(signature.key, base64.b64decode(signature.wrapped), _PURPOSE)
            why = "is not what was signed"
            if len(own) == _KEY_BYTES and hmac.compare_digest(_mac(own, body), signature.hmac):
                return
        except StoreUnavailable:  # of a KMS
            raise
        except (StoreError, binascii.Error) as error:
            why = f"is signed with another key: {str(error).rstrip('.')}"
    raise SavepointUntrusted(
        f"{where} {why}: nothing of it was used, for a savepoint brings code.",
        hint="If you know that it is yours, sign it: catchwater savepoint sign FILE NAME. Else use "
        "another one.",
    )


def _mac(own: bytes, body: bytes) -> str:
    return hmac.new(own, body, hashlib.sha256).hexdigest()
