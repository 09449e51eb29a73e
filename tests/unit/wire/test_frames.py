"""Frames: any chopping of the stream gives the same ones, and none is overwritten while held."""

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.wire.frames import ArenaPool, Frame, FrameBuffer, FrameError, prefixed

SMALL_ARENA_BYTES = 256


def feed(buffer: FrameBuffer, data: bytes, chops: list[int]) -> list[Frame]:
    """Write `data` as a socket would: at most the next chop, at most what the buffer takes."""
    frames: list[Frame] = []
    at = turn = 0
    while at < len(data):
        room = buffer.get_buffer(-1)
        assert len(room) > 0
        size = min(len(room), len(data) - at, chops[turn % len(chops)])
        turn += 1
        room[:size] = data[at : at + size]
        at += size
        frames += buffer.receive(size)
    return frames


def stream(bodies: list[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


bodies_of_all_sizes = st.lists(
    st.one_of(st.binary(min_size=1, max_size=20), st.binary(min_size=200, max_size=900)),
    max_size=20,
)
chops_of_all_sizes = st.lists(st.integers(1, 400), min_size=1, max_size=10)


@settings(deadline=None)
@given(bodies_of_all_sizes, chops_of_all_sizes)
def test_any_chopping_of_a_stream_gives_the_same_frames(
    bodies: list[bytes], chops: list[int]
) -> None:
    buffer = FrameBuffer(1000, ArenaPool(SMALL_ARENA_BYTES))
    frames = feed(buffer, stream(bodies), chops)
    assert [bytes(frame.data) for frame in frames] == bodies


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=600), st.integers(0, 5)), max_size=40),
    chops_of_all_sizes,
    st.integers(1, 3),
)
def test_a_frame_is_never_overwritten_while_it_is_held(
    script: list[tuple[bytes, int]], chops: list[int], connections: int
) -> None:
    pool = ArenaPool(SMALL_ARENA_BYTES, keep=3)
    buffers = [FrameBuffer(1000, pool) for _ in range(connections)]
    held: list[tuple[bytes, Frame]] = []
    for turn, (body, released) in enumerate(script):
        (frame,) = feed(buffers[turn % connections], stream([body]), chops)
        held.append((body, frame))
        for _ in range(min(released, len(held))):
            held.pop(turn % len(held))[1].release()
        assert all(bytes(frame.data) == body for body, frame in held)


def test_an_arena_is_used_again_once_its_frames_are_released() -> None:
    pool = ArenaPool(SMALL_ARENA_BYTES)
    first = feed(FrameBuffer(1000, pool), stream([b"first"]), [100])
    arena = first[0].arena
    first[0].release()
    second = feed(FrameBuffer(1000, pool), stream([b"other"]), [100])
    assert second[0].arena is arena


def test_frames_of_one_connection_share_an_arena_while_one_of_them_is_held() -> None:
    buffer = FrameBuffer(1000, ArenaPool(SMALL_ARENA_BYTES))
    frames = [frame for body in (b"a", b"b", b"c") for frame in feed(buffer, stream([body]), [99])]
    assert len({id(frame.arena) for frame in frames}) == 1


def test_a_connection_at_rest_holds_no_arena() -> None:
    pool = ArenaPool(SMALL_ARENA_BYTES)
    for frame in feed(FrameBuffer(1000, pool), stream([b"a", b"b"]), [99]):
        frame.release()
    assert len(pool._free) == 1


def test_closing_returns_the_arena_of_an_unfinished_frame() -> None:
    pool = ArenaPool(SMALL_ARENA_BYTES)
    buffer = FrameBuffer(1000, pool)
    assert feed(buffer, stream([b"unfinished"])[:-1], [99]) == []
    assert pool._free == []
    buffer.close()
    buffer.close()
    assert len(pool._free) == 1


def test_the_pool_keeps_no_more_arenas_than_it_was_told_and_no_large_ones() -> None:
    pool = ArenaPool(SMALL_ARENA_BYTES, keep=2)
    bodies = [b"x" * 200] * 5 + [b"x" * 900]
    for frame in feed(FrameBuffer(1000, pool), stream(bodies), [99]):
        frame.release()
    assert [len(arena.view) for arena in pool._free] == [SMALL_ARENA_BYTES] * 2


def test_a_frame_released_twice_is_a_bug_that_is_caught() -> None:
    (frame,) = feed(FrameBuffer(1000, ArenaPool()), stream([b"once"]), [99])
    frame.release()
    with pytest.raises(AssertionError):
        frame.release()


@pytest.mark.parametrize("length", [0, -1, -(2**31), 1001, 2**31 - 1])
@pytest.mark.parametrize("chop", [1, 100])
def test_a_length_out_of_bounds_is_refused_as_soon_as_it_is_read(length: int, chop: int) -> None:
    pool = ArenaPool(SMALL_ARENA_BYTES)
    buffer = FrameBuffer(1000, pool)
    with pytest.raises(FrameError, match=f"{length} bytes"):
        feed(buffer, stream([b"good"]) + struct.pack(">i", length), [chop])
    buffer.close()


def test_frames_completed_by_the_same_bytes_as_a_refused_one_are_given_up() -> None:
    pool = ArenaPool(SMALL_ARENA_BYTES)
    buffer = FrameBuffer(1000, pool)
    with pytest.raises(FrameError):
        feed(buffer, stream([b"good"]) + b"GET / HTTP/1.1", [100])
    buffer.close()
    assert len(pool._free) == 1


def test_an_announced_frame_takes_memory_only_as_its_bytes_arrive() -> None:
    def resident_bytes() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    tracemalloc.start()
    before = resident_bytes()
    pool = ArenaPool()
    buffers = [FrameBuffer(100 * 1024 * 1024, pool) for _ in range(50)]
    for buffer in buffers:
        feed(buffer, struct.pack(">i", 100 * 1024 * 1024), [4])
        assert len(buffer.get_buffer()) > 0
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert allocated < 1024 * 1024
    assert resident_bytes() - before < 16 * 1024 * 1024
    for buffer in buffers:
        buffer.close()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5))
def test_a_prefixed_reply_is_received_as_one_frame(parts: list[bytes]) -> None:
    if not any(parts):
        parts.append(b"x")
    frames = feed(FrameBuffer(1000, ArenaPool()), b"".join(prefixed(parts)), [7])
    assert [bytes(frame.data) for frame in frames] == [b"".join(parts)]


def test_an_unfinished_frame_says_how_far_it_is() -> None:
    frames = FrameBuffer(1_000, ArenaPool())
    seen = []
    for byte in b"\x00\x00\x00\x03abc\x00":
        frames.get_buffer()[:1] = bytes([byte])
        for frame in frames.receive(1):
            frame.release()
        seen.append(frames.unfinished())
    assert seen == [(1, 0), (2, 0), (3, 0), (4, 3), (5, 3), (6, 3), (0, 0), (1, 0)]
    frames.close()
    assert frames.unfinished() == (0, 0)
