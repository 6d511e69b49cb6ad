#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stagelink/engine_options.h"
#include "stagelink/result.h"

namespace stagelink {

namespace engine {
class EngineCore;
class RegionHandle;
}  // namespace engine

// 128 random bits that name one life of one engine process. A restarted process has another.
struct InstanceId {
  uint64_t high = 0;
  uint64_t low = 0;
  friend bool operator==(const InstanceId&, const InstanceId&) = default;
  std::string to_string() const;  // 32 hex digits.
};

enum class Access : uint8_t { kReadOnly, kReadWrite };  // What peers may do.

// The value that a peer needs to reach a Region. Packed: 80 bytes, little-endian, see
// wire/region_desc.h.
struct RegionDesc {
  InstanceId instance;
  uint32_t index = 0;       // Row in the owner's region table.
  uint64_t generation = 0;  // Of that row; a later one means this region is gone.
  uint64_t address = 0;     // In the owner's address space.
  uint64_t bytes = 0;
  uint64_t nonce = 0;      // Also stands behind the data of shareable memory.
  bool shareable = false;  // Allocated by the engine, so that peers on the host may map it.
  Access access = Access::kReadWrite;

  std::vector<std::byte> pack() const;
  // Errors: corrupt (frame) for a short, long or inconsistent blob; incompatible (version).
  static Result<RegionDesc> unpack(std::span<const std::byte> blob);
  friend bool operator==(const RegionDesc&, const RegionDesc&) = default;
};

struct RegisterOptions {
  Access access = Access::kReadWrite;
};

struct AllocateOptions {
  Access access = Access::kReadWrite;
  // Unset fields take the engine's options.
  std::optional<Effort> pin;
  std::optional<Effort> huge_pages;
  std::optional<Effort> prefault;
  std::optional<int32_t> numa_node;
};

// Memory registered with one engine. Owns the registration and, when it came from
// Engine::allocate, the memory. Destroying it deregisters with the engine's deregister_timeout; if
// a peer is still inside by then, the engine keeps the memory and tries again until it closes.
//
// Thread-safety: const methods may run at the same time; deregister() may run once, at any time.
class Region {
 public:
  Region(Region&&) noexcept;
  Region& operator=(Region&&) noexcept;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  std::span<std::byte> bytes() const noexcept;
  RegionDesc descriptor() const;

  // Keeps bytes() mapped while held, registered or not, for views that outlive the registration.
  // Null once deregistered.
  std::shared_ptr<const void> hold() const;

  // Ends the registration: no new access starts, then waits for those under way. On success no peer
  // touches the memory any more. Errors: busy (reader_inside) names the peer that is still inside;
  // call again to go on waiting. invalid_state (closed) when already deregistered.
  Status deregister(Duration timeout);
  Status deregister();  // With the engine's deregister_timeout.

 private:
  friend class engine::EngineCore;
  friend class Engine;
  friend class Peer;
  explicit Region(std::shared_ptr<engine::RegionHandle> handle) noexcept;
  std::shared_ptr<engine::RegionHandle> handle_;
};

}  // namespace stagelink
