"""The object store of a URL.

    file:///directory              a directory of this machine, or one that is mounted on all
    memory:                        this process's memory, for trying things out
    s3://bucket/prefix             S3; `?endpoint=` and `?region=` name another server, and all
                                   other settings come from AWS_ENDPOINT_URL, AWS_REGION,
                                   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …

A URL must not contain credentials, because URLs are printed and logged.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from catchwater.clock import Clock
from catchwater.config import ConfigError
from catchwater.objects.base import ObjectMissing, ObjectStore
from catchwater.objects.local import LocalStore
from catchwater.objects.memory import MemoryStore
from catchwater.objects.retry import PATIENT, RetryingStore, RetryPolicy
from catchwater.objects.seal import KEYS as KEYS
from catchwater.objects.seal import LOCAL, KeysNeeded

if TYPE_CHECKING:
    from catchwater.objects.keys import Keys

_HINT = "Write file:///directory, memory: or s3://bucket/prefix?endpoint=http://host:port."
S3_OPTIONS = ("endpoint", "region")
"""What the URL of a bucket may say beside it."""
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


_ROOT = Path("/")
CHECK = "encryption/check"
"""An object that opens with the keys of whoever has written the others."""


def open_store(
    url: str, clock: Clock, policy: RetryPolicy = PATIENT, *, may_seal: bool = True
) -> RetryingStore:
    """Open the store; its requests are retried where that may help, and counted.

    With keys in the environment its objects are sealed, unless it is for others to read them.

    Sends no request to a remote store yet. Raises `ConfigError`, or `StoreError` for a directory
    that cannot be used.
    """
    parts = urlsplit(url)
    folder = _folder_of(parts)
    match parts.scheme:
        case "file" if folder is not None:
            store: ObjectStore = LocalStore(folder, clock)
        case "memory":
            store = MemoryStore(clock)
        case "s3" if parts.netloc:
            store = _s3(url, parts)
        case _:
            raise ConfigError(f"{url!r} is not the URL of an object store.", hint=_HINT)
    return RetryingStore(sealed(store) if may_seal else store, clock, policy)


def _folder_of(parts: SplitResult) -> Path | None:
    """The folder that a URL names, if it names one of this machine."""
    here = parts.scheme == "file" and parts.netloc in ("", "localhost")
    return Path(unquote(parts.path)) if here and parts.path.startswith("/") else None


def sealed(store: ObjectStore) -> ObjectStore:
    """The store with its objects sealed, where the environment names keys. Raises `ConfigError`."""
    keys = given_keys()
    if keys is None:
        return store
    from catchwater.objects.sealed import SealedStore

    return SealedStore(store, keys)


def use_keys(spec: str, local: str = "") -> None:
    """Let this process, and those that it starts, seal and open with the keys of a setting."""
    if spec:
        os.environ |= {KEYS: spec, LOCAL: local}


def given_keys() -> "Keys | None":
    """The keys that the environment names. Raises `ConfigError`."""
    spec = os.environ.get(KEYS)
    if not spec:
        return None
    try:
        from catchwater.objects.keys import open_keys
    except ModuleNotFoundError as error:
        raise ConfigError(
            "Encryption needs the package cryptography, which is not installed.",
            hint="Install catchwater with the extra encryption: pip install "
            "'catchwater[encryption]'.",
        ) from error
    return open_keys(spec, os.environ)


def seals_local() -> bool:
    """Whether what lies beside the objects is to be sealed, too: no disk is said to do it."""
    return bool(os.environ.get(KEYS)) and os.environ.get(LOCAL) != "disk"


def check_seal(store: ObjectStore, *, may_write: bool = True) -> None:
    """See that these keys open the store's objects, and that there are keys if it needs some.

    Unless `may_write`, a store that nobody has sealed yet stays so. Raises `StoreError`.
    """
    if os.environ.get(KEYS):
        from catchwater.objects.sealed import check_keys

        check_keys(store, may_write=may_write)
        return
    try:
        store.get_range(CHECK, 0, 1)
    except ObjectMissing:
        return
    raise KeysNeeded(f"What lies in {store.url()}")


def check_seal_at(url: str, clock: Clock, *, may_write: bool = True) -> None:
    """The same of the store at a URL. A folder of this machine is not made by looking into it."""
    folder = _folder_of(urlsplit(url))
    if os.environ.get(KEYS) or folder is None:
        check_seal(open_store(url, clock), may_write=may_write)
    elif (folder / CHECK).exists():
        raise KeysNeeded(f"What lies in {url}")


def refuse_plain_local(
    what: str, environment: Mapping[str, str], places: Collection[Path] = ()
) -> None:
    """Raise `ConfigError` if objects are to be encrypted and this, beside them, would not be.

    `places` are the folders that it lies in, if all of them are this machine's.
    """
    if not environment.get(KEYS) or environment.get(LOCAL) == "disk":
        return
    plain = [str(each) for each in places if not reaches_no_disk(each)]
    if places and not plain:
        return
    where = f" ({', '.join(plain)})" if plain else ""
    raise ConfigError(
        f"Objects are to be encrypted, but {what} on this machine would not be{where}.",
        hint="Put it into memory (a folder of a tmpfs, as /dev/shm, and no swap) or on a disk that "
        "Linux encrypts (dm-crypt). Where a disk is encrypted unseen by Linux, say so: "
        f"catchwater.encryption.local=disk ({LOCAL}=disk in the environment).",
    )


def reaches_no_disk(folder: Path, root: Path = _ROOT) -> bool:
    """Whether what is written there reaches no disk as it is.

    It stays in memory, and no swap takes it from there, or its device is one of dm-crypt, or is
    made of such ones. What the system does not say, as how a network's disk is kept, is no such.
    """
    there = next(each for each in (folder, *folder.parents) if each.exists())
    device = _number(there.stat().st_dev)
    try:
        mounts = (line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines())
        match {fields[2]: fields[fields.index("-") + 1] for fields in mounts}.get(device):
            case "ramfs":
                return True
            case "tmpfs":
                swaps = (root / "proc/swaps").read_text().splitlines()[1:]
                return all(_encrypts(_device_of(Path(each.split()[0])), root) for each in swaps)
    except OSError:
        return False
    return _encrypts(device, root)


def _encrypts(device: str, root: Path) -> bool:
    about = root / "sys/dev/block" / device
    try:
        if (about / "dm/uuid").read_text().startswith("CRYPT-"):
            return True
        below = [(each / "dev").read_text().strip() for each in (about / "slaves").iterdir()]
    except OSError:
        return False
    return bool(below) and all(_encrypts(each, root) for each in below)


def _device_of(swap: Path) -> str:
    """Of a swap, which is a device itself or a file on one."""
    try:
        found = swap.stat()
    except OSError:
        return ""
    return _number(found.st_rdev or found.st_dev)


def _number(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


def join(url: str, key: str) -> str:
    """The URL of an object or a folder in the store at `url`."""
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{key}").geturl()


def place(store: ObjectStore, key: str) -> str:
    """An object's URL for messages and markers; `store.url` may return one that grants access."""
    return join(store.url(), key)


def s3_options(parts: SplitResult) -> dict[str, str]:
    """What an S3 URL says besides bucket and prefix. Raises `ConfigError`; opens nothing."""
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = options.keys() - set(S3_OPTIONS)
    if unknown or "@" in parts.netloc:
        what = f"has no option {min(unknown)}" if unknown else "must not hold credentials"
        raise ConfigError(
            f"The URL of the object store s3://{parts.hostname}{parts.path} {what}.",
            hint="Options are endpoint and region; credentials come from AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY.",
        )
    return options


def s3_endpoint() -> str | None:
    """The server that the environment names; None: Amazon's own."""
    return next(filter(None, map(os.environ.get, _ENDPOINTS)), None)


def _s3(url: str, parts: SplitResult) -> ObjectStore:
    options = s3_options(parts)
    try:
        from catchwater.objects.s3 import S3Store
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{url} needs the package obstore, which is not installed.",
            hint="Install catchwater with the extra s3: pip install 'catchwater[s3]'.",
        ) from error
    endpoint = options.get("endpoint") or s3_endpoint()
    prefix = parts.path.strip("/")
    return S3Store(parts.netloc, prefix, endpoint=endpoint, region=options.get("region"))
