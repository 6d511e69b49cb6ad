#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "connector/moriio/rank/peer_link.h"
#include "connector/moriio/rank/peer_route.h"
#include "connector/moriio/reader/reader.h"
#include "connector/moriio/wrapper/wrapper.h"
#include "connector/moriio/writer/writer.h"

namespace stagelink::moriio {

struct RankOptions {
  Role role = Role::kAny;
  OwnPlace place;
  uint32_t dp_rank = 0;   // Global, as told to producers.
  uint32_t dp_local = 0;  // Of the listeners' ports.
  std::string host;       // To listen at.
  uint32_t handshake_port = 0;
  uint32_t notify_port = 0;
  std::string zmq_library;
  std::string secret_file;
  Duration transfer_timeout = std::chrono::seconds(30);
  Duration defer_timeout = std::chrono::seconds(60);
};

// Consecutive blocks of one group of a request: ids[i] is the block with index first + i.
struct BlockSpan {
  uint64_t first = 0;
  std::vector<int64_t> ids;
};

// What a transfer's end tells.
struct RankEvent {
  TransferEvent event;
  uint64_t bytes = 0;  // Of a read.
  uint64_t ranges = 0;
};

// The data plane of one rank of a connector: reads and writes of whole requests, by block ids.
//
// A transfer has one id, which may be used again when it has ended. As a consumer it ends with
// kReceived, as a producer with kSent; both come once, when nothing touches the blocks any more.
//
// Thread-safety: all methods may run at the same time. Those that wait say so.
class Rank final : private WriterHost {
 public:
  Rank(const RankOptions& options, std::shared_ptr<IoEngine> engine);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Listens for notifications and handshakes. Once. Errors: those of find_geometry, Router::bind.
  Status serve(RankCache cache) SL_EXCLUDES(mutex_);
  const std::string& incarnation() const noexcept { return wrapper_->incarnation(); }

  // Shakes hands with ranks that are not linked yet; waits. One answer for each. Errors: those of
  // fetch_metadata and PeerLink::make.
  std::vector<Status> connect(std::span<const Endpoint> places, Duration timeout)
      SL_EXCLUDES(mutex_);
  // Places of `peer` that must be linked before read() or receive().
  Result<std::vector<PeerRoute>> producers(const PeerAddress& peer) const {
    return routes_as_consumer(options_.place, peer);
  }
  bool linked(std::span<const Endpoint> places) const SL_EXCLUDES(mutex_);
  // Where writes wait for a link; each place once.
  std::vector<Endpoint> take_wanted() SL_EXCLUDES(mutex_);
  // Writes to that place fail.
  void refuse_link(const Endpoint& place, const Status& why) SL_EXCLUDES(mutex_);

  // Consumer, read mode. `groups`: one for each group of the cache.
  Status read(const std::string& transfer_id, const PeerAddress& peer,
              std::span<const GroupBlocks> groups, Duration timeout) SL_EXCLUDES(mutex_);
  // Waits. Errors: as Reader::wait.
  Status wait_read(const std::string& transfer_id, Duration timeout) {
    return reader_->wait(transfer_id, timeout);
  }
  // Waits for up to `timeout`. Errors: as Reader::cancel.
  Status cancel_read(const std::string& transfer_id, Duration timeout) {
    return reader_->cancel(transfer_id, timeout);
  }

  // Consumer, write mode: tells every producer rank where the blocks go.
  struct Destination {
    std::string request_id;
    std::string token;
    std::vector<BlockSpan> spans;
  };
  Status receive(const std::string& transfer_id, const PeerAddress& peer, Destination destination)
      SL_EXCLUDES(mutex_);
  // Whether the producers of a transfer that was told receive() answer.
  bool producers_alive(const PeerAddress& peer) const SL_EXCLUDES(mutex_);
  // The end of a load that read() has not begun, or that nobody will report any more. False if it
  // had ended.
  bool end_received(const std::string& transfer_id, const Status& outcome);
  // Tells the producers that their blocks are not wanted (any more).
  Status release(const std::string& transfer_id, const PeerAddress& peer, const std::string& token);

  // Producer, read mode: blocks wait for readers. `releases`: how many; 0: as they say.
  Status offer(const std::string& transfer_id, const std::string& token, uint32_t releases);
  // The lease is over. False if it had ended.
  bool end_offer(const std::string& transfer_id, const Status& why);

  // Producer, write mode. start_write() first; then each layer of each chunk; then seal.
  Status start_write(const std::string& transfer_id, const std::string& request_id,
                     const PeerAddress& peer, const std::string& token) SL_EXCLUDES(mutex_);
  // Blocks that follow those before, and whether these are the last; the number of the chunk.
  Result<uint32_t> add_chunk(const std::string& transfer_id, std::vector<BlockSpan> spans,
                             bool last) SL_EXCLUDES(mutex_);
  // Null ticket: the bytes are there.
  Status write_layer(const std::string& transfer_id, uint32_t chunk, uint32_t layer,
                     std::unique_ptr<LayerTicket> ticket) SL_EXCLUDES(mutex_);
  void seal(const std::string& transfer_id) { writer_->seal(transfer_id); }
  // No more is written, and the peer is told as soon as it has said where it waits. True if nothing
  // reads the blocks any more; waits for that for up to `timeout`. Otherwise the end comes later.
  bool abort_write(const std::string& transfer_id, const std::string& why, Duration timeout)
      SL_EXCLUDES(mutex_);

  std::vector<RankEvent> take_events() SL_EXCLUDES(mutex_);
  uint64_t bytes_moved() const noexcept { return reader_->bytes_read() + writer_->bytes_written(); }
  std::string metrics_text() const { return wrapper_->metrics_text(); }
  // Stops what runs; idempotent.
  void close() SL_EXCLUDES(mutex_);

 private:
  // What is being written of one request.
  struct Source {
    std::string request_id;
    PeerAddress peer;
    std::vector<std::vector<BlockSpan>> chunks;
    bool complete = false;
    std::optional<std::string> aborted;  // Why.
  };
  struct ReadSize {
    uint64_t bytes = 0;
    uint64_t ranges = 0;
  };

  Result<std::optional<Endpoint>> consumer_of(const Allocation& allocation,
                                              const WriteTask& task) override;
  Result<std::vector<Move>> plan(const Allocation& allocation,
                                 std::span<const WriteTask> tasks) override;
  Result<std::vector<PeerRoute>> consumers(const PeerAddress& peer, uint32_t dp_rank) const;
  Result<Source> source_of(const std::string& transfer_id) const SL_EXCLUDES(mutex_);
  Result<std::vector<GroupBlocks>> pair_blocks(const Allocation& allocation, const Source& source,
                                               uint32_t chunk) const;
  Result<std::shared_ptr<PeerLink>> link_of(const Endpoint& place) SL_EXCLUDES(mutex_);
  Result<std::vector<Move>> moves_of(const std::vector<PeerRoute>& routes,
                                     const PeerLink::Wanted& wanted) SL_EXCLUDES(mutex_);
  void drop_dead_links() SL_EXCLUDES(mutex_);
  bool have_version(const std::vector<PeerRoute>& routes) const SL_EXCLUDES(mutex_);
  MessageExtras own_extras() const;

  const RankOptions options_;
  const std::shared_ptr<IoEngine> engine_;
  const std::shared_ptr<Wrapper> wrapper_;
  std::unique_ptr<Reader> reader_;
  std::unique_ptr<Writer> writer_;

  mutable Mutex mutex_;
  std::shared_ptr<const RankCache> cache_ SL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<PeerLink>> links_ SL_GUARDED_BY(mutex_);  // By endpoint.
  std::map<std::string, Endpoint> wanted_ SL_GUARDED_BY(mutex_);
  std::map<std::string, Status> refused_ SL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Source> sources_ SL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, ReadSize> reads_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::moriio
