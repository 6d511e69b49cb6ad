#include "cli/config_check/pipeline_check.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include <fmt/format.h>

#include "cli/commands.h"
#include "connector/omni_config/config_json.h"
#include "connector/omni_config/connector_names.h"
#include "connector/omni_config/kv_maps.h"
#include "connector/omni_config/ports.h"
#include "connector/omni_config/transfer_config.h"
#include "connector/store/options.h"

namespace stagelink::cli {
namespace {

using Row = std::vector<std::string>;

// Columns as wide as their widest cell.
void print_table(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (size_t at = 0; at < row.size(); ++at) widths[at] = std::max(widths[at], row[at].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t at = 0; at < row.size(); ++at) {
      line += fmt::format("{:<{}}", row[at], at + 1 == row.size() ? 0 : widths[at] + 2);
    }
    std::puts(line.c_str());
  }
}

std::string bound_text(int64_t bound) { return bound == -1 ? "none" : std::to_string(bound); }

// Where the ends of an edge meet.
std::string store_text(const omni::ConnectorSpec& connector) {
  if (!omni::is_store_connector(connector.name)) return "-";
  auto options = store_connector::load_connector_options(connector.extra);
  if (!options.ok()) return "?";
  if (options->store.backend == StoreBackend::kShm) return "shm " + options->store.arena.name;
  return fmt::format("yuanrong {}:{}", options->store.yuanrong.host, options->store.yuanrong.port);
}

void print_edges(const omni::OmniTransferConfig& config) {
  std::vector<Row> rows = {{"edge", "connector", "window", "in flight", "store", "from"}};
  for (const omni::Edge& edge : config.edges) {
    rows.push_back({fmt::format("{}->{}", edge.from, edge.to), edge.connector.name,
                    bound_text(edge.bounds.window_size), bound_text(edge.bounds.max_inflight),
                    store_text(edge.connector),
                    edge.automatic           ? "automatic"
                    : edge.reference.empty() ? "the stage"
                                             : edge.reference});
  }
  print_table(rows);
}

void print_ports(const omni::OmniTransferConfig& config, const std::vector<omni::PortUse>& ports) {
  std::vector<Row> rows = {{"port", "purpose", "stage", "replica", "rank", "edge"}};
  for (const omni::PortUse& use : ports) {
    const omni::Edge& edge = config.edges[use.edge];
    rows.push_back({std::to_string(use.port), std::string(omni::purpose_name(use.place.purpose)),
                    std::to_string(use.place.from_stage), std::to_string(use.place.replica),
                    std::to_string(use.place.local_rank),
                    fmt::format("{}->{}", edge.from, edge.to)});
  }
  std::puts("");
  print_table(rows);
}

// Proven as they were made: what senders put is what receivers get, every head once.
void print_kv_maps(const omni::OmniTransferConfig& config, const std::vector<omni::KvMap>& maps) {
  for (const omni::KvMap& one : maps) {
    const omni::Edge& edge = config.edges[one.edge];
    const kv::TpTopology& topology = one.map.topology();
    std::printf("\nKV cache %s->%s: %u ranks to %u, %s; %u payloads a request, every head once\n",
                edge.from.c_str(), edge.to.c_str(), topology.from_tp, topology.to_tp,
                one.map.fan().c_str(), one.map.payloads());
    for (const std::string& line : one.map.lines()) std::printf("  %s\n", line.c_str());
  }
}

int fail(const Status& status) {
  std::fprintf(stderr, "error: %s\n", status.to_string().c_str());
  return kExitUsage;
}

}  // namespace

bool is_pipeline(const config::ConfigNode& root) noexcept {
  constexpr std::array<std::string_view, 7> kKeys = {
      "stages", "stage_args", "runtime", "edges", "connectors", "pipeline", "base_config"};
  return std::ranges::any_of(kKeys,
                             [&root](std::string_view key) { return root.find(key) != nullptr; });
}

int check_pipeline(const PipelineCheck& arguments) {
  auto config = omni::load_omni_transfer_config(arguments.file, arguments.platform);
  if (!config.ok()) return fail(config.status());
  if (arguments.json) {
    auto json = omni::transfer_config_json(*config);
    if (!json.ok()) return fail(json.status());
    std::puts(json->c_str());
    return kExitOk;
  }
  auto ports = omni::port_plan(*config);
  if (!ports.ok()) return fail(ports.status());
  std::printf("The file is right. Stages: %zu.%s\n", config->stages.size(),
              config->enabled ? "" : " It is disabled (runtime.enabled), so nothing is built.");
  if (!config->edges.empty()) print_edges(*config);
  if (!ports->empty()) print_ports(*config, *ports);
  const auto maps = omni::kv_maps(*config);
  if (!maps.ok()) return fail(maps.status());
  print_kv_maps(*config, *maps);
  return kExitOk;
}

}  // namespace stagelink::cli
