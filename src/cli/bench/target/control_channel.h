#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "stagelink/result.h"

namespace stagelink::cli::bench {

// What the initiator asks of the target process.
enum class Request : uint32_t {
  kDescriptor,  // Answer: payload is the engine's descriptor.
  kAllocate,    // values: bytes. Answer: values: number; payload: descriptor.
  kRegister,    // The same for private memory of the target.
  kHost,        // values: bytes. One more engine with a region. Answer: see encode_hosted().
  kSocket,      // values: region, port of the initiator. Until that connection ends: see
                // limit/socket_protocol.h.
  kMemory,      // Answer: values[0]: the target's share of memory, in bytes.
  kFill,        // values: region, salt.
  kPoison,      // values: region, block_bytes, blocks, seed. The remote picks are overwritten.
  kCheck,       // The same and a salt. Answer: values[0] is the number of blocks that are right.
  kReceive,     // values: count, asleep. Answer: values p50, p99 in nanoseconds.
  kListen,      // From now on hears write_done. Answer: values: port; payload: host.
  kArrivals,    // values: count. Once as many more have come; answer: see moriio/notice_log.h.
  kIdle,        // values: milliseconds spent asleep, waiting for notifications.
  kStop,
};

struct Message {
  static constexpr size_t kMostPayload = 16 << 10;

  Request request = Request::kStop;
  uint32_t failed = 0;  // In an answer: the payload is the reason.
  std::array<uint64_t, 6> values{};
  std::vector<std::byte> payload;

  std::string text() const {
    return {reinterpret_cast<const char*>(payload.data()), payload.size()};
  }
};

// Another engine of the target process, and its region.
struct HostedBlobs {
  std::vector<std::byte> engine;
  std::vector<std::byte> region;
};
std::vector<std::byte> encode_hosted(const HostedBlobs& blobs);
HostedBlobs decode_hosted(std::span<const std::byte> payload);

// The two ends of a socket pair between the processes of one benchmark. Both run the same program,
// so the layout is not versioned; every wait has a deadline.
//
// Thread-safety: one thread at a time.
class ControlChannel {
 public:
  static Result<std::pair<ControlChannel, UniqueFd>> create();  // This end, and the other's.
  explicit ControlChannel(UniqueFd socket) noexcept : socket_(std::move(socket)) {}

  // Errors: timed_out; peer_lost once the other end is closed.
  Status send(const Message& message, const Deadline& deadline);
  Result<Message> receive(const Deadline& deadline);

 private:
  UniqueFd socket_;
};

}  // namespace stagelink::cli::bench
