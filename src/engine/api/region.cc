#include "stagelink/region.h"

#include <utility>

#include "base/fork_guard.h"
#include "engine/core.h"
#include "engine/region_handle.h"

namespace stagelink {

Region::Region(std::shared_ptr<engine::RegionHandle> handle) noexcept
    : handle_(std::move(handle)) {}
Region::Region(Region&&) noexcept = default;

Region& Region::operator=(Region&& other) noexcept {
  Region old(std::move(other));
  handle_.swap(old.handle_);
  return *this;
}

Region::~Region() {
  if (handle_ != nullptr && ForkGuard::forked(handle_->core().fork_token())) {
    new std::shared_ptr<engine::RegionHandle>(std::move(handle_));  // The parent's; left as it is.
  }
}

std::span<std::byte> Region::bytes() const noexcept {
  const auto record = handle_->record();
  return record == nullptr ? std::span<std::byte>{} : record->bytes;
}

std::shared_ptr<const void> Region::hold() const { return handle_->record(); }

RegionDesc Region::descriptor() const { return handle_->descriptor(); }

Status Region::deregister(Duration timeout) {
  SL_TRY(handle_->core().usable());
  return handle_->deregister(Deadline::in(timeout));
}

Status Region::deregister() { return deregister(handle_->core().options().deregister_timeout); }

}  // namespace stagelink
