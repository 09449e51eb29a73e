"""Certificates as PEM files: a broker's for 127.0.0.1, and a client's that can be revoked."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(
    folder: Path, name: str = "broker", lasts: timedelta = timedelta(days=1)
) -> tuple[Path, Path]:
    """The file with key and chain, for its owner alone, and the file with the authority.

    What does not last has ended already; its authority has not.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    now = datetime.now(UTC)

    def built(
        subject: str, public: ec.EllipticCurvePublicKey, lasts: timedelta
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + lasts)
        )

    is_authority = x509.BasicConstraints(ca=True, path_length=0)
    authority = (
        built(f"{name} authority", authority_key.public_key(), max(lasts, timedelta(days=1)))
        .add_extension(is_authority, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    own = (
        built(name, key.public_key(), lasts)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem, ca = folder / f"{name}.pem", folder / f"{name}-ca.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem.touch(0o600)
    pem.write_bytes(private + own.public_bytes(serialization.Encoding.PEM))
    ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    return pem, ca


def revocable(folder: Path) -> tuple[Path, Path, Callable[[Path | None], None]]:
    """A client's certificate, its authority, and what adds a list of revocations to the latter."""
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clients' authority")])
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]

    def built(common: str, key: Any, is_authority: bool) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
        return (
            x509.CertificateBuilder()
            .subject_name(name if is_authority else subject)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .sign(keys[0], hashes.SHA256())
        )

    authority, own = built("authority", keys[0], True), built("client", keys[1], False)
    pem, ca = folder / "revocable.pem", folder / "revocable-ca.pem"
    private = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.touch(0o600)
    pem.write_bytes(private + own.public_bytes(serialization.Encoding.PEM))
    text = authority.public_bytes(serialization.Encoding.PEM)
    ca.write_bytes(text)

    def revoke(client: Path | None) -> None:
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(name)
            .last_update(now - timedelta(hours=1))
            .next_update(now + timedelta(days=1))
        )
        if client is not None:
            made = made.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(own.serial_number)
                .revocation_date(now - timedelta(minutes=1))
                .build()
            )
        signed = made.sign(keys[0], hashes.SHA256())
        ca.write_bytes(text + signed.public_bytes(serialization.Encoding.PEM))

    return pem, ca, revoke
