"""How a sink's section says to reach its Kafka, in librdkafka's own names.

What stands under `kafka.` are librdkafka's properties, with Java's names of those on security taken
too. A section that names no brokers means those of the source, and unless it says something on
security of its own, reaches them as the source does: secrets are never sent to other brokers.
"""

from collections.abc import Mapping

from catchwater.wire.security.oauth import OAuth
from catchwater.wire.security.settings import (
    OAUTHBEARER,
    PREFIXES,
    UNSECURED,
    Pem,
    Security,
    is_ours,
    parse_security,
)

_PREFIX = "kafka."
_BOOTSTRAP = "kafka.bootstrap.servers"


def librdkafka_options(
    section: Mapping[str, str], bootstrap: str, security: Security
) -> dict[str, str]:
    """The options of a client; `bootstrap` and `security` are the source's.

    Raises `ConfigError` for options on security that contradict each other.
    """
    given = {name: value for name, value in section.items() if name.startswith(_PREFIX)}
    own = {name for name in given if name.startswith(PREFIXES)}
    if not own and not given.get(_BOOTSTRAP):
        secured = _translated(security)
    elif is_ours(given):
        secured = _translated(parse_security(given))
        given = {name: value for name, value in given.items() if name not in own}
    else:
        secured = {}  # librdkafka knows more ways to be secured than we do
    named = {name.removeprefix(_PREFIX): value for name, value in given.items() if value}
    return {"bootstrap.servers": bootstrap, **secured, **named}


def _translated(security: Security) -> dict[str, str]:
    if security == UNSECURED:
        return {}
    options = {"security.protocol": security.protocol}
    if security.oauth is not None:
        options |= _oauth(security.oauth)
    elif security.sasl:
        options["sasl.mechanism"] = security.mechanism
        options["sasl.username"] = security.username
        options["sasl.password"] = security.password
    if security.tls:
        checked = "https" if security.check_hostname else "none"
        options["ssl.endpoint.identification.algorithm"] = checked
        options |= _pem("ca", security.ca) | _pem("certificate", security.certificate)
        options |= _pem("key", security.key or security.certificate)
        if security.key_password:
            options["ssl.key.password"] = security.key_password
    return options


def _oauth(oauth: OAuth) -> dict[str, str]:
    options = {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": oauth.endpoint,
        "sasl.oauthbearer.client.id": oauth.client_id,
        "sasl.oauthbearer.client.secret": oauth.client_secret,
        "sasl.oauthbearer.scope": oauth.scope,
        "sasl.oauthbearer.extensions": ",".join(f"{k}={v}" for k, v in oauth.extensions),
    }
    return {name: value for name, value in options.items() if value}


def _pem(part: str, given: Pem | None) -> dict[str, str]:
    if given is None:
        return {}
    if given.location is not None:
        return {f"ssl.{part}.location": given.location}
    return {f"ssl.{part}.pem": given.text or ""}
