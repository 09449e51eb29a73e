"""The page's paths on the control port, behind its one door (`broker.control.entry`).

A path answers with HTML, with the same record as JSON where that alone is accepted, and as a
stream of events (SSE) of the parts that have changed. A stream ends after a minute and the page
asks again, so that a user who was removed sees no more; with many streams each is sent less often,
so that watching costs the broker no more than a bound. Nothing is changed here but where a group
stands (`reset`), once it was shown what that does.

The Content-Security-Policy admits files of our own and nothing inline.
"""

import asyncio
import hashlib
import shlex
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from catchwater.broker.broker import Broker
from catchwater.broker.control.entry import Asks, ByHandler, Caller, Free, OfCluster, entry
from catchwater.broker.control.replies import Refusal, find, json_reply, operating_error
from catchwater.broker.gate import ANONYMOUS, THE_CLUSTER, Operation, Resource, ResourceType
from catchwater.catalog.rows import OpenTxnRow
from catchwater.config import CatchwaterError
from catchwater.drill.page import PALETTE, SIGNS
from catchwater.drill.result import load_results
from catchwater.recovery.group import Move
from catchwater.verdicts import PipelineStatus
from catchwater.web import of_log, of_pipelines, reset, sampler, words
from catchwater.web.facts import Facts
from catchwater.web.history import DAY_MS, HOUR_MS, History, Plot
from catchwater.web.of_pipelines import Drills, Event, Trends
from catchwater.web.sampler import Sampler
from catchwater.web.view import Line, PageQuery, Trend, View, aimed, query_of

DESCRIBE = Operation.DESCRIBE
NAV = {
    "overview": ("Overview", "/"),
    "topics": ("Topics", "/topics"),
    "groups": ("Groups", "/groups"),
    "transactions": ("Transactions", "/transactions"),
    "brokers": ("Brokers", "/brokers"),
    "drills": ("Drills", "/drills"),
    "timeline": ("Timeline", "/timeline"),
    "audit": ("Audit", "/audit"),
}
SPANS = {"hour": HOUR_MS, "day": DAY_MS, "week": 7 * DAY_MS}
EVERY_S = 2.0
"""How often a stream is sent, with up to `_STREAMS_AT_EASE` of them."""
_STREAMS_AT_EASE = 8
_MOST_STREAMS = 64
"""A user who logs in has half of them at most."""
STREAM_S = 60.0
_MOST_SERIES = 12
_MOST_TRENDS = 20
_OPEN_SHOWN = 50
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "vary": "accept",
}
_KINDS = {
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain",
}

Build = Callable[[Caller, Mapping[str, str], PageQuery], Awaitable[View]]


def check_streams(watching: Counter[str], principal: str) -> None:
    """Refuse one more stream where there are too many of all, or of a user who logs in. Pure."""
    if watching.total() >= _MOST_STREAMS:
        raise Refusal(503, "TOO_MANY_STREAMS", f"{_MOST_STREAMS} pages are watching already.")
    if principal != ANONYMOUS and watching[principal] >= _MOST_STREAMS // 2:
        what = f"{principal} is watching {_MOST_STREAMS // 2} pages already: close some."
        raise Refusal(503, "TOO_MANY_STREAMS", what)


class Page:
    """The page of one broker."""

    def __init__(self, broker: Broker) -> None:
        """Open the history in the data directory; a broker without one keeps it in memory."""
        folder = broker.config.log_dirs
        self._broker = broker
        self._facts = Facts(broker)
        self._history = History(folder / "history.db" if folder.is_dir() else None)
        self._sampler = Sampler(self._facts, self._history)
        self._resets = reset.Resets(broker, self._facts)
        self._trends: dict[str, tuple[int, Trends]] = {}
        """When it was made, and what it is, by pipeline."""
        self._streams: Counter[str] = Counter()
        """How many there are, by principal."""
        self._bootstrap = str(broker.kafka_address)
        self._starts = how_started(sys.argv, Path.cwd())

    async def run(self) -> None:
        """Keep the history, until cancelled."""
        try:
            await self._sampler.run()
        finally:
            await asyncio.to_thread(self._history.close)

    def routes(self) -> list[Route]:
        """The paths of the page."""
        asks = ByHandler(DESCRIBE)
        return [
            self._page("/", self.overview, asks),
            self._page("/pipelines/{name:path}", self.pipeline, asks),
            self._page("/topics", self.topics, asks),
            self._page("/topics/{name}", self.topic, asks),
            self._page("/groups", self.groups, asks),
            self._page("/groups/{name:path}", self.group, asks),
            self._page("/reset/{name:path}", self.reset, asks),
            *self._resets.routes(),
            self._page("/transactions", self.transactions, asks),
            self._page("/brokers", self.brokers, OfCluster(DESCRIBE)),
            self._page("/drills", self.drills, OfCluster(DESCRIBE)),
            self._page("/drills/{name}", self.drill, OfCluster(DESCRIBE)),
            self._page("/timeline", self.timeline, asks),
            self._page("/audit", self.audit, OfCluster(Operation.ALTER)),
            entry(self._broker, "/history", self.history, asks),
            entry(self._broker, "/static/{name}", self.static, Free()),
        ]

    def _page(self, path: str, build: Build, asks: Asks) -> Route:
        """A path in its three forms; errors are shown to people as a page."""

        async def handle(request: Request, caller: Caller) -> Response:
            self._check_logged_in(caller)
            asked = PageQuery.of(request.query_params)

            async def make() -> View:
                view = aimed(await build(caller, request.path_params, asked), self._bootstrap)
                may_start = caller.may_with(DESCRIBE, THE_CLUSTER)
                return replace(view, starts=self._starts if may_start else "")

            form = _form(request)
            if form == "stream":
                return await self._stream(caller.principal, make)
            view = await make()
            if form == "json":
                body = msgspec.json.encode(view)
                return Response(body, media_type="application/json", headers=_HEADERS)
            return HTMLResponse(await asyncio.to_thread(drawn, view), headers=_HEADERS)

        plain = entry(self._broker, path, handle, asks)

        async def serve(request: Request) -> Response:
            try:
                return await plain.endpoint(request)  # type: ignore[no-any-return]
            except CatchwaterError as error:
                reply = await operating_error(request, error)
                if "text/html" not in request.headers.get("accept", ""):
                    return reply
                headers = dict(_HEADERS)
                if "www-authenticate" in reply.headers:
                    headers["www-authenticate"] = reply.headers["www-authenticate"]
                return HTMLResponse(drawn_error(error), reply.status_code, headers)

        return Route(path, serve, methods=["GET"])

    def _check_logged_in(self, caller: Caller) -> None:
        """Have the browser ask who it is, rather than show a page of nothing."""
        if self._broker.guard is not None and caller.principal == ANONYMOUS:
            if not caller.may_with(DESCRIBE, THE_CLUSTER):
                raise Refusal(401, "NOT_AUTHENTICATED", "Log in to see this page.")

    # --- streams ---------------------------------------------------------------------------------

    async def _stream(self, principal: str, make: Callable[[], Awaitable[View]]) -> Response:
        check_streams(self._streams, principal)
        first = await make()
        return StreamingResponse(
            self._events(first, principal, make), media_type="text/event-stream", headers=_HEADERS
        )

    async def _events(
        self, view: View, principal: str, make: Callable[[], Awaitable[View]]
    ) -> AsyncIterator[bytes]:
        clock, sent = self._broker.clock, dict[str, str]()
        ends_s = clock.monotonic_s() + STREAM_S
        self._streams[principal] += 1
        try:
            yield b"retry: 1000\n\n"
            while not self._broker.draining.is_set():
                parts = await asyncio.to_thread(parts_of, view)
                changed = {key: part for key, part in parts.items() if sent.get(key) != part}
                sent = parts
                body = {
                    "at": view.at_ms, "about": view.about, "order": list(parts), "parts": changed,
                }  # fmt: skip
                yield b"data: " + msgspec.json.encode(body) + b"\n\n"
                if clock.monotonic_s() >= ends_s:
                    return
                wait_s = EVERY_S * max(1.0, self._streams.total() / _STREAMS_AT_EASE)
                never = asyncio.get_running_loop().create_future()
                await self._broker.wait_unless_draining(never, wait_s)
                try:
                    view = await make()
                except CatchwaterError:  # the page asks again, and is told why
                    return
        finally:
            self._streams[principal] -= 1
            if not self._streams[principal]:
                del self._streams[principal]

    # --- pages -----------------------------------------------------------------------------------

    async def overview(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/`"""
        events = [e for e in await self._events_of(None) if _may_see(caller, e)]
        reports = await self._reports(caller)
        return of_pipelines.overview(
            of_pipelines.Overview(
                reports,
                await self._log_lines() if caller.may_with(DESCRIBE, THE_CLUSTER) else [],
                [g for g in await self._facts.groups() if caller.may_group(DESCRIBE, g.name)],
                events,
                [t for t in await self._facts.topics() if caller.may(DESCRIBE, t.name)],
                {each.name: await self._trends_of(each.name) for each in reports[:_MOST_TRENDS]},
            ),
            self._facts.now_ms,
        )

    async def pipeline(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/pipelines/{name}`"""
        name = path["name"]
        caller.check_pipeline(DESCRIBE, name)
        found = await self._facts.report(name)
        if found is None:
            raise Refusal(404, "NO_REPORT", f"No pipeline {name} has reported to this log.")
        is_open = caller.may_with(DESCRIBE, THE_CLUSTER)
        drills = await self._drills()
        seen = of_pipelines.PipelinePage(
            found,
            await self._transaction_lines() if is_open else [],
            await self._load_lines() if is_open else [],
            await self._events_of(f"pipeline {name}"),
            list(drills.results.items())[-1] if drills.results and is_open else None,
            await self._trends_of(name),
        )
        return of_pipelines.pipeline(seen, self._facts.now_ms)

    async def topics(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/topics`"""
        found = [t for t in await self._facts.topics() if caller.may(DESCRIBE, t.name)]
        kept_ms = self._broker.config.log_retention_ms
        return of_log.topics(found, asked, self._facts.now_ms, kept_ms)

    async def topic(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/topics/{name}`"""
        name = path["name"]
        caller.check(DESCRIBE, name)
        topic = await find(self._broker, name)
        sums = await self._facts.topic(name)
        if sums is None:
            raise Refusal(404, "UNKNOWN_TOPIC", f"There is no topic {name}.")
        groups = []
        for group in await self._facts.groups():
            if name in group.lags and caller.may_group(DESCRIBE, group.name):
                groups.append((group.name, group.lags[name]))
        pins = [
            pin
            for pin in await self._facts.pins()
            if name in {at for at, _ in pin.positions}
            and all(caller.may(DESCRIBE, at) for at, _ in pin.positions)
        ]
        partitions = await self._facts.partitions(topic)
        table = await self._facts.table(topic)
        seen = of_log.TopicPage(sums, partitions, sorted(groups, key=_by_lag), pins, table)
        return of_log.topic(seen, asked, self._facts.now_ms)

    async def groups(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/groups`"""
        found = [g for g in await self._facts.groups() if caller.may_group(DESCRIBE, g.name)]
        return of_log.groups(found, asked, self._facts.now_ms)

    async def group(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/groups/{name}`"""
        name = path["name"]
        caller.check_group(DESCRIBE, name)
        fact = await self._facts.group(name)
        if fact is None:
            raise Refusal(404, "GROUP_ID_NOT_FOUND", f"There is no group {name}.")
        positions = [p for p in await self._facts.positions(name) if caller.may(DESCRIBE, p.topic)]
        form = reset.form(name) if caller.may_group(Operation.READ, name) else None
        seen = of_log.GroupPage(fact, self._facts.members(name), positions, form)
        return of_log.group(seen, asked, self._facts.now_ms)

    async def reset(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/reset/{name}`: what moving a group would do."""
        name, moves, problem = path["name"], list[Move](), None
        caller.check_group(DESCRIBE, name)
        try:
            if asked.to:
                moves = await self._resets.plan(caller, name, asked.to, asked.topics.split())
        except Refusal as refused:
            problem = refused
        may = caller.may_group(Operation.READ, name)
        may = may and all(caller.may(Operation.READ, each.topic) for each in moves)
        shown = reset.DryRunResult(asked.to, asked.topics, moves, problem, may, caller.principal)
        return reset.view(name, shown, self._facts.now_ms)

    async def transactions(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/transactions`"""
        rows = [
            row
            for row in await self._facts.transactions()
            if _may(caller, ResourceType.TRANSACTIONAL_ID, row.transactional_id)
        ]
        is_open = [row for row in rows if row.state in of_log.OPEN]
        opened: dict[int, list[tuple[str, OpenTxnRow]]] = {}
        for row in sorted(is_open, key=lambda row: row.started_ms)[:_OPEN_SHOWN]:
            found = await self._facts.open_on(row.producer_id)
            named = [(self._broker.log.topics.name_of(at.topic_id) or "", at) for at in found]
            opened[row.producer_id] = [n for n in named if n[0] and caller.may(DESCRIBE, n[0])]
        return of_log.transactions(rows, opened, asked, self._facts.now_ms)

    async def brokers(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/brokers`"""
        pins, wal_age_s = await self._facts.pins(), await self._facts.wal_age_s()
        seen = self._broker_seen()._replace(pins=pins, wal_age_s=wal_age_s)
        return of_log.brokers(seen, self._facts.now_ms, self._history.problem)

    async def drills(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/drills`"""
        return of_pipelines.drills(await self._drills(), asked, self._facts.now_ms)

    async def drill(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/drills/{name}`"""
        result = (await self._drills()).results.get(path["name"])
        if result is None:
            raise Refusal(404, "NO_RESULT", f"There is no result {path['name']}.")
        return of_pipelines.drill(result, self._facts.now_ms)

    async def timeline(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/timeline`"""
        events = [each for each in await self._events_of(None) if _may_see(caller, each)]
        return of_pipelines.timeline(events, self._facts.now_ms)

    async def audit(self, caller: Caller, path: Mapping[str, str], asked: PageQuery) -> View:
        """`/audit`"""
        found = await self._facts.audit()
        return of_log.audit(found, asked, self._facts.now_ms, self._broker.config.audit_folder)

    # --- what several pages need -----------------------------------------------------------------

    async def _reports(self, caller: Caller) -> list[PipelineStatus]:
        kind = ResourceType.TRANSACTIONAL_ID
        return [each for each in await self._facts.reports() if _may(caller, kind, each.name)]

    def _broker_seen(self) -> of_log.BrokersPage:
        now, before, over_s = self._sampler.recent()
        return of_log.BrokersPage(
            self._broker.config.node_id, self._facts.brokers(), now, before, over_s,
            self._facts.wal(), self._facts.objects_url(), [],
        )  # fmt: skip

    async def _load_lines(self) -> list[Line]:
        seen = self._broker_seen()._replace(wal_age_s=await self._facts.wal_age_s())
        return [*of_log.load(seen)[:3], *of_log.wal_lines(seen)[2:5], of_log.store_line(seen)]

    async def _log_lines(self) -> list[Line]:
        topics = list(await self._facts.topics())
        seen = self._broker_seen()
        load = of_log.load(seen)
        return [
            Line("brokers", words.count(len(seen.brokers)), href="/brokers"),
            Line(
                "topics", words.count(len(topics)), href="/topics",
                note=words.size(sum(topic.size_bytes for topic in topics)),
            ),
            Line("written", words.rate(_sum(t.per_s for t in topics), "records")),
            *await self._transaction_lines(),
            load[0], load[1],
            of_log.wal_lines(seen)[4],
        ]  # fmt: skip

    async def _transaction_lines(self) -> list[Line]:
        rows = [r for r in await self._facts.transactions() if r.state in of_log.OPEN]
        oldest_ms = min((row.started_ms for row in rows), default=0)
        age = f"oldest {words.ago(oldest_ms, self._facts.now_ms)}" if rows else ""
        errors = round(self._facts.broker_now().txn_errors)
        note = ", ".join(filter(None, (age, f"{errors} refused since the start" if errors else "")))
        return [Line("transactions open", words.count(len(rows)), href="/transactions", note=note)]

    async def _drills(self) -> Drills:
        folder = self._broker.config.catchwater_drills_dir
        if folder is None:
            return Drills(None, {})
        results, damaged = await asyncio.to_thread(load_results, folder)
        return Drills(
            folder,
            {path.name: result for path, result in results.items()},
            {path.name: why for path, why in damaged.items()},
        )

    async def _trends_of(self, name: str) -> Trends:
        """Of one pipeline, for as long as a sample is the newest."""
        now_ms = self._facts.now_ms
        kept = self._trends.get(name)
        if kept is None or now_ms - kept[0] >= 1000 * sampler.EVERY_S:
            if len(self._trends) >= _MOST_TRENDS:
                self._trends.clear()

            def read(series: str) -> list[float | None]:
                return self._history.trend(series, now_ms)

            found = await asyncio.to_thread(of_pipelines.trends_of, name, read)
            kept = self._trends[name] = now_ms, found
        return kept[1]

    async def _events_of(self, subject: str | None) -> list[Event]:
        return await asyncio.to_thread(self._history.events, subject)

    # --- history and files -----------------------------------------------------------------------

    async def history(self, request: Request, caller: Caller) -> Response:
        """`/history?series=…&span=hour`: times, means and peaks, for plots."""
        names = request.query_params.getlist("series")[:_MOST_SERIES]
        for name in names:
            _check_series(caller, name)
        span_ms = SPANS.get(request.query_params.get("span", ""), HOUR_MS)
        plot: Plot = await asyncio.to_thread(self._history.read, names, span_ms, self._facts.now_ms)
        return json_reply(plot._asdict())

    async def static(self, request: Request, caller: Caller) -> Response:
        """`/static/{name}`: our own files, the same for ever under their address."""
        found = static_files().get(request.path_params["name"])
        if found is None:
            raise Refusal(404, "NOT_FOUND", "There is no such file.")
        kind = _KINDS[request.path_params["name"].rpartition(".")[2]]
        headers = _HEADERS | {"cache-control": "public, max-age=31536000, immutable"}
        return Response(found, media_type=kind, headers=headers)


def how_started(arguments: Sequence[str], folder: Path) -> str:
    """What starts this process again, if it is `catchwater broker run …`; else nothing."""
    words = list(arguments[1:])
    if words[:2] != ["broker", "run"]:
        return ""
    return f"cd {shlex.quote(str(folder))} && catchwater {shlex.join(words)}"


def _form(request: Request) -> str:
    """Which of the three forms is accepted."""
    accept = request.headers.get("accept", "")
    if "text/event-stream" in accept:
        return "stream"
    return "json" if "application/json" in accept and "text/html" not in accept else "html"


def _sum(rates: Iterable[float | None]) -> float | None:
    """None where none of them is known."""
    known = [each for each in rates if each is not None]
    return sum(known) if known else None


def _by_lag(each: tuple[str, int]) -> tuple[int, str]:
    return -each[1], each[0]


def _may(caller: Caller, kind: ResourceType, name: str) -> bool:
    return caller.may_with(DESCRIBE, Resource(kind, name))


def _may_see(caller: Caller, event: Event) -> bool:
    if event.of.startswith("pipeline "):
        name = event.of.removeprefix("pipeline ")
        return _may(caller, ResourceType.TRANSACTIONAL_ID, name)
    return caller.may_with(DESCRIBE, THE_CLUSTER)


def _check_series(caller: Caller, name: str) -> None:
    kind, _, rest = name.partition("/")
    subject = rest.rpartition("/")[0]
    if kind == "pipeline":
        caller.check_pipeline(DESCRIBE, subject)
    elif kind == "group":
        caller.check_group(DESCRIBE, subject)
    else:
        caller.check_cluster(DESCRIBE)


# --- drawing -------------------------------------------------------------------------------------


@cache
def static_files() -> Mapping[str, bytes]:
    """Every file of `static`, and the colours that the readiness report has too."""
    found = {
        each.name: each.read_bytes() for each in (files("catchwater.web") / "static").iterdir()
    }
    return found | {"palette.css": PALETTE.encode()}


@cache
def static_href(name: str) -> str:
    """The address of a file, which changes with it."""
    digest = hashlib.sha256(static_files()[name]).hexdigest()[:12]
    return f"/static/{name}?{digest}"


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("catchwater.web"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.policies["json.dumps_kwargs"] = {"sort_keys": False}
    made.globals |= {"NAV": NAV, "SIGNS": SIGNS, "static": static_href, "query": query_of}
    made.globals["points"] = points
    made.filters["clock"] = lambda at_ms: words.moment(at_ms)[11:]
    return made


_TREND_X, _TREND_Y = 120.0, 26.0
_LEAST_KNOWN = 4


class Drawn(NamedTuple):
    """A trend as the points of lines, each without a gap, and the height of its bound."""

    lines: list[str]
    most: str | None


def points(trend: Trend) -> Drawn | None:
    """None where there is not enough to see anything."""
    known = [value for value in trend.values if value is not None]
    if len(known) < _LEAST_KNOWN:
        return None
    top = max(known)
    most = trend.most if trend.most is not None and trend.most <= 2 * top else None
    high = 1.15 * max(top, most or 0.0) or 1.0

    def y(value: float) -> str:
        return f"{_TREND_Y - 1.5 - (_TREND_Y - 3) * value / high:.1f}"

    lines, line = list[list[str]](), list[str]()
    for at, value in enumerate(trend.values):
        if value is None:
            lines, line = ([*lines, line] if len(line) > 1 else lines), []
        else:
            line.append(f"{_TREND_X * at / (len(trend.values) - 1):.1f},{y(value)}")
    lines += [line] if len(line) > 1 else []
    return Drawn([" ".join(each) for each in lines], None if most is None else y(most))


def parts_of(view: View) -> dict[str, str]:
    """The parts of a page, by the ids of their elements, in order."""
    macros: Any = _templates().get_template("parts.html").module
    found = {"pipelines": str(macros.pipelines(view))} if view.pipelines else {}
    return found | {f"panel-{panel.id}": str(macros.panel(panel)) for panel in view.panels}


def drawn(view: View) -> str:
    """The whole page."""
    return _templates().get_template("page.html").render(view=view, parts=parts_of(view))


def drawn_error(error: CatchwaterError) -> str:
    """An error, as a page."""
    return _templates().get_template("error.html").render(message=str(error), hint=error.hint)
