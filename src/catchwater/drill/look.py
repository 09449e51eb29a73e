"""The look that the readiness report and a broker's page share: verdicts, their signs and colours.

Light or dark as the reader prefers. The colours of text keep a contrast of 4.5 to 1 against their
background (WCAG 2.2, 1.4.3), and no colour stands without a word or a sign.
"""

SIGNS = {
    "ok": "✔", "pass": "✔", "warn": "⚠", "partial": "⚠", "fail": "✘", "blocker": "✘",
    "unknown": "?",
}  # fmt: skip

PALETTE = """
:root { color-scheme: light dark;
  --ink: #1b2430; --soft: #566273; --line: #dfe4ea; --faint: #eef1f4; --paper: #ffffff;
  --ground: #f5f7f9; --link: #1f5fa8; --ok: #1a7f43; --warn: #8f5f00; --fail: #b3261e;
  --ok-bg: #e7f4ec; --warn-bg: #fbf1dc; --fail-bg: #fbe9e7; --unknown-bg: #eceff3;
  --plot-1: #2463a8; --plot-2: #c2571a; --plot-3: #6b7a8c; --plot-4: #7a4fb0; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #dde4ec; --soft: #97a4b4; --line: #2b3541; --faint: #1d252e; --paper: #171e26;
  --ground: #10151b; --link: #7db3ee; --ok: #5cc98a; --warn: #e0b252; --fail: #f28b82;
  --ok-bg: #14301f; --warn-bg: #35290f; --fail-bg: #3a1a18; --unknown-bg: #232c36;
  --plot-1: #6aa9ea; --plot-2: #eb9a5f; --plot-3: #8d9bab; --plot-4: #b394e6; } }
.pass, .ok, .warn, .partial, .fail, .blocker, .unknown { font-weight: 600; }
.pass, .ok { color: var(--ok); } .warn, .partial { color: var(--warn); }
.fail, .blocker { color: var(--fail); } .unknown { color: var(--soft); }
"""
