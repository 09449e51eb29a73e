"""The broker's certificate: one context for its ports, which takes over a renewed file by itself.

TLS 1.2 at least. The file is PEM, with the private key and the chain. A renewed file that cannot be
used is reported, and the certificate before it stays in use.
"""

import logging
import ssl
from pathlib import Path

from catchwater.config import CatchwaterError, ConfigError

_LOG = logging.getLogger("catchwater.broker")


class Certificate:
    """A certificate that is in use."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError`."""
        self._path = path
        self.context = _context(path)
        self._seen = self._look()

    def refresh(self) -> None:
        """Use the file as it is now for new connections, if it is another."""
        try:
            seen = self._look()
            if seen == self._seen:
                return
            self._seen = seen
            _context(self._path)  # one that is bad must not be loaded by halves
            self.context.load_cert_chain(self._path)
            _LOG.info("New connections get the renewed certificate in %s.", self._path)
        except (OSError, CatchwaterError) as error:
            _LOG.error("The certificate in use stays, for %s is no good: %s", self._path, error)

    def _look(self) -> tuple[int, int, int]:
        status = self._path.stat()
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
        raise ConfigError(
            f"{path} has no certificate with its private key in PEM: {error.reason}.",
            hint="Put the key (without a password) and the chain into one file, the broker's own "
            "certificate before those that signed it.",
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    return context


def _no_password() -> str:
    """Instead of the terminal, which OpenSSL would ask."""
    return ""
