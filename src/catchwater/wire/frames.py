"""Length-prefixed requests out of a byte stream, with their headers, and replies back into one.

Made for asyncio's `BufferedProtocol`, without importing it: the socket writes into `get_buffer`,
`receive` cuts out the frames that became complete. Received bytes are never copied once they lie
in an arena with room for their frame; frames are views of it. First-touch memory is the hidden
cost of receiving, so arenas are recycled through a pool that all connections share.

Promises: a frame's bytes stay as they are until its `release`; a frame that was only announced
costs address space, not memory, because arenas are anonymous mappings that the kernel fills page
by page as bytes arrive; a connection at rest, all its frames released, holds no arena. Not
thread-safe: all connections of a pool, and the releases of their frames, belong to one thread.
"""

import mmap
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

import msgspec

from catchwater.config import CatchwaterError
from catchwater.wire.fields import Buffer, MalformedMessage

ARENA_BYTES = 2 * 1024 * 1024

_PREFIX, _PREFIX_AND_KEY = Struct(">i"), Struct(">ih")
_PREFIX_BYTES, _PREFIX_AND_KEY_BYTES = _PREFIX.size, _PREFIX_AND_KEY.size
_NO_KEY = -1
_REQUEST_HEADER = Struct(">hhih")
"""API key, version, correlation id, length of the client id."""
# With less than a 128th of an arena left, it is cheaper to begin the next frame in another.
_LEAST_ROOM_DIVISOR = 128
_CLIENT_IDS, _USUAL_CLIENT_ID = 1024, 255
"""How many are remembered, and up to how many bytes each."""


class FrameError(CatchwaterError):
    """The stream cannot be cut into frames any more; the connection must be closed."""


class Arena:
    """A piece of memory that several frames of one connection lie in."""

    __slots__ = ("_pool", "holders", "lease", "view")

    def __init__(self, pool: "ArenaPool", size_bytes: int) -> None:
        mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(mapping)
        # Frames not yet released, and one more while the connection still receives into it.
        self.holders = 0
        # Grows each time the arena becomes free: a former holder sees that it has been lent anew.
        self.lease = 0
        self._pool = pool

    def drop(self) -> None:
        """Give up one hold; the last one returns the arena to its pool."""
        assert self.holders > 0, "an arena was released more often than it was held"
        self.holders -= 1
        if not self.holders:
            self.lease += 1
            self._pool.put(self)


class ArenaPool:
    """The free arenas of a server: at most `keep` of `arena_bytes` each wait for reuse."""

    def __init__(self, arena_bytes: int = ARENA_BYTES, keep: int = 16) -> None:
        self.arena_bytes = arena_bytes
        self._keep = keep
        self._free: list[Arena] = []

    def take(self, at_least_bytes: int) -> Arena:
        """A free arena; one larger than `arena_bytes` will not be recycled."""
        if at_least_bytes <= self.arena_bytes and self._free:
            return self._free.pop()
        return Arena(self, max(at_least_bytes, self.arena_bytes))

    def put(self, arena: Arena) -> None:
        if len(arena.view) == self.arena_bytes and len(self._free) < self._keep:
            self._free.append(arena)


class Frame(msgspec.Struct, eq=False, gc=False):
    """One request without its length prefix. `data` may be read until `release`."""

    data: memoryview
    size_bytes: int
    api_key: int
    """The first number in it; of a frame of one byte it is some number."""
    arena: Arena
    """Held for this frame by who makes it."""

    def release(self) -> None:
        """The bytes are no longer needed, nor any view of them. To be called exactly once."""
        self.arena.drop()


class FrameBuffer:
    """The receiving half of one connection.

    `max_frame_bytes` may be changed at any time, as when a client has authenticated.
    """

    def __init__(self, max_frame_bytes: int, arenas: ArenaPool) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._arenas = arenas
        self._arena: Arena | None = None
        # Invariant: the arena is held while bytes of an unfinished frame lie in it or may be
        # written to it. If it is not, frames may still keep it alive, which the lease tells.
        self._holding = False
        self._lease = 0
        # The unfinished frame, prefix included, lies at [start, end) of the arena.
        self._start = 0
        self._end = 0

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Where the next bytes from the socket go; never empty. `hint` is not needed."""
        received = self._end - self._start
        wanted = max(_PREFIX.size, self._arenas.arena_bytes // _LEAST_ROOM_DIVISOR)
        arena = self._current_arena()
        if arena is not None and received >= _PREFIX.size:
            wanted = _PREFIX.size + _PREFIX.unpack_from(arena.view, self._start)[0]
        if arena is None or self._start + wanted > len(arena.view):
            arena = self._move(arena, received, wanted)
        return arena.view[self._end :]

    def receive(self, size_bytes: int) -> list[Frame]:
        """The frames that the `size_bytes` just written into the buffer have completed.

        Raises `FrameError` for a length that is not positive or beyond `max_frame_bytes`; then
        frames completed by the same bytes are given up, as the connection is.
        """
        arena = self._arena
        assert arena is not None and self._holding, "bytes were received without a buffer"
        view, start = arena.view, self._start
        end = self._end = self._end + size_bytes
        frames: list[Frame] = []
        while end - start >= _PREFIX_BYTES:
            body = start + _PREFIX_BYTES
            if end - start >= _PREFIX_AND_KEY_BYTES:
                length, api_key = _PREFIX_AND_KEY.unpack_from(view, start)
            else:
                length, api_key = _PREFIX.unpack_from(view, start)[0], _NO_KEY
            if not 0 < length <= self.max_frame_bytes:
                for frame in frames:
                    frame.release()
                raise FrameError(
                    f"A frame of {length} bytes was announced; this listener takes from 1 to "
                    f"{self.max_frame_bytes}.",
                    hint="Is the client speaking TLS, HTTP or another protocol?",
                )
            if body + length > end:
                break
            start = body + length
            arena.holders += 1
            frames.append(Frame(view[body:start], length, api_key, arena))
        self._start = start
        if start == end:
            self._let_go()
        return frames

    def unfinished(self) -> tuple[int, int]:
        """What has come of a frame that is not whole yet, its prefix included, and how long it says
        it will be; 0 as long as it has not said so.
        """
        come_bytes = self._end - self._start
        if self._arena is None or come_bytes < _PREFIX.size:
            return come_bytes, 0
        return come_bytes, _PREFIX.unpack_from(self._arena.view, self._start)[0]

    def close(self) -> None:
        """Drop what was received of an unfinished frame; frames handed out stay valid."""
        self._let_go()
        self._arena = None
        self._start = self._end = 0

    def _current_arena(self) -> Arena | None:
        """The arena to go on with, held; none if the frames in it were all released meanwhile."""
        arena = self._arena
        if self._holding or arena is None:
            return arena
        if arena.lease != self._lease:
            return None
        self._hold(arena)
        return arena

    def _move(self, old: Arena | None, received: int, wanted: int) -> Arena:
        """Go on in an arena with room for the unfinished frame, taking along what came of it."""
        new = self._arenas.take(wanted)
        if old is not None:
            new.view[:received] = old.view[self._start : self._end]
            self._let_go()
        self._hold(new)
        self._start, self._end = 0, received
        return new

    def _hold(self, arena: Arena) -> None:
        arena.holders += 1
        self._arena, self._lease, self._holding = arena, arena.lease, True

    def _let_go(self) -> None:
        if self._holding and self._arena is not None:
            self._holding = False
            self._arena.drop()


class RequestHeader(msgspec.Struct, frozen=True):
    """What precedes every request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    rest_at: int
    """The byte of the frame where the body begins, or, in flexible versions, the header's tagged
    fields, behind which it begins."""


def decode_header(frame: memoryview) -> RequestHeader:
    """The header of the request in `frame`, also of an API or version that does not exist.

    Raises `MalformedMessage`.
    """
    if len(frame) < _REQUEST_HEADER.size:
        raise MalformedMessage(f"A request of {len(frame)} bytes is too short for its header.")
    api_key, api_version, correlation_id, id_bytes = _REQUEST_HEADER.unpack_from(frame)
    # In every version of the header the client id is written the old way.
    if id_bytes == -1:
        return RequestHeader(api_key, api_version, correlation_id, None, _REQUEST_HEADER.size)
    end = _REQUEST_HEADER.size + id_bytes
    if not _REQUEST_HEADER.size <= end <= len(frame):
        raise MalformedMessage(f"A client id of {id_bytes} bytes was announced.")
    decoded = _client_id if id_bytes <= _USUAL_CLIENT_ID else _client_id.__wrapped__
    client_id = decoded(frame[_REQUEST_HEADER.size : end].tobytes())
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)


@lru_cache(_CLIENT_IDS)
def _client_id(encoded: bytes) -> str:
    """A client says the same in each of its requests, so it is decoded once."""
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        raise MalformedMessage("The client id is not UTF-8.") from None


def prefixed(parts: Sequence[Buffer]) -> list[Buffer]:
    """The frame made of `parts`, as buffers to be sent in this order; nothing is copied."""
    if len(parts) == 1:  # as nearly all
        return [_PREFIX.pack(len(parts[0])), parts[0]]
    return [_PREFIX.pack(sum(map(len, parts))), *parts]
