#include "cli/bench/moriio/producer.h"

#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "connector/moriio/move/session_target.h"

namespace stagelink::cli::bench {

namespace {

constexpr auto kAbortTimeout = std::chrono::seconds(30);

moriio::WrapperOptions wrapper_options() {
  moriio::WrapperOptions options;
  options.table.role = moriio::Role::kProducer;
  options.table.tp_size = 1;
  return options;
}

// The ranges of one layer.
moriio::Ranges layer_of(const Write& write, size_t layer) {
  const size_t count = write.picks->sizes.size() / write.layers;
  const auto begin = static_cast<ptrdiff_t>(layer * count);
  const auto end = begin + static_cast<ptrdiff_t>(count);
  const auto part = [&](const std::vector<uint64_t>& all) {
    return std::vector<uint64_t>(all.begin() + begin, all.begin() + end);
  };
  return {part(write.picks->local), part(write.picks->remote), part(write.picks->sizes)};
}

}  // namespace

// Knows what each transfer writes, and where to.
class Producer::Host final : public moriio::WriterHost {
 public:
  size_t add(Consumer consumer) SL_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    consumers_.push_back(
        {moriio::make_session_target(std::move(consumer.session)), std::move(consumer.notify)});
    return consumers_.size() - 1;
  }
  void add(const Write& write) SL_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    writes_[write.transfer_id] = write;
  }
  Result<std::optional<Endpoint>> consumer_of(const moriio::Allocation&,
                                              const moriio::WriteTask& task) override {
    MutexLock lock(mutex_);
    return std::optional(consumers_[writes_.at(task.transfer_id).consumer].notify);
  }
  Result<std::vector<moriio::Move>> plan(const moriio::Allocation&,
                                         std::span<const moriio::WriteTask> tasks) override {
    MutexLock lock(mutex_);
    std::vector<moriio::Move> moves;
    for (const moriio::WriteTask& task : tasks) {
      const Write& write = writes_.at(task.transfer_id);
      moves.push_back({consumers_[write.consumer].target, layer_of(write, std::stoul(task.layer))});
    }
    return moves;
  }

 private:
  struct Target {
    std::shared_ptr<moriio::MoveTarget> target;
    Endpoint notify;
  };
  Mutex mutex_;
  std::vector<Target> consumers_ SL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Write> writes_ SL_GUARDED_BY(mutex_);
};

Producer::Producer()
    : wrapper_(std::make_shared<moriio::Wrapper>(wrapper_options())),
      host_(std::make_shared<Host>()),
      writer_(std::make_unique<moriio::Writer>(moriio::WriterOptions{}, wrapper_, host_)) {}

Producer::~Producer() { writer_->close(); }

size_t Producer::add(Consumer consumer) { return host_->add(std::move(consumer)); }

void Producer::allocate(const Write& write) {
  host_->add(write);
  wrapper_->table().set_allocation(
      write.transfer_id,
      {.request_id = write.transfer_id, .block_ids = {1}, .decode_rank = 0, .extras = {}});
}

Status Producer::save(const Write& write) {
  for (uint32_t layer = 0; layer < write.layers; ++layer) {
    SL_TRY(writer_
               ->schedule({.request_id = write.transfer_id,
                           .transfer_id = write.transfer_id,
                           .layer = std::to_string(layer),
                           .ticket = nullptr})
               .status());
  }
  writer_->seal(write.transfer_id);
  return Status();
}

Status Producer::abort(const Write& write) {
  return writer_->abort(write.transfer_id, kAbortTimeout);
}

}  // namespace stagelink::cli::bench
