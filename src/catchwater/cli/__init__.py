"""The command line: a noun, a verb, data on stdout, messages on stderr.

Exit codes: 0 good, 1 error, 2 usage, 3 a check warns, 4 a check fails, 5 refused because state or
history would be lost, 124 timeout, 130 interrupted (Ctrl-C).
"""

import sys


def main() -> None:
    """The `catchwater` command; ends with the exit codes above."""
    try:
        # Imported here, so that Ctrl-C during the import shows no traceback either.
        from catchwater.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
