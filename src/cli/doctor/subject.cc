#include "cli/doctor/subject.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/text.h"
#include "cli/config_check/pipeline_check.h"
#include "config/engine_config.h"
#include "connector/omni_config/connector_names.h"
#include "connector/omni_config/kv_maps.h"
#include "connector/omni_config/ports.h"
#include "connector/omni_config/transfer_config.h"
#include "connector/omni_config/variables.h"
#include "connector/pull/options.h"
#include "connector/store/options.h"
#include "store/shm/arena_file.h"

namespace stagelink::cli::doctor {
namespace {

using config::ConfigNode;

// A scalar of `extra`, its variable replaced; empty: not there.
std::string text_of(const ConfigNode& extra, std::string_view key) {
  const config::ConfigEntry* const entry = extra.find(key);
  if (entry == nullptr || entry->value.kind != ConfigNode::Kind::kScalar) return {};
  if (entry->value.is_null()) return {};
  auto text = omni::expand_variable(entry->value.text);
  return text.ok() ? *text : std::string();
}

std::string edge_name(const omni::Edge& edge) {
  return fmt::format("edge {}->{} ({})", edge.from, edge.to, edge.connector.name);
}

// Turns the part of a pipeline that was asked for into a subject.
class PipelineReader {
 public:
  PipelineReader(const omni::OmniTransferConfig& config, const SubjectRequest& request,
                 Subject& out)
      : config_(config), request_(request), out_(out) {}

  Status read() {
    SL_TRY(check_stage());
    check_rank();
    SL_ASSIGN(maps_, omni::kv_maps(config_));
    SL_ASSIGN(const auto ports, omni::port_plan(config_));
    for (const omni::PortUse& use : ports) add_listener(use);
    for (const omni::Edge& edge : config_.edges) {
      if (!concerns(edge)) continue;
      if (omni::is_transfer_engine(edge.connector.name)) SL_TRY(add_transfer_engine(edge));
      if (omni::is_store_connector(edge.connector.name)) SL_TRY(add_store(edge));
    }
    return {};
  }

 private:
  Status check_stage() const {
    if (request_.stage.empty()) return {};
    std::vector<std::string> known;
    for (const omni::Stage& stage : config_.stages) {
      if (stage.id == request_.stage) return {};
      known.push_back(stage.id);
    }
    return Status(Reason::kInvalidArgument,
                  fmt::format("--stage {}: the pipeline has the stages {}", request_.stage,
                              fmt::join(known, ", ")));
  }

  // A rank that one of the stages has is one of the pipeline.
  void check_rank() {
    if (!request_.rank.has_value()) return;
    std::string known;
    for (const omni::Stage& stage : config_.stages) {
      if (!chosen(stage.id)) continue;
      if (*request_.rank >= 0 && *request_.rank < stage.tensor_parallel) return;
      known += fmt::format("{}stage {} has {}", known.empty() ? "" : ", ", stage.id,
                           stage.tensor_parallel == 1
                               ? std::string("rank 0 alone")
                               : fmt::format("ranks 0 to {}", stage.tensor_parallel - 1));
    }
    out_.findings.push_back(
        {Level::kError, "rank_unknown",
         fmt::format("--rank {}: there is no such rank: {}", *request_.rank, known),
         "Nothing below is about it: no port, no pool and no sender belongs to it.",
         "Name one of these ranks, or correct tensor_parallel_size of the stage."});
  }

  bool chosen(const std::string& stage) const {
    return request_.stage.empty() || stage == request_.stage;
  }
  bool concerns(const omni::Edge& edge) const { return chosen(edge.from) || chosen(edge.to); }

  void add_listener(const omni::PortUse& use) {
    const omni::Edge& edge = config_.edges[use.edge];
    if (!chosen(edge.from)) return;
    if (request_.rank.has_value() && use.place.local_rank != *request_.rank) return;
    add_listener(edge, omni::port_user(config_, use), use.port);
  }

  void add_listener(const omni::Edge& edge, std::string who, uint16_t port) {
    const ConfigNode& extra = edge.connector.extra;
    ListenPlace place;
    place.who = std::move(who);
    place.host = text_of(extra, "host");
    if (place.host.empty()) place.host = "auto";
    place.interface = text_of(extra, "interface");
    place.advertise = text_of(extra, "advertise_host");
    place.port = port;
    out_.listens.push_back(std::move(place));
  }

  Status add_transfer_engine(const omni::Edge& edge) {
    const ConfigNode& extra = edge.connector.extra;
    SL_TRY(add_pools(edge));
    if (text_of(extra, "protocol") == "ascend") out_.ascend.push_back(edge_name(edge));
    SL_ASSIGN(const int64_t base, omni::base_port(extra));
    // Any free port: it has no place in the plan of ports.
    if (base == 0 && chosen(edge.from)) add_listener(edge, edge_name(edge), 0);
    if (chosen(edge.to)) SL_TRY(add_senders(edge, base));
    return {};
  }

  // One pool for each worker on either side.
  Status add_pools(const omni::Edge& edge) {
    const ConfigNode& extra = edge.connector.extra;
    if (text_of(extra, "memory_pool_device").starts_with("npu")) return {};
    uint64_t bytes = pull::PullOptions().memory_pool_size;
    if (const std::string size = text_of(extra, "memory_pool_size"); !size.empty()) {
      const auto stated = parse_bytes(size);
      if (!stated.ok()) {
        return Status(
            stated.status().reason(),
            fmt::format("{}: memory_pool_size: {}", edge_name(edge), stated.status().message()));
      }
      bytes = *stated;
    }
    uint64_t workers = 0;
    for (const omni::Stage& stage : config_.stages) {
      if ((stage.id != edge.from && stage.id != edge.to) || !chosen(stage.id)) continue;
      workers += request_.rank.has_value()
                     ? 1
                     : static_cast<uint64_t>(stage.replicas * stage.tensor_parallel);
    }
    constexpr uint64_t kMost = uint64_t{1} << 60;  // More than any machine has.
    const uint64_t all = bytes > kMost / std::max<uint64_t>(workers, 1) ? kMost : bytes * workers;
    out_.memory.push_back(
        {fmt::format("{} of {}", counted(workers, "pool"), edge_name(edge)), all, {}});
    return {};
  }

  // Where a receiver finds its senders, if the configuration says so.
  Status add_senders(const omni::Edge& edge, int64_t base) {
    const ConfigNode& extra = edge.connector.extra;
    const std::string host = text_of(extra, "sender_host");
    if (host.empty() || host == "auto") return {};
    const omni::Stage* from = nullptr;
    for (const omni::Stage& stage : config_.stages) {
      if (stage.id == edge.from) from = &stage;
    }
    if (from == nullptr) return {};
    std::string stated = text_of(extra, "sender_zmq_port");
    if (stated == "auto" || stated == "0") stated.clear();
    if (stated.empty() && base == 0) return {};  // It is told at run time.
    const auto purpose =
        from->sends_kv ? omni::PortPurpose::kKvTransfer : omni::PortPurpose::kRequestForwarding;
    std::optional<pull::PullOptions> pull;
    // Over the device network only NPUs can.
    if (omni::is_pull_connector(edge.connector.name) && text_of(extra, "protocol") != "ascend") {
      SL_ASSIGN(auto loaded, pull::load_pull_options(extra));
      pull = std::move(loaded.options);
    }
    for (int64_t rank = 0; rank < from->tensor_parallel; ++rank) {
      if (!is_asked(edge, rank)) continue;
      uint16_t port = 0;
      if (!stated.empty()) {
        SL_ASSIGN(const Endpoint endpoint, parse_endpoint("any:" + stated));
        port = endpoint.port;
      } else {
        SL_ASSIGN(const int64_t stage_id, parse_integer(from->id));
        SL_ASSIGN(port, omni::connector_port(base, {purpose, stage_id, rank, 0}));
      }
      out_.peers.push_back({fmt::format("sender of {}, rank {}", edge_name(edge), rank),
                            {host, port},
                            Speaks::kZmq,
                            !text_of(extra, "secret_file").empty(),
                            pull});
      if (!stated.empty()) break;  // One port for all ranks.
    }
    return {};
  }

  // Whether the chosen rank gets something from that rank of the sender.
  bool is_asked(const omni::Edge& edge, int64_t rank) const {
    if (!request_.rank.has_value()) return true;
    for (const omni::KvMap& map : maps_) {
      if (&config_.edges[map.edge] != &edge) continue;
      if (*request_.rank < 0 || *request_.rank > UINT32_MAX) return false;
      const auto gets = map.map.gets(static_cast<uint32_t>(*request_.rank));
      return gets.ok() && std::ranges::any_of(*gets, [rank](const kv::RankRoute& route) {
               return route.rank == rank;
             });
    }
    return rank == *request_.rank;
  }

  Status add_store(const omni::Edge& edge) {
    SL_ASSIGN(const auto options, store_connector::load_connector_options(edge.connector.extra));
    const StoreOptions& store = options.store;
    if (store.backend == StoreBackend::kShm) {
      MemoryNeed need{"arena of " + edge_name(edge), store.arena.capacity,
                      store::shm::arena_path(store.arena)};
      // Edges that meet in one arena take its memory once.
      const bool known = std::ranges::any_of(
          out_.memory, [&need](const MemoryNeed& other) { return other.file == need.file; });
      if (!known) out_.memory.push_back(std::move(need));
      return {};
    }
    out_.peers.push_back({"Yuanrong worker of " + edge_name(edge),
                          {store.yuanrong.host, store.yuanrong.port},
                          Speaks::kOther,
                          false});
    if (!store.yuanrong.etcd_address.empty()) {
      SL_ASSIGN(Endpoint etcd, parse_endpoint(store.yuanrong.etcd_address));
      out_.peers.push_back({"etcd of " + edge_name(edge), std::move(etcd), Speaks::kOther, false});
    }
    return {};
  }

  const omni::OmniTransferConfig& config_;
  const SubjectRequest& request_;
  Subject& out_;
  std::vector<omni::KvMap> maps_;
};

Status read_pipeline(const SubjectRequest& request, Subject& out) {
  SL_ASSIGN(const auto pipeline, omni::load_omni_transfer_config(request.file, request.platform));
  out.name = "the pipeline " + request.file;
  if (!request.stage.empty()) out.name += ", stage " + request.stage;
  if (request.rank.has_value()) out.name += fmt::format(", rank {}", *request.rank);
  return PipelineReader(pipeline, request, out).read();
}

void add_engine(Subject& out) {
  ListenPlace place;
  place.who = "option bind";
  place.interface = out.engine.interface;
  place.advertise = out.engine.advertise;
  if (out.engine.bind == "auto") {
    place.host = "auto";
  } else if (auto bind = parse_endpoint(out.engine.bind); bind.ok()) {
    place.host = bind->host;
    place.port = bind->port;
  }
  out.listens.push_back(std::move(place));
}

Status add_peers(const SubjectRequest& request, Subject& out) {
  for (const std::string& text : request.peers) {
    auto endpoint = parse_endpoint(text);
    if (!endpoint.ok()) {
      return Status(endpoint.status().reason(),
                    "--peer: " + std::string(endpoint.status().message()));
    }
    if (endpoint->port == 0 || endpoint->wildcard()) {
      return Status(Reason::kInvalidArgument,
                    fmt::format("--peer {}: that is no address to connect to", text));
    }
    out.peers.push_back(
        {"--peer", *std::move(endpoint), Speaks::kAnything, !out.engine.secret_file.empty()});
  }
  return {};
}

}  // namespace

Result<Subject> load_subject(const SubjectRequest& request) {
  Subject out;
  bool pipeline = false;
  if (!request.file.empty()) {
    SL_ASSIGN(const ConfigNode root, config::read_config_file(request.file));
    pipeline = is_pipeline(root);
  }
  if (!pipeline && (!request.stage.empty() || request.rank.has_value())) {
    return Status(Reason::kInvalidArgument,
                  "--stage and --rank choose a part of a pipeline: name its file");
  }
  config::ConfigSources sources{pipeline ? std::string() : request.file, true, request.options};
  SL_ASSIGN(out.engine, config::load_engine_options(sources));
  if (pipeline) {
    SL_TRY(read_pipeline(request, out));
  } else {
    if (!request.file.empty()) out.name = "the engine of " + request.file;
    add_engine(out);
  }
  SL_TRY(add_peers(request, out));
  return out;
}

}  // namespace stagelink::cli::doctor
