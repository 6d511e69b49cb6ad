#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/deadline.h"
#include "stagelink/result.h"

namespace stagelink::transport {

enum class Direction : uint8_t { kRead, kWrite };
// kStream: over the peer's UNIX socket. kTcp: the same protocol over TCP.
enum class TransportKind : uint8_t { kShm, kCma, kStream, kTcp };
inline constexpr size_t kTransportKinds = 4;
const char* transport_name(TransportKind kind) noexcept;
constexpr bool is_stream(TransportKind kind) noexcept {
  return kind == TransportKind::kStream || kind == TransportKind::kTcp;
}

// One range of a planned batch: checked against both regions, neighbours merged, at most
// slice_bytes long.
struct CopyItem {
  std::byte* local;
  uint64_t remote;  // shm: address in our mapping. cma: the owner's address. stream: offset in
                    // the remote region, or the owner's address if remote_index is kByAddress.
  uint64_t bytes;
  uint32_t remote_index;  // Into the session's remote regions.
  uint32_t unused = 0;
};
static_assert(sizeof(CopyItem) == 32);
inline constexpr uint32_t kByAddress = ~uint32_t{0};

// Copies on the calling thread: mapped memory, or process_vm_readv. One call for each slice.
class CopyTransport {
 public:
  virtual ~CopyTransport() = default;
  // Moves all items or fails; checks before and after that the remote regions are still the ones
  // meant. Errors: superseded, not_registered, peer_lost, busy.
  virtual Status copy(std::span<const CopyItem> items, Direction direction) = 0;
};

// Moves bytes behind the caller's back. One Request is one transfer's share; the transport reads
// `items` until the request is over.
struct RemoteRegionRef {
  uint32_t index = 0;
  uint64_t generation = 0;
};

class PostedRequest {
 public:
  std::span<const CopyItem> items;
  std::span<const RemoteRegionRef> remote_regions;  // What remote_index points into.
  Direction direction = Direction::kRead;
  bool by_address = false;
  uint64_t total_bytes = 0;
  Deadline deadline = Deadline::in(Duration::zero());

  // Called exactly once, by any thread, when the transport will not touch `items` or local memory
  // any more. The request may be reused inside the call.
  virtual void on_done(Status status) = 0;

  // The transport's own links and progress; nobody else looks at them.
  PostedRequest* next = nullptr;
  uint64_t id = 0;

 protected:
  ~PostedRequest() = default;
};

class PostedTransport {
 public:
  virtual ~PostedTransport() = default;
  // From any thread. Every posted request ends in on_done, at the latest at its deadline
  // (timed_out) or when the peer is lost (peer_lost).
  virtual void post(PostedRequest& request) = 0;
  // From any thread: asks that the request end soon with `why` if it is still under way. on_done
  // tells when it has.
  virtual void cancel(PostedRequest& request, Status why) = 0;
};

}  // namespace stagelink::transport
