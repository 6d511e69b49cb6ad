#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "connector/pull/home.h"
#include "connector/pull/pull_types.h"
#include "connector/pull/sender/unix_door.h"
#include "connector/pull/sender/zmq_door.h"

namespace stagelink::pull {

// The sending half of a connector: offers, and the doors where they are asked for.
//
// Thread-safety: all methods may run at the same time.
class Sender {
 public:
  // Binds and listens. Errors: already_exists (port_in_use), invalid_argument, permission, limit.
  static Result<std::unique_ptr<Sender>> open(std::shared_ptr<Home> home, ForeignMessages foreign);
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  // Where the bytes of a put are, and what keeps them. Its generation and its stamp are yet to be
  // given.
  struct Payload {
    std::shared_ptr<OfferBody> body;
    GrantBody places;
    std::span<const std::span<const std::byte>> bytes;  // For the checksum.
  };
  // Payload::places and body->addresses of bytes in the pool.
  void place_in_pool(Payload& payload, std::span<std::byte> bytes) const;
  // Errors: limit (too_large: pieces, regions); invalid_argument (out_of_bounds).
  Status place_ranges(Payload& payload, std::span<const RegisteredRange> ranges) const;
  // Errors: limit (offers); invalid_state (closed).
  Result<PullMetadata> offer(std::string_view key, Payload payload, const PutTerms& terms);

  bool cleanup(std::string_view key, uint64_t generation) {
    return table_.cleanup(key, generation);
  }
  bool cleanup_unclaimed(std::string_view key, uint64_t generation) {
    return table_.cleanup(key, generation, /*only_unclaimed=*/true);
  }
  ConnectionInfo address() const;
  TableUsage usage() const { return table_.usage(); }
  void append_metrics(std::string& out, std::string_view labels) const;

  // Retires everything and waits for claims; how many there still were at the deadline. By one
  // thread at a time.
  size_t close(const Deadline& deadline);

 private:
  Sender(std::shared_ptr<Home> home, std::unique_ptr<ZmqDoor> zmq_door, const Endpoint& told);
  Status open_unix_door(ForeignMessages foreign);
  void stop();

  const std::shared_ptr<Home> home_;
  const Endpoint told_;
  std::atomic<uint64_t> next_generation_;
  OfferTable table_;
  std::unique_ptr<Desk> desk_;
  std::unique_ptr<UnixDoor> unix_door_;
  std::unique_ptr<ZmqDoor> zmq_door_;
};

}  // namespace stagelink::pull
