#include <cstdint>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/objects/py_engine.h"
#include "bindings/objects/py_region.h"

namespace nb = nanobind;

namespace stagelink::bindings {

PyRegion::PyRegion(nb::object engine, Region region, std::optional<PythonMemory> memory)
    : engine_(std::move(engine)),
      region_(std::move(region)),
      bytes_(region_.bytes()),
      memory_(std::move(memory)) {}

// A peer may still be inside when the last reference goes. The engine then goes on trying, and the
// owner of the memory must live as long.
PyRegion::~PyRegion() {
  if (!open_) return;
  const Status status = without_gil([this] { return region_.deregister(); });
  if (status.code() == Code::kBusy && memory_.has_value()) {
    nb::inst_ptr<PyEngine>(engine_)->adopt(std::move(*memory_));
  }
}

void PyRegion::deregister(std::optional<Duration> timeout) {
  const Status status = without_gil([this, timeout] {
    return timeout.has_value() ? region_.deregister(*timeout) : region_.deregister();
  });
  check(status);
  open_ = false;
  if (exports_ == 0) memory_.reset();
}

int PyRegion::get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  auto* region = nb::inst_ptr<PyRegion>(self);
  view->obj = nullptr;
  if (!region->open_) {
    PyErr_SetString(PyExc_BufferError, "the region has been deregistered");
    return -1;
  }
  const auto bytes = region->bytes_;
  const int failed =
      PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()),
                        region->read_only() ? 1 : 0, flags);
  if (failed != 0) return failed;
  if (region->exports_++ == 0) region->held_ = region->region_.hold();
  return 0;
}

void PyRegion::release_buffer(PyObject* self, Py_buffer*) noexcept {
  auto* region = nb::inst_ptr<PyRegion>(self);
  if (--region->exports_ > 0) return;
  region->held_.reset();
  if (!region->open_) region->memory_.reset();
}

namespace {

const PyType_Slot kRegionSlots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(&PyRegion::get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(&PyRegion::release_buffer)},
    {0, nullptr},
};

const char* access_name(Access access) { return access == Access::kReadOnly ? "ro" : "rw"; }

uint64_t address_of(const PyRegion& region) {
  return reinterpret_cast<uint64_t>(region.bytes().data());
}

void bind_region_desc(nb::module_& m) {
  nb::class_<RegionDesc>(
      m, "RegionDesc", nb::is_final(),
      "What a peer needs to reach a region. A value: compare it, pack it, send it.")
      .def_static(
          "unpack",
          [](nb::handle blob) {
            return unwrap(RegionDesc::unpack(BytesView(blob, "blob").bytes()));
          },
          nb::arg("blob"), nb::sig("def unpack(blob: typing_extensions.Buffer) -> RegionDesc"),
          "Raises Corrupt for bytes that are no descriptor, Incompatible for another version.")
      .def(
          "pack", [](const RegionDesc& desc) { return to_bytes_object(desc.pack()); },
          nb::sig("def pack(self) -> bytes"))
      .def_prop_ro("instance", [](const RegionDesc& desc) { return desc.instance.to_string(); })
      .def_ro("index", &RegionDesc::index)
      .def_ro("generation", &RegionDesc::generation)
      .def_ro("address", &RegionDesc::address)
      .def_ro("nbytes", &RegionDesc::bytes)
      .def_ro("shareable", &RegionDesc::shareable)
      .def_prop_ro(
          "access", [](const RegionDesc& desc) { return access_name(desc.access); },
          nb::sig("def access(self) -> Access"))
      .def(
          "__eq__",
          [](const RegionDesc& desc, nb::handle other) {
            const RegionDesc* that = nullptr;
            return nb::try_cast(other, that) && that != nullptr && desc == *that;
          },
          nb::sig("def __eq__(self, other: object) -> bool"))
      .def(
          "__hash__",
          [](const RegionDesc& desc) {
            return static_cast<Py_hash_t>((desc.generation << 20 | desc.index) ^ desc.instance.low);
          })
      .def("__repr__", [](const RegionDesc& desc) {
        return fmt::format("<stagelink.RegionDesc {} bytes at {:#x}, row {} of {}>", desc.bytes,
                           desc.address, desc.index, desc.instance.to_string());
      });
}

}  // namespace

void bind_region(nb::module_& m) {
  bind_region_desc(m);
  nb::class_<PyRegion>(
      m, "Region", nb::is_final(), nb::type_slots(kRegionSlots),
      "Memory registered with an engine. Has the buffer protocol: memoryview(region), "
      "numpy.asarray(region). A context manager that deregisters.")
      .def(
          "descriptor",
          [](const PyRegion& self) { return to_bytes_object(self.region().descriptor().pack()); },
          nb::sig("def descriptor(self) -> bytes"), "What a peer needs to reach this region.")
      .def_prop_ro("address", [](const PyRegion& self) { return address_of(self); })
      .def_prop_ro("nbytes", [](const PyRegion& self) { return self.bytes().size(); })
      .def_prop_ro(
          "access",
          [](const PyRegion& self) { return access_name(self.region().descriptor().access); },
          nb::sig("def access(self) -> Access"), "What peers may do: \"ro\" or \"rw\".")
      .def(
          "deregister",
          [](PyRegion& self, nb::handle timeout) {
            self.deregister(to_optional_duration(timeout, "timeout"));
          },
          nb::arg("timeout") = nb::none(),
          nb::sig("def deregister(self, timeout: Timeout | None = None) -> None"),
          "Ends the registration. After it no peer touches the memory any more. Raises Busy if a "
          "peer "
          "is still inside at the timeout; call again to go on waiting.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> typing_extensions.Self"))
      .def(
          "__exit__",
          [](PyRegion& self, nb::handle type, nb::handle, nb::handle) {
            if (!self.is_open()) return;
            if (type.is_none()) return self.deregister(std::nullopt);
          },
          nb::arg("exc_type").none(), nb::arg("exc").none(), nb::arg("traceback").none(),
          nb::sig(
              "def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, "
              "traceback: types.TracebackType | None) -> None"))
      .def("__repr__", [](const PyRegion& self) {
        return fmt::format("<stagelink.Region {} bytes at {:#x}{}>", self.bytes().size(),
                           address_of(self), self.is_open() ? "" : ", deregistered");
      });
}

}  // namespace stagelink::bindings
