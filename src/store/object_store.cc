#include "stagelink/object_store.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "config/store_config.h"
#include "memory/copy_kernel.h"
#include "store/backend.h"
#include "store/shm/shm_backend.h"
#include "store/store_metrics.h"
#include "store/yuanrong/yuanrong_backend.h"

namespace stagelink {
namespace {

using store::StoreCall;
using store::StoreMetrics;

constexpr size_t kMaxKeyBytes = 1024;

Status check_key(std::string_view key) {
  if (!key.empty() && key.size() <= kMaxKeyBytes) return {};
  return Status(Reason::kInvalidArgument,
                fmt::format("key: {} bytes; a key has 1 to {}", key.size(), kMaxKeyBytes));
}

store::GetTerms get_terms(Duration timeout) noexcept {
  return {Deadline::in(timeout), timeout > Duration::zero()};
}

Result<std::shared_ptr<store::Backend>> make_backend(const StoreOptions& options) {
  switch (options.backend) {
    case StoreBackend::kShm: return store::shm::make_shm_backend(options);
    case StoreBackend::kYuanrong: return store::yuanrong::make_yuanrong_backend(options);
  }
  return Status(Reason::kUnsupported, fmt::format("backend: {} is not one that there is",
                                                  static_cast<int>(options.backend)));
}

void copy_in(std::span<std::byte> to, const std::byte* from) {
  static const memory::CopyKernel kernel = memory::pick_copy_kernel(/*streaming_min_bytes=*/0);
  if (to.empty()) return;
  kernel.copy(to.data(), from, to.size());
  if (to.size() >= kernel.streaming_min_bytes) memory::copy_fence();
}

constexpr Duration kPiece = std::chrono::milliseconds(100);

// Whether a wait that has ended at its deadline may go on.
bool is_waiting(Reason reason) noexcept {
  return reason == Reason::kTimedOut || reason == Reason::kNoSpace;
}

// A call that waits, interrupted now and then by the question whether it shall go on.
template <typename Call>
auto in_pieces(const Call& call, const Deadline& deadline, const Interrupted& interrupted)
    -> decltype(call(deadline)) {
  if (!interrupted) return call(deadline);
  for (;;) {
    const Deadline piece = Deadline::earlier(deadline, Deadline::in(kPiece));
    auto result = call(piece);
    if (result.ok() || !is_waiting(result.status().reason()) || deadline.passed()) return result;
    if (interrupted()) return Status(Reason::kCancelled, "interrupted while it waited");
  }
}

std::string labels_of(const StoreOptions& options) {
  return fmt::format("store=\"{}\",backend=\"{}\"", options.arena.name,
                     options.backend == StoreBackend::kShm ? "shm" : "yuanrong");
}

}  // namespace

ObjectWriter::ObjectWriter(std::unique_ptr<store::WriterState> state,
                           std::shared_ptr<store::StoreMetrics> metrics) noexcept
    : state_(std::move(state)), metrics_(std::move(metrics)) {}
ObjectWriter::ObjectWriter(ObjectWriter&&) noexcept = default;
ObjectWriter& ObjectWriter::operator=(ObjectWriter&&) noexcept = default;
ObjectWriter::~ObjectWriter() = default;

std::span<const std::span<std::byte>> ObjectWriter::pieces() const noexcept {
  return state_->pieces();
}
uint64_t ObjectWriter::size() const noexcept { return state_->size(); }
uint64_t ObjectWriter::generation() const noexcept { return state_->generation(); }
void ObjectWriter::abort() noexcept { state_->abort(); }

Status ObjectWriter::append(std::span<const std::byte> bytes) {
  if (bytes.size() > size() - appended_) {
    return Status(Reason::kOutOfBounds,
                  fmt::format("append: {} bytes behind {} do not fit into an object of {}",
                              bytes.size(), appended_, size()));
  }
  uint64_t begin = 0;  // Of the piece, within the object.
  for (const std::span<std::byte> piece : pieces()) {
    if (bytes.empty()) break;
    if (appended_ < begin + piece.size()) {
      const std::span<std::byte> to = piece.subspan(appended_ - begin);
      const size_t part = std::min(to.size(), bytes.size());
      copy_in(to.first(part), bytes.data());
      bytes = bytes.subspan(part);
      appended_ += part;
    }
    begin += piece.size();
  }
  return {};
}

Status ObjectWriter::seal() {
  const Status status = state_->seal();
  metrics_->count(StoreCall::kSeal, status.reason());
  if (status.ok()) metrics_->count_put_bytes(size());
  return status;
}

ObjectView::ObjectView(std::unique_ptr<store::ViewState> state) noexcept
    : state_(std::move(state)) {}
ObjectView::ObjectView(ObjectView&&) noexcept = default;
ObjectView& ObjectView::operator=(ObjectView&&) noexcept = default;
ObjectView::~ObjectView() = default;

std::span<const std::byte> ObjectView::bytes() const noexcept { return state_->bytes(); }
uint64_t ObjectView::generation() const noexcept { return state_->generation(); }
Status ObjectView::valid() const { return state_->valid(); }

Result<std::unique_ptr<ObjectStore>> ObjectStore::open(const StoreOptions& options) {
  SL_TRY(config::check_store_options(options));
  SL_ASSIGN(auto backend, make_backend(options));
  return std::unique_ptr<ObjectStore>(new ObjectStore(options, std::move(backend)));
}

ObjectStore::ObjectStore(StoreOptions options, std::shared_ptr<store::Backend> backend)
    : options_(std::move(options)),
      backend_(std::move(backend)),
      metrics_(std::make_shared<StoreMetrics>()) {}

ObjectStore::~ObjectStore() { (void)close(); }

Result<ObjectWriter> ObjectStore::create(std::string_view key, uint64_t size,
                                         const PutOptions& options) {
  const auto start = StoreMetrics::Clock::now();
  const Duration ttl = options.ttl == Duration::zero() ? options_.ttl : options.ttl;
  const auto look = [&](const Deadline& deadline) {
    return backend_->create(key, size, {deadline, ttl});
  };
  const Status status = check_key(key);
  auto made = status.ok()
                  ? in_pieces(look, Deadline::after(start, options.timeout), options.interrupted)
                  : Result<store::WriterPtr>(status);
  metrics_->count(StoreCall::kCreate, made.status().reason());
  if (!made.ok()) return made.status();
  metrics_->observe(StoreCall::kCreate, StoreMetrics::Clock::now() - start);
  return ObjectWriter(*std::move(made), metrics_);
}

Result<uint64_t> ObjectStore::put(std::string_view key, std::span<const std::byte> bytes,
                                  const PutOptions& options) {
  SL_ASSIGN(ObjectWriter writer, create(key, bytes.size(), options));
  SL_TRY(writer.append(bytes));
  SL_TRY(writer.seal());
  return writer.generation();
}

Result<ObjectView> ObjectStore::get(std::string_view key, Duration timeout,
                                    const Interrupted& interrupted) {
  const auto start = StoreMetrics::Clock::now();
  const bool waits = timeout > Duration::zero();
  const auto look = [&](const Deadline& deadline) { return backend_->get(key, {deadline, waits}); };
  const Status status = check_key(key);
  auto view = status.ok() ? in_pieces(look, Deadline::after(start, timeout), interrupted)
                          : Result<store::ViewPtr>(status);
  metrics_->count(StoreCall::kGet, view.status().reason());
  if (!view.ok()) return view.status();
  metrics_->observe(StoreCall::kGet, StoreMetrics::Clock::now() - start);
  metrics_->count_got_bytes((*view)->bytes().size());
  return ObjectView(*std::move(view));
}

std::vector<Result<ObjectView>> ObjectStore::get_many(std::span<const std::string> keys,
                                                      Duration timeout) {
  std::vector<std::string> good;
  for (const std::string& key : keys) {
    if (check_key(key).ok()) good.push_back(key);
  }
  std::vector<Result<store::ViewPtr>> found = backend_->get_many(good, get_terms(timeout));
  std::vector<Result<ObjectView>> out;
  out.reserve(keys.size());
  size_t next = 0;
  for (const std::string& key : keys) {
    const Status status = check_key(key);
    Result<store::ViewPtr> view = status.ok() ? std::move(found[next++]) : status;
    metrics_->count(StoreCall::kGet, view.status().reason());
    if (!view.ok()) {
      out.emplace_back(view.status());
      continue;
    }
    metrics_->count_got_bytes((*view)->bytes().size());
    out.emplace_back(ObjectView(*std::move(view)));
  }
  return out;
}

Result<bool> ObjectStore::exists(std::string_view key) {
  SL_TRY(check_key(key));
  Result<bool> found = backend_->exists(key);
  metrics_->count(StoreCall::kExists, found.status().reason());
  return found;
}

Status ObjectStore::erase(std::string_view key, uint64_t generation) {
  SL_TRY(check_key(key));
  Status status = backend_->erase(key, generation);
  metrics_->count(StoreCall::kErase, status.reason());
  return status;
}

Status ObjectStore::expire(std::string_view key, Duration ttl) {
  SL_TRY(check_key(key));
  Status status = backend_->expire(key, ttl);
  metrics_->count(StoreCall::kExpire, status.reason());
  return status;
}

Result<StoreUsage> ObjectStore::usage() { return backend_->usage(); }
Status ObjectStore::health() { return backend_->health(); }
const StoreOptions& ObjectStore::options() const noexcept { return options_; }

std::string ObjectStore::metrics_text() const {
  const std::string labels = labels_of(options_);
  return metrics_->text(labels) + backend_->metrics_text(labels);
}

Status ObjectStore::close(Duration timeout) { return backend_->close(Deadline::in(timeout)); }

}  // namespace stagelink
