"""Master keys, which wrap the data keys of sealed objects: from a file, the environment, a command.

    file:/etc/catchwater/keys     lines `ID = BASE64`, 32 bytes each; the last one seals, all open
    env:NAME                      the same lines in a variable of the environment
    command:/usr/bin/kms …        a program that is called with `wrap` or `unwrap`, and has the
                                  data key in base64 on its input and the answer on its output

A key is rotated by adding a line: what is written from then on is sealed with it, and what lies
there opens with the older ones for as long as they stand in the file. A file is looked at again
when it has changed. With a command the keys are its own, and so is their rotation.
"""

import base64
import binascii
import os
import shlex
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from catchwater.config import BadReference, ConfigError, Restart, refuse_readable
from catchwater.objects.base import StoreError, StoreUnavailable

KEY_BYTES = 32
_NONCE_BYTES = 12
_COMMAND_S = 30
_COMMANDS_KEY = "command"
_MOST_UNWRAPPED = 10_000


class KeyMissing(StoreError):
    """An object is sealed with a key that is not there."""

    restart = Restart.NEVER


class KeyWrong(StoreError):
    """A key of the right name does not open what it is said to have sealed."""

    restart = Restart.NEVER


class Keys(Protocol):
    """Wraps and unwraps data keys; may block, and is called from any thread."""

    def wrap(self, data_key: bytes, bound_to: bytes) -> tuple[str, bytes]:
        """The id of the present master key, and the data key wrapped with it."""
        ...

    def unwrap(self, key_id: str, wrapped: bytes, bound_to: bytes) -> bytes:
        """The data key. Raises `KeyMissing` or `KeyWrong`."""
        ...


def open_keys(spec: str, environment: Mapping[str, str]) -> Keys:
    """The keys of a setting. Raises `ConfigError`."""
    kind, _, place = spec.partition(":")
    match kind:
        case "file" if place:
            return FileKeys(Path(place))
        case "env" if place in environment:
            return ListedKeys(_parsed(environment[place], f"the variable {place}"))
        case "env":
            raise ConfigError(f"catchwater.encryption.keys names the variable {place}: not set.")
        case "command" if place:
            return CommandKeys(shlex.split(place))
    raise ConfigError(
        "catchwater.encryption.keys is of no form that is known.",
        hint="Write file:PATH, env:NAME or command:PROGRAM ARGUMENTS.",
    )


def _parsed(text: str, where: str) -> dict[str, bytes]:
    """Id → key, the present one last. No error quotes a key. Raises `ConfigError`."""
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key_id, _, encoded = (part.strip() for part in line.partition("="))
        try:
            key = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not key_id.isprintable() or not 0 < len(key_id) <= 64 or len(key) != KEY_BYTES:
            raise ConfigError(
                f"{where}, line {number}, is not of the form ID = BASE64 of {KEY_BYTES} bytes.",
                hint='Make one: echo "2026-11 = $(openssl rand -base64 32)"',
            )
        if key_id in keys:
            raise ConfigError(f"{where}, line {number}: the key {key_id} is there twice.")
        keys[key_id] = key
    if not keys:
        raise ConfigError(
            f"{where} has no key.", hint="Write a line: 2026-11 = $(openssl rand -base64 32)"
        )
    return keys


class ListedKeys:
    """Keys that are given."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)

    def wrap(self, data_key: bytes, bound_to: bytes) -> tuple[str, bytes]:
        key_id, key = list(self._keys.items())[-1]
        nonce = os.urandom(_NONCE_BYTES)
        return key_id, nonce + AESGCM(key).encrypt(nonce, data_key, bound_to)

    def unwrap(self, key_id: str, wrapped: bytes, bound_to: bytes) -> bytes:
        key = self._keys.get(key_id)
        if key is None:
            raise KeyMissing(
                f"It is sealed with the key {key_id!r}, which is not among "
                f"{', '.join(map(repr, self._keys))}.",
                hint="Put that key back before the last line of the keys.",
            )
        try:
            return AESGCM(key).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], bound_to)
        except (InvalidTag, ValueError) as error:
            raise KeyWrong(
                f"The key {key_id!r} is not the one it was sealed with, or it is damaged.",
                hint="Two keys may not have one name: put back the one that was there first.",
            ) from error


class FileKeys:
    """Keys of a file, as it is now. Raises `ConfigError` where it cannot be used at first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._keys = self._read()

    def _read(self) -> ListedKeys:
        try:
            refuse_readable(self._path)
            status = self._path.stat()
            keys = ListedKeys(_parsed(self._path.read_text("utf-8"), str(self._path)))
        except BadReference as error:
            raise ConfigError(str(error), hint=error.hint) from error
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The file of keys {self._path} cannot be read: {error}.") from error
        self._seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        return keys

    def _now(self) -> ListedKeys:
        """The keys; of a file that has become unusable those that were there before."""
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            return self._keys
        if seen != self._seen:
            with self._lock:
                try:
                    self._keys = self._read()
                except ConfigError:
                    return self._keys
        return self._keys

    def wrap(self, data_key: bytes, bound_to: bytes) -> tuple[str, bytes]:
        return self._now().wrap(data_key, bound_to)

    def unwrap(self, key_id: str, wrapped: bytes, bound_to: bytes) -> bytes:
        return self._now().unwrap(key_id, wrapped, bound_to)


class CommandKeys:
    """Keys of a key management service, asked through a program."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._unwrapped: dict[bytes, bytes] = {}

    def wrap(self, data_key: bytes, bound_to: bytes) -> tuple[str, bytes]:
        wrapped = self._ask("wrap", data_key)
        self._keep(wrapped, data_key)
        return _COMMANDS_KEY, wrapped

    def unwrap(self, key_id: str, wrapped: bytes, bound_to: bytes) -> bytes:
        if key_id != _COMMANDS_KEY:
            raise KeyMissing(f"It is sealed with the key {key_id!r} of a file, not by a command.")
        known = self._unwrapped.get(wrapped)
        if known is None:
            known = self._ask("unwrap", wrapped)
            if len(known) != KEY_BYTES:
                raise KeyWrong("What the command of the keys gave is no data key.")
            self._keep(wrapped, known)
        return known

    def _keep(self, wrapped: bytes, data_key: bytes) -> None:
        if len(self._unwrapped) >= _MOST_UNWRAPPED:
            self._unwrapped.clear()
        self._unwrapped[wrapped] = data_key

    def _ask(self, verb: str, data: bytes) -> bytes:
        try:
            ran = subprocess.run(
                [*self._command, verb], input=base64.b64encode(data), capture_output=True,
                timeout=_COMMAND_S, check=True,
            )  # fmt: skip
            return base64.b64decode(ran.stdout.strip(), validate=True)
        except (OSError, subprocess.SubprocessError, binascii.Error) as error:
            raise StoreUnavailable(
                f"The command of the keys, {self._command[0]} {verb}, gave no answer: "
                f"{type(error).__name__}.",
                hint="It is tried again. Try it by hand: base64 on its standard input.",
            ) from error
