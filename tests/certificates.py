"""A certificate for 127.0.0.1, signed by an authority of its own, as PEM files."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(folder: Path, name: str = "broker") -> tuple[Path, Path]:
    """The file with key and chain, for its owner alone, and the file with the authority."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    now = datetime.now(UTC)

    def built(subject: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )

    is_authority = x509.BasicConstraints(ca=True, path_length=0)
    authority = (
        built(f"{name} authority", authority_key.public_key())
        .add_extension(is_authority, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    own = (
        built(name, key.public_key())
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
