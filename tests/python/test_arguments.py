"""Range lists: what counts as an array of offsets, and how a wrong one is refused."""

import array
from typing import Any

import numpy as np
import pytest
from conftest import Link

import stagelink as sl


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 64, 8],
        (0, 64, 8),
        range(0, 24, 8),
        np.array([0, 64, 8], np.uint64),
        np.array([0, 64, 8], np.int64),
        np.array([0, 64, 8], np.int32),
        np.array([0, 64, 8], np.uint16),
        np.array([0, 9, 64, 9, 8, 9], np.uint64)[::2],
        np.array([0, 64, 8], np.int64)[::-1],
        np.frombuffer(b"x" + np.array([0, 64, 8], np.uint64).tobytes(), np.uint64, 3, 1),
        array.array("Q", [0, 64, 8]),
        [np.int64(0), np.uint64(64), np.int32(8)],
    ],
    ids=lambda o: f"{type(o).__name__}-{getattr(o, 'dtype', '')}",
)
def test_integers_of_any_kind_are_offsets(link: Link, offsets: Any) -> None:
    link.session.read(offsets, offsets, 8).wait()
    expected = np.zeros_like(link.local)
    for offset in map(int, offsets):
        expected[offset : offset + 8] = link.remote[offset : offset + 8]
    assert np.array_equal(link.local, expected)


@pytest.mark.parametrize("one", [8, np.int64(8), np.uint64(8), np.array(8)], ids=repr)
def test_one_integer_is_one_range(link: Link, one: Any) -> None:
    link.session.read(one, one, one).wait()
    assert np.array_equal(link.local[8:16], link.remote[8:16])
    assert not link.local[16:].any()


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, -5, 8], r"local_offsets\[1\] = -5"),
        (np.array([0, -5, 8]), r"local_offsets\[1\] = -5"),
        (np.array([0, 0, -7], np.int8), r"local_offsets\[2\] = -7"),
        ([0, 1 << 64, 0], r"local_offsets\[1\] = 18446744073709551616"),
        ([0, 1.5, 0], r"local_offsets\[1\] = 1.5"),
        ([0, "8", 0], r"local_offsets\[1\] = '8'"),
        ([0, None, 0], r"local_offsets\[1\] = None"),
        (np.array([0.0, 8.0, 16.0]), "local_offsets.*'d'"),
        (np.array([True, False, True]), r"local_offsets.*'\?'"),
        (np.zeros((3, 1), np.uint64), "local_offsets.*one dimension.*2"),
        (np.array([0, 8, 16], ">u8"), "local_offsets"),
        (b"abc", "local_offsets"),
        ("abc", "local_offsets.*str"),
        ({0, 8, 16}, "local_offsets.*set|value"),
        (None, "local_offsets.*None"),
        (-1, "local_offsets = -1"),
        (1.5, "local_offsets.*float"),
    ],
    ids=str,
)
def test_anything_else_is_refused_by_index_and_value(
    link: Link, offsets: Any, message: str
) -> None:
    with pytest.raises(sl.InvalidArgument, match=message):
        link.session.read(offsets, [0, 8, 16], [8, 8, 8])


def test_arrays_of_different_lengths_are_refused(link: Link) -> None:
    for arguments in (
        ([0, 8], [0], [8, 8]),
        ([0, 8], [0, 8], [8]),
        ([0, 8], 0, 8),
        (0, [0, 8], 8),
        ([0, 8], [0, 8], 8, [0]),
        ([0, 8], [0, 8], 8, None, [0, 0, 0]),
    ):
        with pytest.raises(sl.InvalidArgument, match="values, but local_offsets has"):
            link.session.read(*arguments)


def test_region_indices_are_checked(link: Link) -> None:
    link.session.read([0, 8], [0, 8], 8, 0, np.zeros(2, np.uint32)).wait()
    with pytest.raises(sl.InvalidArgument):
        link.session.read([0, 8], [0, 8], 8, [0, 1])
    with pytest.raises(sl.InvalidArgument, match=r"remote_regions\[1\] = 4294967296"):
        link.session.read([0, 8], [0, 8], 8, [0, 0], [0, 1 << 32])
    with pytest.raises(sl.InvalidArgument, match=r"local_regions = -1"):
        link.session.read(0, 0, 8, -1)


def test_a_timeout_is_seconds_or_text_and_never_endless(link: Link) -> None:
    xfer = link.session.read(0, 0, 8)
    for timeout in (0, 1, 0.5, "1s", "10ms", 10**12, None):
        xfer.wait(timeout)
    for timeout in (-1, float("inf"), float("nan"), "1", "soon", [1]):
        with pytest.raises(sl.InvalidArgument, match="timeout"):
            xfer.wait(timeout)  # type: ignore[arg-type]


def test_sessions_take_regions_and_descriptors_and_nothing_else(link: Link) -> None:
    link.peer.session(link.pool, sl.RegionDesc.unpack(link.theirs.descriptor()))
    link.peer.session((link.pool,), (link.theirs.descriptor(),))
    with pytest.raises(sl.InvalidArgument, match=r"local\[1\].*bytes"):
        link.peer.session([link.pool, b"x"], [link.theirs.descriptor()])  # type: ignore[list-item]
    with pytest.raises(sl.InvalidArgument, match=r"remote\[0\].*Region"):
        link.peer.session([link.pool], [link.theirs])  # type: ignore[list-item]
    with pytest.raises(sl.Corrupt):
        link.peer.session([link.pool], [b"x"])


def test_a_large_batch_of_arrays_is_taken_in_place(link: Link) -> None:
    offsets = np.random.default_rng(3).permutation(8192).astype(np.uint64) * 8
    link.session.read(offsets, offsets, np.full(8192, 8, np.uint64)).wait("5s")
    assert np.array_equal(link.local, link.remote)
