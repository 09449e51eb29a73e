"""Claims to groups, kept in the catalog that several brokers share.

The brokers agree on who should coordinate a group as far as they agree on who is alive
(`broker/zones.py`); where they do not, the catalog lets only the newest claim commit anything.
"""

from collections.abc import Hashable
from collections.abc import Set as AbstractSet

from catchwater.broker.zones import coordinator
from catchwater.catalog.rows import BrokerRow, GroupClaim
from catchwater.log.log import Log


class LogClaims:
    """The claims of one broker of a shared log; see `coordinator.Claims`."""

    def __init__(self, log: Log, broker_id: int, unreachable: AbstractSet[int]) -> None:
        """`unreachable` are brokers that others had better stand in for; see `peers`."""
        self._log = log
        self._broker_id = broker_id
        self._unreachable = unreachable

    @property
    def view(self) -> tuple[Hashable, Hashable]:
        """This broker's session, and the brokers that may coordinate."""
        brokers = tuple((row.id, row.epoch, row.state) for row in self._brokers())
        return self._log.session, brokers

    def is_mine(self, group_id: str) -> bool:
        """Whether the group's name points to this broker."""
        brokers = self._brokers()
        return bool(brokers) and coordinator(brokers, group_id).id == self._broker_id

    async def take(self, group_id: str) -> GroupClaim:
        """Become the coordinator."""
        return await self._log.claim_group(group_id)

    def _brokers(self) -> list[BrokerRow]:
        return [row for row in self._log.brokers() if row.id not in self._unreachable]

    async def record(self, group_id: str, claim: GroupClaim) -> None:
        """Remember the generation."""
        await self._log.record_generation(group_id, claim)
