#include "connector/omni_config/connector_names.h"

#include <algorithm>
#include <array>

namespace stagelink::omni {
namespace {

constexpr std::array<std::string_view, 2> kPulling = {"YuanrongTransferEngineConnector",
                                                      "StagelinkPullConnector"};
constexpr std::array<std::string_view, 5> kTransferEngines = {
    "MooncakeTransferEngineConnector", "MoriTransferEngineConnector", kPulling[0], kPulling[1],
    "NixlConnector"};
constexpr std::array<std::string_view, 2> kStores = {"YuanrongConnector",
                                                     "StagelinkStoreConnector"};
constexpr std::array<std::string_view, 10> kConnectors = {"SharedMemoryConnector",
                                                          "MooncakeStoreConnector",
                                                          "MooncakeConnector",
                                                          kStores[0],
                                                          kStores[1],
                                                          kTransferEngines[0],
                                                          kTransferEngines[1],
                                                          kTransferEngines[2],
                                                          kTransferEngines[3],
                                                          kTransferEngines[4]};

}  // namespace

bool is_transfer_engine(std::string_view connector) noexcept {
  return std::ranges::find(kTransferEngines, connector) != kTransferEngines.end();
}

bool is_pull_connector(std::string_view connector) noexcept {
  return std::ranges::find(kPulling, connector) != kPulling.end();
}

bool is_store_connector(std::string_view connector) noexcept {
  return std::ranges::find(kStores, connector) != kStores.end();
}

std::span<const std::string_view> connector_names() noexcept { return kConnectors; }

}  // namespace stagelink::omni
