#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/endpoint.h"
#include "stagelink/engine.h"
#include "stagelink/result.h"

// Reading from a doctor on the other side. Where its memory lies stands in the name of its engine,
// which a welcome tells: "stagelink-doctor <address, hex> <bytes>".
namespace stagelink::cli::doctor {

struct PartnerMemory {
  uint64_t address = 0;
  uint64_t bytes = 0;
};
std::string partner_name(const PartnerMemory& memory);
// Nothing: an engine with something else to do.
std::optional<PartnerMemory> partner_memory(std::string_view engine_name);

// The other side: an engine with memory that peers may read.
//
// Thread-safety: as its engine.
class Partner {
 public:
  // Errors: those of Engine::create.
  static Result<std::unique_ptr<Partner>> create(EngineOptions options);
  ~Partner();
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;

  std::string address() const { return engine_->address(); }

 private:
  Partner() = default;
  std::vector<std::byte> memory_;
  std::unique_ptr<Engine> engine_;
  std::optional<Region> region_;
};

struct Throughput {
  uint64_t bytes = 0;
  Duration time{};
  std::string route;  // The transport that served it, "tcp".
};
// Reads from a partner for at most `time` and `max_bytes`, through an engine with `options`.
Result<Throughput> measure_throughput(const EngineOptions& options, const Endpoint& peer,
                                      Duration time, uint64_t max_bytes);

}  // namespace stagelink::cli::doctor
