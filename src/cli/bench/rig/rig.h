#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/rig/measure.h"
#include "cli/bench/rig/private_memory.h"
#include "cli/bench/rig/work_unit.h"
#include "cli/bench/target/target_process.h"
#include "stagelink/engine.h"

namespace stagelink::cli::bench {

enum class Op : uint8_t { kRead, kWrite };
enum class MemoryKind : uint8_t { kPrivate, kShareable };

struct RigOptions {
  std::vector<std::string> transports = EngineOptions{}.transports;
  MemoryKind remote = MemoryKind::kShareable;  // The kind of the target's region.
  bool pin = true;                             // This process to core 0, the target to core 1.
  std::string huge_pages = "try";              // The engines' option of that name, on both sides.
};

inline constexpr int kInitiatorCore = 0;
inline constexpr int kTargetCore = 1;

// Two engines in two processes, and a gigabyte of memory on either side.
//
// Thread-safety: one thread at a time.
class Rig {
 public:
  // Pins the calling thread. Errors: those of Engine and TargetProcess.
  static Result<std::unique_ptr<Rig>> create(const RigOptions& options);
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;
  ~Rig() = default;

  Engine& engine() noexcept { return *engine_; }
  Peer& peer() noexcept { return *peer_; }
  TargetProcess& target() noexcept { return *target_; }
  const RegionDesc& remote() const noexcept { return remote_.descriptor; }
  uint64_t remote_number() const noexcept { return remote_.number; }
  const Region& local(MemoryKind kind) const noexcept {
    return kind == MemoryKind::kPrivate ? *private_region_ : *shareable_region_;
  }

  // A session from local memory of a kind to the target's region. Opened on first use.
  Result<Session*> session(MemoryKind kind);

  // Puts known content where `op` takes its bytes from.
  Status prepare(Op op, MemoryKind kind);
  // The engine, as a contender. The session must outlive it.
  static Contender contender(Session& session, Op op);
  // Moves one more repetition into poisoned blocks and compares every byte. Errors: corrupt, with
  // the count of wrong blocks.
  Status verify(Op op, MemoryKind kind, const Shape& shape);
  // The same for another contender that moves what `op` moves.
  Status verify(Op op, MemoryKind kind, const Shape& shape, const Contender& contender);

 private:
  Rig() = default;
  Result<uint64_t> count_right(Op op, MemoryKind kind, const Shape& shape, const Picks& picks);

  // Members end in reverse order: sessions before regions before memory, the target last.
  std::unique_ptr<TargetProcess> target_;
  std::optional<PrivateMemory> private_memory_;
  std::unique_ptr<Engine> engine_;
  TargetRegion remote_;
  std::optional<Region> private_region_;
  std::optional<Region> shareable_region_;
  std::optional<Peer> peer_;
  std::optional<Session> private_session_;
  std::optional<Session> shareable_session_;
};

}  // namespace stagelink::cli::bench
