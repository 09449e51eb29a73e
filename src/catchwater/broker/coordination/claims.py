"""Groups in the catalog, and of several brokers that share one the claims to them.

The brokers agree on who should coordinate a group as far as they agree on who is alive
(`broker/zones.py`); where they do not, the catalog lets only the newest claim commit anything.
"""

from collections.abc import Hashable
from collections.abc import Set as AbstractSet

from catchwater.broker.zones import coordinator
from catchwater.catalog.rows import BrokerRow, GroupChanges, GroupRow
from catchwater.log.log import Log


class LogClaims:
    """The groups of one broker's log; see `held.Claims`."""

    def __init__(self, log: Log, broker_id: int, unreachable: AbstractSet[int]) -> None:
        """`unreachable` are brokers that others had better stand in for; see `peers`."""
        self._log = log
        self._broker_id = broker_id
        self._unreachable = unreachable

    @property
    def is_alone(self) -> bool:
        """Whether there is no other broker."""
        return not self._log.is_shared

    @property
    def view(self) -> tuple[Hashable, Hashable]:
        """This broker's session, and the brokers that may coordinate."""
        brokers = tuple((row.id, row.epoch, row.state) for row in self._brokers())
        return self._log.session, brokers

    def is_mine(self, group_id: str) -> bool:
        """Whether the group's name points to this broker."""
        if self.is_alone:
            return True
        brokers = self._brokers()
        return bool(brokers) and coordinator(brokers, group_id).id == self._broker_id

    async def take(self, group_id: str) -> GroupRow:
        """Become the coordinator."""
        return await self._log.take_group(group_id)

    async def keep(self, group_id: str, epoch: int | None, changes: GroupChanges) -> None:
        """Leave it to those who follow."""
        await self._log.keep_group(group_id, changes, epoch)

    async def kept(self) -> list[str]:
        """The groups that were left with members."""
        return await self._log.groups_with_members()

    def _brokers(self) -> list[BrokerRow]:
        return [row for row in self._log.brokers() if row.id not in self._unreachable]
