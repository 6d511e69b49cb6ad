#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connector/pull/claim.h"
#include "connector/pull/data_plane.h"
#include "connector/pull/foreign.h"
#include "connector/pull/memory/room_signal.h"
#include "connector/pull/options.h"
#include "connector/pull/pull_types.h"
#include "stagelink/engine.h"
#include "stagelink/result.h"

namespace stagelink::pull {

class ConnectorCore;

// Hands payloads from stage to stage without a store between: the sender keeps each in its own
// registered memory, the receiver claims it, reads it straight into its own, and releases it. See
// docs/pull.md for who owns which bytes and when.
//
// Thread-safety: all methods may run at the same time, close() too, which ends what waits.
class PullConnector {
 public:
  // Binds its ports before it returns. `plane` moves the bytes of `protocol: ascend`, and only
  // those. Errors: invalid_argument and unsupported name the option; already_exists (port_in_use);
  // those of Engine::create and Engine::allocate; not_found (ZeroMQ is not installed).
  static Result<std::unique_ptr<PullConnector>> create(const PullOptions& options,
                                                       std::unique_ptr<DataPlane> plane = nullptr,
                                                       ForeignMessages foreign = nullptr);
  ~PullConnector();
  PullConnector(const PullConnector&) = delete;
  PullConnector& operator=(const PullConnector&) = delete;

  // --- Sending. A key that is offered already is replaced: who has claimed the old payload reads
  // it to the end, who comes later gets this one. Errors of all three: invalid_argument (key, no
  // bytes, role: receiver), no_space at the deadline, limit (too_large: it can never fit; offers),
  // cancelled, invalid_state (closed, forked). Each is logged and counted once.

  // Copies the pieces into the pool, one behind the other.
  Result<PullMetadata> put(std::string_view key, std::span<const std::span<const std::byte>> pieces,
                           const PutTerms& terms = {});
  // Offers a piece of this connector's pool as it is, which nobody changes until it is free.
  Result<PullMetadata> put_piece(std::string_view key, const Piece& piece,
                                 const PutTerms& terms = {});
  // Offers registered memory in place, which nobody changes until `free` is called. A failure never
  // calls it.
  Result<PullMetadata> put_ranges(std::string_view key, std::span<const RegisteredRange> ranges,
                                  RangesFree free, const PutTerms& terms = {});

  // Retires what is offered under the key; with a generation, that one only. It is freed when
  // nobody reads it. True if there was one.
  bool cleanup(std::string_view key, uint64_t generation = 0);
  // The same, unless somebody has claimed it.
  bool cleanup_unclaimed(std::string_view key, uint64_t generation = 0);
  // For a sender that waits until something can be cleaned up or allocated.
  RoomSignal& room() noexcept;

  // --- Memory.

  // A piece of the pool to be filled, aligned to 4096 from that size on, else to 64. Errors:
  // invalid_argument (0 bytes), no_space at the deadline, limit (too_large), cancelled.
  Result<Piece> allocate(uint64_t bytes, Duration timeout, const Interrupted& interrupted = {});
  // Memory of the caller, who keeps it valid while the region lives. Errors: those of
  // Engine::register_memory.
  Result<std::shared_ptr<const Region>> register_memory(void* address, uint64_t bytes);
  // A piece of this connector's pool as a part of what put_ranges() offers. The piece must be kept
  // until that is free.
  RegisteredRange range_of(const Piece& piece) const;
  // Memory that peers on this host map and copy directly.
  Result<std::shared_ptr<const Region>> allocate_memory(uint64_t bytes);

  // --- Receiving. Errors: not_found (looked once), timed_out, superseded, unreachable, peer_lost,
  // corrupt (checksum), no_space, limit (too_large), incompatible (version), cancelled,
  // invalid_argument (no sender is known; `into` has not the payload's size), invalid_state.

  Result<Received> get(const GetRequest& request, const GetTerms& terms = {});
  // From any number of senders at once, with one deadline; one outcome a request, in order.
  std::vector<Result<Received>> get_many(std::span<const GetRequest> requests,
                                         const GetTerms& terms = {});

  // The steps of a get one by one, for payloads whose place is only known once their beginning has
  // been read. `into` of the requests does not count here.
  std::vector<Result<Claim>> claim_many(std::span<const GetRequest> requests,
                                        const GetTerms& terms = {});
  // All parts of all claims at once. Ok means that the bytes are those of the claimed payload. Zero
  // timeout: the end of the claim.
  std::vector<Status> read_many(std::span<const ClaimRead> reads,
                                Duration timeout = Duration::zero());
  // Has read all it wants: counts as one of the payload's readers.
  void finish(Claim claim);

  // The sender of requests that name none, from now on.
  void update_sender(std::string_view host, uint16_t zmq_port);

  // Counts a put or get that the caller ended, and logged, before it came here or after it had been
  // served: a payload that has no form, metadata that cannot be, bytes that are no payload.
  void refuse_put(const Status& why);
  void refuse_get(const Status& why);

  // --- Looking.

  ConnectionInfo connection_info() const;
  PullHealth health() const;
  const PullOptions& options() const noexcept;
  Engine& engine() noexcept;
  // Prometheus text: the connector's and, behind it, the engine's.
  std::string metrics_text() const;

  // Retires all offers, waits for those who read them, ends whatever waits. Pieces stay valid.
  // Idempotent. Errors: busy names how many still read at the deadline; everything is ended all the
  // same.
  Status close(Duration timeout = std::chrono::seconds(5));
  bool closed() const noexcept;

 private:
  explicit PullConnector(std::shared_ptr<ConnectorCore> core) noexcept;
  const std::shared_ptr<ConnectorCore> core_;
};

}  // namespace stagelink::pull
