"""TLS of the broker's ports: its certificate, and who shows one of their own (mTLS).

TLS 1.2 at least. Files are PEM. A renewed file is used within a second; one that cannot be used is
reported, and what was there before stays in use. Where clients show certificates there are no
session tickets, so that each connection is judged by the authorities of today; when these change,
connections that were made by certificate end. From `REMIND_S` before its end on, a certificate is
spoken of once a day.

A client's name is its certificate's subject as Java writes it (RFC 2253), made a principal by
Kafka's rules (`ssl.principal.mapping.rules`): everything special in it is escaped, so that nobody
can write another's name.
"""

import base64
import calendar
import logging
import re
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from catchwater.config import CatchwaterError, ConfigError
from catchwater.kafka_listeners import Listener

_LOG = logging.getLogger("catchwater.broker")

REMIND_S = 14 * 86_400.0
_AGAIN_S = 86_400.0

CONTROL = "control API"
"""What the control API is called among the listeners."""

_VERIFY = {
    "none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED,
}  # fmt: skip


class Certificate:
    """A certificate that is in use, and who signs those of clients."""

    def __init__(
        self, keystore: Path, truststore: Path | None = None, client_auth: str = "none"
    ) -> None:
        """Raises `ConfigError`."""
        self._keystore = keystore
        self._truststore = truststore if client_auth != "none" else None
        self._client_auth = client_auth
        self.version = 0
        """Grows when other authorities sign clients' certificates."""
        self.context = self._made()
        self._seen = _look(keystore)
        self._seen_authorities = self._look_at_authorities()
        self.ends_s = _ends_s(keystore)
        """When it, or one of those in the file that signed it, ends: seconds since 1970."""
        self._reminded_s = float("-inf")

    def refresh(self) -> None:
        """Use the files as they are now for new connections, if they are others."""
        try:
            seen, authorities = _look(self._keystore), self._look_at_authorities()
            if (seen, authorities) == (self._seen, self._seen_authorities):
                return
            is_signed_by_others = authorities != self._seen_authorities
            self._seen, self._seen_authorities = seen, authorities
            made = self._made()  # one that is bad must not be loaded by halves
            ends_s = _ends_s(self._keystore)
            if is_signed_by_others:
                self.context = made
                self.version += 1
                _LOG.info("Clients' certificates are asked for again: %s.", self._truststore)
            else:
                self.context.load_cert_chain(self._keystore)
                _LOG.info("New connections get the renewed certificate in %s.", self._keystore)
            self.ends_s, self._reminded_s = ends_s, float("-inf")
        except (OSError, CatchwaterError) as error:
            _LOG.error("The certificate in use stays, for %s is no good: %s", self._keystore, error)

    def remind(self, now_s: float) -> None:
        """Say in the log that the certificate ends soon or has ended, once a day."""
        left_s = self.ends_s - now_s
        if not left_s <= REMIND_S or now_s - self._reminded_s < _AGAIN_S:
            return
        self._reminded_s = now_s
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.ends_s))
        if left_s > 0:
            text = "The certificate in %s ends on %s, in %.1f days; a new file is used at once."
            _LOG.warning(text, self._keystore, at, left_s / 86_400)
        else:
            text = "The certificate in %s has ended on %s: clients refuse it. Put a new one there."
            _LOG.error(text, self._keystore, at)

    def _look_at_authorities(self) -> Any:
        return None if self._truststore is None else _look(self._truststore)

    def _made(self) -> ssl.SSLContext:
        context = _context(self._keystore)
        if self._truststore is not None:
            _trust(context, self._truststore)
            context.verify_mode = _VERIFY[self._client_auth]
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context


def of_listeners(listeners: tuple[Listener, ...]) -> dict[str, Certificate]:
    """By the name of the listener; those with the same files share one. Raises `ConfigError`."""
    shared: dict[Any, Certificate] = {}
    found = {}
    for each in listeners:
        if each.keystore is not None:
            what = (each.keystore, each.truststore, each.client_auth)
            found[each.name] = shared.setdefault(what, None) or Certificate(*what)  # type: ignore[arg-type]
            shared[what] = found[each.name]
    return found


def _look(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _context(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if path.stat().st_mode & 0o007:
            raise ConfigError(
                f"{path} holds a private key, and everybody can read or write it.",
                hint=f"chmod 600 {path}",
            )
        context.load_cert_chain(path, password=_no_password)
    except ssl.SSLError as error:
        why = error.reason or "it is cut off, or no PEM"
        raise ConfigError(
            f"{path} has no certificate with its private key in PEM: {why}.",
            hint="Put the key (without a password) and the chain into one file, the broker's own "
            "certificate before those that signed it.",
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    return context


_PEM = re.compile(r"-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END", re.DOTALL)
_UTC_TIME = 0x17
_VERSION = 0xA0


def _ends_s(path: Path) -> float:
    """When the first of a file's certificates ends; NaN, where that cannot be read.

    OpenSSL has read the file before, and Python's `ssl` does not say it of a server's own.
    """
    found = _PEM.findall(path.read_text(encoding="ascii", errors="replace"))
    try:
        return float(min(_not_after(base64.b64decode(text)) for _, text in found))
    except (ValueError, IndexError):
        return float("nan")


def _not_after(der: bytes) -> int:
    """When a certificate ends, seconds since 1970 (RFC 5280 4.1 and 4.1.2.5)."""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, end = _element(der, at)
    at = end if tag == _VERSION else at
    for _ in range(3):  # serial number, algorithm, issuer
        at = _element(der, at)[2]
    _, begins, _ = _element(der, at)
    tag, start, end = _element(der, _element(der, begins)[2])
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year, from 1950 on
        text = f"{20 if text[0] < '5' else 19}{text}"
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ"))


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The tag of what stands here, where its content begins and where it ends."""
    tag, size, start = der[at], der[at + 1], at + 2
    if size & 0x80:
        digits = size & 0x7F
        size, start = int.from_bytes(der[start : start + digits], "big"), start + digits
    return tag, start, start + size


def _trust(context: ssl.SSLContext, path: Path) -> None:
    try:
        text = path.read_text(encoding="ascii")
        context.load_verify_locations(cadata=text)
        if "BEGIN X509 CRL" in text:
            context.load_verify_locations(cafile=path)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{path} has no certificates of authorities in PEM: {error}.",
            hint="ssl.truststore.location names those who sign the certificates of clients.",
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def _no_password() -> str:
    """Instead of the terminal, which OpenSSL would ask."""
    return ""


# --- names -------------------------------------------------------------------------------------

_SHORT = {
    "commonName": "CN", "countryName": "C", "localityName": "L", "stateOrProvinceName": "ST",
    "organizationName": "O", "organizationalUnitName": "OU", "streetAddress": "STREET",
    "domainComponent": "DC", "userId": "UID",
}  # fmt: skip
_EMAIL = "1.2.840.113549.1.9.1"
_RULE = re.compile(
    r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:[,\n]|$)"
)
_LONGEST_NAME = 2_000


class NoName(CatchwaterError):
    """A certificate from which no rule makes a principal."""


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """The subject of a certificate (as `ssl` gives it) by RFC 2253, as Java writes it."""
    names = [
        "+".join(_attribute(kind, value) for kind, value in parts)
        for parts in reversed(certificate.get("subject", ()))
    ]
    return ",".join(names)


def _attribute(kind: str, value: str) -> str:
    if kind == "emailAddress":  # Java has no word for it, and shows its bytes
        data = value.encode()
        return f"{_EMAIL}=#16{len(data):02x}{data.hex()}"
    return f"{_SHORT.get(kind, kind)}={_escaped(value)}"


def _escaped(value: str) -> str:
    found = "".join(
        f"\\{each}" if each in ',=+<>#;"\\' else each if each.isprintable() else _hex(each)
        for each in value
    )
    if found.startswith(" "):
        found = f"\\{found}"
    if found.endswith(" ") and len(value) > 1:
        found = f"{found[:-1]}\\ "
    return found


def _hex(character: str) -> str:
    return "".join(f"\\{byte:02X}" for byte in character.encode())


def mapping(rules: str) -> Callable[[str], str]:
    """What makes a user's name of a distinguished name: the first of Kafka's rules that fits.

    Raises `ConfigError` for rules that cannot be read; the function raises `NoName`.
    """
    parsed = []
    at = 0
    text = rules.strip() or "DEFAULT"
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None or found.end() == at:
            raise ConfigError(
                f"ssl.principal.mapping.rules cannot be read from {text[at : at + 40]!r} on.",
                hint="Write RULE:pattern/replacement/ with L, U or nothing behind it, and DEFAULT, "
                "separated by commas.",
            )
        default, pattern, replacement, case = found.groups()
        try:
            compiled = None if default else re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"ssl.principal.mapping.rules has a pattern that cannot be read: {error}."
            ) from error
        parsed.append((compiled, re.sub(r"\$(\d)", r"\\g<\1>", replacement or ""), case))
        at = found.end()

    def named(name: str) -> str:
        if len(name) <= _LONGEST_NAME:
            for pattern, replacement, case in parsed:
                if pattern is None:
                    return name
                if match := pattern.fullmatch(name):
                    user = match.expand(replacement)
                    return {"L": user.lower(), "U": user.upper()}.get(case, user)
        raise NoName(f"No rule makes a principal of the certificate of {name[:200]}.")

    return named
