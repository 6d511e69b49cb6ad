#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "broker/sdk.h"
#include "store/yuanrong/channel/worker_options.h"

namespace stagelink::broker {

// The connections to the worker. Clients with equal options share one, beside which each may have
// an exclusive one, as long as the worker has some.
//
// Thread-safety: all methods may run at the same time.
class SharedClients {
 public:
  // What a worker grants to all its users together.
  static constexpr uint32_t kMostExclusive = 128;

  explicit SharedClients(Sdk& sdk) : sdk_(sdk) {}

  struct Connected {
    std::shared_ptr<SdkClient> client;  // Null: see status.
    SdkStatus status;
  };
  // A connection that is there is looked at, so that a client whose keys are refused is told so.
  Connected shared(const store::yuanrong::WorkerOptions& options);
  // Null client with a good status: all are taken.
  std::pair<std::unique_ptr<SdkClient>, SdkStatus> exclusive(
      const store::yuanrong::WorkerOptions& options);
  void give_back_exclusive() noexcept;

  // Sessions that have not given back everything yet.
  std::atomic<uint32_t>& users() noexcept { return users_; }

 private:
  Sdk& sdk_;
  mutable Mutex mutex_;
  std::map<std::string, std::weak_ptr<SdkClient>> shared_ SL_GUARDED_BY(mutex_);
  uint32_t exclusive_ SL_GUARDED_BY(mutex_) = 0;
  std::atomic<uint32_t> users_{0};
};

}  // namespace stagelink::broker
