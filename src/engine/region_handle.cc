#include "engine/region_handle.h"

#include <utility>

#include "base/fork_guard.h"
#include "base/log.h"
#include "engine/core.h"

namespace stagelink::engine {

RegionHandle::RegionHandle(std::shared_ptr<EngineCore> core,
                           std::shared_ptr<memory::RegionRecord> record) noexcept
    : core_(std::move(core)), desc_(record->desc), record_(std::move(record)) {}

RegionHandle::~RegionHandle() {
  const auto left = record();
  if (left == nullptr) return;
  const Status status = deregister(Deadline::in(core_->options().deregister_timeout));
  // The engine keeps the record and tries again: the memory is not handed back under a reader.
  if (!status.ok() && status.reason() != Reason::kClosed) core_->adopt_retired(left);
}

std::shared_ptr<memory::RegionRecord> RegionHandle::record() const {
  MutexLock lock(mutex_);
  return record_;
}

Status RegionHandle::deregister(const Deadline& deadline) {
  const auto record = this->record();
  if (record == nullptr) return Status(Reason::kClosed, "the region is already deregistered");
  SL_TRY(core_->retire_region(record, deadline));
  MutexLock lock(mutex_);
  record_.reset();
  return Status();
}

}  // namespace stagelink::engine
