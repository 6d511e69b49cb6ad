#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/index_array.h"
#include "bindings/convert/status_error.h"
#include "connector/block_layout/block_plan.h"
#include "connector/block_layout/cache_geometry.h"
#include "connector/block_layout/compatibility.h"
#include "connector/block_layout/head_map.h"
#include "connector/block_layout/run_template.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using block_layout::BlockGeometry;
using block_layout::BlockPairs;
using block_layout::BlockPlan;
using block_layout::Description;
using block_layout::HeadRoute;
using block_layout::HeadSlice;
using block_layout::LayerSpec;
using block_layout::PlanOptions;
using block_layout::RowAxes;
using block_layout::RunTemplate;
using block_layout::StateGeometry;
using Array = nb::ndarray<nb::numpy, uint64_t, nb::ndim<1>>;
using Heads = std::tuple<uint32_t, uint32_t, uint32_t>;
using Parts = std::vector<std::pair<uint64_t, uint64_t>>;

constexpr const char* kFindSignature =
    "def find(shape: Sequence[int], strides: Sequence[int], element_bytes: int, *, block_size: "
    "int, "
    "num_kv_heads: int = 0, head_size: int = 0, num_states: int = 0, content_bytes: int = 0, mla: "
    "bool = False, layout: str = \"auto\", axes: str = \"auto\", opaque: bool = False) -> "
    "BlockGeometry";

RowAxes to_axes(const std::string& name) {
  if (name == "auto") return RowAxes::kAuto;
  if (name == "tokens,heads") return RowAxes::kTokensHeads;
  if (name == "heads,tokens") return RowAxes::kHeadsTokens;
  raise(Status(Reason::kInvalidArgument,
               "axes: auto, `tokens,heads` or `heads,tokens`, not " + name));
}

BlockGeometry find(const std::vector<uint64_t>& shape, const std::vector<uint64_t>& strides,
                   uint32_t element_bytes, const nb::kwargs& given) {
  LayerSpec spec;
  for (const auto& [key, value] : given) {
    const auto name = nb::cast<std::string>(key);
    if (name == "block_size") {
      spec.block_size = nb::cast<uint32_t>(value);
    } else if (name == "num_kv_heads") {
      spec.num_kv_heads = nb::cast<uint32_t>(value);
    } else if (name == "head_size") {
      spec.head_size = nb::cast<uint32_t>(value);
    } else if (name == "num_states") {
      spec.num_states = nb::cast<uint32_t>(value);
    } else if (name == "content_bytes") {
      spec.content_bytes = nb::cast<uint32_t>(value);
    } else if (name == "mla") {
      spec.mla = nb::cast<bool>(value);
    } else if (name == "layout") {
      spec.layout = unwrap(block_layout::parse_layout(nb::cast<std::string>(value)));
    } else if (name == "axes") {
      spec.axes = to_axes(nb::cast<std::string>(value));
    } else if (name == "opaque") {
      spec.opaque = nb::cast<bool>(value);
    } else {
      raise(Status(Reason::kUnknownKey, "BlockGeometry.find: unknown argument `" + name + "`"));
    }
  }
  return unwrap(find_geometry({shape, strides, element_bytes}, spec));
}

Array to_array(std::span<const uint64_t> values) {
  auto owned = std::make_unique<uint64_t[]>(values.size());
  std::copy(values.begin(), values.end(), owned.get());
  uint64_t* const data = owned.get();
  const nb::capsule owner(owned.release(),
                          [](void* memory) noexcept { delete[] static_cast<uint64_t*>(memory); });
  return Array(data, {values.size()}, owner);
}

// The planner takes signed ids; both types may look at the same memory.
std::span<const int64_t> as_ids(const IndexArray<uint64_t>& array) {
  const auto values = array.values();
  return {reinterpret_cast<const int64_t*>(values.data()), values.size()};
}

std::tuple<Array, Array, Array> plan_blocks(const RunTemplate& layout, nb::handle local,
                                            nb::handle remote, const PlanOptions& options) {
  const IndexArray<uint64_t> local_ids(local, "local");
  const IndexArray<uint64_t> remote_ids(remote, "remote");
  BlockPlan plan;
  check(without_gil([&] {
    return plan.fill(layout, BlockPairs{as_ids(local_ids), as_ids(remote_ids)}, options);
  }));
  return {to_array(plan.local()), to_array(plan.remote()), to_array(plan.sizes())};
}

std::optional<HeadSlice> to_slice(const std::optional<Heads>& heads) {
  if (!heads.has_value()) return std::nullopt;
  return HeadSlice{std::get<0>(*heads), std::get<1>(*heads), std::get<2>(*heads)};
}

StateGeometry to_state(uint64_t slots, uint64_t stride, const Parts& parts) {
  StateGeometry state{slots, stride, {}};
  for (const auto& [offset, bytes] : parts) state.parts.push_back({offset, bytes});
  return state;
}

std::vector<std::pair<uint32_t, Heads>> to_routes(const std::vector<HeadRoute>& routes) {
  std::vector<std::pair<uint32_t, Heads>> out;
  for (const HeadRoute& route : routes) {
    const HeadSlice& slice = route.slice;
    out.emplace_back(route.remote_rank, Heads{slice.local_first, slice.remote_first, slice.count});
  }
  return out;
}

void bind_geometry(nb::module_& m) {
  nb::class_<BlockGeometry>(m, "BlockGeometry", nb::is_final(),
                            "Where the bytes of a block lie in the cache of one layer.")
      .def_static("find", &find, nb::arg("shape"), nb::arg("strides"), nb::arg("element_bytes"),
                  nb::arg("given"), nb::sig(kFindSignature),
                  "Sizes and strides in elements; 0 is not known. Raises Incompatible (\"layout "
                  "mismatch\") where the tensor fits no layout or can be read in two ways.")
      .def(
          "with_num_blocks",
          [](const BlockGeometry& self, uint64_t num_blocks) {
            return unwrap(with_num_blocks(self, num_blocks));
          },
          nb::arg("num_blocks"),
          "That of a peer whose cache differs in the number of blocks alone.")
      .def_ro("num_blocks", &BlockGeometry::num_blocks)
      .def_ro("block_stride", &BlockGeometry::block_stride, "Bytes between two blocks.")
      .def_prop_ro("layout",
                   [](const BlockGeometry& self) { return to_str(layout_name(self.layout)); })
      .def_prop_ro("block_len", &BlockGeometry::block_len)
      .def_prop_ro("extent", &BlockGeometry::extent, "Bytes that a registration must cover.")
      .def("__repr__",
           [](const BlockGeometry& self) { return "<BlockGeometry " + self.text() + ">"; });
}

void bind_templates(nb::module_& m) {
  nb::class_<RunTemplate>(m, "RunTemplate", nb::is_final(),
                          "How any block of ours corresponds to any block of theirs.")
      .def_static(
          "of",
          [](const BlockGeometry& local, const BlockGeometry& remote,
             const std::optional<Heads>& heads) {
            return unwrap(make_template(local, remote, to_slice(heads)));
          },
          nb::arg("local"), nb::arg("remote"), nb::arg("heads") = nb::none(),
          "Whole blocks, or heads: (first of ours, first of theirs, how many). Raises "
          "Incompatible, "
          "naming the field.")
      .def_static(
          "of_states",
          [](const std::tuple<uint64_t, uint64_t, Parts>& local,
             const std::tuple<uint64_t, uint64_t, Parts>& remote) {
            return unwrap(make_template(std::apply(to_state, local), std::apply(to_state, remote)));
          },
          nb::arg("local"), nb::arg("remote"),
          "State of a mamba or KDA layer: (slots, bytes between them, [(offset, bytes)]).")
      .def_prop_ro("block_bytes", &RunTemplate::block_bytes)
      .def_prop_ro("runs", [](const RunTemplate& self) {
        std::vector<std::tuple<uint64_t, uint64_t, uint64_t>> runs;
        for (const auto& run : self.runs) runs.emplace_back(run.local, run.remote, run.bytes);
        return runs;
      });
  m.def(
      "plan_blocks",
      [](const RunTemplate& layout, nb::handle local, nb::handle remote, uint64_t local_base,
         uint64_t remote_base, nb::handle max_run_bytes, bool skip_null_block) {
        return plan_blocks(
            layout, local, remote,
            {local_base, remote_base, to_bytes(max_run_bytes, "max_run_bytes"), skip_null_block});
      },
      nb::arg("layout"), nb::arg("local"), nb::arg("remote"), nb::kw_only(),
      nb::arg("local_base") = 0, nb::arg("remote_base") = 0, nb::arg("max_run_bytes") = "1GiB",
      nb::arg("skip_null_block") = true,
      nb::sig(
          "def plan_blocks(layout: RunTemplate, local: Indices, remote: Indices, *, local_base: "
          "int = 0, remote_base: int = 0, max_run_bytes: Size = \"1GiB\", skip_null_block: bool "
          "= True) -> tuple[Buffer, Buffer, Buffer]"),
      "Local offsets, remote offsets and sizes of block pairs as NumPy arrays of uint64, "
      "neighbours "
      "merged. Block 0 is never moved. Raises OutOfBounds, naming list and id.");
}

}  // namespace

void bind_moriio_layout(nb::module_& m) {
  bind_geometry(m);
  bind_templates(m);
  m.def(
      "head_routes_to",
      [](uint32_t heads, uint32_t source_size, uint32_t destination_size, uint32_t rank) {
        return to_routes(
            unwrap(block_layout::routes_to({heads, source_size, destination_size}, rank)));
      },
      nb::arg("heads"), nb::arg("source_size"), nb::arg("destination_size"), nb::arg("rank"),
      "From which source ranks a destination rank takes its KV heads: (rank, (first of ours, first "
      "of theirs, how many)).");
  m.def(
      "head_routes_from",
      [](uint32_t heads, uint32_t source_size, uint32_t destination_size, uint32_t rank) {
        return to_routes(
            unwrap(block_layout::routes_from({heads, source_size, destination_size}, rank)));
      },
      nb::arg("heads"), nb::arg("source_size"), nb::arg("destination_size"), nb::arg("rank"),
      "The same pairs as a source rank sees them.");
  m.def("compat_differences", &block_layout::differences, nb::arg("ours"), nb::arg("theirs"),
        "One line for each field that must be equal and is not: \"field: ours X, theirs Y\".");
  m.def("compat_hash", &block_layout::compat_hash, nb::arg("description"));
}

}  // namespace stagelink::bindings
