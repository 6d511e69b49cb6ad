#include "transport/fault/fault_copy_transport.h"

#include <thread>
#include <utility>

#include "transport/fault/bit_flip.h"

namespace stagelink::transport {

FaultCopyTransport::FaultCopyTransport(std::shared_ptr<CopyTransport> inside,
                                       std::shared_ptr<FaultInjector> injector,
                                       std::function<void(const Status&)> cut)
    : inside_(std::move(inside)), injector_(std::move(injector)), cut_(std::move(cut)) {}

Status FaultCopyTransport::copy(std::span<const CopyItem> items, Direction direction) {
  const FaultInjector::Decision decision = injector_->next();
  switch (decision.fault) {
    case Fault::kNone: return inside_->copy(items, direction);
    case Fault::kDrop: return Status(Reason::kTimedOut, "injected fault: a slice was dropped");
    case Fault::kDelay:
      std::this_thread::sleep_for(FaultInjector::delay_of(decision));
      return inside_->copy(items, direction);
    case Fault::kCut: {
      Status why(Reason::kConnectionCut, "injected fault: the peer was cut off");
      cut_(why);
      return why;
    }
    case Fault::kFlip: break;
  }
  SL_TRY(inside_->copy(items, direction));
  if (const auto place = pick_bit(items, decision.random); place.has_value()) {
    const CopyItem& item = items[place->item];
    if (direction == Direction::kRead) {
      place->flip(item.local);
    } else {
      // The remote side may not be mapped here: one byte is written once more, wrong.
      std::byte wrong = item.local[place->byte] ^ place->mask;
      const CopyItem spoilt{&wrong, item.remote + place->byte, 1, item.remote_index};
      return inside_->copy(std::span(&spoilt, 1), direction);
    }
  }
  return {};
}

}  // namespace stagelink::transport
