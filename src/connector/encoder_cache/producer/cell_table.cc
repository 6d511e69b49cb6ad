#include "connector/encoder_cache/producer/cell_table.h"

#include <utility>

namespace stagelink::encoder_cache {

bool CellTable::renew(std::string_view mm_hash, const EmbeddingInfo& info) {
  MutexLock lock(mutex_);
  const auto found = cells_.find(mm_hash);
  if (found == cells_.end() || found->second.cell.info != info) return false;
  found->second.age->saved = Clock::now();
  by_age_.splice(by_age_.end(), by_age_, found->second.age);
  return true;
}

void CellTable::add(std::string_view mm_hash, Cell cell) {
  Cell old;  // Dropped without the lock.
  MutexLock lock(mutex_);
  const auto [slot, is_new] = cells_.try_emplace(std::string(mm_hash));
  if (is_new) {
    slot->second.age = by_age_.insert(by_age_.end(), Aged{std::string(mm_hash), Clock::now()});
  } else {
    old = std::move(slot->second.cell);
    slot->second.age->saved = Clock::now();
    by_age_.splice(by_age_.end(), by_age_, slot->second.age);
  }
  slot->second.cell = std::move(cell);
}

std::optional<Cell> CellTable::find(std::string_view mm_hash) const {
  MutexLock lock(mutex_);
  const auto found = cells_.find(mm_hash);
  if (found == cells_.end()) return std::nullopt;
  return found->second.cell;
}

std::optional<Cell> CellTable::remove(std::string_view mm_hash, uint64_t generation) {
  MutexLock lock(mutex_);
  const auto found = cells_.find(mm_hash);
  if (found == cells_.end()) return std::nullopt;
  if (generation != 0 && found->second.cell.generation != generation) return std::nullopt;
  std::optional<Cell> cell(std::move(found->second.cell));
  by_age_.erase(found->second.age);
  cells_.erase(found);
  return cell;
}

std::vector<CellTable::Victim> CellTable::oldest(size_t count, size_t skip) const {
  std::vector<Victim> victims;
  MutexLock lock(mutex_);
  for (const Aged& aged : by_age_) {
    if (skip > 0) {
      --skip;
      continue;
    }
    if (victims.size() == count) break;
    const Cell& cell = cells_.find(aged.mm_hash)->second.cell;
    victims.push_back({aged.mm_hash, cell.generation, cell.info.nbytes});
  }
  return victims;
}

size_t CellTable::size() const {
  MutexLock lock(mutex_);
  return cells_.size();
}

CellTable::Clock::duration CellTable::oldest_age() const {
  MutexLock lock(mutex_);
  return by_age_.empty() ? Clock::duration::zero() : Clock::now() - by_age_.front().saved;
}

}  // namespace stagelink::encoder_cache
