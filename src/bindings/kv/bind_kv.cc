#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/copied_memory.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/index_array.h"
#include "bindings/convert/status_error.h"
#include "bindings/kv/kv_objects.h"
#include "bindings/serializer/fresh_memory.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using kv::RankMap;

std::span<std::byte> writable(const PythonMemory& memory, const char* name) {
  if (memory.read_only()) {
    raise(Status(Reason::kReadOnly, fmt::format("{} cannot be written to", name)));
  }
  return {static_cast<std::byte*>(memory.address()), memory.bytes()};
}

std::span<const std::byte> readable(const PythonMemory& memory) {
  return {static_cast<const std::byte*>(memory.address()), memory.bytes()};
}

KvLayers* make_layers(nb::handle layers, uint32_t block_size, bool mla, std::string_view layout) {
  const kv::LayerReading reading{block_size, mla, unwrap(block_layout::parse_layout(layout))};
  return new KvLayers(to_kv_layers(layers, reading));
}

KvPlan* make_kv_plan(nb::object layers, std::string_view request_id,
                     const std::vector<int64_t>& block_ids, uint64_t seq_len,
                     std::string_view metadata, nb::handle heads, uint32_t align,
                     const std::vector<int64_t>& positions) {
  kv::PayloadRequest request{request_id, block_ids, seq_len, metadata, {}, align, positions};
  if (!heads.is_none()) request.heads = to_share(heads);
  const auto& kept = nb::cast<const KvLayers&>(layers);
  auto plan = unwrap(without_gil([&] { return kv::PayloadPlan::create(kept.planes, request); }));
  return new KvPlan{std::move(plan), std::move(layers)};
}

void write_kv_plan(const KvPlan& self, nb::handle target) {
  const PythonMemory memory = memory_in_order(target);
  const auto out = writable(memory, "target");
  check(without_gil([&] { return self.plan.write(out); }));
}

nb::object kv_plan_as_bytes(const KvPlan& self) {
  const uint64_t size = self.plan.size();
  PyObject* const made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (made == nullptr) throw nb::python_error();
  nb::object out = nb::steal(made);
  const std::span<std::byte> piece(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(made)), size);
  expect_filling(piece.data(), piece.size());
  check(without_gil([&] { return self.plan.write(piece); }));
  return out;
}

// Where the payload lies: [(address, nbytes)].
nb::list kv_plan_runs(const KvPlan& self, size_t limit) {
  nb::list out;
  for (const auto run : unwrap(self.plan.runs(limit))) {
    out.append(nb::make_tuple(reinterpret_cast<uint64_t>(run.data()), run.size()));
  }
  return out;
}

KvMerge* make_merge(nb::handle payloads, nb::handle routes, std::string_view request_id,
                    uint32_t to_rank, uint64_t kv_heads) {
  auto out = std::make_unique<KvMerge>();
  for (const nb::handle payload : payloads) {
    const PythonMemory memory = memory_in_order(payload);
    const auto bytes = readable(memory);
    out->headers.push_back(unwrap(kv::decode_header(bytes, bytes.size(), request_id)));
  }
  const auto ways = to_routes(routes);
  if (ways.size() != out->headers.size()) {
    raise(Status(Reason::kInvalidArgument,
                 fmt::format("{} payloads for {} routes", out->headers.size(), ways.size())));
  }
  std::vector<kv::MergePart> parts;
  for (size_t at = 0; at < ways.size(); ++at) {
    const bool sliced = unwrap(kv::sliced_by_sender(out->headers[at], to_rank));
    parts.push_back({&out->headers[at], ways[at], sliced});
  }
  out->plan = unwrap(kv::MergePlan::create(parts, kv_heads));
  return out.release();
}

void place(const KvMerge& self, size_t part, nb::handle payload, nb::handle target) {
  const PythonMemory from = memory_in_order(payload);
  const PythonMemory to = memory_in_order(target);
  if (part >= self.headers.size()) {
    raise(Status(Reason::kOutOfBounds, fmt::format("payload {} of {}", part, self.headers.size())));
  }
  const auto out = writable(to, "target");
  check(without_gil([&] { return self.plan.place(part, readable(from), out); }));
}

template <typename Field>
nb::list of_headers(const KvMerge& self, Field field) {
  nb::list out;
  for (const kv::PayloadHeader& header : self.headers) out.append(nb::cast(header.*field));
  return out;
}

void bind_kv_plan(nb::module_& m) {
  nb::class_<KvLayers>(m, "KvLayers", "The KV cache of a model. It holds the tensors.")
      .def("__len__", [](const KvLayers& self) { return self.planes.size(); });
  m.def("kv_layers", &make_layers, nb::arg("layers"), nb::arg("block_size"), nb::arg("mla") = false,
        nb::arg("layout") = "auto",
        nb::sig("def kv_layers(layers: Sequence[Any], block_size: int, mla: bool = False, "
                "layout: str = 'auto') -> KvLayers"));
  m.def(
      "kv_block_axis",
      [](std::vector<int64_t> shape, uint32_t block_size, bool mla, std::string_view layout) {
        const kv::LayerReading reading{block_size, mla, unwrap(block_layout::parse_layout(layout))};
        return unwrap(kv::block_axis({nullptr, nullptr, std::move(shape), {}}, reading));
      },
      nb::arg("shape"), nb::arg("block_size"), nb::arg("mla") = false, nb::arg("layout") = "auto",
      nb::sig("def kv_block_axis(shape: Sequence[int], block_size: int, mla: bool = False, "
              "layout: str = 'auto') -> int"));
  nb::class_<KvPlan>(m, "KvPlan",
                     "The payload of one request, ready to be written. Each byte is copied once.")
      .def_prop_ro("nbytes", [](const KvPlan& self) { return self.plan.size(); })
      .def_prop_ro("data_offset", [](const KvPlan& self) { return self.plan.data_offset(); })
      .def("write_into", &write_kv_plan, nb::arg("target"),
           nb::sig("def write_into(self, target: Any) -> None"), "Fill memory of exactly `nbytes`.")
      .def("to_bytes", &kv_plan_as_bytes, nb::sig("def to_bytes(self) -> bytes"))
      .def("runs", &kv_plan_runs, nb::arg("limit") = 4096,
           nb::sig("def runs(self, limit: int = 4096) -> list[tuple[int, int]]"),
           "Address and size of what the payload is made of, in order.");
  m.def("kv_plan", &make_kv_plan, nb::arg("layers"), nb::arg("request_id"), nb::arg("block_ids"),
        nb::arg("seq_len"), nb::arg("metadata"), nb::arg("heads") = nb::none(),
        nb::arg("align") = kv::kTensorAlign, nb::arg("positions") = nb::tuple(),
        nb::sig("def kv_plan(layers: KvLayers, request_id: str, block_ids: Sequence[int], "
                "seq_len: int, metadata: str, heads: tuple[int, int, int] | None = None, "
                "align: int = 64, positions: Sequence[int] = ()) -> KvPlan"));
}

void bind_kv_merge(nb::module_& m) {
  nb::class_<KvMerge>(m, "KvMerge", "What a receiver makes of the payloads of one request.")
      .def_prop_ro("nbytes", [](const KvMerge& self) { return self.plan.bytes(); })
      .def_prop_ro("num_layers",
                   [](const KvMerge& self) { return self.headers.front().num_layers; })
      .def_prop_ro(
          "tensors", [](const KvMerge& self) { return tensors_list(self.plan.tensors()); },
          nb::sig("def tensors(self) -> list[tuple[bool, int, str, tuple[int, ...], int, int]]"),
          "Of the final memory: (value, layer, dtype, shape, offset, nbytes).")
      .def_prop_ro(
          "metadata",
          [](const KvMerge& self) { return of_headers(self, &kv::PayloadHeader::metadata); },
          nb::sig("def metadata(self) -> list[str]"), "JSON, of each payload.")
      .def_prop_ro(
          "block_ids",
          [](const KvMerge& self) { return of_headers(self, &kv::PayloadHeader::block_ids); },
          nb::sig("def block_ids(self) -> list[list[int]]"))
      .def("place", &place, nb::arg("part"), nb::arg("payload"), nb::arg("target"),
           nb::sig("def place(self, part: int, payload: Any, target: Any) -> None"),
           "Copy what a payload has to where it belongs in the final memory.");
  m.def("kv_merge", &make_merge, nb::arg("payloads"), nb::arg("routes"), nb::arg("request_id"),
        nb::arg("to_rank"), nb::arg("kv_heads") = 0,
        nb::sig("def kv_merge(payloads: Sequence[Any], routes: Sequence[KvRoute], "
                "request_id: str, to_rank: int, kv_heads: int = 0) -> KvMerge"));
}

void bind_rank_map(nb::module_& m) {
  nb::class_<RankMap>(m, "KvRankMap", "Which ranks of a stage hand their heads to which.")
      .def(nb::new_([](uint32_t from_tp, uint32_t to_tp, uint32_t kv_heads, bool mla) {
             return new RankMap(unwrap(RankMap::create({from_tp, to_tp, kv_heads, mla})));
           }),
           nb::arg("from_tp"), nb::arg("to_tp"), nb::arg("kv_heads") = 0, nb::arg("mla") = false)
      .def(
          "sends",
          [](const RankMap& self, uint32_t rank) { return routes_list(unwrap(self.sends(rank))); },
          nb::arg("from_rank"), nb::sig("def sends(self, from_rank: int) -> list[KvRoute]"))
      .def(
          "gets",
          [](const RankMap& self, uint32_t rank) { return routes_list(unwrap(self.gets(rank))); },
          nb::arg("to_rank"), nb::sig("def gets(self, to_rank: int) -> list[KvRoute]"))
      .def_prop_ro("payloads", &RankMap::payloads)
      .def_prop_ro("fan", &RankMap::fan)
      .def_prop_ro("lines", &RankMap::lines)
      .def(
          "key",
          [](const RankMap& self, std::string_view request, std::string_view from,
             std::string_view to, uint32_t from_rank, uint32_t to_rank) {
            return kv::kv_key(self.topology(), request, {from, to}, from_rank, to_rank);
          },
          nb::arg("request_id"), nb::arg("from_stage"), nb::arg("to_stage"), nb::arg("from_rank"),
          nb::arg("to_rank"));
  m.def(
      "kv_stated_rank",
      [](int64_t rank, uint32_t tp_size, std::string_view side) {
        return unwrap(kv::stated_rank(rank, tp_size, side));
      },
      nb::arg("rank"), nb::arg("tp_size"), nb::arg("side"));
}

}  // namespace

void bind_kv(nb::module_& m) {
  bind_kv_plan(m);
  bind_kv_merge(m);
  bind_rank_map(m);
}

}  // namespace stagelink::bindings
