"""Write anew what the pages take from the code: the table of served Kafka APIs."""

from pathlib import Path

from catchwater.broker.router import coverage_table

PAGE = Path(__file__).parent / "protocol.md"
FIRST, LAST = "| key |", "|"


def main() -> None:
    """Replace the table in docs/protocol.md."""
    lines = PAGE.read_text().splitlines(keepends=True)
    rows = [number for number, line in enumerate(lines) if line.startswith(LAST)]
    assert lines[rows[0]].startswith(FIRST), f"{PAGE} has no table of API keys"
    lines[rows[0] : rows[-1] + 1] = [coverage_table()]
    PAGE.write_text("".join(lines))


if __name__ == "__main__":
    main()
