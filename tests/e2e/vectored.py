"""Functions whose vectors are run both by the harness and by a pipeline."""

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

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


class Kind(Enum):
    CARD = "card"
    CASH = "cash"


@dataclass
class Paid:
    account: UUID
    kind: Kind
    id: str
    at: int
    cents: int


@dataclass
class Told:
    account: UUID
    id: str
    what: str


@dataclass
class Account:
    count: int = 0
    ids: list[str] = field(default_factory=list)
    recent: ListState[int] = list_state(ttl="2s", max=5)
    by_kind: MapState[tuple[Kind, int], int] = map_state(ttl="3s")
    totals: MapState[str, int] = map_state()
    last: ValueState[Paid] = value_state(ttl="1s")


@function(
    name="accounts", key=("account", "kind"), event_time="at", watermark="500ms", dedup="id",
    dedup_ttl="5s", state_ttl="10s", poison="skip", output_id=("account", "id", "what"),
)  # fmt: skip
class Accounts(Keyed[Paid, Account, Told]):
    def on_event(self, e: Paid, s: Account, ctx: Context) -> Out[Told]:
        s.count += 1
        s.recent.append(e.cents)
        digit = e.cents % 7
        s.by_kind[e.kind, digit] = s.by_kind.get((e.kind, digit), 0) + 1
        s.totals[str(digit)] = s.totals.get(str(digit), 0) + e.cents
        ctx.timer(f"sum {digit}", e.at + 700 + e.cents % 400)
        if e.cents % 13 == 0:
            ctx.cancel_timer("sum 0")
        if e.cents % 29 == 0:
            raise ValueError(f"{e.cents} cents cannot be")
        yield self.told(e.id, s, ctx)
        s.last.set(e)

    def on_timer(self, name: str, at: int, s: Account, ctx: Context) -> Out[Told]:
        s.ids = [*s.ids, name][-3:]
        s.totals.pop(name[4:], None)
        return [self.told(f"{name}@{at}", s, ctx)]

    def told(self, id: str, s: Account, ctx: Context) -> Told:
        last = s.last.get()
        seen = [
            s.count, s.ids, list(s.recent), len(s.recent),
            [(kind.value, digit, n) for (kind, digit), n in s.by_kind.items()], len(s.by_kind),
            list(s.totals.items()), len(s.totals), last and last.id, ctx.random.randrange(1000),
        ]  # fmt: skip
        return Told(ctx.key[0], id, repr(seen))
