#include "connector/encoder_cache/push/ended_transfers.h"

#include <utility>

namespace stagelink::encoder_cache {

void EndedTransfers::remember(const std::string& transfer_id, Ended ended) {
  forget(transfer_id);
  if (ended_.size() >= most_) forget(std::string(by_age_.front()));
  const auto age = by_age_.insert(by_age_.end(), transfer_id);
  ended_.emplace(transfer_id, Slot{std::move(ended), age});
}

const EndedTransfers::Ended* EndedTransfers::find(const std::string& transfer_id) const {
  const auto found = ended_.find(transfer_id);
  return found == ended_.end() ? nullptr : &found->second.ended;
}

EndedTransfers::Ended* EndedTransfers::find(const std::string& transfer_id) {
  return const_cast<Ended*>(std::as_const(*this).find(transfer_id));
}

void EndedTransfers::forget(const std::string& transfer_id) {
  const auto found = ended_.find(transfer_id);
  if (found == ended_.end()) return;
  by_age_.erase(found->second.age);
  ended_.erase(found);
}

}  // namespace stagelink::encoder_cache
