"""What a broker's rules cost: a question asked again, and all questions of one Metadata.

In one process, without sockets: a client's gate under 7,000 rules, half of them the client's own (a
third of these are prefixes, of 38 lengths), 1,000 everybody's, others that nobody asks about. Each
figure stands beside the bound that it has to keep. The last row is the gate of a broker without
rules, which the event loop does not ask at all.
"""

import time

from benchmarks.measure import ROUNDS, publish, row
from catchwater.broker.access import Access, Guard, Rule, Rules
from catchwater.broker.gate import AllowAll, Operation, Resource, ResourceType

TOPIC = ResourceType.TOPIC
ALICE = "User:alice"
TOPICS = [Resource(TOPIC, f"team-{number % 40}-orders-{number}") for number in range(500)]
ASKED = 200_000


def rules() -> list[Rule]:
    """7,000 of them."""
    own = [Rule(ALICE, "ALLOW", "READ", TOPIC, f"team-{n % 40}-orders-{n}") for n in range(2_340)]
    own += [
        Rule(ALICE, "DENY", "WRITE", TOPIC, f"team-{n}-".ljust(3 + n % 38, "x"), "PREFIXED")
        for n in range(1_160)
    ]
    all_ = [Rule("User:*", "DENY", "ALTER", TOPIC, f"team-{n}") for n in range(1_000)]
    others = [Rule(f"User:u{n}", "ALLOW", "ALL", TOPIC, f"t{n}") for n in range(2_500)]
    return own + all_ + others


def main() -> None:
    guard = Guard(None, ["User:admin"])
    given = rules()
    assert len(given) == 7_000
    guard.access = Access({}, Rules(given))

    def cached_us(gate: object) -> float:
        may, resource = gate.may, TOPICS[0]  # type: ignore[attr-defined]
        may(ALICE, Operation.DESCRIBE, resource)
        began_s = time.perf_counter()
        for _ in range(ASKED):
            may(ALICE, Operation.DESCRIBE, resource)
        return (time.perf_counter() - began_s) / ASKED * 1e6

    def cold_ms() -> float:
        gate = guard.gate(ALICE, "10.0.0.1")
        began_s = time.perf_counter()
        assert all(gate.may(ALICE, Operation.DESCRIBE, topic) for topic in TOPICS)
        return (time.perf_counter() - began_s) * 1e3

    def loaded_ms() -> float:
        began_s = time.perf_counter()
        Rules(given)
        return (time.perf_counter() - began_s) * 1e3

    measures = (
        ("a question that was asked before", "µs", lambda: cached_us(guard.gate(ALICE, "h")), 1.0),
        ("Metadata of 500 topics, first asked, 7,000 rules", "ms", cold_ms, 10.0),
        ("7,000 rules that have changed, taken over", "ms", loaded_ms, 100.0),
        ("a question where there are no rules", "µs", lambda: cached_us(AllowAll()), 1.0),
    )
    rows = []
    for claim, unit, measure, bound in measures:
        measure()
        ours = [measure() for _ in range(ROUNDS)]
        rows.append(
            row(claim, unit, ours, f"the bound of {bound:g} {unit}", [bound] * ROUNDS,
                target=1.0, better="lower")
        )  # fmt: skip
    publish("access", rows)


if __name__ == "__main__":
    main()
