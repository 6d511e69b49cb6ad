#include "transport/stream/striped_transport.h"

#include <algorithm>
#include <utility>

namespace stagelink::transport {
namespace {

// Cuts lie at multiples of this within the request.
constexpr uint64_t kCutBytes = 4096;
// A list of pieces larger than this is given back after use.
constexpr size_t kKeptItems = (1 << 20) / sizeof(CopyItem);

// A damaged frame ends its connection, though the request that it was for knows more than that.
bool ends_channel(const Status& status) noexcept {
  return status.code() == Code::kPeerLost || status.reason() == Reason::kChecksum;
}

}  // namespace

// One channel's share of a request.
struct StripedTransport::Part final : PostedRequest {
  void on_done(Status status) override { owner->part_ended(*this, std::move(status)); }

  StripedTransport* owner = nullptr;
  Group* group = nullptr;
  std::shared_ptr<Channel> channel;
  std::vector<CopyItem> own_items;  // Unless it is the whole request.
  bool posted = false;
  bool ended = false;
};

// All fields are guarded by the transport's mutex, but for what post_parts() hands to the channels.
struct StripedTransport::Group {
  PostedRequest* request = nullptr;  // Null: free, or over.
  Status failure;
  uint32_t used = 0;   // Parts of this request,
  uint32_t left = 0;   // and how many of them have not ended.
  uint32_t users = 0;  // Threads that work with the group: it is not reused meanwhile.
  uint64_t id = 0;     // Place in groups_ + 1.
  Parts parts;
};

// Walks through the pieces of a request.
class StripedTransport::Cutter {
 public:
  explicit Cutter(std::span<const CopyItem> items) noexcept : items_(items) {}

  // The next `bytes` of them.
  void cut(uint64_t bytes, std::vector<CopyItem>& out) {
    while (bytes > 0) {
      CopyItem item = items_[at_];
      item.local += into_;
      item.remote += into_;
      item.bytes = std::min(item.bytes - into_, bytes);
      out.push_back(item);
      bytes -= item.bytes;
      into_ += item.bytes;
      if (into_ < items_[at_].bytes) continue;
      ++at_;
      into_ = 0;
    }
  }

 private:
  std::span<const CopyItem> items_;
  size_t at_ = 0;
  uint64_t into_ = 0;
};

StripedTransport::StripedTransport(uint64_t stripe_min_bytes) noexcept
    : stripe_min_bytes_(stripe_min_bytes) {}

StripedTransport::~StripedTransport() = default;

void StripedTransport::add(std::shared_ptr<PostedTransport> channel) {
  auto added = std::make_shared<Channel>();
  added->transport = std::move(channel);
  MutexLock lock(mutex_);
  channels_.push_back(std::move(added));
}

void StripedTransport::remove(const PostedTransport& channel) {
  std::shared_ptr<Channel> removed;  // Destroyed without the lock.
  MutexLock lock(mutex_);
  const auto at = std::find_if(channels_.begin(), channels_.end(),
                               [&](const auto& held) { return held->transport.get() == &channel; });
  if (at == channels_.end()) return;
  removed = std::move(*at);
  channels_.erase(at);
}

void StripedTransport::remove_all() {
  std::vector<std::shared_ptr<Channel>> removed;
  MutexLock lock(mutex_);
  removed.swap(channels_);
}

size_t StripedTransport::channels() const {
  MutexLock lock(mutex_);
  return channels_.size();
}

void StripedTransport::post(PostedRequest& request) {
  Group* group = nullptr;
  {
    MutexLock lock(mutex_);
    if (!channels_.empty()) group = open_group(request);
  }
  if (group != nullptr) return post_parts(*group);
  request.on_done(Status(Reason::kConnectionCut, "the data connections to the peer are gone"));
}

StripedTransport::Group* StripedTransport::open_group(PostedRequest& request) {
  if (free_.empty()) {
    groups_.push_back(std::make_unique<Group>());
    groups_.back()->id = groups_.size();
    free_.reserve(groups_.size());
    free_.push_back(groups_.back().get());
  }
  Group& group = *free_.back();
  free_.pop_back();
  group.request = &request;
  group.failure = Status();
  group.used = 0;
  group.users = 1;  // post_parts().
  request.id = group.id;
  const bool is_read = request.direction == Direction::kRead;
  if (!is_read || channels_.size() == 1 || request.total_bytes < stripe_min_bytes_) {
    Part& part = add_part(group, is_read ? idlest() : channels_.front());
    part.items = request.items;
    part.total_bytes = request.total_bytes;
  } else {
    Cutter cutter(request.items);
    const uint64_t even = (request.total_bytes + channels_.size() - 1) / channels_.size();
    const uint64_t share = (even + kCutBytes - 1) / kCutBytes * kCutBytes;
    uint64_t left = request.total_bytes;
    for (size_t i = 0; left > 0; ++i, left -= std::min(left, share)) {
      Part& part = add_part(group, channels_[i]);
      part.total_bytes = std::min(left, share);
      cutter.cut(part.total_bytes, part.own_items);
      part.items = part.own_items;
    }
  }
  for (uint32_t i = 0; i < group.used; ++i) {
    Part& part = *group.parts[i];
    part.channel->bytes_under_way += part.total_bytes;
  }
  group.left = group.used;
  return &group;
}

StripedTransport::Part& StripedTransport::add_part(Group& group,
                                                   const std::shared_ptr<Channel>& channel) {
  if (group.used == group.parts.size()) {
    group.parts.push_back(std::make_unique<Part>());
    group.parts.back()->owner = this;
    group.parts.back()->group = &group;
  }
  Part& part = *group.parts[group.used++];
  const PostedRequest& request = *group.request;
  part.channel = channel;
  part.remote_regions = request.remote_regions;
  part.direction = request.direction;
  part.by_address = request.by_address;
  part.deadline = request.deadline;
  part.own_items.clear();
  part.posted = false;
  part.ended = false;
  return part;
}

std::shared_ptr<StripedTransport::Channel> StripedTransport::idlest() const {
  return *std::min_element(channels_.begin(), channels_.end(), [](const auto& a, const auto& b) {
    return a->bytes_under_way < b->bytes_under_way;
  });
}

// Parts may end, and the request be cancelled, while later ones are still to be posted.
void StripedTransport::post_parts(Group& group) {
  uint32_t unposted = 0;
  for (uint32_t i = 0; i < group.used; ++i) {
    Part& part = *group.parts[i];
    std::shared_ptr<Channel> channel;
    {
      MutexLock lock(mutex_);
      if (!group.failure.ok()) {
        channel = end(part);
        ++unposted;
        continue;
      }
      channel = part.channel;
    }
    channel->transport->post(part);
    Status failed;
    {
      MutexLock lock(mutex_);
      part.posted = true;
      if (!part.ended) failed = group.failure;
    }
    if (!failed.ok()) channel->transport->cancel(part, failed);
  }
  {
    // While parts are unposted, the request cannot be over.
    MutexLock lock(mutex_);
    if (unposted == 0) return let_go(group);
    --group.users;
  }
  parts_left(group, unposted);
}

std::shared_ptr<StripedTransport::Channel> StripedTransport::end(Part& part) {
  part.ended = true;
  part.channel->bytes_under_way -= part.total_bytes;
  return std::move(part.channel);
}

void StripedTransport::part_ended(Part& part, Status status) {
  Group& group = *part.group;
  bool first_failure = false;
  {
    std::shared_ptr<Channel> channel;  // Let go without the lock, and before on_done.
    MutexLock lock(mutex_);
    channel = end(part);
    if (ends_channel(status)) drop(*channel);
    first_failure = !status.ok() && group.failure.ok();
    if (first_failure) group.failure = status;
  }
  // The group stays: this part still counts.
  if (first_failure) cancel_parts(group, status);
  parts_left(group, 1);
}

void StripedTransport::drop(const Channel& channel) {
  std::erase_if(channels_, [&](const auto& held) { return held.get() == &channel; });
}

void StripedTransport::cancel(PostedRequest& request, Status why) {
  Group* group = nullptr;
  {
    MutexLock lock(mutex_);
    if (request.id == 0 || request.id > groups_.size()) return;
    group = groups_[request.id - 1].get();
    if (group->request != &request || !group->failure.ok()) return;
    group->failure = why;
    ++group->users;
  }
  cancel_parts(*group, why);
  MutexLock lock(mutex_);
  let_go(*group);
}

void StripedTransport::cancel_parts(Group& group, const Status& why) {
  for (uint32_t i = 0; i < group.used; ++i) {
    Part& part = *group.parts[i];
    std::shared_ptr<Channel> channel;
    {
      MutexLock lock(mutex_);
      if (!part.posted || part.ended) continue;  // post_parts() sees the failure.
      channel = part.channel;
    }
    // One that ends meanwhile is not reused before the group is let go.
    channel->transport->cancel(part, why);
  }
}

void StripedTransport::parts_left(Group& group, uint32_t parts) {
  PostedRequest* request = nullptr;
  Status outcome;
  {
    MutexLock lock(mutex_);
    group.left -= parts;
    if (group.left > 0) return;
    request = std::exchange(group.request, nullptr);
    request->id = 0;
    outcome = group.failure;
    ++group.users;
    let_go(group);
  }
  request->on_done(std::move(outcome));
}

// The last user of a group whose request is over gives it back.
void StripedTransport::let_go(Group& group) {
  if (--group.users > 0 || group.request != nullptr) return;
  for (uint32_t i = 0; i < group.used; ++i) {
    Part& part = *group.parts[i];
    if (part.own_items.capacity() > kKeptItems) part.own_items = {};
  }
  free_.push_back(&group);
}

}  // namespace stagelink::transport
