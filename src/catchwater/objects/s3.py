"""Objects in a bucket of S3, or of a server that speaks its protocol, over obstore.

Create-if-absent is a conditional PUT (`If-None-Match: *`), in one request of any size. Other
large objects are uploaded in parts, each with its SHA-256 for the server to check; afterwards the
size is compared. A range that comes back shorter than what the object holds is a lost reply, not
a short object.

Relies on obstore for signatures and connections; its own retries are switched off, for
`objects.retry` does that for all stores alike. Promises what `objects.base` says, on any server
with conditional writes. Imported only by `open_store`, for obstore is an extra (`s3`).
"""

import hashlib
import hmac
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store as Bucket

from catchwater.objects.base import (
    Buffer,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    Part,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    check_key,
    check_range,
    range_header,
)

if TYPE_CHECKING:  # obstore has these names for type checkers only
    from obstore import GetOptions, ObjectMeta
    from obstore.store import S3Config

PART_BYTES = 8 * 1024 * 1024
LARGE_BYTES = 2 * PART_BYTES
"""Larger objects are uploaded in parts, if possible, and get more time."""
URL_LIFE = timedelta(minutes=15)

_CONNECT_S = 5
_REQUEST_S = 20
_LARGE_REQUEST_S = 300
_PARTS_IN_FLIGHT = 4
_MAY_PASS = {408, 409, 425, 429}
_TRANSFER_FAULTS = ("RequestTimeout", "IncompleteBody", "BadDigest", "ChecksumMismatch")
_NOTHING_THERE = 416  # the range begins at the object's end or behind


class S3Store:
    """An object store in a bucket, below a prefix."""

    def __init__(
        self, bucket: str, prefix: str = "", *, endpoint: str | None, region: str | None
    ) -> None:
        """Sends no request yet. Credentials, and arguments that are None, come from AWS_*."""
        config: S3Config = {"checksum_algorithm": "SHA256"}
        if endpoint:
            config["endpoint"] = endpoint
        if region:
            config["region"] = region
        self._root = "/".join(["s3:/", bucket, prefix]).rstrip("/")
        named = {"endpoint": endpoint, "region": region}
        query = urlencode({name: value for name, value in named.items() if value}, safe=":/")
        self._url = f"{self._root}?{query}" if query else self._root
        self._bucket_name = bucket

        def connected(timeout_s: int) -> Bucket:
            return Bucket(
                bucket,
                prefix=prefix or None,
                config=config,
                client_options={
                    "allow_http": bool(endpoint and endpoint.startswith("http://")),
                    "connect_timeout": timedelta(seconds=_CONNECT_S),
                    "timeout": timedelta(seconds=timeout_s),
                },
                retry_config={"max_retries": 0},
            )

        self._small, self._large = connected(_REQUEST_S), connected(_LARGE_REQUEST_S)

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        size = sum(map(len, parts))
        with self._named(check_key(key), "stored"):
            if size <= LARGE_BYTES:
                obstore.put(self._small, key, b"".join(parts), use_multipart=False)
                return size
            obstore.put(
                self._large,
                key,
                iter([part for part in parts if len(part)]),
                chunk_size=PART_BYTES,
                max_concurrency=_PARTS_IN_FLIGHT,
            )
        if (stored := self.size(key)) != size:
            raise StoreUnavailable(f"{self._name(key)} has {stored} bytes; {size} were sent.")
        return size

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        data = b"".join(parts)
        with self._named(check_key(key), "stored"):
            obstore.put(self._for(len(data)), key, data, mode="create", use_multipart=False)
        return len(data)

    def get(self, key: str) -> bytes:
        with self._named(check_key(key), "read"):
            reply = obstore.get(self._large, key)
            return self._whole(key, bytes(reply.bytes()), reply.meta["size"])

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        if size == 0:
            check_range(self._name(key), offset, size, self.size(key))
            return b""
        try:
            data, object_bytes = self._range(key, offset, size)
        except _RangeOutside as error:
            check_range(self._name(key), offset, size, self.size(key))
            raise StoreUnavailable(str(error)) from error  # it has grown since: it was replaced
        check_range(self._name(key), offset, size, object_bytes)
        return data

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        try:
            return self._range(key, offset, max_bytes)[0]
        except _RangeOutside:
            return b""

    def _range(self, key: str, offset: int, size: int) -> tuple[bytes, int]:
        """The bytes that the object has of this range, and the object's size."""
        with self._named(check_key(key), "read"):
            options: GetOptions = {"range": (offset, offset + size)}
            reply = obstore.get(self._for(size), key, options=options)
            data, object_bytes = bytes(reply.bytes()), reply.meta["size"]
        return self._whole(key, data, min(size, object_bytes - offset)), object_bytes

    def size(self, key: str) -> int:
        with self._named(check_key(key), "found"):
            return obstore.head(self._small, key)["size"]

    def delete(self, key: str) -> None:
        with self._named(check_key(key), "deleted"):
            try:
                obstore.delete(self._small, key)
            except FileNotFoundError as error:
                if "NoSuchBucket" in str(error):
                    raise

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = prefix.rpartition("/")[0]
        pages = obstore.list(self._small, folder or None)
        while page := self._next_page(pages, folder):
            for entry in page:
                if entry["path"].startswith(prefix):
                    modified_ms = int(entry["last_modified"].timestamp() * 1000)
                    yield ObjectInfo(entry["path"], entry["size"], modified_ms)

    def _next_page(
        self, pages: "Iterator[Sequence[ObjectMeta]]", folder: str
    ) -> "Sequence[ObjectMeta]":
        with self._named(folder, "listed"):
            return next(pages, ())

    def url(self, key: str = "", part: Part | None = None) -> str:
        """A signed `https://` URL that grants read access to the object, or to this part of it.

        A part can be signed only with credentials that do not change; without them it is "". Signed
        is the header `Range` with just these bytes. Without a key: what `open_store` takes, for
        others who have credentials.
        """
        if not key:
            return self._url
        with self._named(check_key(key), "signed for"):
            url = obstore.sign(self._small, "GET", key, URL_LIFE)
        if part is None:
            return url
        secret = os.environ.get("AWS_SECRET_ACCESS_KEY", "")
        return signed_for_part(url, part, secret) if secret else ""

    def _for(self, size: int) -> Bucket:
        return self._small if size <= LARGE_BYTES else self._large

    def _name(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _whole(self, key: str, data: bytes, size: int) -> bytes:
        if len(data) != size:
            raise StoreUnavailable(f"{self._name(key)} came back with {len(data)} of {size} bytes.")
        return data

    @contextmanager
    def _named(self, key: str, done: str) -> Iterator[None]:
        """Turn obstore's errors into ours, with the object and the failed operation."""
        try:
            yield
        except (FileNotFoundError, BaseError, OSError) as error:
            raise self._error(key, done, error) from error

    def _error(self, key: str, done: str, error: Exception) -> StoreError:
        text = str(error).partition("\n\nDebug source")[0]
        why = _Why.found_in(text)
        sentence = f"{self._name(key)} could not be {done}: {why.sentence}"
        match error:
            case _ if why.code == "NoSuchBucket":
                return StoreRefused(
                    f"There is no bucket {self._bucket_name}, so {sentence}",
                    hint="Create the bucket, or mend the URL in catchwater.objects.",
                )
            case FileNotFoundError():
                return ObjectMissing(f"There is no object {self._name(key)}.")
            case AlreadyExistsError() if why.status != 409:
                return ObjectExists(f"There is an object {self._name(key)} already.")
            case PermissionDeniedError() | UnauthenticatedError():
                return StoreRefused(
                    sentence,
                    hint="Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy; "
                    "get, put, delete and list are needed.",
                )
        if why.status == _NOTHING_THERE:
            return _RangeOutside(sentence)
        if why.may_pass:
            hint = "Check that the endpoint can be reached; requests are repeated by themselves."
            return StoreUnavailable(sentence, hint=hint)
        return StoreRefused(sentence, hint="Check the URL in catchwater.objects and AWS_*.")


def signed_for_whole(bucket: str, keys: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Signed `https://` URLs that grant read access to these objects, whoever has written them.

    `settings` are obstore's (`endpoint`, `region`, `access_key_id`, ...); what they leave out comes
    from AWS_*. Raises `StoreRefused`.
    """
    allow_http = settings.get("endpoint", "").startswith("http://")
    try:
        store = Bucket(bucket, client_options={"allow_http": allow_http}, **settings)  # type: ignore[arg-type]
        return [*obstore.sign(store, "GET", [*keys], URL_LIFE)]
    except (BaseError, OSError) as error:
        raise StoreRefused(
            f"Objects of the bucket {bucket} cannot be signed for: {error}."
        ) from error


def signed_for_part(url: str, part: Part, secret: str) -> str:
    """The signed URL, signed anew for a request with the header `Range` of this part alone.

    AWS Signature Version 4 in the query, with `range` among the signed headers.
    """
    parts = urlsplit(url)
    fields = dict(parse_qsl(parts.query))
    fields.pop("X-Amz-Signature")
    fields["X-Amz-SignedHeaders"] = "host;range"
    query = urlencode(sorted(fields.items()), quote_via=quote, safe="-_.~")
    offset, size = part
    headers = f"host:{parts.netloc}\nrange:{range_header(offset, size)}\n"
    request = f"GET\n{parts.path}\n{query}\n{headers}\nhost;range\nUNSIGNED-PAYLOAD"
    _, _, scope = fields["X-Amz-Credential"].partition("/")
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{fields['X-Amz-Date']}\n{scope}\n{digest}"
    key = f"AWS4{secret}".encode()
    for each in (*scope.split("/"), text):
        key = hmac.new(key, each.encode(), hashlib.sha256).digest()
    return parts._replace(query=f"{query}&X-Amz-Signature={key.hex()}").geturl()


class _RangeOutside(StoreError):
    """The range begins at the object's end or after it."""


class _Why:
    """The HTTP status (0: no answer), S3's code and message, from the text of obstore's error."""

    def __init__(self, status: int, code: str, sentence: str) -> None:
        self.status, self.code, self.sentence = status, code, sentence

    @classmethod
    def found_in(cls, text: str) -> "_Why":
        """Parse an error's text."""
        if match := re.search(r"status code: (\d{3})", text):
            code = re.search(r"<Code>(.*?)</Code>", text)
            message = re.search(r"<Message>(.*?)</Message>", text)
            parts = [found[1] for found in (code, message) if found]
            sentence = f"the server answered {match[1]} {': '.join(parts)}".rstrip(" .")
            return cls(int(match[1]), code[1] if code else "", f"{sentence}.")
        reason = text.rpartition(" - ")[2].strip().rstrip(".")
        return cls(0, "", f"no complete answer ({reason}).")

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        if any(fault in self.code for fault in _TRANSFER_FAULTS):
            return True
        return not 400 <= self.status < 500 or self.status in _MAY_PASS
