#include "connector/pull/receiver/claim_state.h"

#include <vector>

#include <fmt/format.h>

#include "connector/pull/claim.h"
#include "connector/pull/messages/omni_messages.h"

namespace stagelink::pull {

void ClaimState::end(bool consumed) {
  ClaimState* const self = this;
  end_all(std::span(&self, 1), consumed);
}

void ClaimState::end_all(std::span<ClaimState* const> claims, bool consumed) {
  std::vector<ReleaseEntry> entries;
  for (size_t i = 0; i < claims.size(); ++i) {
    ClaimState* const first = claims[i];
    if (first == nullptr || !first->open_) continue;
    if (first->life->is_omni()) {
      first->end_omni(consumed);
      continue;
    }
    // This one and all behind it that the same sender gave.
    entries.clear();
    for (ClaimState* const claim : claims.subspan(i)) {
      if (claim == nullptr || !claim->open_ || claim->life != first->life) continue;
      claim->open_ = false;
      entries.push_back({claim->id, consumed});
    }
    first->life->release(entries);
  }
}

// A peer of 0.30 has no word for giving up: it forgets by time.
void ClaimState::end_omni(bool consumed) {
  open_ = false;
  if (!consumed) return;
  auto lease = life->line();
  if (!lease.ok()) return;
  const Deadline now = Deadline::in(Duration::zero());
  if (!(*lease)->send(omni_request(OmniRequest::kCleanup, key), now).ok()) lease->spoil();
}

Status ClaimState::still_holds() const {
  if (!until.passed()) return {};
  return Status(Reason::kExpired,
                fmt::format("the claim on generation {} has come to its end: the payload may be "
                            "another one's by now (see `claim_timeout` of its sender)",
                            body.generation));
}

// --- Claim ---

Claim::Claim(std::unique_ptr<ClaimState> state) noexcept : state_(std::move(state)) {}
Claim::Claim(Claim&&) noexcept = default;
Claim& Claim::operator=(Claim&&) noexcept = default;
Claim::~Claim() = default;

uint64_t Claim::bytes() const noexcept { return state_->body.bytes; }
uint64_t Claim::generation() const noexcept { return state_->body.generation; }
bool Claim::is_fast_path() const noexcept { return state_->body.is_fast_path; }
bool Claim::pool_only() const noexcept { return state_->life->is_omni(); }
const Deadline& Claim::end() const noexcept { return state_->until; }

}  // namespace stagelink::pull
