#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "connector/moriio/io/in_flight.h"
#include "connector/moriio/io/io_config.h"
#include "connector/moriio/io/memory_table.h"
#include "connector/moriio/io/remote_engine.h"
#include "stagelink/session.h"

namespace stagelink::moriio {

// What an engine shares with its sessions, which may outlive it.
struct IoShared {
  std::string key;
  InFlight in_flight;
  std::atomic<uint64_t> next_uid{1};
  std::atomic<uint64_t> notices_lost{0};  // Could not be sent; their transfers are not affected.
};

// A backend while it is there.
struct IoBackend {
  BackendType type = BackendType::kUnknown;
  BackendConfig config;
  std::atomic<bool> removed{false};
};

// The byte ranges of a batch; arrays of equal length.
struct IoRanges {
  std::span<const uint64_t> local_offsets;   // From the start of the local memory.
  std::span<const uint64_t> remote_offsets;  // From the start of the remote memory.
  std::span<const uint64_t> sizes;
};

// One local and one remote memory, prepared for transfers. What refuses a transfer is told by its
// status, which then has failed on return.
//
// Thread-safety: all methods may run at the same time.
class IoSession {
 public:
  struct Parts {
    std::shared_ptr<IoShared> shared;
    std::shared_ptr<const IoBackend> backend;
    std::shared_ptr<RemoteEngine> remote;
    std::shared_ptr<Peer> peer;
    std::shared_ptr<const LocalMemory> local;
    MemoryDesc remote_memory;
    uint64_t remote_offset = 0;  // Of remote_memory.data in its region.
  };
  IoSession(Parts parts, Session session) noexcept;

  StatusRef read(uint64_t local_offset, uint64_t remote_offset, uint64_t bytes, uint64_t id);
  StatusRef write(uint64_t local_offset, uint64_t remote_offset, uint64_t bytes, uint64_t id);
  // One status for all ranges. All or nothing: a range out of bounds refuses the batch before a
  // byte moves. An empty batch succeeds. `id` is the user's: it names the transfer to the peer.
  StatusRef batch_read(const IoRanges& ranges, uint64_t id);
  StatusRef batch_write(const IoRanges& ranges, uint64_t id);

  uint64_t allocate_transfer_uid() noexcept { return parts_.shared->next_uid.fetch_add(1); }
  // The peer answers, and neither backend, remote engine nor local memory has been taken away.
  bool alive() const;
  // It will never be alive again.
  bool broken() const;
  const LocalMemory& local() const noexcept { return *parts_.local; }
  const MemoryDesc& remote_memory() const noexcept { return parts_.remote_memory; }
  // Which transport serves it, and why.
  // Which transport serves it, and why.
  std::string explain() const { return session_.explain(); }
  // For users in C++ who want more than a status: valid as long as this.
  Session& session() noexcept { return session_; }

 private:
  using Submit = Result<Transfer> (Session::*)(const RangeList&, Duration);
  StatusRef start(Submit submit, const IoRanges& ranges, uint64_t id);
  Result<Transfer> submit_checked(Submit submit, const IoRanges& ranges);
  Status usable() const;
  void notify_after(const Transfer& transfer, uint64_t id);

  const Parts parts_;
  Session session_;
};

// A status that has failed for this reason.
StatusRef failed_status(const Status& why);

}  // namespace stagelink::moriio
