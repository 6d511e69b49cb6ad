#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/deadline.h"
#include "connector/encoder_cache/options.h"
#include "connector/encoder_cache/registry/publisher.h"
#include "connector/encoder_cache/registry/registry_server.h"

namespace stagelink::encoder_cache {

// How a producer says what it has: to the registry at `remote_registry_url`, or in one of its own.
//
// Thread-safety: all methods may run at the same time.
class Announcer {
 public:
  // `host`: what peers are told. An own registry listens where the producer does, unless the
  // options say, and is never told to be at a wildcard. Errors: those of RegistryServer::start and
  // RegistryPublisher::start.
  static Result<std::unique_ptr<Announcer>> open(const CacheOptions& options,
                                                 std::string producer_zmq, const std::string& host);

  // Neither fails what it speaks of: a registry is a hint. publish() does not wait for it,
  // unpublish() does, for a moment, so that what is gone is not looked for.
  void publish(PublishedItem item);
  void unpublish(std::span<const std::string> mm_hashes);
  Status flush(const Deadline& deadline);

  const std::string& url() const noexcept { return url_; }
  RegistryServer* own_registry() noexcept { return server_.get(); }  // Null: there is none.
  void append_metrics(std::string& out, std::string_view labels) const;
  void close(const Deadline& deadline);

 private:
  Announcer(std::string url, std::string producer_zmq);

  const std::string url_;
  const std::string producer_zmq_;
  const LeaseId lease_;  // At the own registry.
  std::unique_ptr<RegistryServer> server_;
  std::unique_ptr<RegistryPublisher> publisher_;
};

}  // namespace stagelink::encoder_cache
