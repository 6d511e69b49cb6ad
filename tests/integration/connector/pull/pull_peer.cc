#include "integration/connector/pull/pull_peer.h"

#include <map>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

#include "base/bytes.h"
#include "config/config_node.h"
#include "integration/support/private_memory.h"
#include "integration/support/unseen.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kGap = 4096;

void put_metadata(ByteWriter& out, const pull::PullMetadata& metadata) {
  out.put_string(metadata.source_host);
  out.put(metadata.source_port);
  out.put(metadata.generation);
}

pull::PullMetadata get_metadata(ByteReader& in) {
  pull::PullMetadata metadata;
  metadata.source_host = in.get_string();
  metadata.source_port = in.get<uint16_t>();
  metadata.generation = in.get<uint64_t>();
  return metadata;
}

// The other end of a PullPeer.
class PullRole {
 public:
  explicit PullRole(std::unique_ptr<pull::PullConnector> connector)
      : connector_(std::move(connector)) {}

  Status obey(ByteReader& in, ByteWriter& out) {
    switch (in.get<PullCommand>()) {
      case PullCommand::kPut: return put(in, out);
      case PullCommand::kPutBytes: return put_bytes(in, out);
      case PullCommand::kPutRanges: return put_ranges(in, out);
      case PullCommand::kCleanup: return cleanup(in, out);
      case PullCommand::kGet: return get(in, out);
      case PullCommand::kGetMany: return get_many(in);
      case PullCommand::kClaim: return claim(in, out);
      case PullCommand::kReadClaim: return read_claim(in);
      case PullCommand::kFinishClaim: return finish_claim(in);
      case PullCommand::kHealth: return health(out);
      case PullCommand::kMetrics: {
        const std::string text = connector_->metrics_text();
        out.put_bytes(std::as_bytes(std::span(text.data(), text.size())));
        return {};
      }
      case PullCommand::kClose: return connector_->close(Duration(in.get<int64_t>()));
    }
    return Status(Reason::kUnsupported, "unknown command");
  }

 private:
  Status put(ByteReader& in, ByteWriter& out) {
    const std::string_view key = in.get_string();
    const auto seed = in.get<uint64_t>();
    const auto bytes = in.get<uint64_t>();
    pull::PutTerms terms;
    terms.readers = in.get<uint32_t>();
    terms.ttl = std::chrono::milliseconds(in.get<int64_t>());
    SL_ASSIGN(const pull::Piece piece, connector_->allocate(bytes, std::chrono::seconds(5)));
    {
      const UnseenByTsan ordered_by_messages;
      fill_pattern(piece.bytes(), seed);
    }
    SL_ASSIGN(const pull::PullMetadata metadata, connector_->put_piece(key, piece, terms));
    put_metadata(out, metadata);
    return {};
  }

  Status put_bytes(ByteReader& in, ByteWriter& out) {
    const std::string_view key = in.get_string();
    const std::span<const std::byte> bytes = in.get_bytes(in.left());
    SL_ASSIGN(const pull::PullMetadata metadata, connector_->put(key, std::span(&bytes, 1)));
    put_metadata(out, metadata);
    return {};
  }

  Status put_ranges(ByteReader& in, ByteWriter& out) {
    const std::string_view key = in.get_string();
    const auto seed = in.get<uint64_t>();
    const auto bytes = in.get<uint64_t>();
    const auto pieces = in.get<uint32_t>();
    const uint64_t each = bytes / pieces;
    std::vector<pull::RegisteredRange> ranges;
    for (uint32_t i = 0; i < pieces; ++i) {
      const PrivateMemory& memory = memory_.emplace_back(each + kGap);
      fill_pattern(memory.bytes().subspan(kGap), seed, i * each);
      SL_ASSIGN(auto region, connector_->register_memory(memory.data(), memory.size()));
      ranges.push_back({std::move(region), kGap, each});
    }
    SL_ASSIGN(const pull::PullMetadata metadata,
              connector_->put_ranges(key, ranges, [this] { ++freed_; }));
    put_metadata(out, metadata);
    return {};
  }

  Status cleanup(ByteReader& in, ByteWriter& out) {
    const std::string_view key = in.get_string();
    out.put(static_cast<uint8_t>(connector_->cleanup(key, in.get<uint64_t>()) ? 1 : 0));
    return {};
  }

  Status get(ByteReader& in, ByteWriter& out) {
    const std::string_view key = in.get_string();
    const pull::PullMetadata metadata = get_metadata(in);
    const auto seed = in.get<uint64_t>();
    pull::GetTerms terms;
    terms.wait = Duration(in.get<int64_t>());
    SL_ASSIGN(const pull::Received received,
              connector_->get({.key = key, .metadata = &metadata, .into = {}}, terms));
    const UnseenByTsan ordered_by_messages;
    out.put(received.bytes);
    out.put(received.generation);
    out.put(static_cast<uint8_t>(first_wrong(received.piece.bytes(), seed).has_value() ? 0 : 1));
    return {};
  }

  Status get_many(ByteReader& in) {
    std::vector<std::string> keys(in.get<uint32_t>());
    const pull::PullMetadata metadata = get_metadata(in);
    pull::GetTerms terms;
    terms.wait = Duration(in.get<int64_t>());
    std::vector<pull::GetRequest> requests;
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = std::to_string(i);
      requests.push_back({.key = keys[i], .metadata = &metadata, .into = {}});
    }
    const auto outcomes = connector_->get_many(requests, terms);
    for (const auto& outcome : outcomes) {
      if (outcome.status().reason() == outcomes.front().status().reason()) continue;
      return Status(Reason::kUnsupported, "outcomes that differ");
    }
    return outcomes.front().status();
  }

  Status claim(ByteReader& in, ByteWriter& out) {
    const std::string_view key = in.get_string();
    const pull::PullMetadata metadata = get_metadata(in);
    const pull::GetRequest request{.key = key, .metadata = &metadata, .into = {}};
    auto claims = connector_->claim_many(std::span(&request, 1));
    if (!claims.front().ok()) return claims.front().status();
    out.put(next_claim_);
    claims_.emplace(next_claim_++, *std::move(claims.front()));
    return {};
  }

  Status read_claim(ByteReader& in) {
    pull::Claim& claim = claims_.at(in.get<uint32_t>());
    const auto seed = in.get<uint64_t>();
    SL_ASSIGN(const pull::Piece piece,
              connector_->allocate(claim.bytes(), std::chrono::seconds(5)));
    const pull::ReadPart part{0, piece.bytes()};
    const pull::ClaimRead read{&claim, std::span(&part, 1)};
    SL_TRY(connector_->read_many(std::span(&read, 1)).front());
    const UnseenByTsan ordered_by_messages;
    if (!first_wrong(piece.bytes(), seed).has_value()) return {};
    return Status(Reason::kCorrupt, "other bytes");
  }

  Status finish_claim(ByteReader& in) {
    const auto claim = claims_.find(in.get<uint32_t>());
    connector_->finish(std::move(claim->second));
    claims_.erase(claim);
    return {};
  }

  Status health(ByteWriter& out) {
    const pull::PullHealth health = connector_->health();
    for (const uint64_t value :
         {health.pool_used, health.puts, health.gets, health.errors, health.timeouts, health.misses,
          health.offers, health.claims, health.waiting, freed_}) {
      out.put(value);
    }
    return {};
  }

  std::vector<PrivateMemory> memory_;  // Outlives its registrations.
  uint64_t freed_ = 0;
  std::unique_ptr<pull::PullConnector> connector_;
  uint32_t next_claim_ = 1;
  std::map<uint32_t, pull::Claim> claims_;
};

void say(Channel& parent, const Status& status, std::span<const std::byte> rest) {
  ByteWriter out;
  out.put(static_cast<uint8_t>(status.reason()));
  out.put_string(status.message().substr(0, 2000));
  out.put_bytes(rest);
  parent.send(out.take());
}

int serve_pull(Channel& parent) {
  const auto json = parent.receive_text();
  if (!json.has_value()) return 1;
  auto options = pull_options(*json);
  auto connector = options.ok() ? pull::PullConnector::create(*options)
                                : Result<std::unique_ptr<pull::PullConnector>>(options.status());
  if (!connector.ok()) {
    say(parent, connector.status(), {});
    return 1;
  }
  const pull::ConnectionInfo info = (*connector)->connection_info();
  ByteWriter hello;
  put_metadata(hello, {info.host, info.zmq_port, 0, {}, {}, 0, true, 0});
  say(parent, Status(), hello.take());
  PullRole role(*std::move(connector));
  while (const auto command = parent.receive(std::chrono::seconds(60))) {
    ByteReader in(*command);
    ByteWriter out;
    const Status status = role.obey(in, out);
    say(parent, status, out.take());
  }
  return 0;
}

const RoleRegistration kPullRole("pull", serve_pull);

ByteWriter command_of(PullCommand command) {
  ByteWriter out;
  out.put(command);
  return out;
}

}  // namespace

Result<pull::PullOptions> pull_options(std::string_view json) {
  SL_ASSIGN(const config::ConfigNode node,
            config::parse_config(json, config::ConfigSyntax::kJson, "test"));
  SL_ASSIGN(pull::LoadedPullOptions loaded, pull::load_pull_options(node));
  return std::move(loaded.options);
}

std::string pull_json(const std::string& runtime_dir, std::string_view keys) {
  std::string out = fmt::format(R"({{"runtime_dir": "{}")", runtime_dir);
  for (const auto& [name, value] :
       {std::pair("host", R"("127.0.0.1")"), std::pair("memory_pool_size", "16777216"),
        std::pair("max_offers", "256"), std::pair("ask_timeout", R"("20s")")}) {
    if (keys.find(fmt::format("\"{}\"", name)) != std::string_view::npos) continue;
    out += fmt::format(R"(, "{}": {})", name, value);
  }
  return out + (keys.empty() ? "" : ", ") + std::string(keys) + "}";
}

PullPeer::PullPeer(std::string_view json) : child_("pull") {
  child_.channel().send(json);
  auto hello = ask({});
  if (!hello.ok()) throw std::runtime_error(hello.status().to_string());
  ByteReader in(*hello);
  address_ = get_metadata(in);
}

Result<std::vector<std::byte>> PullPeer::ask(std::span<const std::byte> command) {
  if (!command.empty()) child_.channel().send(command);
  auto answer = child_.channel().receive(std::chrono::seconds(60));
  if (!answer.has_value()) throw std::runtime_error("the peer has gone");
  ByteReader in(*answer);
  const auto reason = in.get<Reason>();
  const std::string message(in.get_string());
  if (reason != Reason::kOk) return Status(reason, message);
  const auto rest = in.get_bytes(in.left());
  return std::vector<std::byte>(rest.begin(), rest.end());
}

Result<pull::PullMetadata> PullPeer::put(std::string_view key, uint64_t seed, uint64_t bytes,
                                         uint32_t readers, int64_t ttl_ms) {
  ByteWriter out = command_of(PullCommand::kPut);
  out.put_string(key);
  out.put(seed);
  out.put(bytes);
  out.put(readers);
  out.put(ttl_ms);
  SL_ASSIGN(const auto answer, ask(out.take()));
  ByteReader in(answer);
  return get_metadata(in);
}

Result<pull::PullMetadata> PullPeer::put_bytes(std::string_view key,
                                               std::span<const std::byte> bytes) {
  ByteWriter out = command_of(PullCommand::kPutBytes);
  out.put_string(key);
  out.put_bytes(bytes);
  SL_ASSIGN(const auto answer, ask(out.take()));
  ByteReader in(answer);
  return get_metadata(in);
}

Result<pull::PullMetadata> PullPeer::put_ranges(std::string_view key, uint64_t seed, uint64_t bytes,
                                                uint32_t pieces) {
  ByteWriter out = command_of(PullCommand::kPutRanges);
  out.put_string(key);
  out.put(seed);
  out.put(bytes);
  out.put(pieces);
  SL_ASSIGN(const auto answer, ask(out.take()));
  ByteReader in(answer);
  return get_metadata(in);
}

bool PullPeer::cleanup(std::string_view key, uint64_t generation) {
  ByteWriter out = command_of(PullCommand::kCleanup);
  out.put_string(key);
  out.put(generation);
  auto answer = ask(out.take());
  return answer.ok() && (*answer)[0] == std::byte{1};
}

Result<PeerGot> PullPeer::get(std::string_view key, const pull::PullMetadata& sender, uint64_t seed,
                              Duration wait) {
  ByteWriter out = command_of(PullCommand::kGet);
  out.put_string(key);
  put_metadata(out, sender);
  out.put(seed);
  out.put(static_cast<int64_t>(wait.count()));
  SL_ASSIGN(const auto answer, ask(out.take()));
  ByteReader in(answer);
  PeerGot got;
  got.bytes = in.get<uint64_t>();
  got.generation = in.get<uint64_t>();
  got.right = in.get<uint8_t>() == 1;
  return got;
}

Status PullPeer::get_many(uint32_t keys, const pull::PullMetadata& sender, Duration wait) {
  ByteWriter out = command_of(PullCommand::kGetMany);
  out.put(keys);
  put_metadata(out, sender);
  out.put(static_cast<int64_t>(wait.count()));
  return ask(out.take()).status();
}

Result<uint32_t> PullPeer::claim(std::string_view key, const pull::PullMetadata& sender) {
  ByteWriter out = command_of(PullCommand::kClaim);
  out.put_string(key);
  put_metadata(out, sender);
  SL_ASSIGN(const auto answer, ask(out.take()));
  ByteReader in(answer);
  return in.get<uint32_t>();
}

Status PullPeer::read_claim(uint32_t claim, uint64_t seed) {
  ByteWriter out = command_of(PullCommand::kReadClaim);
  out.put(claim);
  out.put(seed);
  return ask(out.take()).status();
}

void PullPeer::finish_claim(uint32_t claim) {
  ByteWriter out = command_of(PullCommand::kFinishClaim);
  out.put(claim);
  (void)ask(out.take());
}

pull::PullHealth PullPeer::health() {
  auto answer = ask(command_of(PullCommand::kHealth).take());
  ByteReader in(*answer);
  pull::PullHealth health;
  for (uint64_t* const value :
       {&health.pool_used, &health.puts, &health.gets, &health.errors, &health.timeouts,
        &health.misses, &health.offers, &health.claims, &health.waiting}) {
    *value = in.get<uint64_t>();
  }
  return health;
}

std::string PullPeer::metrics_text() {
  auto answer = ask(command_of(PullCommand::kMetrics).take());
  return {reinterpret_cast<const char*>(answer->data()), answer->size()};
}

Status PullPeer::close(Duration timeout) {
  ByteWriter out = command_of(PullCommand::kClose);
  out.put(static_cast<int64_t>(timeout.count()));
  return ask(out.take()).status();
}

}  // namespace stagelink::test
