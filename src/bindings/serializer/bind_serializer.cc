#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/serializer/fresh_memory.h"
#include "bindings/serializer/object_decoder.h"
#include "bindings/serializer/object_encoder.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

constexpr size_t kUnlockedBytes = size_t{64} << 10;  // Below, giving the lock up costs more.

serializer::Wire to_wire(std::string_view name) {
  if (name == "compat") return serializer::Wire::kCompat;
  if (name == "fast") return serializer::Wire::kFast;
  raise(Status(Reason::kInvalidArgument,
               fmt::format("wire is `{}`, expected `compat` or `fast`", name)));
}

// Memory of a Python object that is written to.
class WritableBuffer {
 public:
  explicit WritableBuffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) {
      throw nb::python_error();
    }
  }
  ~WritableBuffer() { PyBuffer_Release(&view_); }
  WritableBuffer(const WritableBuffer&) = delete;
  WritableBuffer& operator=(const WritableBuffer&) = delete;
  std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

void write_plan(const KeptPlan& kept, std::span<const std::span<std::byte>> pieces) {
  if (kept.plan.size() < kUnlockedBytes) return check(kept.plan.write(pieces));
  check(without_gil([&] { return kept.plan.write(pieces); }));
}

void write_into(const KeptPlan& kept, nb::handle target) {
  std::vector<std::unique_ptr<WritableBuffer>> buffers;
  std::vector<std::span<std::byte>> pieces;
  const auto add = [&](nb::handle object) {
    buffers.push_back(std::make_unique<WritableBuffer>(object));
    pieces.push_back(buffers.back()->bytes());
  };
  if (nb::isinstance<nb::list>(target) || nb::isinstance<nb::tuple>(target)) {
    for (const nb::handle object : target) add(object);
  } else {
    add(target);
  }
  write_plan(kept, pieces);
}

nb::object plan_as_bytes(const KeptPlan& kept) {
  PyObject* const made =
      PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(kept.plan.size()));
  if (made == nullptr) throw nb::python_error();
  nb::object out = nb::steal(made);
  const std::span<std::byte> piece(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(made)),
                                   kept.plan.size());
  expect_filling(piece.data(), piece.size());
  write_plan(kept, {&piece, 1});
  return out;
}

KeptPlan make_plan(nb::handle object, std::string_view wire, bool checksum, nb::handle reduce) {
  return ObjectEncoder(to_wire(wire), checksum, reduce).encode(object);
}

nb::object decode(nb::handle buffer, bool copy, nb::handle revive) {
  nb::object memory = nb::steal(PyMemoryView_FromObject(buffer.ptr()));
  if (!memory.is_valid()) throw nb::python_error();
  memory = memory.attr("toreadonly")();
  const BytesView view(memory, "buffer");
  const auto frame = view.bytes();
  if (PyMemoryView_GET_BUFFER(memory.ptr())->ndim != 1 ||
      PyMemoryView_GET_BUFFER(memory.ptr())->itemsize != 1) {
    memory = memory.attr("cast")("B");
  }
  const auto sum = [frame] { return serializer::check_sum(frame); };
  check(frame.size() < kUnlockedBytes ? sum() : without_gil(sum));
  ObjectDecoder decoder(frame, memory, copy, revive);
  return decoder.result(serializer::decode_payload(frame, decoder));
}

}  // namespace

void bind_serializer(nb::module_& m) {
  nb::class_<KeptPlan>(m, "EncodePlan",
                       "An object that is ready to be written. It holds what it is made of.")
      .def_prop_ro("nbytes", [](const KeptPlan& kept) { return kept.plan.size(); })
      .def("write_into", &write_into, nb::arg("target"),
           nb::sig("def write_into(self, target: Buffer | Sequence[Buffer]) -> None"),
           "Fill a buffer, or several in a row, of exactly `nbytes`. Each byte is copied once.")
      .def("to_bytes", &plan_as_bytes, nb::sig("def to_bytes(self) -> bytes"),
           "The payload as bytes.");
  m.def("plan_payload", &make_plan, nb::arg("object").none(), nb::arg("wire"), nb::arg("checksum"),
        nb::arg("reduce"),
        nb::sig("def plan_payload(object: object, wire: str, checksum: bool, "
                "reduce: Callable[[Any], tuple[str, Any] | None]) -> EncodePlan"),
        "See stagelink.serializer.");
  m.def("decode_payload", &decode, nb::arg("buffer"), nb::arg("copy"), nb::arg("revive").none(),
        nb::sig("def decode_payload(buffer: Buffer, copy: bool, "
                "revive: Callable[[dict[Any, Any]], Any] | None) -> Any"),
        "See stagelink.serializer.");
}

}  // namespace stagelink::bindings
