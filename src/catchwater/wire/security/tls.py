"""TLS by Python's ssl: the context that a client's connections share, and what its errors mean.

TLS 1.2 or newer. Certificates come as PEM text, which need not be in a file where it is used.
"""

import re
import ssl
import tempfile

from catchwater.config import CatchwaterError, ConfigError
from catchwater.wire.security.settings import Pem, Security

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)
# X509_V_ERR_… of OpenSSL: not valid yet, expired; another host name, another IP address.
_BY_TIME = (9, 10)
_BY_NAME = (62, 64)
_BROKEN = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


class BrokerNotTrusted(CatchwaterError):
    """The broker's certificate is not one that the settings trust, or not for this host."""


class TlsFailed(CatchwaterError):
    """Broker and client do not agree on a secured connection; trying again would not help."""


def context(security: Security) -> ssl.SSLContext:
    """What `security` says about TLS, for every connection. Raises `ConfigError`."""
    security = security.loaded()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.check_hostname = security.check_hostname
    if security.ca is None:
        tls.load_default_certs()
    else:
        _trust(tls, security.ca)
    if security.certificate is not None:
        _load_certificate(tls, security, security.certificate)
    return tls


def explained(error: ssl.SSLError, address: str) -> CatchwaterError | None:
    """Why TLS with the broker cannot work, as an error; None if the connection just broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerNotTrusted(
            f"The certificate of the broker at {address} is not trusted: {error.verify_message}.",
            hint=_what_to_do(error.verify_code),
        )
    if isinstance(error, _BROKEN) or error.reason is None:
        return None
    return TlsFailed(
        f"No TLS with the broker at {address}: {error.reason.replace('_', ' ').lower()}.",
        hint="Does this port speak TLS (security.protocol), and does the broker ask for a client "
        "certificate that it trusts (ssl.keystore.location)?",
    )


def _what_to_do(verify_code: int) -> str:
    if verify_code in _BY_TIME:
        return "It, or its authority's, has to be renewed; or is this machine's clock wrong?"
    if verify_code in _BY_NAME:
        return (
            "Connect by a name that is in the certificate, or let it be issued for this one; "
            "with an empty ssl.endpoint.identification.algorithm names are not compared."
        )
    return (
        "Name the authority that signed it: ssl.ca.location, or ssl.truststore.location with "
        "ssl.truststore.type PEM."
    )


def _trust(tls: ssl.SSLContext, ca: Pem) -> None:
    # What stands around them (keytool writes names there) may be no ASCII.
    found = "\n".join(_CERTIFICATE.findall(ca.text or ""))
    try:
        tls.load_verify_locations(cadata=found)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{ca.option} holds no certificate in PEM form.",
            hint="Such a certificate begins with the line -----BEGIN CERTIFICATE-----.",
        ) from error


def _load_certificate(tls: ssl.SSLContext, security: Security, certificate: Pem) -> None:
    texts = [each.text or "" for each in (security.key, certificate) if each is not None]
    # OpenSSL reads a file only: this one is readable by this user alone, and deleted at once.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".pem") as file:
        file.write("\n".join(texts))
        file.flush()
        try:
            # A password that is missing would be asked for at the terminal.
            tls.load_cert_chain(file.name, password=lambda: security.key_password)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"{certificate.option} holds no usable certificate with its private key.",
                hint="Are both there in PEM form, do they belong together, and is "
                "kafka.ssl.key.password right?",
            ) from error
