#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "broker/held_objects.h"
#include "broker/mappings.h"
#include "broker/sdk.h"
#include "broker/shared_clients.h"
#include "store/yuanrong/channel/protocol.h"
#include "store/yuanrong/channel/worker_options.h"

namespace stagelink::broker {

// One client process: its page, its socket, what it holds, and a thread for each lane that it uses.
// Lane 0 has the exclusive connection, as a connection belongs to a thread there; the other lanes
// share one.
//
// Ends when the client has gone or breaks the protocol: what it held is given back at once, and
// threads inside the library end when their call does.
//
// Thread-safety: all methods may run at the same time.
class Session : public std::enable_shared_from_this<Session> {
 public:
  using Page = store::yuanrong::Page;

  // Takes the page that the client sent. Errors: corrupt.
  static Result<std::shared_ptr<Session>> create(UniqueFd socket, UniqueFd page,
                                                 store::yuanrong::WorkerOptions options,
                                                 SharedClients& clients, Mappings& mappings);
  ~Session();

  // Connects, calls `connected`, says welcome or why not, and serves lane 0. Returns at once.
  void start(std::function<void(Session&)> connected);
  // A message from the client. False: it makes no sense, and the session must end.
  bool handle(std::span<const std::byte> packet);
  // Ends the threads that serve it, without the library.
  void stop() noexcept;
  // What the client holds, at once. The library may take its time.
  void give_back() noexcept;

  int socket() const noexcept { return socket_.get(); }
  const store::yuanrong::WorkerOptions& options() const noexcept { return options_; }
  store::yuanrong::Watch& watch() noexcept { return page_->watch; }
  // Wakes the client's waiting threads, which then look at the watch.
  void wake_client() noexcept;

 private:
  Session(UniqueFd socket, std::span<std::byte> mapping, store::yuanrong::WorkerOptions options,
          SharedClients& clients, Mappings& mappings);
  void set_up(const std::function<void(Session&)>& connected);
  SdkStatus connect();
  void look_at_memory(SdkClient& client);
  bool open_lane(uint64_t lane);
  void serve(uint32_t lane);
  void answer(uint32_t lane);
  SdkClient& client_of(uint32_t lane) noexcept;
  bool announce(const store::yuanrong::Place& place);
  bool send(std::span<const std::byte> packet, int fd);
  void tell_gone();

  const UniqueFd socket_;
  const std::span<std::byte> mapping_;
  Page* const page_;
  const store::yuanrong::WorkerOptions options_;
  SharedClients& clients_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> open_lanes_{0};  // Bits.
  HeldObjects held_;
  std::shared_ptr<SdkClient> shared_;
  std::unique_ptr<SdkClient> exclusive_;  // Lane 0's; null: it shares.
  Mutex send_mutex_;
};

}  // namespace stagelink::broker
