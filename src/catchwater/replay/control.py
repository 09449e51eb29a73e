"""The control API from the other side: plans, pins and sink epochs of a Catchwater log.

Every call may be repeated without harm (a plan changes nothing, a pin and an epoch have names), so
a call that meets a broker on its way down or up is repeated with backoff until `timeout_s` is over.

Relies on the JSON of the control API. Promises that a refusal keeps the API's code, sentence and
hint. Does not read data: plans say where it lies.

**Which places an answer may name.** The server may be anybody's, and the reader can reach what the
server cannot: files of its machine, and servers of its network that ask for no password. So a
server may name nothing that is nearer to the reader than the server is: one on this machine may
name files and ports of it; one in a private network hosts of such networks, but not this machine;
one on the internet neither. Where that is too strict (a directory that brokers on other machines
share with this one), `catchwater.locations` lists the log's stores, and nothing else is read. Names
are resolved once, here. No redirect is followed.
"""

import base64
import http.client
import json
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from catchwater import retries
from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.replay.plan import Aborted, Missing, OffsetRange, PlanRange, Quota, TableFiles
from catchwater.wire.client import TopicDenied
from catchwater.wire.connection import HERE, farthest, nearest

CONTROL_URL = "catchwater.control.url"
"""The broker configuration, and the option of ours, that says where the control API is."""
LOCATIONS = "catchwater.locations"
"""The option with the URLs of the stores that may be read; without it the rule above holds."""

_ATTEMPT_TIMEOUT_S = 30.0
_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 1.0
_READ_COMMITTED = "read_committed"
_UNAVAILABLE = 503
_FORBIDDEN = 403
_NOT_FOUND = 404


class ControlUnreachable(CatchwaterError):
    """The control API did not answer in time."""


class ControlRefused(CatchwaterError):
    """The control API refused; `code` is its name for the reason, `status` HTTP's."""

    def __init__(self, status: int, answer: Mapping[str, Any]) -> None:
        super().__init__(
            str(answer.get("message", f"The control API answered with status {status}.")),
            hint=answer.get("hint"),
        )
        self.status = status
        self.code = str(answer.get("error", "UNKNOWN"))
        self.missing = tuple(
            (int(each["partition"]), int(each["start"]), int(each["end"]))
            for each in answer.get("missing", ())
        )


class PlanUncommitted(CatchwaterError):
    """A broker plans as if everything were to be read, though committed records are wanted."""


class TransactionOpen(CatchwaterError):
    """Offsets are wanted that an open transaction keeps from being read."""


class SentAstray(CatchwaterError):
    """A server names a place that is nearer to this machine than the server is."""

    restart = Restart.NEVER


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the wanted offsets of a topic lie, or which of them are gone."""

    ranges: tuple[PlanRange, ...]
    missing: tuple[Missing, ...] = ()
    aborted: tuple[Aborted, ...] = ()
    """For readers of committed records: what was aborted among the wanted offsets."""
    quota: Quota | None = None
    """The account that readers by this plan pay from, if there is a limit."""
    fields: str = ""
    """What the topic says becomes of its fields (`values.policy`)."""


class Control:
    """The control API at `url`, such as `http://127.0.0.1:9644`, asked in the name of a client."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 60.0,
        clock: Clock = SYSTEM,
        client_id: str = "",
        locations: Sequence[str] = (),
    ) -> None:
        """`locations` are the only stores that plans may name, if there are any."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            form = "http://host:port or https://host:port"
            raise CatchwaterError(f"The control URL {shown(url)!r} is not of the form {form}.")
        self.location = url.rstrip("/")
        """With the password, if there is one."""
        self.url = shown(self.location)
        self._is_encrypted = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port or (443 if self._is_encrypted else 80)
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        # A password goes to nobody who could be overheard.
        if parts.username and (self._is_encrypted or farthest(parts.hostname) == HERE):
            login = ":".join(_login(url)).encode()
            self._headers["authorization"] = "Basic " + base64.b64encode(login).decode()
        self._timeout_s = timeout_s
        self._clock = clock
        self._client_id = client_id
        self.locations = locations

    def plan(self, wanted: Sequence[OffsetRange], *, read_committed: bool = False) -> Plan:
        """Where these offsets of one topic lie; `missing` names what retention has deleted.

        With `read_committed`, waits for the end of transactions that are open among them, and
        raises `TransactionOpen` when that takes too long; `PlanUncommitted` for an old broker,
        `TopicDenied` where the broker does not let us read the topic, `SentAstray` where it names a
        place that it has no say in.
        """
        topic = wanted[0].topic
        try:
            return self._plan(topic, wanted, read_committed)
        except ControlRefused as refusal:
            halves = _halves(wanted)
            if refusal.code != "PLAN_TOO_LARGE" or halves is None:
                raise
        first, second = (self.plan(half, read_committed=read_committed) for half in halves)
        return Plan(
            first.ranges + second.ranges,
            first.missing + second.missing,
            first.aborted + tuple(each for each in second.aborted if each not in first.aborted),
            first.quota or second.quota,
            first.fields or second.fields,
        )

    def _plan(self, topic: str, wanted: Sequence[OffsetRange], read_committed: bool) -> Plan:
        ranges = [{"partition": w.partition, "start": w.start, "end": w.end} for w in wanted]
        body: dict[str, Any] = {"topic": topic, "ranges": ranges, "client_id": self._client_id}
        if read_committed:
            body["isolation"] = _READ_COMMITTED
        try:
            answer = self._stable_plan(wanted, body) if read_committed else self._planned(body)
        except ControlRefused as refusal:
            if refusal.status == _FORBIDDEN:
                raise TopicDenied(topic, str(refusal)) from refusal
            if not refusal.missing:
                raise
            return Plan((), tuple(Missing(topic, *gap) for gap in refusal.missing))
        found = tuple(PlanRange.from_json(topic, each) for each in answer["ranges"])
        self._check(found)
        if "quota" in answer:
            check_host(urlsplit(str(answer["quota"]["url"])).hostname, self.url)
        return Plan(
            found,
            aborted=tuple(Aborted.from_json(topic, each) for each in answer.get("aborted", ())),
            quota=self._quota(answer["quota"]) if "quota" in answer else None,
            fields=str(answer.get("fields", "")),
        )

    def _quota(self, answer: Mapping[str, Any]) -> Quota:
        quota = Quota.from_json(answer, self._client_id)
        return replace(quota, keeper_url=logged_in(quota.keeper_url, *_login(self.location)))

    def _check(self, ranges: Sequence[PlanRange]) -> None:
        """Raise `SentAstray` if one of them lies where a plan may not send us."""
        named = {url for each in ranges for url in (each.url, each.parquet)}
        if not self.locations:  # then only the host counts
            named = set({urlsplit(url)[:2]: url for url in named}.values())
        for url in named:
            check_location(url, self.url, self.locations)

    def _planned(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.request("POST", "/api/v1/plans", body)

    def _stable_plan(
        self, wanted: Sequence[OffsetRange], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A plan for committed records, once it reaches to the end of what is wanted."""
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            answer = self._planned(body)
            if answer.get("isolation") != _READ_COMMITTED:
                raise PlanUncommitted(
                    f"The broker at {self.url} does not say in its plans what was aborted.",
                    hint="Its version is older than this one's. Let it follow, or set "
                    "catchwater.read to kafka.",
                )
            stable = answer["last_stable_offset"]
            held = [w for w in wanted if w.end > int(stable[str(w.partition)])]
            if not held:
                return answer
            if self._clock.monotonic_s() + _LONGEST_BACKOFF_S > deadline_s:
                raise TransactionOpen(
                    f"Offsets up to {held[0].end - 1} of {held[0].topic}-{held[0].partition} are "
                    f"wanted, but a transaction has been open since offset "
                    f"{stable[str(held[0].partition)]}, for {self._timeout_s:g} s at least.",
                    hint="It ends at the latest when its producer's transaction.timeout.ms is "
                    "over; read then, or end before it.",
                )
            self._clock.pause(_LONGEST_BACKOFF_S * self._clock.random.uniform(0.5, 1.0))

    def table_files(
        self, topic: str, wanted: Mapping[int, tuple[int, int]], *, as_bytes: bool = False
    ) -> TableFiles | None:
        """Files of the topic's table that stand for these offsets, as far as there are any, or why
        there are none; None: it has nothing of them, or there is no table.

        With `as_bytes` those that have the values' bytes, if the table has both bytes and fields;
        they are read by us, and not by Spark, and so may lie in a bucket. Raises `SentAstray`
        where they lie where nothing may be read.
        """
        ranges = [{"partition": p, "start": s, "end": e} for p, (s, e) in wanted.items()]
        try:
            answer = self.request(
                "POST",
                f"{_path('topics', topic)}/table/files",
                {"ranges": ranges, "as_bytes": as_bytes, "by_url": as_bytes},
            )
        except ControlRefused as refusal:
            if not refusal.code.startswith("TABLE_"):
                return None  # It is no table, or a broker's that is older.
            return TableFiles(topic, {}, (), (), "", 0, False, why=str(refusal))
        if not answer["spans"]:
            return None
        found = TableFiles(
            topic,
            {int(s["partition"]): (int(s["start"]), int(s["end"])) for s in answer["spans"]},
            [str(each) for each in answer["whole"]],
            [str(each) for each in answer["partly"]],
            str(answer["values"]),
            int(answer["malformed"]),
            bool(answer["left_out"]),
        )
        for url in (*found.whole, *found.partly):
            check_location(url, self.url, self.locations)
        return found

    def grant(self, wanted_bytes: int) -> tuple[int, float]:
        """How much of that may be read from storage, and after how many seconds."""
        body = {"bytes": wanted_bytes, "client_id": self._client_id}
        answer = self.request("POST", "/api/v1/grants", body)
        return int(answer["bytes"]), int(answer["throttle_ms"]) / 1000

    def pins(self) -> list[dict[str, Any]]:
        """The pins there are: id, owner, positions, lease, creation time."""
        pins: list[dict[str, Any]] = self.request("GET", "/api/v1/pins")["pins"]
        return pins

    def set_pin(self, pin_id: str, pin: Mapping[str, Any]) -> dict[str, Any]:
        """Create or replace the pin of this id."""
        return self.request("PUT", _path("pins", pin_id), pin)

    def renew_pin(self, pin_id: str, lease_ms: int) -> bool:
        """Let the pin's lease end so long from now; whether there was one that still held."""
        try:
            self.request("PATCH", _path("pins", pin_id), {"lease_ms": lease_ms})
        except ControlRefused as refusal:
            if refusal.status != _NOT_FOUND:
                raise
            return False
        return True

    def release_pin(self, pin_id: str) -> None:
        """Remove the pin; one that is not there is no error."""
        try:
            self.request("DELETE", _path("pins", pin_id))
        except ControlRefused as refusal:
            if refusal.status != _NOT_FOUND:
                raise

    def commit_epoch(
        self,
        pipeline: str,
        sink: str,
        epoch: int,
        *,
        topic: str,
        staged: Iterable[str],
        checksum: str,
        fence: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Commit the staged objects as this epoch; `already` tells a repetition.

        `fence`: name and number of the driver, which is refused where a later one has written.
        """
        content = {"topic": topic, "staged": list(staged), "checksum": checksum} | _fence(fence)
        return self.request("PUT", _path("sinks", pipeline, sink, "epochs", str(epoch)), content)

    def fence_sink(self, pipeline: str, sink: str, *, topic: str, fence: tuple[str, int]) -> None:
        """Let no driver before this one commit epochs of this sink any more."""
        content = {"topic": topic} | _fence(fence)
        self.request("PUT", _path("sinks", pipeline, sink, "fence"), content)

    def last_epoch(self, pipeline: str, sink: str) -> dict[str, Any] | None:
        """The last epoch that this sink of the pipeline committed, if any."""
        try:
            return self.request("GET", _path("sinks", pipeline, sink))
        except ControlRefused as refusal:
            if refusal.status == _NOT_FOUND:
                return None
            raise

    def epoch(self, pipeline: str, sink: str, epoch: int) -> dict[str, Any] | None:
        """What this sink of the pipeline committed as this epoch, if anything."""
        try:
            return self.request("GET", _path("sinks", pipeline, sink, "epochs", str(epoch)))
        except ControlRefused as refusal:
            if refusal.status == _NOT_FOUND:
                return None
            raise

    def report(self, pipeline: str, status: Mapping[str, Any]) -> None:
        """Let the brokers show this of a pipeline (`verdicts.PipelineStatus`)."""
        self.request("PUT", _path("pipelines", pipeline, "report"), status)

    def pipelines(self) -> list[dict[str, Any]]:
        """What each pipeline has last reported, and how long ago that was."""
        found: list[dict[str, Any]] = self.request("GET", "/api/v1/pipelines")["pipelines"]
        return found

    def objects_url(self) -> str:
        """Where staged objects are to be put."""
        return self.storage()[0]

    def storage(self) -> tuple[str, bool]:
        """Where the log's objects lie, and whether they are sealed."""
        found = self.request("GET", "/api/v1/storage")
        url = str(found["objects"])
        check_location(url, self.url, self.locations)
        return url, bool(found.get("sealed"))

    def request(self, method: str, path: str, content: object = None) -> dict[str, Any]:
        """One call, repeated while the API is not there or not ready; its JSON answer.

        Raises `ControlRefused`, `ControlUnreachable`.
        """
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                return self._attempt(method, path, content)
            except ssl.SSLCertVerificationError as error:
                raise ControlUnreachable(
                    f"The control API at {self.url} is not trusted: {error.verify_message}.",
                    hint="Name the authority that signed its certificate: SSL_CERT_FILE.",
                ) from error
            except (OSError, http.client.HTTPException, ControlRefused) as error:
                if isinstance(error, ControlRefused) and error.status != _UNAVAILABLE:
                    raise
                if self._clock.monotonic_s() + backoff_s > deadline_s:
                    raise ControlUnreachable(
                        f"The control API at {self.url} did not answer {method} {path} within "
                        f"{self._timeout_s:g} s: {error}.",
                        hint=f"Is the broker running, and is {CONTROL_URL} right?",
                    ) from error
            retries.count("control")
            self._clock.pause(backoff_s * self._clock.random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    def metrics(self) -> str:
        """What Prometheus reads of this broker. Raises `ControlRefused`, `ControlUnreachable`."""
        try:
            status, text = self._exchange("GET", "/metrics", None)
        except (OSError, http.client.HTTPException) as error:
            raise ControlUnreachable(
                f"The control API at {self.url} did not answer GET /metrics: {error}."
            ) from error
        if status >= 400:
            raise ControlRefused(status, {})
        return text.decode()

    def _exchange(self, method: str, path: str, content: object) -> tuple[int, bytes]:
        """One request: the answer's status and body."""
        made = http.client.HTTPSConnection if self._is_encrypted else http.client.HTTPConnection
        timeout_s = min(self._timeout_s, _ATTEMPT_TIMEOUT_S)
        connection = made(self._host, self._port, timeout=timeout_s)
        try:
            body = None if content is None else json.dumps(content)
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _attempt(self, method: str, path: str, content: object) -> dict[str, Any]:
        status, text = self._exchange(method, path, content)
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = {}
        if status >= 400 or not isinstance(answer, dict):
            raise ControlRefused(status, answer if isinstance(answer, dict) else {})
        return answer


def logged_in(url: str, user: str, password: str) -> str:
    """The URL with a login in its own place; without a user as it is."""
    parts = urlsplit(url)
    if not user:
        return url
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}").geturl()


def _login(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return unquote(parts.username or ""), unquote(parts.password or "")


def shown(url: str) -> str:
    """The URL without a login."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _halves(
    wanted: Sequence[OffsetRange],
) -> tuple[Sequence[OffsetRange], Sequence[OffsetRange]] | None:
    """The same offsets in two parts; None of one offset."""
    if len(wanted) > 1:
        return wanted[: len(wanted) // 2], wanted[len(wanted) // 2 :]
    (one,) = wanted
    at = (one.start + one.end) // 2
    if at == one.start:
        return None
    return [one._replace(end=at)], [one._replace(start=at)]


def _fence(fence: tuple[str, int] | None) -> dict[str, Any]:
    return {} if fence is None else {"fence": {"name": fence[0], "number": fence[1]}}


def _path(*names: str) -> str:
    return "/api/v1/" + "/".join(quote(name, safe="") for name in names)


# Which places an answer may name.


def check_location(url: str, named_by: str, allowed: Sequence[str] = ()) -> None:
    """Raise `SentAstray` unless `url`, of an object or a store, may be used because of `named_by`.

    `allowed` are the prefixes that count alone, if there are any.
    """
    if not url:
        return
    parts = urlsplit(url)
    if parts.scheme.startswith("sealed"):
        raise _astray(url, named_by, "is encrypted: brokers read such objects themselves")
    if allowed:
        if not any(_lies_in(url, each) for each in allowed):
            raise _astray(url, named_by, f"lies in no store that {LOCATIONS} names")
        return
    if parts.scheme == "s3":
        endpoint = dict(parse_qsl(parts.query)).get("endpoint", "")
        if not endpoint:
            return  # what the environment says, or Amazon's own
        parts = urlsplit(endpoint)
    if parts.scheme == "file":
        if farthest(urlsplit(named_by).hostname) != HERE:
            raise _astray(url, named_by, "is a file, and they are another machine")
    elif parts.scheme in ("http", "https"):
        check_host(parts.hostname, named_by)


def check_host(host: str | None, named_by: str) -> None:
    """Raise `SentAstray` if the host is nearer than that of the URL `named_by`."""
    if nearest(host) < farthest(urlsplit(named_by).hostname):
        raise _astray(str(host), named_by, "is nearer to this machine than they are")


def _astray(what: str, named_by: str, why: str) -> SentAstray:
    return SentAstray(
        f"{named_by} sends readers to {what.partition('?')[0]}, which {why}: nothing was read.",
        hint=f"If it is the log's own, name its store: {LOCATIONS}=file:///directory or "
        "https://host/bucket. Or read from the leaders: catchwater.read=kafka.",
    )


def _lies_in(url: str, store: str) -> bool:
    """Whether the object or store lies in this one; a path cannot climb out of it."""
    has, wanted = urlsplit(url), urlsplit(store)
    if (has.scheme, has.netloc) != (wanted.scheme, wanted.netloc):
        return False
    path = PurePosixPath(unquote(has.path) or "/")
    return ".." not in path.parts and path.is_relative_to(unquote(wanted.path) or "/")
