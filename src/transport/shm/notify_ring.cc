#include "transport/shm/notify_ring.h"

#include <algorithm>
#include <cstring>

#include "wire/notify_record.h"

namespace stagelink::transport {
namespace {

constexpr uint64_t kMask = wire::kRingBytes - 1;
static_assert((wire::kRingBytes & kMask) == 0);

std::byte* ring_data(wire::PeerPage& page) noexcept {
  return reinterpret_cast<std::byte*>(&page) + wire::kRingOffset;
}

void write_at(wire::PeerPage& page, uint64_t at, std::span<const std::byte> bytes) noexcept {
  if (bytes.empty()) return;
  const uint64_t start = at & kMask;
  const size_t first = std::min<size_t>(bytes.size(), wire::kRingBytes - start);
  std::memcpy(ring_data(page) + start, bytes.data(), first);
  if (first < bytes.size()) {
    std::memcpy(ring_data(page), bytes.data() + first, bytes.size() - first);
  }
}

void read_at(wire::PeerPage& page, uint64_t at, std::span<std::byte> out) noexcept {
  if (out.empty()) return;
  const uint64_t start = at & kMask;
  const size_t first = std::min<size_t>(out.size(), wire::kRingBytes - start);
  std::memcpy(out.data(), ring_data(page) + start, first);
  if (first < out.size()) std::memcpy(out.data() + first, ring_data(page), out.size() - first);
}

}  // namespace

NotifyProducer::NotifyProducer(wire::PeerPage& page) noexcept
    : page_(page), tail_(page.tail.load()) {}

bool NotifyProducer::push(Reason outcome, std::span<const std::byte> payload) noexcept {
  const uint64_t bytes = wire::notify_ring_bytes(payload.size());
  // Acquire pairs with the consumer's release of head: the space is no longer being read.
  const uint64_t head = page_.head.load(std::memory_order_acquire);
  if (tail_ - head > wire::kRingBytes || bytes > wire::kRingBytes - (tail_ - head)) return false;
  const auto header = wire::encode_notify_header(outcome, static_cast<uint32_t>(payload.size()));
  write_at(page_, tail_, header);
  write_at(page_, tail_ + header.size(), payload);
  tail_ += bytes;
  // Release pairs with the consumer's acquire of tail; sequentially consistent because the sender
  // reads the doorbell next.
  page_.tail.store(tail_, std::memory_order_seq_cst);
  return true;
}

NotifyConsumer::NotifyConsumer(wire::PeerPage& page) noexcept
    : page_(page), head_(page.head.load()) {}

bool NotifyConsumer::empty() const noexcept {
  // Sequentially consistent: the sleeper has set the doorbell before it looks.
  return page_.tail.load(std::memory_order_seq_cst) == head_;
}

Status NotifyConsumer::pop(size_t max, std::vector<RingMessage>& out) {
  for (size_t i = 0; i < max; ++i) {
    const uint64_t used = page_.tail.load(std::memory_order_seq_cst) - head_;
    if (used == 0) return Status();
    if (used > wire::kRingBytes || used < wire::kNotifyHeaderBytes) {
      return Status(Reason::kFrame, "notification ring: tail is out of range");
    }
    // Copied out before it is looked at: the peer may still write what it has published.
    std::byte header[wire::kNotifyHeaderBytes];
    read_at(page_, head_, header);
    uint32_t payload_bytes = 0;
    std::memcpy(&payload_bytes, header, sizeof payload_bytes);
    if (payload_bytes > kMaxNotifyBytes || wire::notify_ring_bytes(payload_bytes) > used) {
      return Status(Reason::kFrame, "notification ring: record is longer than what was sent");
    }
    std::vector<std::byte> record(sizeof header + payload_bytes);
    std::memcpy(record.data(), header, sizeof header);
    read_at(page_, head_ + sizeof header, std::span(record).subspan(sizeof header));
    auto decoded = wire::decode_notify(record);
    if (!decoded.ok()) return decoded.status();
    out.push_back({decoded->outcome, {decoded->payload.begin(), decoded->payload.end()}});
    head_ += wire::notify_ring_bytes(payload_bytes);
    page_.head.store(head_, std::memory_order_release);  // Pairs with push().
  }
  return Status();
}

}  // namespace stagelink::transport
