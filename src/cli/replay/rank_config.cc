#include "cli/replay/rank_config.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "config/engine_config.h"

namespace stagelink::cli::replay {

using Json = nlohmann::json;

std::string_view name_of(Role role) noexcept {
  return role == Role::kPrefill ? "prefill" : "decode";
}
std::string_view name_of(Mode mode) noexcept { return mode == Mode::kRead ? "read" : "write"; }
std::string_view name_of(Verify verify) noexcept {
  return verify == Verify::kFull ? "full" : verify == Verify::kSample ? "sample" : "off";
}

bool RankConfig::maps() const noexcept {
  return std::find(transports.begin(), transports.end(), "shm") != transports.end();
}

Result<EngineOptions> RankConfig::engine_options() const {
  SL_ASSIGN(auto options, config::load_engine_options({}));
  options.name = fmt::format("replay-{}-{}", name_of(role), rank);
  options.transports = transports;
  if (!bind.empty()) options.bind = bind;
  if (!secret_file.empty()) options.secret_file = secret_file;
  options.transfer_timeout = timeout;
  options.connect_timeout = timeout;
  options.max_ranges = std::max(options.max_ranges, largest_request * layout.planes());
  options.fault_seed = fault_seed == 0 ? 0 : fault_seed + rank;
  options.fault_drop_ppm = fault_drop_ppm;
  options.fault_delay_ppm = fault_delay_ppm;
  options.fault_cut_ppm = fault_cut_ppm;
  options.fault_flip_ppm = fault_flip_ppm;
  return options;
}

Json to_json(const RankConfig& config) {
  const Layout& layout = config.layout;
  return {{"role", config.role},
          {"rank", config.rank},
          {"prefill_ranks", config.prefill_ranks},
          {"decode_ranks", config.decode_ranks},
          {"mode", config.mode},
          {"verify", config.verify},
          {"checksum", config.checksum},
          {"retries", config.retries},
          {"limit_every", config.limit_every},
          {"layout",
           {layout.layers, layout.parts, layout.heads, layout.vector_bytes, layout.block_tokens,
            layout.pool_blocks}},
          {"largest_request", config.largest_request},
          {"transports", config.transports},
          {"bind", config.bind},
          {"secret_file", config.secret_file},
          {"timeout_ns", config.timeout.count()},
          {"fault_seed", config.fault_seed},
          {"fault_ppm",
           {config.fault_drop_ppm, config.fault_delay_ppm, config.fault_cut_ppm,
            config.fault_flip_ppm}}};
}

Result<RankConfig> rank_config_from(const Json& json) {
  try {
    RankConfig config;
    json.at("role").get_to(config.role);
    json.at("rank").get_to(config.rank);
    json.at("prefill_ranks").get_to(config.prefill_ranks);
    json.at("decode_ranks").get_to(config.decode_ranks);
    json.at("mode").get_to(config.mode);
    json.at("verify").get_to(config.verify);
    json.at("checksum").get_to(config.checksum);
    json.at("retries").get_to(config.retries);
    json.at("limit_every").get_to(config.limit_every);
    Layout& layout = config.layout;
    uint32_t* const fields[] = {&layout.layers,       &layout.parts,        &layout.heads,
                                &layout.vector_bytes, &layout.block_tokens, &layout.pool_blocks};
    for (size_t i = 0; i < std::size(fields); ++i) json.at("layout").at(i).get_to(*fields[i]);
    json.at("largest_request").get_to(config.largest_request);
    json.at("transports").get_to(config.transports);
    json.at("bind").get_to(config.bind);
    json.at("secret_file").get_to(config.secret_file);
    config.timeout = Duration(json.at("timeout_ns").get<int64_t>());
    json.at("fault_seed").get_to(config.fault_seed);
    json.at("fault_ppm").at(0).get_to(config.fault_drop_ppm);
    json.at("fault_ppm").at(1).get_to(config.fault_delay_ppm);
    json.at("fault_ppm").at(2).get_to(config.fault_cut_ppm);
    json.at("fault_ppm").at(3).get_to(config.fault_flip_ppm);
    return config;
  } catch (const Json::exception& error) {
    return Status(Reason::kFrame, fmt::format("configuration of a rank: {}", error.what()));
  }
}

}  // namespace stagelink::cli::replay
