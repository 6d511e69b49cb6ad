#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagelink/region.h"
#include "stagelink/result.h"

namespace stagelink::wire {

// What a connection is for. A probe (over TCP) only learns the welcome and is closed.
enum class Role : uint8_t { kControl = 1, kData = 2, kProbe = 3 };

struct Version {
  uint16_t major = 0;
  uint16_t minor = 0;
  friend bool operator==(const Version&, const Version&) = default;
};

// First frame from the connecting side.
struct Hello {
  Version version;
  Role role = Role::kControl;
  InstanceId instance;        // Of the sender.
  InstanceId target;          // The instance it wants; zero: whoever listens here.
  InstanceId host;            // Identity of the sender's boot and IPC namespace.
  uint32_t pid = 0;
  std::string name;           // At most kMaxNameBytes.
};

// Answer to a hello. Over a UNIX socket to a kControl hello it carries four fds: region table
// (read-only), peer page, doorbell page, eventfd.
struct Welcome {
  Version version;
  InstanceId instance;
  InstanceId host;
  uint32_t pid = 0;
  uint32_t table_capacity = 0;
  uint32_t ring_bytes = 0;
  uint64_t page_nonce = 0;    // Stands in the peer page too.
  uint64_t max_notification_bytes = 0;
  std::string name;
  std::string socket_path;    // Where same-host peers connect.
};

// How a request or a handshake ended.
struct Outcome {
  Reason reason = Reason::kOk;
  std::string message;        // Cut to 1 KiB by the encoder.
};

inline constexpr size_t kMaxNameBytes = 128;
inline constexpr size_t kMaxPathBytes = 107;  // sun_path less its NUL.

std::vector<std::byte> encode(const Hello& hello);
std::vector<std::byte> encode(const Welcome& welcome);
std::vector<std::byte> encode(const Outcome& outcome);
// Errors: corrupt (frame), incompatible (version) naming both versions.
Result<Hello> decode_hello(std::span<const std::byte> in);
Result<Welcome> decode_welcome(std::span<const std::byte> in);
// An unknown reason of a newer minor becomes the first reason of its code.
Result<Outcome> decode_outcome(std::span<const std::byte> in);

// incompatible unless the majors are equal and the minors at most one apart.
Status check_version(Version theirs, const char* what);
Version own_version() noexcept;

}  // namespace stagelink::wire
