#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "connector/moriio/wrapper/handshake.h"
#include "connector/moriio/wrapper/transfer_table.h"
#include "connector/zmq/senders.h"

namespace stagelink::moriio {

struct WrapperOptions {
  TableOptions table;
  std::string zmq_library;                            // Path; empty: the system's.
  std::string secret_file;                            // Empty: peers without a secret.
  Duration notify_timeout = std::chrono::seconds(5);  // To hand one message to a peer.
  zmq::SenderOptions senders;
};

// The control plane of one rank: it listens for notifications, sends them, answers and asks for
// metadata, and keeps the table of transfers. ZeroMQ is loaded when the first of these is used. In
// a forked child it answers invalid_state (forked) and lets go of nothing.
//
// Thread-safety: all methods may run at the same time.
class Wrapper final : private zmq::MessageHandler {
 public:
  explicit Wrapper(const WrapperOptions& options);
  ~Wrapper();
  Wrapper(const Wrapper&) = delete;
  Wrapper& operator=(const Wrapper&) = delete;

  // Starts the notify listener; a second call answers where the first listens. Errors: not_found
  // (no ZeroMQ), those of Router::bind, invalid_state (closed).
  Result<Endpoint> listen(const zmq::BindOptions& options) SL_EXCLUDES(mutex_);
  // Starts the handshake listener, once.
  Result<Endpoint> serve_metadata(const zmq::BindOptions& options, const PeerMetadata& metadata)
      SL_EXCLUDES(mutex_);
  Result<std::vector<Result<PeerMetadata>>> fetch_metadata(std::span<const Endpoint> peers,
                                                           Duration timeout) SL_EXCLUDES(mutex_);

  // Hands the message to the sender's thread; never waits. `done` as for Senders::send. Errors:
  // those of encode, limit, invalid_state (closed).
  Status notify(const Endpoint& peer, const NotifyMessage& message, zmq::Senders::Done done = {})
      SL_EXCLUDES(mutex_);
  Status notify_and_wait(const Endpoint& peer, const NotifyMessage& message, Duration timeout)
      SL_EXCLUDES(mutex_);

  // One frame as it came to the notify port.
  void handle_frame(std::span<const std::byte> frame);

  TransferTable& table() noexcept { return table_; }
  // This life of this process, as told to peers.
  const std::string& incarnation() const noexcept { return incarnation_; }
  const WrapperOptions& options() const noexcept { return options_; }
  // Counters as Prometheus text.
  std::string metrics_text() const SL_EXCLUDES(mutex_);

  // Stops the listeners and joins their threads. Idempotent.
  void close() SL_EXCLUDES(mutex_);

 private:
  std::vector<zmq::Frames> on_message(zmq::Frames frames) override;
  Result<std::shared_ptr<zmq::Context>> context() SL_REQUIRES(mutex_);
  bool forked() const noexcept;
  // In a forked child: threads and sockets are the parent's, and locks as they were.
  void abandon() SL_TSA(no_thread_safety_analysis);
  Result<std::shared_ptr<zmq::Senders>> senders() SL_EXCLUDES(mutex_);

  const WrapperOptions options_;
  const std::string incarnation_;
  const uint64_t fork_token_;
  TransferTable table_;

  mutable Mutex mutex_;
  bool closed_ SL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<zmq::Context> context_ SL_GUARDED_BY(mutex_);
  std::shared_ptr<zmq::Senders> senders_ SL_GUARDED_BY(mutex_);
  std::unique_ptr<zmq::Listener> listener_ SL_GUARDED_BY(mutex_);
  std::unique_ptr<HandshakeServer> server_ SL_GUARDED_BY(mutex_);
};

}  // namespace stagelink::moriio
