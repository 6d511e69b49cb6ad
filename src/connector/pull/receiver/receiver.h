#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "connector/pull/claim.h"
#include "connector/pull/pull_types.h"
#include "connector/pull/receiver/reader.h"
#include "connector/pull/receiver/sender_ask.h"
#include "stagelink/result.h"

namespace stagelink::pull {

// The receiving half of a connector: claims, reads, releases.
//
// Thread-safety: all methods may run at the same time.
class Receiver {
 public:
  Receiver(std::shared_ptr<Home> home, const RegisteredMemory& memory);

  void set_default_sender(std::string_view host, uint16_t port) SL_EXCLUDES(default_mutex_);

  ClaimResults claim(std::span<const GetRequest> requests, const GetTerms& terms);
  std::vector<Result<Received>> get(std::span<const GetRequest> requests, const GetTerms& terms);
  std::vector<ReadOutcome> read(std::span<const PartsOfClaim> reads, Duration timeout) const;

  size_t senders() const { return links_.size(); }
  // For the time when nobody is in here any more.
  void forget_senders() { links_.clear(); }

 private:
  class Pull;
  class Pulls;
  Deadline deadline_of(const GetTerms& terms) const noexcept;
  // `pulls`, if there are some, take what has been granted while other keys are still waited for.
  void claim_until(std::span<const GetRequest> requests, const AskTerms& terms,
                   ClaimResults& results, Pulls* pulls);
  Result<std::shared_ptr<SenderLink>> link_of(const GetRequest& request)
      SL_EXCLUDES(default_mutex_);
  class Asking;
  void count(std::span<const GetRequest> requests, std::span<const Result<Received>> outcomes);
  void count(const Result<Received>& outcome);

  const std::shared_ptr<Home> home_;
  const Reader reader_;
  SenderLinks links_;
  mutable Mutex default_mutex_;
  std::shared_ptr<SenderLink> default_link_ SL_GUARDED_BY(default_mutex_);
};

}  // namespace stagelink::pull
