#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "cli/bench/rig/measure.h"
#include "cli/bench/rig/work_unit.h"
#include "connector/moriio/wrapper/wrapper.h"
#include "connector/moriio/writer/writer.h"
#include "stagelink/session.h"

namespace stagelink::cli::bench {

// A decode rank as the writer knows it.
struct Consumer {
  std::shared_ptr<Session> session;
  Endpoint notify;
};

// One request's blocks: range i belongs to layer i / (ranges per layer).
struct Write {
  std::string transfer_id;
  const Picks* picks = nullptr;  // Until the transfer has ended.
  uint32_t layers = 1;
  size_t consumer = 0;
};

// A prefill rank in write mode: wrapper and writer of the connector, and a host whose caches are
// the regions of sessions.
//
// Thread-safety: one thread at a time.
class Producer {
 public:
  Producer();
  ~Producer();
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  size_t add(Consumer consumer);
  // The decode rank's blocks are known from here on.
  void allocate(const Write& write);
  // All layers are saved: they are scheduled and the transfer is sealed.
  Status save(const Write& write);
  // Nothing of it touches memory any more.
  Status abort(const Write& write);
  moriio::Wrapper& wrapper() noexcept { return *wrapper_; }

 private:
  class Host;
  const std::shared_ptr<moriio::Wrapper> wrapper_;
  const std::shared_ptr<Host> host_;
  std::unique_ptr<moriio::Writer> writer_;
};

}  // namespace stagelink::cli::bench
