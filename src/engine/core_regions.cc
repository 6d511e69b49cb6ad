// The end of regions, and of the engine with them.

#include <algorithm>
#include <thread>
#include <utility>

#include "base/futex.h"
#include "base/log.h"
#include "base/runtime_dir.h"
#include "engine/batch/session_state.h"
#include "engine/core.h"
#include "engine/link/acceptor.h"
#include "engine/link/inbound_peer.h"
#include "engine/link/peer_state.h"
#include "engine/link/stream_link.h"
#include "transport/shm/access_lanes.h"

namespace stagelink::engine {
namespace {

// A lane is waited for in steps: its user may die without clearing it.
constexpr Duration kLaneStep = std::chrono::milliseconds(10);
constexpr Duration kLaneLook = std::chrono::microseconds(100);

}  // namespace

Status EngineCore::retire_region(const std::shared_ptr<memory::RegionRecord>& record,
                                 const Deadline& deadline) {
  SL_TRY(usable());
  const uint64_t epoch = registry_->retire(*record);
  // Peers that are served by stream are let go by the progress loop.
  if (record->gate.pins() != 0) loop_->hurry();
  SL_TRY(wait_for_readers(*record, epoch, deadline));
  if (!record->gate.wait_unpinned(deadline)) {
    return Status(Reason::kReaderInside,
                  "region in row " + std::to_string(record->desc.index) + ": " +
                      std::to_string(record->gate.pins()) +
                      " transfers of this engine still use it; cancel or wait for them");
  }
  registry_->forget(*record);
  // Private memory is the caller's again; ours goes with the last view of it, so now.
  if (record->desc.shareable) forget_local(*record);
  const auto bytes = static_cast<int64_t>(record->desc.bytes);
  metrics_->add(metrics::Gauge::kRegions, -1);
  metrics_->add(metrics::Gauge::kRegisteredBytes, -bytes);
  if (record->desc.shareable) metrics_->add(metrics::Gauge::kAllocatedBytes, -bytes);
  return Status();
}

Status EngineCore::wait_for_readers(const memory::RegionRecord& record, uint64_t epoch,
                                    const Deadline& deadline) {
  const uint32_t row = record.desc.index;
  std::atomic<uint32_t>& waiters = registry_->header()->lane_waiters;
  for (const auto& ring : inbox_->rings()) {
    wire::PeerPage& page = ring->page();
    auto lane = transport::lane_inside(page, row, epoch);
    if (!lane) continue;
    waiters.fetch_add(1);  // Sequentially consistent, before the lane is read again.
    for (; (lane = transport::lane_inside(page, row, epoch)) && !deadline.passed() &&
           !ring->departed.load();) {
      wire::AccessLane& slot = page.lanes[*lane];
      const uint32_t wake = slot.wake.load();
      if (slot.epoch.load() == 0) continue;
      futex_wait(slot.wake, wake, std::min(kLaneStep, deadline.left()), FutexScope::kShared);
    }
    waiters.fetch_sub(1);
    if (lane && !ring->departed.load()) {
      return Status(Reason::kReaderInside,
                    "peer " + ring->source_name() + " is still inside region row " +
                        std::to_string(row) + "; its memory is kept until it leaves");
    }
  }
  return Status();
}

void EngineCore::forget_local(const memory::RegionRecord& record) {
  for (const auto& peer : peers()) {
    for (const auto& session : peer->sessions()) session->drop_local(record);
  }
}

void EngineCore::adopt_retired(std::shared_ptr<memory::RegionRecord> record) {
  {
    MutexLock lock(retired_mutex_);
    retired_.push_back(std::move(record));
    retired_waits_.store(true);
  }
  metrics_->add(metrics::Gauge::kRetiringRegions, 1);
  loop_->hurry();
}

void EngineCore::retry_retired() {
  std::vector<std::shared_ptr<memory::RegionRecord>> waiting;
  {
    MutexLock lock(retired_mutex_);
    waiting.swap(retired_);
  }
  std::erase_if(waiting, [this](const auto& record) {
    if (!retire_region(record, Deadline::in(Duration::zero())).ok()) return false;
    metrics_->add(metrics::Gauge::kRetiringRegions, -1);
    return true;
  });
  MutexLock lock(retired_mutex_);
  retired_.insert(retired_.end(), waiting.begin(), waiting.end());
  retired_waits_.store(!retired_.empty());
}

Status EngineCore::close(const Deadline& deadline) {
  if (closed_.exchange(true)) return await_close(deadline);
  Status outcome = close_all(deadline);
  MutexLock lock(close_mutex_);
  close_outcome_ = outcome;
  close_ended_.notify_all();
  return outcome;
}

Status EngineCore::await_close(const Deadline& deadline) {
  MutexLock lock(close_mutex_);
  while (!close_outcome_.has_value()) {
    if (close_ended_.wait_until(close_mutex_, deadline) || close_outcome_.has_value()) continue;
    return Status(Reason::kTimedOut, "another call still closes the engine");
  }
  return *close_outcome_;
}

Status EngineCore::close_all(const Deadline& deadline) {
  const Status why(Reason::kClosed, "the engine was closed");
  for (TransferState* state : transfers_.active()) {
    if (state->phase() == TransferPhase::kRunning) state->end_early(why);
    state->unref();
  }
  const std::vector<std::shared_ptr<PeerState>> lost = peers();
  for (const auto& peer : lost) peer->lose(why);
  copies_.stop();
  // Their connections end below, and with them the owners' care for threads of ours that copy.
  while (std::any_of(lost.begin(), lost.end(), [](const auto& peer) { return peer->copies(); }) &&
         !deadline.passed()) {
    std::this_thread::sleep_for(kLaneLook);
  }
  if (inbox_ != nullptr) inbox_->close();
  const Status regions = close_regions(deadline);
  shut_down_loop();
  // Handles may keep this object for long; nobody needs its descriptors any more.
  if (inbox_ != nullptr) inbox_->close_fds();
  if (registry_ != nullptr) registry_->close_table_fd();
  if (metrics_ != nullptr) metrics_->close();
  if (!runtime_dir_.empty()) remove_if_empty(runtime_dir_);
  return regions;
}

// Peers that still are inside when the engine closes keep the pages through their own mapping; what
// must not happen is that our memory is used for something else, so a pinned record is kept.
Status EngineCore::close_regions(const Deadline& deadline) {
  Status first;
  if (registry_ == nullptr || inbox_ == nullptr) return first;
  for (const auto& record : registry_->live()) {
    const uint64_t epoch = registry_->retire(*record);
    Status status = wait_for_readers(*record, epoch, deadline);
    if (status.ok() && !record->gate.wait_unpinned(deadline)) {
      status = Status(Reason::kReaderInside, "a transfer still uses a region of the engine");
    }
    if (status.ok()) {
      registry_->forget(*record);
    } else {
      report("close", status);
      if (first.ok()) first = status;
    }
  }
  return first;
}

void EngineCore::shut_down_loop() {
  if (loop_ == nullptr) return;
  // Connections live on the loop; they say goodbye and go there.
  loop_->run([this] {
    for (const auto& peer : peers()) peer->let_go(/*force=*/true);
    for (const auto& peer : inbound_) peer->say_bye();
    inbound_.clear();
    if (stream_host_ != nullptr) stream_host_->close();
    if (acceptor_ != nullptr) acceptor_->stop();
  });
  loop_->stop();
  std::vector<std::shared_ptr<PeerState>> last;  // Destroyed without the lock.
  std::vector<std::shared_ptr<PeerState>> attended;
  MutexLock lock(peers_mutex_);
  last.swap(peers_);
  attended.swap(attended_);
}

}  // namespace stagelink::engine
