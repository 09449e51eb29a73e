"""The page of a broker: where people look at two in the morning, and every day at nine.

One URL has three forms: a page for people, a stream of its parts for the page that is open, and the
same record as JSON for `catchwater top` and for scripts. `facts` asks the broker, `of_log` and
`of_pipelines` make a `view` of it without asking anybody, `pages` draws it. `history` keeps seven
days of what can be plotted.

A verdict that nobody has given is unknown, and so is one that is too old: nothing is green by
default.
"""
