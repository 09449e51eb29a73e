"""Brokers that ask for TLS and logins, and what clients are told: `make conformance SECURITY=…`.

Programs find it in their environment: SECURITY_PROTOCOL, SSL_CA and, where the kind has them,
SSL_CERTIFICATE (key and chain), SASL_MECHANISM, SASL_USERNAME, SASL_PASSWORD and TOKEN_ENDPOINT;
and SESSION_S, for how long the step `long-session` goes on. Files are PEM.

The user is no super user: rules let them do everything with topics, groups and transactional ids.
A login holds for `REAUTH_S`, so that `long-session` has to outlive two of them.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.certificates import certificate
from tests.token_endpoint import AUDIENCE, CLIENT_ID, CLIENT_SECRET, Provider, provider

from catchwater.broker.access import Rule, change, with_rules, with_user
from catchwater.broker.gate import ResourceType
from catchwater.wire.security.verifiers import verifiers

REAUTH_S = 10.0
SESSION_S = 25.0
USER, PASSWORD = "steps", "steps' s3cret"
OAUTHBEARER = "OAUTHBEARER"

KINDS = {
    "ssl": "",
    "mtls": "",
    "sasl_ssl-plain": "PLAIN",
    "sasl_ssl-scram-256": "SCRAM-SHA-256",
    "sasl_ssl-scram-512": "SCRAM-SHA-512",
    "sasl_ssl-oauthbearer": OAUTHBEARER,
}
"""Ways to come in, and the mechanism of each that has one."""

_PRINCIPALS = {
    "ssl": "User:ANONYMOUS",
    "mtls": f"User:CN={USER}",
    "sasl_ssl-oauthbearer": f"User:{CLIENT_ID}",
}


class Secured(NamedTuple):
    """The broker's settings, and the environment of clients' programs."""

    settings: Mapping[str, str]
    environment: Mapping[str, str]


NOTHING = Secured({}, {})
"""Plaintext, and nobody logs in."""


@contextlib.contextmanager
def secured(
    kind: str, reauth_s: float = REAUTH_S, session_s: float = SESSION_S
) -> Iterator[Secured]:
    """What one of `KINDS` takes, while a `with` lasts; `NOTHING` for no kind at all."""
    if not kind:
        yield NOTHING
        return
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        made = prepared(kind, Path(folder), reauth_s, session_s)
        if KINDS[kind] != OAUTHBEARER:
            yield made
            return
        with provider() as gives:
            yield _with_tokens(made, Path(folder), gives, round(2 * reauth_s))


def prepared(
    kind: str, folder: Path, reauth_s: float = REAUTH_S, session_s: float = SESSION_S
) -> Secured:
    """The same with its files in this folder, for a kind without tokens."""
    mechanism = KINDS[kind]
    protocol = "SASL_SSL" if mechanism else "SSL"
    pem, ca = certificate(folder)
    settings = {
        "listeners": f"{protocol}://127.0.0.1:0",
        "ssl.keystore.location": str(pem),
        "catchwater.access.file": str(_access(folder, _PRINCIPALS.get(kind, f"User:{USER}"))),
        "super.users": "User:admin",
        "connections.max.reauth.ms": str(round(reauth_s * 1000)),
    }
    environment = {
        "SECURITY_PROTOCOL": protocol,
        "SSL_CA": str(ca),
        "SESSION_S": str(session_s),
    }
    if mechanism:
        settings["sasl.enabled.mechanisms"] = mechanism
        environment |= {
            "SASL_MECHANISM": mechanism,
            "SASL_USERNAME": USER,
            "SASL_PASSWORD": PASSWORD,
        }
    if kind == "mtls":
        own, authority = certificate(folder, USER)
        settings |= {
            "ssl.client.auth": "required",
            "ssl.truststore.location": str(authority),
        }
        environment["SSL_CERTIFICATE"] = str(own)
    return Secured(settings, environment)


def _with_tokens(made: Secured, folder: Path, gives: Provider, lifetime_s: int) -> Secured:
    gives.lifetime_s = lifetime_s
    keys = folder / "jwks.json"
    keys.write_text(gives.jwks())
    settings = {
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "sasl.oauthbearer.expected.issuer": "tests",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    environment = {
        "SASL_USERNAME": CLIENT_ID,
        "SASL_PASSWORD": CLIENT_SECRET,
        "TOKEN_ENDPOINT": gives.url,
    }
    return Secured({**made.settings, **settings}, {**made.environment, **environment})


def _access(folder: Path, principal: str) -> Path:
    """A file with the user, and the rules of whoever comes in."""
    path = folder / "access.json"
    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    rules = [Rule(principal, "ALLOW", "ALL", kind, "*") for kind in kinds]
    change(path, lambda now: with_rules(with_user(now, USER, verifiers(PASSWORD)), rules))
    return path
