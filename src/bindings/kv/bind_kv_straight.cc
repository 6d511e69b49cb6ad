#include <memory>
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
#include "bindings/convert/status_error.h"
#include "bindings/kv/kv_objects.h"
#include "bindings/pull/pull_metadata.h"
#include "bindings/pull/py_pull_connector.h"
#include "connector/kv/straight_get.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

// Claims of a connector's, which it keeps alive.
struct PyStraightGet {
  ~PyStraightGet() {
    without_gil([this] {
      get.reset();
      return 0;
    });
  }
  PyStraightGet(std::unique_ptr<kv::StraightGet> claims, nb::object owner)
      : get(std::move(claims)), connector(std::move(owner)) {}
  PyStraightGet(const PyStraightGet&) = delete;
  PyStraightGet& operator=(const PyStraightGet&) = delete;

  std::unique_ptr<kv::StraightGet> get;
  nb::object connector;
};

nb::tuple reason_and_message(const Status& status) {
  return nb::make_tuple(to_str(reason_name(status.reason())), status.message());
}

nb::tuple claim_straight(nb::object connector, const std::vector<std::string>& keys,
                         nb::list metadata, nb::handle routes, std::string_view request_id,
                         uint32_t to_rank, uint64_t kv_heads, nb::handle wait) {
  auto& core = nb::cast<PyPullConnector&>(connector);
  const std::vector<kv::RankRoute> ways = to_routes(routes);
  std::vector<std::optional<pull::PullMetadata>> places;
  for (const nb::handle one : metadata) places.push_back(to_metadata(one));
  if (places.size() != keys.size() || ways.size() != keys.size() || core.device()) {
    raise(Status(Reason::kInvalidArgument,
                 fmt::format("{} keys with {} metadata and {} routes, or a pool of a device",
                             keys.size(), places.size(), ways.size())));
  }
  std::vector<pull::GetRequest> gets;
  for (size_t at = 0; at < keys.size(); ++at) {
    gets.push_back({keys[at], places[at] ? &*places[at] : nullptr, {}});
  }
  pull::GetTerms terms;
  terms.wait = to_duration(wait, "wait");
  terms.timeout = to_timeout(wait, "wait");
  terms.interrupted = ended_by_signals();
  const kv::StraightRequest request{gets, ways, request_id, to_rank, kv_heads};
  auto claimed =
      without_gil([&] { return kv::StraightGet::claim(core.connector(), request, terms); });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // Ctrl-C.
  check(claimed.status());
  nb::list outcomes;
  for (const Status& status : claimed->outcomes) outcomes.append(reason_and_message(status));
  if (claimed->get == nullptr) return nb::make_tuple(outcomes, nb::none());
  auto* const made = new PyStraightGet(std::move(claimed->get), std::move(connector));
  return nb::make_tuple(outcomes, nb::cast(made, nb::rv_policy::take_ownership));
}

void read_straight(PyStraightGet& self, nb::handle target, nb::handle timeout) {
  const PythonMemory memory = memory_in_order(target);
  if (memory.read_only()) raise(Status(Reason::kReadOnly, "the target cannot be written to"));
  const std::span<std::byte> out(static_cast<std::byte*>(memory.address()), memory.bytes());
  const Duration limit = to_timeout(timeout, "timeout");
  check(without_gil([&] { return self.get->read(out, limit); }));
}

}  // namespace

void bind_kv_straight(nb::module_& m) {
  nb::class_<PyStraightGet>(m, "KvStraightGet",
                            "Claims on all payloads of a request. Dropped before it is read it "
                            "leaves them to whoever asks next.")
      .def_prop_ro("nbytes", [](const PyStraightGet& self) { return self.get->plan().bytes(); })
      .def_prop_ro("payload_bytes",
                   [](const PyStraightGet& self) { return self.get->payload_bytes(); })
      .def_prop_ro("num_layers",
                   [](const PyStraightGet& self) { return self.get->headers()[0].num_layers; })
      .def_prop_ro(
          "tensors",
          [](const PyStraightGet& self) { return tensors_list(self.get->plan().tensors()); },
          nb::sig("def tensors(self) -> list[tuple[bool, int, str, tuple[int, ...], int, int]]"))
      .def_prop_ro("metadata",
                   [](const PyStraightGet& self) { return self.get->headers()[0].metadata; })
      .def_prop_ro("block_ids",
                   [](const PyStraightGet& self) { return self.get->headers()[0].block_ids; })
      .def("read", &read_straight, nb::arg("target"), nb::arg("timeout"),
           nb::sig("def read(self, target: Any, timeout: Timeout) -> None"),
           "Fill memory of `nbytes` with the tensors, once.");
  m.def("kv_straight_get", &claim_straight, nb::arg("connector"), nb::arg("keys"),
        nb::arg("metadata"), nb::arg("routes"), nb::arg("request_id"), nb::arg("to_rank"),
        nb::arg("kv_heads"), nb::arg("wait"),
        nb::sig("def kv_straight_get(connector: PullConnector, keys: Sequence[str], "
                "metadata: list[Mapping[str, Any] | None], routes: Sequence[KvRoute], "
                "request_id: str, to_rank: int, kv_heads: int, wait: Timeout) -> "
                "tuple[list[tuple[str, str]], KvStraightGet | None]"),
        "Wait for all payloads and claim them: an outcome for each, and the claims if all are "
        "`ok`.");
}

}  // namespace stagelink::bindings
