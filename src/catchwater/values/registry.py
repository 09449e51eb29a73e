"""Schemas by their ids, from any registry that speaks Confluent's HTTP API.

A value in Confluent's framing begins with a zero byte and the schema's id in four (big endian). An
id never names another schema, so what was read once is kept for good: in this process, and as a
file for the next one, so that a registry that is down, slow or empty stops nobody who has it. What
nobody has is asked for again and again for `PATIENCE_S`, and then `SchemaUnavailable`: the epoch is
tried again later and no record is skipped. An id that the registry says it does not have is
`ValueError`: the record is at fault.

Schemas that refer to others come with them. A Protobuf file is asked for in its serialized form
(`format=serialized`), base64 of a FileDescriptorProto.
"""

import base64
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.values.settings import Registry

T = TypeVar("T")

FRAME_BYTES = 5
ANSWER_S, PATIENCE_S = 5.0, 30.0
"""How long one answer may take, and how long a schema is asked for that is not there."""
_PAUSE_S = 1.0
_MISSING_S = 10.0
"""How long an unknown id is not asked for again."""
_NOT_FOUND = 404
_NOT_TAKEN = (409, 422)
"""A schema that is incompatible, or that is none."""
_ACCEPT = "application/vnd.schemaregistry.v1+json"
_MOST_BYTES = 16 * 1024 * 1024


class SchemaUnavailable(CatchwaterError):
    """A schema that the registry did not give: it does not answer, refuses, or answers nonsense."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The login goes to the registry that was named and to no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


class _Refused(Exception):
    """What the registry answered in place of a schema, or why it did not."""

    def __init__(self, why: str, code: int = 0, said: str = "") -> None:
        super().__init__(why)
        self.code = code
        """The status, 0 where there was none; and what the registry said of it."""
        self.said = said


class SchemaRefused(CatchwaterError):
    """A subject does not have a schema that is to be written with, or does not take it."""

    exit_code = 2


@dataclass(frozen=True)
class Offered:
    """A schema to be written with: what a registry is asked for it under a subject."""

    subject: str
    kind: str
    text: str
    needs: tuple["Offered", ...] = ()
    """Those that it refers to, of which `subject` is the name too."""


@dataclass(frozen=True)
class Registered:
    """A schema as the registry has it: its kind (`AVRO`, `PROTOBUF`, `JSON`) and its text."""

    kind: str
    text: str
    needs: tuple[str, ...] = ()
    """The texts of the schemas it refers to, those that others need first."""
    names: tuple[str, ...] = ()
    """By what names it and they refer to those: of Protobuf the paths that files import."""


class RegistryClient:
    """What a process asks a registry, and what it has read. One thread at a time."""

    def __init__(
        self, registry: Registry, clock: Clock = SYSTEM, *, answer_s: float | None = None
    ) -> None:
        self.url = registry.url
        self._folder = Path(registry.folder) if registry.folder else None
        self._login = registry.login
        self._waits = registry.waits
        self._clock = clock
        self._answer_s = ANSWER_S if answer_s is None else answer_s
        self._known: dict[int, Registered] = {}
        self._missing: dict[int, tuple[float, str]] = {}
        """Until when there is taken to be no schema with an id, and why."""

    def schema(self, schema_id: int) -> Registered:
        """The schema of an id. Raises `ValueError` and `SchemaUnavailable`; see the module."""
        found = self._known.get(schema_id) or self._kept(schema_id)
        if found is None:
            found = self._patiently(schema_id)
            self._keep(schema_id, found)
        self._known[schema_id] = found
        return found

    def under(self, subject: str, schema_id: int) -> Registered:
        """The schema of an id that must be one of this subject's. Asks once.

        Raises `LookupError` for an id that is not there, or not the subject's, and
        `SchemaUnavailable`.
        """
        path = f"/schemas/ids/{schema_id}"
        try:
            subjects = {each["subject"] for each in self._ask(f"{path}/versions")["list"]}
            if subject not in subjects:
                raise LookupError(f"the schema with the id {schema_id} is none of {subject!r}")
            return self._registered(path, self._ask(path))
        except ValueError as problem:
            raise LookupError(f"the registry has no schema with the id {schema_id}") from problem
        except (_Refused, KeyError, TypeError) as problem:
            raise self._unavailable(f"schema id {schema_id}", problem) from problem

    def latest(self, subject: str) -> tuple[int, Registered]:
        """The newest schema of a subject, such as `payments-value`, with its id.

        Raises `LookupError` if the registry has no such subject, and `SchemaUnavailable`.
        """
        name = urllib.parse.quote(subject, safe="")
        try:
            path = f"/subjects/{name}/versions/latest"
            answer = self._ask(path)
            return answer["id"], self._registered(path, answer)
        except ValueError as problem:
            raise LookupError(f"{self.url} has no subject {subject!r}") from problem
        except (_Refused, KeyError, TypeError) as problem:
            raise self._unavailable(f"subject {subject!r}", problem) from problem

    def useless(self, schema_id: int, why: str) -> ValueError:
        """What was answered is no schema: it is not kept, and for a while not asked for again."""
        self._known.pop(schema_id, None)
        if (path := self._file(schema_id)) is not None:
            path.unlink(missing_ok=True)
        return self._note(schema_id, f"the schema with the id {schema_id} cannot be used: {why}")

    def _note(self, schema_id: int, why: str) -> ValueError:
        self._missing[schema_id] = (self._clock.monotonic_s() + _MISSING_S, why)
        return ValueError(why)

    def versions(self, subject: str) -> dict[int, Registered]:
        """Every schema of a subject by its version; none if the registry has no such subject.

        Asks once. Raises `SchemaUnavailable`.
        """
        path = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        try:
            numbers = [int(each) for each in self._ask(path)["list"]]
            asked = {number: f"{path}/{number}" for number in numbers}
            return {n: self._registered(each, self._ask(each)) for n, each in asked.items()}
        except ValueError:
            return {}
        except (_Refused, KeyError, TypeError) as problem:
            raise self._unavailable(f"subject {subject!r}", problem) from problem

    def level(self, subject: str) -> str:
        """What a new schema of a subject must be compatible with, such as `BACKWARD`.

        Asks once. Raises `SchemaUnavailable`.
        """
        name = urllib.parse.quote(subject, safe="")
        try:
            answer = self._ask(f"/config/{name}?defaultToGlobal=true")
            return str(answer["compatibilityLevel"])
        except (ValueError, _Refused, KeyError, TypeError) as problem:
            raise self._unavailable(f"the level of {subject!r}", problem) from problem

    def id_of(self, offered: Offered, *, register: bool = False) -> int:
        """The id of a schema under its subject, which is registered there if it may be.

        Raises `SchemaRefused` for a schema that is not there or not taken, and `SchemaUnavailable`.
        """
        return self._asked_patiently(
            f"the id of a schema of {offered.subject!r}", lambda: self._id_of(offered, register)
        )

    def look(self, offered: Offered, *, register: bool = False) -> None:
        """Raise what `id_of` would raise, but ask once and register nothing."""
        try:
            try:
                self._found(offered)
            except ValueError:
                self._refuse_unless_taken(offered, register)
        except (_Refused, KeyError, TypeError) as problem:
            raise self._unavailable(f"subject {offered.subject!r}", problem) from problem

    def _id_of(self, offered: Offered, register: bool) -> int:
        try:
            for each in offered.needs:
                self._id_of(each, register)
            try:
                return int(self._found(offered)["id"])
            except ValueError:
                if not register:
                    raise
            return int(self._ask(f"{_subject(offered)}/versions", self._body(offered))["id"])
        except _Refused as refusal:
            if refusal.code in _NOT_TAKEN:
                raise self._not_taken(offered, refusal.said) from refusal
            raise
        except ValueError:
            self._refuse_unless_taken(offered, False)
            raise

    def _found(self, offered: Offered) -> dict[str, Any]:
        """The version of its subject that a schema is: raises `ValueError` if it is none of them.

        A registry may hold texts against each other as they stand; asked to, it does so by what
        they say, wherever another client has put its spaces.
        """
        path, body = _subject(offered), self._body(offered)
        try:
            return self._ask(path, body)
        except ValueError:
            return self._ask(f"{path}?normalize=true", body)

    def _body(self, offered: Offered) -> dict[str, Any]:
        """What is asked: raises `ValueError` if one that it refers to is not there."""
        references = []
        for each in offered.needs:
            found = self._found(each)
            names = {"name": each.subject, "subject": each.subject}
            references.append({**names, "version": found["version"]})
        body: dict[str, Any] = {"schema": offered.text}
        if offered.kind != "AVRO":
            body["schemaType"] = offered.kind
        return body | ({"references": references} if references else {})

    def _refuse_unless_taken(self, offered: Offered, register: bool) -> None:
        """Of a schema that is not there: raise `SchemaRefused`, unless it may be registered."""
        try:
            path = f"/compatibility{_subject(offered)}/versions/latest?verbose=true"
            verdict = self._ask(path, self._body(offered))
        except ValueError:
            verdict = {"is_compatible": True}  # there is no such subject yet
        except _Refused as refusal:
            if refusal.code not in _NOT_TAKEN:
                raise
            verdict = {"is_compatible": False, "messages": [refusal.said]}
        if not verdict.get("is_compatible", True):
            raise self._not_taken(offered, "; ".join(map(str, verdict.get("messages") or ())))
        if not register:
            raise SchemaRefused(
                f"The subject {offered.subject!r} of the schema registry {self.url} does not have "
                "the schema of valueSchema.",
                hint='It would take it: register it there, or say "schema.registry.register" = '
                "true.",
            )

    def _not_taken(self, offered: Offered, why: str) -> SchemaRefused:
        return SchemaRefused(
            f"The subject {offered.subject!r} of the schema registry {self.url} does not take the "
            f"schema of valueSchema: {why.rstrip('.') or 'it is not compatible'}.",
            hint="Change the schema so that it is compatible (a field that is new has a default), "
            "or the subject's compatibility.",
        )

    def _patiently(self, schema_id: int) -> Registered:
        until_s, why = self._missing.get(schema_id, (0.0, ""))
        if why and until_s > self._clock.monotonic_s():
            raise ValueError(why)
        path = f"/schemas/ids/{schema_id}"
        try:
            return self._asked_patiently(
                f"schema id {schema_id}", lambda: self._registered(path, self._ask(path))
            )
        except ValueError as problem:
            why = f"the registry {self.url} has no schema with the id {schema_id}"
            raise self._note(schema_id, why) from problem

    def _asked_patiently(self, what: str, ask: Callable[[], T]) -> T:
        """Ask again for `PATIENCE_S`, if at all; then raises `SchemaUnavailable`."""
        until_s = self._clock.monotonic_s() + (PATIENCE_S if self._waits else 0.0)
        while True:
            try:
                return ask()
            except (_Refused, KeyError, TypeError) as problem:
                if self._clock.monotonic_s() >= until_s:
                    raise self._unavailable(what, problem) from problem
            self._clock.pause(_PAUSE_S)

    def _registered(self, path: str, answer: Mapping[str, Any]) -> Registered:
        """The schema that was answered to this path, and all that it refers to."""
        kind = answer.get("schemaType") or "AVRO"
        if kind == "PROTOBUF":
            answer = self._ask(f"{path}?format=serialized")
        needs: dict[str, str] = {}
        for each in answer.get("references") or ():
            subject = urllib.parse.quote(each["subject"], safe="")
            other = f"/subjects/{subject}/versions/{each['version']}"
            needed = self._registered(other, self._ask(other))
            needs.update(zip(needed.needs, needed.names, strict=True))
            needs.setdefault(needed.text, each["name"])
        return Registered(kind, str(answer["schema"]), tuple(needs), tuple(needs.values()))

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """An answer; raises `_Refused`, and `ValueError` if there is nothing of this name.

        One that is a list is the only entry, `list`.
        """
        headers = {"Accept": _ACCEPT} | ({"Content-Type": _ACCEPT} if body is not None else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url.rstrip("/") + path, data, headers)
        if self._login:
            encoded = base64.b64encode(self._login.encode()).decode()
            request.add_header("Authorization", f"Basic {encoded}")
        try:
            with _OPENER.open(request, timeout=self._answer_s) as reply:
                answer = json.loads(reply.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                said = _said(error.read(_MOST_BYTES))
            if error.code == _NOT_FOUND and said is not None:
                raise ValueError(f"{self.url} does not know {path}") from error
            why = f"it answers {error.code} {error.reason}"
            raise _Refused(why, error.code, said or "") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _Refused(str(getattr(error, "reason", error)) or type(error).__name__) from error
        if isinstance(answer, list):
            return {"list": answer}
        if not isinstance(answer, dict):
            raise _Refused("its answer is no schema")
        return answer

    def _unavailable(self, what: str, problem: Exception) -> SchemaUnavailable:
        why = problem if isinstance(problem, _Refused) else "its answer is no schema"
        return SchemaUnavailable(
            f"The schema registry {self.url} does not give {what}: {why}.",
            hint="What was read before goes on; this waits and nothing is skipped. See that the "
            "registry answers, or keep its schemas in a folder: schema.registry.folder.",
        )

    # --- what was read before --------------------------------------------------------------------

    def _file(self, schema_id: int) -> Path | None:
        return None if self._folder is None else self._folder / f"{schema_id}.json"

    def _kept(self, schema_id: int) -> Registered | None:
        path = self._file(schema_id)
        try:
            content = json.loads(path.read_bytes()) if path else None
            if content is None:
                return None
            needs = tuple(content["needs"])
            names = tuple(content.get("names") or [""] * len(needs))
            return Registered(content["kind"], content["schema"], needs, names)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # torn or not ours: the registry has it

    def _keep(self, schema_id: int, found: Registered) -> None:
        path = self._file(schema_id)
        if path is None:
            return
        content = {
            "kind": found.kind,
            "schema": found.text,
            "needs": found.needs,
            "names": found.names,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(f".{os.getpid()}.new")
            draft.write_text(json.dumps(content))
            draft.replace(path)
        except OSError:
            return  # it is asked for again by the next process


def framed(value: bytes) -> int:
    """The schema's id of a framed value. Raises `ValueError`."""
    if len(value) < FRAME_BYTES:
        raise ValueError(
            f"it has {len(value)} bytes, too few for the magic byte and the schema's id"
        )
    if value[0] != 0:
        raise ValueError(
            f"it begins with the byte {value[0]} and not with the magic byte 0 of a schema's id"
        )
    return int.from_bytes(value[1:FRAME_BYTES], "big")


def unframed(value: bytes) -> bytes:
    """What stands behind the id of the value's schema. Raises `ValueError`."""
    framed(value)
    return value[FRAME_BYTES:]


def _subject(offered: Offered) -> str:
    return f"/subjects/{urllib.parse.quote(offered.subject, safe='')}"


def _said(body: bytes) -> str | None:
    """What the registry says of a refusal; None: it is a proxy's, or some other server's."""
    try:
        answer = json.loads(body)
        return str(answer.get("message", "")) if "error_code" in answer else None
    except (ValueError, TypeError, AttributeError):
        return None
