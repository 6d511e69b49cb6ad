#include "store/shm/shm_objects.h"

#include <chrono>

#include <fmt/format.h>

#include "base/fork_guard.h"
#include "base/log.h"

namespace stagelink::store::shm {

uint64_t now_ns() noexcept {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(since).count());
}

uint64_t expiry_after(uint64_t now, Duration ttl) noexcept {
  if (ttl <= Duration::zero()) return 0;
  const auto ns = static_cast<uint64_t>(ttl.count());
  return now > UINT64_MAX - ns ? 0 : now + ns;
}

ShmWriter::ShmWriter(std::shared_ptr<StoreLife> life, uint32_t slot, Duration ttl) noexcept
    : life_(std::move(life)),
      slot_(slot),
      tag_(life_->arena->map().tag(slot)),
      ttl_(ttl),
      pieces_{life_->arena->map().heap(life_->arena->map().slot(slot).offset.get(),
                                       life_->arena->map().slot(slot).size.get())} {}

ShmWriter::~ShmWriter() { abort(); }

Status ShmWriter::seal() {
  Arena& arena = *life_->arena;
  if (arena.forked()) return forked_status("the object's writer");
  if (!open_) return Status(Reason::kInvalidState, "seal: the put is sealed or aborted already");
  if (life_->closed.load()) return Status(Reason::kClosed, "seal: the store was closed");
  SL_ASSIGN(auto locked, arena.lock());
  if (arena.map().tag(slot_) != tag_) {
    open_ = false;
    const Status gone(Reason::kInvalidState,
                      "seal: the put was taken away, its process counted as "
                      "dead");
    log_failure("store", gone);
    return gone;
  }
  const uint64_t now = now_ns();
  locked.wake_key(arena.map().slot(slot_).hash.get());
  generation_ = locked.objects().seal(slot_, now, expiry_after(now, ttl_));
  open_ = false;
  return {};
}

void ShmWriter::abort() noexcept {
  Arena& arena = *life_->arena;
  if (!open_ || arena.forked()) return;
  open_ = false;
  auto locked = arena.lock();
  if (!locked.ok()) {
    log_failure("store", locked.status());
    return;
  }
  if (arena.map().tag(slot_) == tag_) locked->objects().release(slot_);
}

ShmView::ShmView(std::shared_ptr<StoreLife> life, uint32_t slot, Tag tag) noexcept
    : life_(std::move(life)),
      slot_(slot),
      tag_(tag),
      bytes_(life_->arena->map().heap(life_->arena->map().slot(slot).offset.get(),
                                      life_->arena->map().slot(slot).size.get())) {}

ShmView::~ShmView() {
  if (!life_->arena->forked()) life_->arena->end_view(slot_);
}

Status ShmView::valid() const {
  return life_->arena->forked() ? forked_status("the view") : Status();
}

}  // namespace stagelink::store::shm
