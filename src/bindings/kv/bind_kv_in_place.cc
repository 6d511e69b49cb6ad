#include <memory>
#include <string>
#include <utility>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/kv/kv_objects.h"
#include "bindings/pull/pull_metadata.h"
#include "bindings/pull/py_pull_connector.h"
#include "connector/kv/in_place/registered_cache.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

// A registered cache, the connector, and the tensors, which stay as long as anybody reads them.
//
// Thread-safety: used with the interpreter lock, which its calls give up while they work.
struct PyRegisteredCache {
  PyRegisteredCache(std::unique_ptr<kv::RegisteredCache> made, nb::object of, nb::object held)
      : cache(std::move(made)), connector(std::move(of)), layers(std::move(held)) {}
  PyRegisteredCache(const PyRegisteredCache&) = delete;
  PyRegisteredCache& operator=(const PyRegisteredCache&) = delete;
  ~PyRegisteredCache() {
    const bool is_free = without_gil([this] { return cache->close(Duration::zero()).ok(); });
    if (!is_free) (void)layers.release();  // Somebody reads them, to an end that is not seen here.
    without_gil([this] {
      cache.reset();
      return 0;
    });
  }

  std::unique_ptr<kv::RegisteredCache> cache;
  nb::object connector;
  nb::object layers;
};

PyRegisteredCache* register_cache(nb::object connector, nb::object layers) {
  auto& core = nb::cast<PyPullConnector&>(connector);
  const auto& kept = nb::cast<const KvLayers&>(layers);
  auto made = unwrap(
      without_gil([&] { return kv::RegisteredCache::create(core.connector(), kept.planes); }));
  return new PyRegisteredCache(std::move(made), std::move(connector), std::move(layers));
}

nb::tuple offer_in_place(PyRegisteredCache& self, nb::handle name, const KvPlan& plan,
                         nb::handle ticket, nb::handle timeout) {
  const std::string key = to_text(name, "key");
  const uint64_t number = to_integer(ticket, "ticket", 0, UINT64_MAX);
  pull::PutTerms terms;
  terms.timeout = to_timeout(timeout, "timeout");
  terms.interrupted = ended_by_signals();
  const auto put = without_gil([&] { return self.cache->put(key, plan.plan, number, terms); });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // Ctrl-C.
  const Status& status = put.status();
  return nb::make_tuple(to_str(reason_name(status.reason())), status.message(),
                        put.ok() ? nb::object(metadata_dict(*put)) : nb::object(nb::none()));
}

}  // namespace

void bind_kv_in_place(nb::module_& m) {
  nb::class_<PyRegisteredCache>(m, "KvRegisteredCache", nb::is_final(),
                                "A KV cache whose blocks are offered where they lie.")
      .def("put", &offer_in_place, as_given("key"), nb::arg("plan"), as_given("ticket"),
           as_given("timeout"),
           nb::sig("def put(self, key: str, plan: KvPlan, ticket: int, timeout: Timeout) -> "
                   "tuple[str, str, dict[str, Any] | None]"),
           "(reason, message, metadata). The blocks are read until the ticket is free.")
      .def(
          "take_free", [](PyRegisteredCache& self) { return self.cache->take_free(); },
          "Tickets whose blocks nobody reads any more, since the last call.")
      .def_prop_ro("held", [](const PyRegisteredCache& self) { return self.cache->held(); })
      .def(
          "close",
          [](PyRegisteredCache& self, nb::handle timeout) {
            const Duration limit = to_duration(timeout, "timeout");
            check(without_gil([&] { return self.cache->close(limit); }));
          },
          as_given("timeout"), nb::sig("def close(self, timeout: Timeout) -> None"),
          "Take back what is offered and wait for its readers. Raises Busy.");
  m.def("kv_register", &register_cache, nb::arg("connector"), nb::arg("layers"),
        nb::sig("def kv_register(connector: PullConnector, layers: KvLayers) -> KvRegisteredCache"),
        nb::rv_policy::take_ownership);
}

}  // namespace stagelink::bindings
