#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/objects/closed_at_exit.h"
#include "bindings/serializer/object_encoder.h"
#include "bindings/store/py_store.h"
#include "connector/store/store_connector.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using store_connector::ConnectorMetrics;
using store_connector::ConnectorOptions;
using store_connector::ObjectName;
using store_connector::StoreConnector;

// A StoreConnector as Python sees it.
//
// Thread-safety: used with the interpreter lock, which its calls give up while they work.
class PyStoreConnector final : public ClosedAtExit {
 public:
  explicit PyStoreConnector(std::unique_ptr<StoreConnector> connector) noexcept
      : connector_(std::move(connector)) {}
  ~PyStoreConnector() override { close_at_exit(); }
  PyStoreConnector(const PyStoreConnector&) = delete;
  PyStoreConnector& operator=(const PyStoreConnector&) = delete;

  StoreConnector& connector() const noexcept { return *connector_; }
  void close_at_exit() override {
    (void)without_gil([this] { return connector_->close(); });
  }

 private:
  std::unique_ptr<StoreConnector> connector_;
};

ConnectorOptions options_of(std::string_view extra) {
  const config::ConfigNode root =
      unwrap(config::parse_config(extra, config::ConfigSyntax::kJson, "extra"));
  return unwrap(store_connector::load_connector_options(root));
}

PyStoreConnector* open_connector(std::string_view extra) {
  const ConnectorOptions options = options_of(extra);
  return new PyStoreConnector(unwrap(without_gil([&] { return StoreConnector::create(options); })));
}

// What the class in Python goes by, apart from what stays here.
nb::dict options_dict(const PyStoreConnector& self) {
  const ConnectorOptions& options = self.connector().options();
  const bool shm = options.store.backend == StoreBackend::kShm;
  nb::dict out;
  out["backend"] = shm ? "shm" : "yuanrong";
  out["namespace"] = options.store.arena.name;
  out["host"] = options.store.yuanrong.host;
  out["port"] = options.store.yuanrong.port;
  out["get_wait"] = std::chrono::duration<double>(options.get_wait()).count();
  out["get_sub_timeout_ms"] = options.get_sub_timeout_ms;
  out["wire"] = options.wire;
  out["checksum"] = options.checksum;
  out["copy"] = options.copy;
  out["view_min_bytes"] = options.view_min_bytes;
  out["revive"] = options.revive;
  out["stage_id"] = options.stage_id;
  return out;
}

// Whether it was put; why not is logged and counted.
bool put(PyStoreConnector& self, std::string_view from, std::string_view to, std::string_view id,
         const KeptPlan& plan) {
  const Status status = without_gil([&] {
    return self.connector().put(
        {id, from, to}, plan.plan.size(), [&plan](auto pieces) { return plan.plan.write(pieces); },
        ended_by_signals());
  });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return status.ok();
}

PyView* get(PyStoreConnector& self, std::string_view from, std::string_view to, std::string_view id,
            nb::handle timeout) {
  const Duration limit = to_duration(timeout, "timeout");
  auto view = without_gil([&] {
    return self.connector().get({id, from, to}, limit, ended_by_signals());
  });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return view.ok() ? new PyView(*std::move(view)) : nullptr;
}

void consumed(PyStoreConnector& self, const ObjectName& name, const PyView& view,
              const Status& decoded, double decoding) {
  const auto taken = std::chrono::duration_cast<ConnectorMetrics::Clock::duration>(
      std::chrono::duration<double>(decoding));
  without_gil([&] {
    self.connector().consumed(name, view.view(), decoded, taken);
    return 0;
  });
}

void cleanup(PyStoreConnector& self, std::string_view id, nb::handle from, nb::handle to) {
  const bool whole = from.is_none();
  const std::string from_stage = whole ? "" : nb::cast<std::string>(from);
  const std::string to_stage = whole ? "" : nb::cast<std::string>(to);
  without_gil([&] {
    if (whole) {
      self.connector().cleanup(id);
    } else {
      self.connector().cleanup(ObjectName{id, from_stage, to_stage});
    }
    return 0;
  });
}

// (reason, code, puts, gets) of whatever came to pass.
nb::list outcomes(const PyStoreConnector& self) {
  const ConnectorMetrics& metrics = self.connector().metrics();
  const auto text = [](std::string_view name) { return nb::str(name.data(), name.size()); };
  nb::list out;
  for (int at = 0; at < kReasonCount; ++at) {
    const auto reason = static_cast<Reason>(at);
    const uint64_t puts = metrics.puts(reason);
    const uint64_t gets = metrics.gets(reason);
    if (puts + gets == 0) continue;
    out.append(
        nb::make_tuple(text(reason_name(reason)), text(code_name(code_of(reason))), puts, gets));
  }
  return out;
}

}  // namespace

void bind_store_connector(nb::module_& m) {
  nb::class_<PyStoreConnector>(m, "StoreConnector", nb::is_final(),
                               "The core of stagelink.connectors.YuanrongConnector.")
      .def(nb::new_(&open_connector), nb::arg("extra"))
      .def_prop_ro("options", &options_dict, nb::sig("def options(self) -> dict[str, Any]"))
      .def("put", &put, nb::arg("from_stage"), nb::arg("to_stage"), nb::arg("id"), nb::arg("plan"),
           "Write a payload's plan into the store. False: it was not put; why is counted.")
      .def(
          "get", &get, nb::arg("from_stage"), nb::arg("to_stage"), nb::arg("id"),
          nb::arg("timeout"),
          nb::sig("def get(self, from_stage: str, to_stage: str, id: str, timeout: float | str) -> "
                  "ObjectView | None"),
          "The payload, or None; why is counted. End it with `consumed` or `spoiled`.")
      .def(
          "consumed",
          [](PyStoreConnector& self, std::string_view from, std::string_view to,
             std::string_view id, const PyView& view, double decoding) {
            consumed(self, {id, from, to}, view, {}, decoding);
          },
          nb::arg("from_stage"), nb::arg("to_stage"), nb::arg("id"), nb::arg("view"),
          nb::arg("decoding"), "The payload was decoded, in so many seconds.")
      .def(
          "spoiled",
          [](PyStoreConnector& self, std::string_view from, std::string_view to,
             std::string_view id, const PyView& view, double decoding, const std::string& why) {
            consumed(self, {id, from, to}, view, Status(Reason::kCorrupt, why), decoding);
          },
          nb::arg("from_stage"), nb::arg("to_stage"), nb::arg("id"), nb::arg("view"),
          nb::arg("decoding"), nb::arg("why"), "The payload cannot be decoded.")
      .def("cleanup", &cleanup, nb::arg("id"), nb::arg("from_stage") = nb::none(),
           nb::arg("to_stage") = nb::none(),
           nb::sig(
               "def cleanup(self, id: str, from_stage: str | None = None, to_stage: str | None = "
               "None) -> None"))
      .def("reap_consumed",
           [](PyStoreConnector& self) {
             return without_gil([&] { return self.connector().reap_consumed(); });
           })
      .def(
          "refuse",
          [](PyStoreConnector& self, std::string_view from, std::string_view to,
             std::string_view id, const std::string& why) {
            self.connector().refuse({id, from, to}, why);
          },
          nb::arg("from_stage"), nb::arg("to_stage"), nb::arg("id"), nb::arg("why"),
          "Count and log a put whose payload has no form.")
      .def(
          "refuse_get",
          [](PyStoreConnector& self, const std::string& why) { self.connector().refuse_get(why); },
          nb::arg("why"), "Count and log a get whose key cannot be.")
      .def("outcomes", &outcomes, nb::sig("def outcomes(self) -> list[tuple[str, str, int, int]]"),
           "(reason, code, puts, gets) of whatever came to pass.")
      .def_prop_ro(
          "put_bytes",
          [](const PyStoreConnector& self) { return self.connector().metrics().put_bytes(); })
      .def_prop_ro(
          "get_bytes",
          [](const PyStoreConnector& self) { return self.connector().metrics().get_bytes(); })
      .def_prop_ro("unconsumed",
                   [](const PyStoreConnector& self) { return self.connector().unconsumed(); })
      .def(
          "check_health",
          [](PyStoreConnector& self) {
            const Status status = without_gil([&] { return self.connector().store().health(); });
            return status.ok() ? std::string() : status.to_string();
          },
          "Empty, or why the store does not work just now.")
      .def("metrics_text",
           [](const PyStoreConnector& self) { return self.connector().metrics_text(); })
      .def_prop_ro("closed", [](const PyStoreConnector& self) { return self.connector().closed(); })
      .def(
          "close",
          [](PyStoreConnector& self, nb::handle timeout) {
            const Duration limit = to_duration(timeout, "timeout");
            check(without_gil([&] { return self.connector().close(limit); }));
          },
          nb::arg("timeout") = 5, nb::sig("def close(self, timeout: float | str = 5) -> None"));
  m.def("store_connector_options_text", &store_connector::connector_options_text,
        "The reference of a connector's options, in Markdown.");
}

}  // namespace stagelink::bindings
