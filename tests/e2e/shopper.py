"""A function that is no operator: every kind of state, and a timer that each event sets anew."""

from dataclasses import dataclass

from catchwater import (
    Context,
    Keyed,
    ListState,
    MapState,
    Out,
    ValueState,
    function,
    list_state,
    map_state,
    value_state,
)

KEYED = {"key": "user", "event_time": "at", "watermark": "5s", "dedup": "id"}
QUIET_MS = 7_000
RECENT = 3


@dataclass
class Visit:
    user: str
    id: str
    at: int
    pages: int = 1


@dataclass
class Shopper:
    visits: int = 0
    recent: ListState[str] = list_state(max=RECENT)
    by_pages: MapState[int, int] = map_state()
    last: ValueState[int] = value_state()


@dataclass
class Told:
    id: str
    user: str
    visits: int
    recent: str
    alike: int


@function(name="shopper", output_id=("id",), **KEYED)
class Shoppers(Keyed[Visit, Shopper, Told]):
    """Tells every visit, and who has not come for a while."""

    def on_event(self, e: Visit, s: Shopper, ctx: Context) -> Out[Told]:
        s.visits += 1
        s.recent.append(e.id)
        s.by_pages[e.pages] = s.by_pages.get(e.pages, 0) + 1
        s.last.set(e.at)
        ctx.timer("quiet", e.at + QUIET_MS)
        yield Told(e.id, e.user, s.visits, " ".join(s.recent), s.by_pages[e.pages])

    def on_timer(self, name: str, at: int, s: Shopper, ctx: Context) -> Out[Told]:
        yield Told(f"quiet-{ctx.key}-{at}", ctx.key, s.visits, "", s.last.get() or 0)
