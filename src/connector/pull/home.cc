#include "connector/pull/home.h"

#include "base/fork_guard.h"

namespace stagelink::pull {

Status Home::usable() const {
  if (ForkGuard::forked(fork_token)) return forked_status("the connector");
  if (closing.load()) return Status(Reason::kClosed, "the connector is closed");
  return {};
}

Status Home::go_on(const std::function<bool()>& interrupted) const {
  SL_TRY(usable());
  if (interrupted && interrupted()) return Status(Reason::kCancelled, "the call was interrupted");
  return {};
}

}  // namespace stagelink::pull
