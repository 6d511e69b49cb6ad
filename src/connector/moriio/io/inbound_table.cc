#include "connector/moriio/io/inbound_table.h"

#include "base/bytes.h"
#include "base/log.h"
#include "connector/moriio/io/desc_codec.h"
#include "wire/field_reader.h"

namespace stagelink::moriio {
namespace {

constexpr uint32_t kMagic = 0x31544c53;  // "SLT1"

}  // namespace

std::vector<std::byte> pack_inbound_notice(uint64_t id, std::string_view key) {
  ByteWriter out;
  out.put(kMagic);
  out.put(id);
  out.put_string(key);
  return out.take();
}

Result<InboundNotice> unpack_inbound_notice(std::span<const std::byte> payload) {
  wire::FieldReader reader("notice of a transfer", payload);
  if (const auto magic = reader.get<uint32_t>("magic"); magic != kMagic) {
    reader.reject("magic", "is another", magic);
  }
  InboundNotice notice;
  notice.id = reader.get<uint64_t>("id");
  notice.key = reader.get_text("key", DescReader::kMaxTextBytes);
  SL_TRY(reader.finish());
  return notice;
}

void InboundTable::add(const Notification& notification) {
  auto notice = unpack_inbound_notice(notification.payload);
  if (!notice.ok()) return log_failure("notification", notice.status());
  MutexLock lock(mutex_);
  if (order_.size() >= kMaxEntries) {
    by_name_.erase(by_name_.lower_bound(order_.front().name));
    order_.pop_front();
  }
  Name name{std::move(notice->key), notice->id};
  const auto entry = order_.insert(order_.end(), Entry{name, notification.outcome});
  by_name_.emplace(std::move(name), entry);
}

std::optional<Reason> InboundTable::pop(std::string_view key, uint64_t id) {
  MutexLock lock(mutex_);
  const Name name{key, id};
  const auto found = by_name_.lower_bound(name);
  if (found == by_name_.end() || found->first != name) {
    return std::nullopt;
  }
  const auto entry = found->second;
  const Reason outcome = entry->outcome;
  by_name_.erase(found);
  order_.erase(entry);
  return outcome;
}

size_t InboundTable::size() const {
  MutexLock lock(mutex_);
  return order_.size();
}

}  // namespace stagelink::moriio
