"""Claims over a shared log: whose a group is, and what that depends on."""

from typing import Any

from catchwater.broker.coordination.held import LogClaims
from catchwater.catalog.rows import BrokerRow, GroupChanges, GroupRow, Session


class Log:
    def __init__(self) -> None:
        self.session = Session(1, 7)
        self.rows = [
            BrokerRow(number, 7, "", "h", 9092, "", "object", True, "live", number)
            for number in (1, 2)
        ]
        self.kept: list[tuple[str, GroupChanges, int | None]] = []
        self.is_shared = True

    def brokers(self) -> list[BrokerRow]:
        return self.rows

    async def take_group(self, group: str) -> GroupRow:
        return GroupRow(3, 9)

    async def keep_group(self, group: str, changes: GroupChanges, epoch: int | None) -> None:
        self.kept.append((group, changes, epoch))

    async def groups_with_members(self) -> list[str]:
        return ["g"]


async def test_every_group_is_the_claim_of_one_of_the_brokers() -> None:
    log: Any = Log()
    lost: set[int] = set()
    one, two = LogClaims(log, 1, lost), LogClaims(log, 2, set())
    groups = [f"g{number}" for number in range(20)]
    assert all(one.is_mine(group) != two.is_mine(group) for group in groups)
    lost.add(2)
    assert all(one.is_mine(group) for group in groups)
    lost.clear()
    log.rows = [log.rows[0]._replace(state="draining"), log.rows[1]]
    assert not any(one.is_mine(group) for group in groups)
    log.rows = []
    assert not any(two.is_mine(group) for group in groups)


async def test_the_view_changes_with_session_and_brokers_but_not_with_deadlines() -> None:
    log: Any = Log()
    claims = LogClaims(log, 1, set())
    before = claims.view
    log.rows = [row._replace(deadline_ms=99) for row in log.rows]
    assert claims.view == before
    log.session = Session(1, 8)
    assert claims.view[0] != before[0]
    log.rows = log.rows[:1]
    assert claims.view[1] != before[1]


async def test_groups_are_kept_by_the_log() -> None:
    log: Any = Log()
    claims = LogClaims(log, 1, set())
    row = await claims.take("g")
    await claims.save("g", row.epoch, GroupChanges(10))
    assert log.kept == [("g", GroupChanges(10), 3)]
    assert await claims.groups_with_members() == ["g"]


async def test_every_group_is_mine_where_there_is_no_other_broker() -> None:
    log: Any = Log()
    log.is_shared, log.rows = False, []
    claims = LogClaims(log, 1, set())
    assert claims.is_alone
    assert claims.is_mine("g")
