"""ListTransactions: filters, patterns, and what a caller may know. DescribeTransactions as well."""

from types import SimpleNamespace

import pytest
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.list_transactions.v2.request import ListTransactionsRequest

from catchwater.catalog.rows import TxnRow


@pytest.fixture(autouse=True)
def rows(client) -> None:
    async def rows() -> list[TxnRow]:
        return [
            TxnRow(name, number, 0, "empty", 1000, 0, 2, -1, 0, ())
            for number, name in enumerate(("pay-1", "pay-2", "a)|(b"))
        ]

    async def opened(producer_id: int) -> list[object]:
        return []

    client.log.txns = SimpleNamespace(rows=rows, open_on=opened)


async def listed(client, pattern: str | None = None) -> list[str]:
    reply = await client.send(ListTransactionsRequest(transactional_id_pattern=pattern))
    return [each.transactional_id for each in reply.transaction_states] or reply.error_code.name


async def test_ids_are_matched_whole(client) -> None:
    assert len(await listed(client)) == len(await listed(client, "")) == 3
    assert await listed(client, "pay-.") == ["pay-1", "pay-2"]
    assert await listed(client, "pay-1|x") == ["pay-1"]
    assert await listed(client, "pay") == "none"


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "*"])
async def test_what_is_no_expression_is_refused(client, pattern) -> None:
    assert await listed(client, pattern) == "invalid_regular_expression"


async def test_ids_are_told_to_who_may_know_them(client, deny) -> None:
    deny(("DESCRIBE", "pay-1"))
    assert await listed(client, "pay-.") == ["pay-2"]
    ask = DescribeTransactionsRequest(transactional_ids=("pay-1", "pay-2", "x", ""))
    found = [each.error_code.name for each in (await client.send(ask)).transaction_states]
    assert found == [
        "transactional_id_authorization_failed",
        "none",
        "transactional_id_not_found",
        "invalid_request",
    ]


async def test_a_state_that_no_transaction_is_in_is_still_known(client) -> None:
    asked = ListTransactionsRequest(state_filters=("Dead", "Odd", "PrepareEpochFence"))
    reply = await client.send(asked)
    assert (reply.transaction_states, reply.unknown_state_filters) == ((), ("Odd",))
