"""The command line: a noun, a verb, data on stdout, talk on stderr.

Exit codes: 0 good, 1 error, 2 usage, 3 a check warns, 4 a check fails, 5 refused because state or
history would be lost, 124 timeout.
"""

from catchwater.cli.app import main

__all__ = ["main"]
