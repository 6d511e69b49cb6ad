#include "connector/store/edge_window.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace stagelink::store_connector {
namespace {

// Between two questions to the store while a window is full.
constexpr Duration kFirstPause = std::chrono::milliseconds(1);
constexpr Duration kLastPause = std::chrono::milliseconds(20);
constexpr size_t kAskedAtOnce = 64;

// "STAGE_CHUNK": the edge's own sending stage and a number, as vLLM-Omni ends the ids of chunks.
bool is_chunk(std::string_view end, std::string_view edge) noexcept {
  const std::string_view from = edge.substr(0, edge.find("->"));
  if (end.size() < from.size() + 2 || end.substr(0, from.size()) != from ||
      end[from.size()] != '_') {
    return false;
  }
  const std::string_view number = end.substr(from.size() + 1);
  return std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

EdgeWindow::EdgeWindow(const WindowBounds& bounds, StillThere still_there)
    : bounds_(bounds), still_there_(std::move(still_there)) {}

EdgeWindow::Edge& EdgeWindow::edge_of(std::string_view name) {
  const auto at = edges_.find(name);
  return at != edges_.end() ? at->second : edges_[std::string(name)];
}

bool EdgeWindow::has_room(const Edge& edge) const noexcept {
  const bool turn = bounds_.max_inflight < 0 || edge.in_flight < bounds_.max_inflight;
  // A put that is under way will be one more.
  const bool window =
      bounds_.window_size < 0 || edge.unconsumed + edge.in_flight < bounds_.window_size;
  return turn && window;
}

Status EdgeWindow::enter(std::string_view name, const Deadline& deadline) {
  Duration pause = kFirstPause;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (closed_) return Status(Reason::kClosed, "the connector is closed");
      Edge& edge = edge_of(name);
      if (has_room(edge)) {
        ++edge.in_flight;
        return {};
      }
    }
    if (bounds_.window_size >= 0) ask_store(name, kAskedAtOnce);
    const MutexLock lock(mutex_);
    if (closed_) continue;
    const Edge& edge = edge_of(name);
    if (has_room(edge)) continue;
    if (deadline.passed()) {
      const bool turn = bounds_.max_inflight >= 0 && edge.in_flight >= bounds_.max_inflight;
      return Status(Reason::kTimedOut,
                    turn ? fmt::format("{} puts of edge {} are under way (max_inflight)",
                                       edge.in_flight, name)
                         : fmt::format("{} objects of edge {} are not consumed (window_size)",
                                       edge.unconsumed, name));
    }
    changed_.wait_until(mutex_, Deadline::earlier(deadline, Deadline::in(pause)));
    pause = std::min(pause * 2, kLastPause);
  }
}

void EdgeWindow::leave(std::string_view name, std::string_view id, const std::string& key,
                       bool sealed) {
  const MutexLock lock(mutex_);
  --edge_of(name).in_flight;
  if (sealed) {
    if (const auto same = entries_.find(key); same != entries_.end()) drop(same);  // A re-put.
    const uint64_t turn = next_turn_++;
    entries_.emplace(key, Entry{std::string(name), std::string(id), turn});
    turns_.emplace(turn, key);
    ids_.emplace(id, key);
    ++edge_of(name).unconsumed;
    if (entries_.size() > kMaxRemembered) drop(entries_.find(turns_.begin()->second));
  }
  changed_.notify_all();
}

void EdgeWindow::drop(Entries::iterator entry) {
  --edge_of(entry->second.edge).unconsumed;
  turns_.erase(entry->second.turn);
  const auto [first, last] = ids_.equal_range(entry->second.id);
  const auto same =
      std::find_if(first, last, [&](const auto& id) { return id.second == entry->first; });
  if (same != last) ids_.erase(same);
  entries_.erase(entry);
}

std::vector<std::string> EdgeWindow::take(std::string_view id) {
  const MutexLock lock(mutex_);
  std::vector<std::string> keys;
  const auto [first, last] = ids_.equal_range(id);
  for (auto at = first; at != last; ++at) keys.push_back(at->second);
  const std::string chunks = std::string(id) + '_';
  for (auto at = ids_.lower_bound(chunks);
       at != ids_.end() && std::string_view(at->first).substr(0, chunks.size()) == chunks; ++at) {
    const std::string& edge = entries_.find(at->second)->second.edge;
    if (is_chunk(std::string_view(at->first).substr(chunks.size()), edge)) {
      keys.push_back(at->second);
    }
  }
  for (const std::string& key : keys) drop(entries_.find(key));
  changed_.notify_all();
  return keys;
}

void EdgeWindow::forget(const std::string& key) {
  const MutexLock lock(mutex_);
  const auto entry = entries_.find(key);
  if (entry != entries_.end()) drop(entry);
  changed_.notify_all();
}

std::vector<std::string> EdgeWindow::oldest(std::string_view edge, size_t limit) {
  std::vector<std::string> keys;
  for (const auto& [turn, key] : turns_) {
    if (keys.size() == limit) break;
    if (edge.empty() || entries_.find(key)->second.edge == edge) keys.push_back(key);
  }
  return keys;
}

size_t EdgeWindow::ask_store(std::string_view edge, size_t limit) {
  std::vector<std::pair<std::string, uint64_t>> asked;
  {
    const MutexLock lock(mutex_);
    for (std::string& key : oldest(edge, limit)) {
      const uint64_t turn = entries_.find(key)->second.turn;
      asked.emplace_back(std::move(key), turn);
    }
  }
  size_t gone = 0;
  for (const auto& [key, turn] : asked) {
    const bool there = still_there_(key);
    const MutexLock lock(mutex_);
    const auto entry = entries_.find(key);
    if (entry == entries_.end() || entry->second.turn != turn) continue;  // Put again meanwhile.
    if (!there) {
      drop(entry);
      ++gone;
      continue;
    }
    // Behind the others, so that the next question is for those.
    turns_.erase(turn);
    entry->second.turn = next_turn_++;
    turns_.emplace(entry->second.turn, key);
  }
  return gone;
}

size_t EdgeWindow::reap(size_t limit) { return ask_store({}, limit); }

size_t EdgeWindow::size() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

void EdgeWindow::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace stagelink::store_connector
