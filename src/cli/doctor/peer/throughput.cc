#include "cli/doctor/peer/throughput.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "base/text.h"

namespace stagelink::cli::doctor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kPrefix = "stagelink-doctor ";
constexpr uint64_t kPartnerBytes = 16 << 20;
constexpr uint64_t kMaxPartnerBytes = 64 << 20;  // Of somebody else's word.

// "region 0 (4096 bytes): unix: why" -> "unix". Over TCP the owner alone knows its regions.
std::string route_of(const Session& session) {
  const std::string text = session.explain();
  constexpr std::string_view kMark = "bytes): ";
  const size_t mark = text.find(kMark);
  if (mark == std::string::npos) return "tcp";
  const size_t begin = mark + kMark.size();
  return text.substr(begin, text.find(':', begin) - begin);
}

}  // namespace

std::string partner_name(const PartnerMemory& memory) {
  return fmt::format("{}{:x} {}", kPrefix, memory.address, memory.bytes);
}

std::optional<PartnerMemory> partner_memory(std::string_view engine_name) {
  if (!engine_name.starts_with(kPrefix)) return std::nullopt;
  engine_name.remove_prefix(kPrefix.size());
  PartnerMemory out;
  const char* const end = engine_name.data() + engine_name.size();
  const auto address = std::from_chars(engine_name.data(), end, out.address, 16);
  if (address.ec != std::errc() || address.ptr == end || *address.ptr != ' ') return std::nullopt;
  const auto bytes = std::from_chars(address.ptr + 1, end, out.bytes);
  if (bytes.ec != std::errc() || bytes.ptr != end) return std::nullopt;
  if (out.bytes == 0 || out.bytes > kMaxPartnerBytes) return std::nullopt;
  return out;
}

Result<std::unique_ptr<Partner>> Partner::create(EngineOptions options) {
  std::unique_ptr<Partner> out(new Partner());
  out->memory_.resize(kPartnerBytes, std::byte{0x5a});
  options.name = partner_name({reinterpret_cast<uintptr_t>(out->memory_.data()), kPartnerBytes});
  SL_ASSIGN(out->engine_, Engine::create(options));
  SL_ASSIGN(Region region, out->engine_->register_memory(out->memory_.data(), out->memory_.size(),
                                                         {.access = Access::kReadOnly}));
  out->region_ = std::move(region);
  return out;
}

// The engine lets go of the memory before it goes.
Partner::~Partner() {
  if (engine_ != nullptr) (void)engine_->close();
}

Result<Throughput> measure_throughput(const EngineOptions& options, const Endpoint& peer,
                                      Duration time, uint64_t max_bytes) {
  SL_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(options));
  SL_ASSIGN(Peer other, engine->connect(peer.to_string()));
  const auto memory = partner_memory(other.name());
  if (!memory.has_value()) {
    return Status(Reason::kUnsupported, "the peer offers no memory to measure with");
  }
  std::vector<std::byte> into(memory->bytes);
  SL_ASSIGN(const Region region, engine->register_memory(into.data(), into.size()));
  const std::array locals = {&region};
  SL_ASSIGN(Session session, other.session_by_address(locals));
  const std::array<uint64_t, 1> here = {0};
  const std::array<uint64_t, 1> there = {memory->address};
  const std::array<uint64_t, 1> sizes = {memory->bytes};
  Throughput out;
  const auto read_once = [&]() -> Status {
    auto transfer = session.read({here, there, sizes, {}, {}}, time);
    if (!transfer.ok()) return transfer.status();
    return transfer->wait();
  };
  SL_TRY(read_once());  // Connections are made, pages are touched.
  const auto start = Clock::now();
  while (out.time < time && out.bytes < max_bytes) {
    SL_TRY(read_once());
    out.bytes += memory->bytes;
    out.time = Clock::now() - start;
  }
  out.route = route_of(session);
  return out;
}

}  // namespace stagelink::cli::doctor
