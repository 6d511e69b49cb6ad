"""What can be allocated and registered, and what is refused."""

import array
import mmap
import sys
import weakref

import numpy as np
import pytest

import stagelink as sl


def test_a_pool_is_a_zeroed_writable_buffer(engine: sl.Engine) -> None:
    pool = engine.allocate("64KiB")
    view = memoryview(pool)
    assert (view.nbytes, view.readonly, pool.nbytes) == (65536, False, 65536)
    values = np.asarray(pool)
    assert not values.any()
    values[7] = 9
    assert view[7] == 9
    assert values.ctypes.data == pool.address


def test_sizes_outside_what_there_is_are_refused(engine: sl.Engine) -> None:
    for size in (0, "0B", -1, 1 << 64):
        with pytest.raises(sl.InvalidArgument):
            engine.allocate(size)
    with pytest.raises((sl.Limit, sl.NoSpace)):
        engine.allocate(1 << 50)
    engine.allocate(1)


def test_a_descriptor_is_bytes_that_unpack_to_a_value(engine: sl.Engine) -> None:
    pool = engine.allocate(4096, access="ro")
    desc = sl.RegionDesc.unpack(pool.descriptor())
    assert desc.pack() == pool.descriptor()
    assert (desc.nbytes, desc.address, desc.shareable) == (4096, pool.address, True)
    assert (desc.access, pool.access) == ("ro", "ro")
    assert desc.instance == engine.instance
    again = sl.RegionDesc.unpack(bytearray(pool.descriptor()))
    assert desc == again and hash(desc) == hash(again) and desc != "x"
    with pytest.raises(sl.Corrupt):
        sl.RegionDesc.unpack(pool.descriptor()[:-1])
    with pytest.raises(sl.InvalidArgument):
        sl.RegionDesc.unpack("text")  # type: ignore[arg-type]


def test_everything_with_a_buffer_can_be_registered(engine: sl.Engine) -> None:
    for memory in (
        bytearray(64),
        array.array("d", [1.0] * 8),
        memoryview(bytearray(64)),
        mmap.mmap(-1, 4096),
        np.zeros((4, 4), np.float32),
        np.zeros((4, 4), np.float32, order="F"),
        np.zeros(64, np.uint8)[16:32],
        np.zeros((3, 1, 5))[:, 0, :],
        np.zeros((), np.int64),
    ):
        size = memoryview(memory).nbytes
        with engine.register(memory) as region:
            assert region.nbytes == size


def test_an_address_and_a_length_can_be_registered(engine: sl.Engine) -> None:
    values = np.arange(16, dtype=np.uint8)
    with engine.register((values.ctypes.data, values.nbytes)) as region:
        assert bytes(region) == values.tobytes()
    for pair in ((0, 16), (values.ctypes.data, 0), (1 << 63, 1 << 63), (1, -1), (1,), ("a", 2)):
        with pytest.raises(sl.InvalidArgument):
            engine.register(pair)


BASE = np.arange(64, dtype=np.int32).reshape(8, 8)


@pytest.mark.parametrize(
    "view",
    [
        BASE[:, 1],
        BASE[::2],
        BASE[::-1],
        BASE[:, :4],
        BASE.reshape(4, 4, 4).transpose(1, 0, 2),
        np.broadcast_to(BASE[0], (8, 8)),
        np.broadcast_to(np.int32(5), (4,)),
    ],
    ids=["column", "every-other-row", "reversed", "block", "transposed-3d", "broadcast", "scalar"],
)
def test_a_view_with_gaps_is_refused_by_shape_and_strides(
    engine: sl.Engine, view: np.ndarray
) -> None:
    with pytest.raises(sl.InvalidArgument) as caught:
        engine.register(view, access="ro")
    assert caught.value.reason == "not_contiguous"
    assert f"({', '.join(map(str, view.shape))})" in str(caught.value)
    assert f"({', '.join(map(str, view.strides))})" in str(caught.value)
    with pytest.raises(sl.InvalidArgument):
        engine.register(memoryview(view), access="ro")


def test_a_transposed_matrix_is_one_block_in_fortran_order(engine: sl.Engine) -> None:
    values = np.arange(12, dtype=np.uint8).reshape(3, 4).copy()
    with engine.register(values.T) as region:
        assert bytes(region) == values.tobytes()


def test_read_only_memory_is_registered_read_only_or_not_at_all(engine: sl.Engine) -> None:
    frozen = np.zeros(16, np.uint8)
    frozen.flags.writeable = False
    for memory in (frozen, b"0123456789"):
        with pytest.raises(sl.Permission) as caught:
            engine.register(memory)
        assert caught.value.reason == "read_only"
        with engine.register(memory, access="ro") as region:
            assert memoryview(region).readonly


def test_nothing_is_registered_of_no_bytes(engine: sl.Engine) -> None:
    for memory in (b"", np.zeros((0, 128)), np.zeros((4, 0, 4))):
        with pytest.raises(sl.InvalidArgument):
            engine.register(memory, access="ro")
    with engine.register(bytearray(1)):
        pass


def test_what_has_no_bytes_of_its_own_is_refused(engine: sl.Engine) -> None:
    for memory in (5, "text", object(), [1, 2], np.array([object()])):
        with pytest.raises(sl.InvalidArgument):
            engine.register(memory)
    with pytest.raises(sl.InvalidArgument, match="access"):
        engine.register(bytearray(8), access="wo")  # type: ignore[arg-type]


class FakeTensor:
    """The part of torch.Tensor that tells where its bytes are."""

    def __init__(self, values: np.ndarray, device: str = "cpu") -> None:
        self.values = values
        self.shape = values.shape
        self.device = device

    def data_ptr(self) -> int:
        return int(self.values.ctypes.data)

    def numel(self) -> int:
        return self.values.size

    def element_size(self) -> int:
        return self.values.itemsize

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.values.itemsize for s in self.values.strides)

    def is_contiguous(self) -> bool:
        return bool(self.values.flags.c_contiguous)


def test_a_tensor_is_registered_without_its_library(engine: sl.Engine) -> None:
    values = np.arange(24, dtype=np.uint16).reshape(4, 6)
    with engine.register(FakeTensor(values)) as region:
        assert (region.address, region.nbytes) == (values.ctypes.data, values.nbytes)
        assert bytes(region) == values.tobytes()
    with engine.register(FakeTensor(values.T)):
        pass
    with pytest.raises(sl.InvalidArgument, match=r"\(4\).*\(12\)") as caught:
        engine.register(FakeTensor(values[:, 1]))
    assert caught.value.reason == "not_contiguous"


def test_a_tensor_on_another_device_is_refused_by_its_name(engine: sl.Engine) -> None:
    with pytest.raises(sl.InvalidArgument, match="cuda:1") as caught:
        engine.register(FakeTensor(np.zeros(4), device="cuda:1"))
    assert caught.value.reason == "unsupported"

    class CudaArray:
        __cuda_array_interface__ = {"data": (4096, False), "shape": (4,), "typestr": "<f4"}

    with pytest.raises(sl.InvalidArgument, match="cuda"):
        engine.register(CudaArray())


def test_an_object_that_speaks_only_dlpack_is_registered(engine: sl.Engine) -> None:
    class OnlyDlpack:
        def __init__(self, values: np.ndarray) -> None:
            self.values = values

        def __dlpack__(self, **options: object) -> object:
            return self.values.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.values.__dlpack_device__()

    values = np.arange(8.0)
    with engine.register(OnlyDlpack(values)) as region:
        assert (region.address, bytes(region)) == (values.ctypes.data, values.tobytes())


def test_real_torch_tensors_are_registered(engine: sl.Engine) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(32, dtype=torch.bfloat16).reshape(4, 8)
    with engine.register(tensor) as region:
        assert (region.address, region.nbytes) == (tensor.data_ptr(), 64)
    with pytest.raises(sl.InvalidArgument):
        engine.register(tensor[:, 1])


def test_a_region_keeps_its_object_alive_until_it_is_deregistered(engine: sl.Engine) -> None:
    class Array(np.ndarray):
        pass

    values = np.zeros(64, np.uint8).view(Array)
    gone = weakref.ref(values)
    region = engine.register(values)
    del values
    assert gone() is not None
    region.deregister()
    assert gone() is None


def test_a_registered_bytearray_cannot_be_resized(engine: sl.Engine) -> None:
    memory = bytearray(64)
    with engine.register(memory):
        with pytest.raises(BufferError):
            memory.append(1)
    memory.append(1)


def test_arrays_outlive_the_registration_of_their_pool(engine: sl.Engine) -> None:
    pool = engine.allocate("1MiB")
    values = np.asarray(pool)
    values[:] = 7
    pool.deregister()
    with pytest.raises(BufferError):
        memoryview(pool)
    with pytest.raises(sl.InvalidState) as caught:
        pool.deregister()
    assert caught.value.reason == "closed"
    del pool
    assert int(values.sum()) == 7 << 20


def test_arrays_outlive_the_engine() -> None:
    with sl.Engine() as engine:
        values = np.asarray(engine.allocate("1MiB"))
        values[:] = 3
    del engine
    assert int(values.sum()) == 3 << 20
    assert sys.getrefcount(values) == 2


def test_regions_may_overlap(engine: sl.Engine) -> None:
    values = np.zeros(4096, np.uint8)
    with engine.register(values) as whole, engine.register(values[100:200]) as part:
        assert whole.descriptor() != part.descriptor()
