"""What can go wrong with a change or a query of the catalog.

`CatalogFailure` is what may happen to any request: a caller that can wait catches
`CatalogRetriable`. The others are answers to a certain request.
"""

from catchwater.config import CatchwaterError


class CatalogFailure(CatchwaterError):
    """The catalog could not do what it was asked, for a reason that is not the request's."""


class CatalogDead(CatalogFailure):
    """The catalog's storage failed, so what it holds is unknown: it takes no more changes."""


class CatalogRetriable(CatalogFailure):
    """A failure that may pass: the same request may succeed later."""


class CatalogFull(CatalogRetriable):
    """No space for the change; it was rolled back."""


class CatalogUnavailable(CatalogRetriable):
    """The database did not answer, or refused, in all the tries; nothing was changed."""


class CatalogUncertain(CatalogRetriable):
    """The connection was lost while a transaction was committed: it may have happened or not."""


class CatalogRefused(CatchwaterError):
    """The database cannot hold a value it was given (text with a NUL); nothing was changed."""


class CatalogTooNew(CatchwaterError):
    """The catalog was written by a newer release; this one will not touch it."""


class SessionFenced(CatchwaterError):
    """This broker's session was superseded; nothing it still has in hand may be acknowledged."""


class BrokerRefused(CatchwaterError):
    """The broker may not join: its write-ahead log, or that of one already there, is its own, or
    they are not of one kind.
    """


class CoordinatorMoved(CatchwaterError):
    """Another broker coordinates the group now; nothing was changed."""


class TopicExists(CatchwaterError):
    """A topic of that name is already there."""


class TopicCollides(CatchwaterError):
    """A topic is there whose name differs in `.` and `_` only."""


class TopicUnknown(CatchwaterError):
    """No topic of that name or id."""


class EpochGap(CatchwaterError):
    """A sink epoch is neither the next one nor one of the recorded ones."""


class WriterFenced(CatchwaterError):
    """A sink's epoch comes from a driver in whose place another one writes by now."""


class RunsChanged(CatchwaterError):
    """The runs to be replaced are no longer what the caller saw; look again."""


class TooManyReports(CatchwaterError):
    """As many pipelines as there may be have reported already."""
