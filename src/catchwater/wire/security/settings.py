"""The options on security, by the names of Kafka's Java client and by those of librdkafka.

An option that could not be obeyed is refused, and so is one that the protocol would leave without
effect: who sets a password believes that it is asked for. PEM is what is read; Java's binary stores
are refused with the command that turns them into PEM.

Promises that no secret stands in a `repr` or in an error. They do stand in the pickled settings,
because what reads on another machine must know them. Opens files in `Security.loaded` only.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from catchwater import config
from catchwater.config import BadReference, ConfigError
from catchwater.wire.security import oauth as oauth_options
from catchwater.wire.security.oauth import EXTENSION, OAuth

JAAS = "kafka.sasl.jaas.config"
OAUTH_MODULE = "OAuthBearerLoginModule"

PREFIXES = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")
"""Options that begin so are for `parse_security` alone."""

OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PROTOCOL = "kafka.security.protocol"
_MECHANISM = "kafka.sasl.mechanism"
_USERNAME, _PASSWORD = "kafka.sasl.username", "kafka.sasl.password"
_KEY_PASSWORD = "kafka.ssl.key.password"
_VERIFICATION = "kafka.ssl.endpoint.identification.algorithm"

# Java's name of a PEM file, Java's of its text, librdkafka's of a file and of a text.
_FILES = {
    "ca": ("kafka.ssl.truststore.location", "kafka.ssl.ca.location"),
    "certificate": ("kafka.ssl.keystore.location", "kafka.ssl.certificate.location"),
    "key": ("kafka.ssl.key.location",),
}
_TEXTS = {
    "ca": ("kafka.ssl.truststore.certificates", "kafka.ssl.ca.pem"),
    "certificate": ("kafka.ssl.keystore.certificate.chain", "kafka.ssl.certificate.pem"),
    "key": ("kafka.ssl.keystore.key", "kafka.ssl.key.pem"),
}
_STORE_TYPES = {
    "kafka.ssl.truststore": "keytool -list -rfc -keystore {} > ca.pem",
    "kafka.ssl.keystore": "keytool -importkeystore -srckeystore {} -destkeystore client.p12 "
    "-deststoretype PKCS12; openssl pkcs12 -in client.p12 -nodes -out client.pem",
}
"""Java's stores, and how what they hold becomes PEM."""

_BY_PASSWORD = (_USERNAME, _PASSWORD)
_SASL = (_MECHANISM, "kafka.sasl.mechanisms", JAAS, *_BY_PASSWORD, *oauth_options.OPTIONS)
_TLS = (
    *(name for names in (*_FILES.values(), *_TEXTS.values()) for name in names),
    *(f"{store}.type" for store in _STORE_TYPES),
    _KEY_PASSWORD,
    _VERIFICATION,
)


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificates or a key, given by the option as text, or as the path of a file with it."""

    option: str
    location: str | None = None
    text: str | None = field(default=None, repr=False)

    def loaded(self) -> "Pem":
        """The same with its text. Raises `ConfigError` for a file that cannot be read."""
        if self.text is not None:
            return self
        assert self.location is not None, "a PEM is given by its text or by its place"
        try:
            return replace(self, text=Path(self.location).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.option} names {self.location}, which cannot be read: {error}.",
                hint="It takes the path of a PEM file on the machine where the query is started.",
            ) from error


@dataclass(frozen=True, slots=True)
class Security:
    """How connections are secured; by default not at all."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca: Pem | None = None
    """Who is trusted to vouch for brokers; None: whom the machine trusts."""
    certificate: Pem | None = None
    """The client's own, and those that lead to its authority."""
    key: Pem | None = None
    """The certificate's; None: it stands in the same PEM."""
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True
    oauth: OAuth | None = None
    """Where to get a token in the place of a password; the user is then the client's id."""

    @property
    def tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def __str__(self) -> str:
        """For people, without any secret: `SASL_SSL by PLAIN as 'reader'`."""
        if not self.sasl:
            return self.protocol
        return f"{self.protocol} by {self.mechanism} as {self.username!r}"

    def loaded(self) -> "Security":
        """The same with the text of every file, so that it can be sent to another machine."""
        ca, certificate, key = (p and p.loaded() for p in (self.ca, self.certificate, self.key))
        return replace(self, ca=ca, certificate=certificate, key=key)


UNSECURED = Security()


def is_ours(given: Mapping[str, str]) -> bool:
    """Whether `parse_security` knows every option on security; others may know more of them."""
    own = {name: value for name, value in given.items() if name.startswith(PREFIXES)}
    mechanism = own.get(_MECHANISM) or own.get("kafka.sasl.mechanisms") or MECHANISMS[0]
    known = own.keys() <= {_PROTOCOL, *_SASL, *_TLS}
    return known and mechanism.strip().upper() in MECHANISMS


def parse_security(given: Mapping[str, str]) -> Security:
    """What the options that begin with one of PREFIXES say; others are passed over.

    `given` has names in lower case. Raises `ConfigError` for what is unknown, unsupported or
    contradicts itself.
    """
    protocol = given.get(_PROTOCOL, "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(
            f"{_PROTOCOL} is {given[_PROTOCOL]!r}, but takes one of: {', '.join(_PROTOCOLS)}."
        )
    security = Security(protocol)
    _refuse_unobeyed(given, security)
    if security.sasl:
        security = _with_login(security, given)
    if security.tls:
        security = _with_certificates(security, given)
    return security


def _refuse_unobeyed(given: Mapping[str, str], security: Security) -> None:
    for name in given:
        if not name.startswith(PREFIXES) or name == _PROTOCOL:
            continue
        if name not in (*_SASL, *_TLS):
            family = _SASL if name.startswith("kafka.sasl.") else _TLS
            raise ConfigError(
                f"The option {name} is not supported, and would not be obeyed.",
                hint=f"Leave it out. Supported are: {', '.join(family)}.",
            )
        if not (security.sasl if name in _SASL else security.tls):
            raise ConfigError(
                f"The option {name} has no effect with {_PROTOCOL} {security.protocol}.",
                hint=f"Set {_PROTOCOL} to SSL, SASL_PLAINTEXT or SASL_SSL, or leave {name} out.",
            )


def _with_login(security: Security, given: Mapping[str, str]) -> Security:
    mechanism = (given.get(_MECHANISM) or given.get("kafka.sasl.mechanisms") or "").strip().upper()
    if mechanism not in MECHANISMS:
        what = f"{mechanism!r} is not supported" if mechanism else "it is missing"
        raise ConfigError(
            f"{_MECHANISM} says how to log in with {security.protocol}, but {what}.",
            hint=f"Supported are: {', '.join(MECHANISMS)}.",
        )
    if JAAS in given and not given.keys().isdisjoint(_BY_PASSWORD):
        raise ConfigError(f"{JAAS} and {_USERNAME} or {_PASSWORD} are given: choose one way.")
    module, login = parse_jaas(given[JAAS]) if JAAS in given else ("", {})
    by_token = mechanism == OAUTHBEARER
    if module and (module == OAUTH_MODULE) != by_token:
        raise ConfigError(f"{JAAS} names {module}, which is not for {_MECHANISM} {mechanism}.")
    for name in _BY_PASSWORD if by_token else oauth_options.OPTIONS:
        if name in given:
            raise ConfigError(f"The option {name} has no effect with {_MECHANISM} {mechanism}.")
    if by_token:
        oauth = oauth_options.parse_oauth(given, login)
        return replace(security, mechanism=mechanism, username=oauth.client_id, oauth=oauth)
    username = login.get("username") or given.get(_USERNAME)
    password = login.get("password") or given.get(_PASSWORD)
    if not username or not password:
        raise ConfigError(
            f"{_MECHANISM} {mechanism} needs a name and a password.",
            hint=f"Set {_USERNAME} and {_PASSWORD}, or {JAAS}.",
        )
    return replace(security, mechanism=mechanism, username=username, password=password)


def _with_certificates(security: Security, given: Mapping[str, str]) -> Security:
    for store, command in _STORE_TYPES.items():
        location, kind = given.get(f"{store}.location"), given.get(f"{store}.type", "JKS")
        if location is not None and kind.strip().upper() != "PEM":
            raise ConfigError(
                f"{store}.location is a store of type {kind}; only PEM is read.",
                hint=f"Convert it: {command.format(location)}; and set {store}.type to PEM.",
            )
    algorithm = given.get(_VERIFICATION, "https").strip().lower()
    if algorithm not in ("https", "none", ""):
        raise ConfigError(f"{_VERIFICATION} is {algorithm!r}, but takes https or nothing.")
    ca, certificate, key = (_pem(part, given) for part in ("ca", "certificate", "key"))
    if key and not certificate:
        raise ConfigError(f"{key.option} is given, but no certificate that it belongs to.")
    return replace(
        security,
        ca=ca,
        certificate=certificate,
        key=key,
        key_password=given.get(_KEY_PASSWORD, ""),
        check_hostname=algorithm == "https",
    )


def _pem(part: str, given: Mapping[str, str]) -> Pem | None:
    pems = [Pem(name, location=given[name]) for name in _FILES[part] if given.get(name)]
    pems += [Pem(name, text=given[name]) for name in _TEXTS[part] if given.get(name)]
    if len(pems) > 1:
        raise ConfigError(f"{pems[0].option} and {pems[1].option} are given: choose one.")
    return pems[0] if pems else None


# Java's form of a login, `sasl.jaas.config`: a module and its options. No error quotes a value.

_LOGIN = re.compile(
    r"\s*(?:\w+\.)*(\w+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.S
)
_OPTION = re.compile(r'\s*(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))', re.S)
_PASSWORD_OPTIONS = ("username", "password")
_MODULES = {
    "PlainLoginModule": _PASSWORD_OPTIONS,
    "ScramLoginModule": _PASSWORD_OPTIONS,
    OAUTH_MODULE: ("clientId", "clientSecret", "scope"),
}


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """The module's name without its package, and its options. Raises `ConfigError`."""
    login = _LOGIN.fullmatch(text)
    if login is None:
        raise ConfigError(
            f"{JAAS} is not of the form of one login module with its options.",
            hint="Write: org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="…" password="…";',
        )
    module, rest = login[1], login[2]
    if module not in _MODULES:
        raise ConfigError(
            f"{JAAS} names the login module {module}, which is not supported.",
            hint=f"Supported are: {', '.join(_MODULES)}.",
        )
    options, at = {}, 0
    while found := _OPTION.match(rest, at):
        quoted, bare = found[2], found[3]
        options[found[1]] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.S)
        at = found.end()
    known = _MODULES[module]
    others = [name for name in options if name not in known]
    if module == OAUTH_MODULE:
        others = [name for name in others if not name.startswith(EXTENSION)]
    if others or rest[at:].strip():
        what = f"the option {min(others)}" if others else "something that is not of the form a=b"
        raise ConfigError(
            f"{JAAS} has {what}, which is not supported.",
            hint=f'It takes {", ".join(known)}, each as name="…"; quotes within them as \\".',
        )
    return module, options


# Java's files of options, and what a value may refer to.


def read_properties(path: Path) -> dict[str, str]:
    """Key → value. Raises `ConfigError` for a file that cannot be read."""
    with _as_config_error():
        return config.read_properties(path)


def resolve(value: str, environment: Mapping[str, str], folder: Path) -> str:
    """The value with what it refers to; paths are meant from `folder`. Raises `ConfigError`."""
    with _as_config_error():
        return config.resolve(value, environment, folder)


@contextmanager
def _as_config_error() -> Iterator[None]:
    try:
        yield
    except BadReference as error:
        raise ConfigError(str(error), hint=error.hint) from error
