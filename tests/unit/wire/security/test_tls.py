"""What a context refuses, and what the errors of TLS mean; a real broker is asked elsewhere."""

import ssl

import pytest

from catchwater.config import ConfigError
from catchwater.wire.security import tls
from catchwater.wire.security.settings import Pem, Security

CA = Pem("kafka.ssl.ca.pem", text="nothing")


def failure(kind: type[ssl.SSLError], reason: str | None) -> ssl.SSLError:
    error = kind(1, "said by OpenSSL")
    error.reason = reason  # type: ignore[assignment]
    return error


def test_the_machines_authorities_and_the_hosts_name_count_by_default() -> None:
    made = tls.context(Security("SSL"))
    assert made.verify_mode is ssl.CERT_REQUIRED and made.check_hostname
    assert made.minimum_version is ssl.TLSVersion.TLSv1_2
    unnamed = tls.context(Security("SSL", check_hostname=False))
    assert unnamed.verify_mode is ssl.CERT_REQUIRED and not unnamed.check_hostname


def test_what_is_no_certificate_is_named_by_its_option() -> None:
    with pytest.raises(ConfigError, match=r"kafka.ssl.ca.pem holds no certificate"):
        tls.context(Security("SSL", ca=CA))
    damaged = Pem(CA.option, text="-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----")
    with pytest.raises(ConfigError, match=r"kafka.ssl.ca.pem holds no certificate"):
        tls.context(Security("SSL", ca=damaged))
    with pytest.raises(ConfigError, match=r"kafka.ssl.ca.pem holds no usable certificate with"):
        tls.context(Security("SSL", certificate=CA))


def test_an_untrusted_broker_is_an_error_for_good() -> None:
    error = failure(ssl.SSLCertVerificationError, "CERTIFICATE_VERIFY_FAILED")
    error.verify_message = "self-signed certificate"  # type: ignore[attr-defined]
    error.verify_code = 18  # type: ignore[attr-defined]
    found = tls.explained(error, "h:1")
    assert isinstance(found, tls.BrokerNotTrusted)
    assert "h:1 is not trusted: self-signed certificate" in str(found)


def test_a_disagreement_is_an_error_for_good_and_a_broken_connection_is_none() -> None:
    found = tls.explained(failure(ssl.SSLError, "WRONG_VERSION_NUMBER"), "h:1")
    assert isinstance(found, tls.TlsFailed) and "h:1: wrong version number" in str(found)
    assert tls.explained(failure(ssl.SSLEOFError, "EOF"), "h:1") is None
    assert tls.explained(failure(ssl.SSLError, None), "h:1") is None
