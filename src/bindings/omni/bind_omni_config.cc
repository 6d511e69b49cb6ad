#include <string>
#include <string_view>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "bindings/bind.h"
#include "bindings/convert/status_error.h"
#include "connector/omni_config/config_json.h"
#include "connector/omni_config/ports.h"
#include "connector/omni_config/transfer_config.h"
#include "connector/omni_config/typed_value.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using namespace omni;  // NOLINT(google-build-using-namespace): the whole file speaks of it.

std::string load_config(const std::string& path, std::string_view platform) {
  const OmniTransferConfig config = unwrap(load_omni_transfer_config(path, platform));
  return unwrap(transfer_config_json(config));
}

std::string read_config(std::string_view json, std::string_view name, std::string_view platform) {
  const ConfigTree tree =
      unwrap(parse_config_tree(json, config::ConfigSyntax::kJson, name, platform));
  return unwrap(transfer_config_json(unwrap(parse_transfer_config(tree))));
}

std::string stage_view(std::string_view json, std::string_view stage) {
  return unwrap(stage_json(unwrap(transfer_config_of_json(json)), stage));
}

Role role_of(std::string_view name) {
  if (name == "sender") return Role::kSender;
  return name == "receiver" ? Role::kReceiver : Role::kNone;
}

std::string resolve(std::string_view json, int64_t stage_id, std::string_view role,
                    std::string_view purpose, int64_t local_rank, int64_t replica) {
  const WorkerPlace place{stage_id, role_of(role), unwrap(purpose_of(purpose)), local_rank,
                          replica};
  return unwrap(resolve_connector_json(json, place));
}

uint16_t port(int64_t base, std::string_view purpose, int64_t from_stage, int64_t local_rank,
              int64_t replica) {
  return unwrap(
      connector_port(base, {unwrap(purpose_of(purpose)), from_stage, local_rank, replica}));
}

}  // namespace

void bind_omni_config(nb::module_& m) {
  m.def("omni_load_config", load_config, nb::arg("path"), nb::arg("platform") = "",
        "A pipeline's configuration as JSON: stages, edges, ports.");
  m.def("omni_read_config", read_config, nb::arg("json"), nb::arg("name"), nb::arg("platform") = "",
        "The same of a text.");
  m.def("omni_stage", stage_view, nb::arg("json"), nb::arg("stage"),
        "What one stage is given of a configuration's edges, as JSON.");
  m.def("omni_resolve_connector", resolve, nb::arg("json"), nb::arg("stage_id"), nb::arg("role"),
        nb::arg("purpose"), nb::arg("local_rank"), nb::arg("replica"),
        "A connector's name and extra for one worker, as JSON.");
  m.def("omni_connector_port", port, nb::arg("base"), nb::arg("purpose"), nb::arg("from_stage"),
        nb::arg("local_rank"), nb::arg("replica"), "The port of a transfer engine's sender.");
}

}  // namespace stagelink::bindings
