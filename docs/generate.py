"""Write anew what the pages take from the code: the served Kafka APIs and topic settings."""

import re
from pathlib import Path

from catchwater.broker.router import coverage_table
from catchwater.broker.topic_config import settings_table

PAGE = Path(__file__).parent / "protocol.md"


def main() -> None:
    """Replace the tables in docs/protocol.md; each is known by its first line."""
    text = PAGE.read_text()
    for table in (coverage_table(), settings_table()):
        head = re.escape(table.splitlines()[0])
        pattern = rf"^{head}\n(\|.*\n)+"
        assert len(re.findall(pattern, text, re.MULTILINE)) == 1, f"{PAGE} has no table {head}"
        text = re.sub(pattern, lambda _, new=table: new, text, flags=re.MULTILINE)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
