#include "store/yuanrong/yuanrong_backend.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/yuanrong/channel/codes.h"
#include "store/yuanrong/channel/worker_port.h"
#include "store/yuanrong/large_objects.h"
#include "store/yuanrong/object_get.h"
#include "store/yuanrong/object_put.h"
#include "store/yuanrong/store_key.h"

namespace stagelink::store::yuanrong {
namespace {

constexpr uint64_t kLeastChunk = uint64_t{16} << 20;
constexpr uint64_t kMostChunk = uint64_t{64} << 20;

class YuanrongBackend final : public Backend {
 public:
  YuanrongBackend(std::shared_ptr<WorkerPort> port, uint32_t write_mode)
      : port_(std::move(port)), large_(std::make_shared<LargeObjects>()), write_mode_(write_mode) {}
  ~YuanrongBackend() override { port_->close(); }

  Result<WriterPtr> create(std::string_view key, uint64_t size, const PutTerms& terms) override {
    return begin_put(port_, large_, key, size, terms, {write_mode_, ttl_seconds(terms.ttl)});
  }

  Result<ViewPtr> get(std::string_view key, const GetTerms& terms) override {
    const std::array<std::string, 1> keys = {std::string(key)};
    return std::move(get_objects(port_, keys, terms).front());
  }

  std::vector<Result<ViewPtr>> get_many(std::span<const std::string> keys,
                                        const GetTerms& terms) override {
    return get_objects(port_, keys, terms);
  }

  Result<bool> exists(std::string_view key) override {
    const std::array<std::string, 1> keys = {store_key(key)};
    LinkCall call;
    call.op = Op::kExists;
    call.keys = keys;
    SL_ASSIGN(const LinkAnswer answer, port_->call(call, port_->request_deadline()));
    if (answer.code != 0 && !is_miss(answer.code)) return port_->failure(call.op, answer);
    if (answer.code == 0 && answer.found.front()) return true;
    SL_TRY(port_->judge_miss());
    return false;
  }

  // Another put may come between looking and erasing; the datasystem has no way to forbid it.
  Status erase(std::string_view key, uint64_t generation) override {
    Result<std::optional<ObjectHeader>> header = look_up(*port_, key);
    const bool foreign = header.status().code() == Code::kCorrupt && generation == 0;
    if (!header.ok() && !foreign) return header.status();
    if (header.ok()) {
      if (!header->has_value()) return {};
      if (generation != 0 && (*header)->generation != generation) return {};
    }
    SL_TRY(plain(Op::kErase, {store_key(key)}, 0));
    (void)large_->replace(std::string(key), std::nullopt);
    if (header.ok() && (*header)->kind == ObjectKind::kManifest) {
      erase_chunk_keys(*port_, key, (*header)->generation, (*header)->chunks);
    }
    return {};
  }

  Status expire(std::string_view key, Duration ttl) override {
    SL_ASSIGN(const std::optional<ObjectHeader> header, look_up(*port_, key));
    if (!header) return Status(Reason::kNotFound, "expire: there is no such object");
    const uint32_t seconds = ttl < Duration::zero() ? 0 : std::max(1U, ttl_seconds(ttl));
    std::vector<std::string> keys = {store_key(key)};
    for (uint32_t i = 0; header->kind == ObjectKind::kManifest && i < header->chunks; ++i) {
      keys.push_back(chunk_key(key, header->generation, i));
    }
    return plain(Op::kExpire, keys, seconds);
  }

  Result<StoreUsage> usage() override {
    return Status(Reason::kUnsupported,
                  "the Yuanrong Datasystem does not tell a client how full it is; see the worker's "
                  "resource.log");
  }

  Status health() override { return port_->health(); }
  std::string metrics_text(std::string_view labels) override { return port_->metrics_text(labels); }

  Status close(const Deadline&) override {
    port_->close();
    return {};
  }

 private:
  Status plain(Op op, std::span<const std::string> keys, uint32_t ttl_s) {
    for (size_t first = 0; first < keys.size(); first += kMaxKeysPerRequest) {
      LinkCall call;
      call.op = op;
      call.keys = keys.subspan(first, std::min<size_t>(kMaxKeysPerRequest, keys.size() - first));
      call.ttl_s = ttl_s;
      SL_ASSIGN(const LinkAnswer answer, port_->call(call, port_->request_deadline()));
      if (answer.code == kCodeNotFound) return Status(Reason::kNotFound, answer.message);
      if (answer.code != 0) return port_->failure(op, answer);
    }
    return {};
  }
  Status plain(Op op, std::vector<std::string> keys, uint32_t ttl_s) {
    return plain(op, std::span<const std::string>(keys), ttl_s);
  }

  const std::shared_ptr<WorkerPort> port_;
  const std::shared_ptr<LargeObjects> large_;
  const uint32_t write_mode_;
};

}  // namespace

Result<std::shared_ptr<Backend>> make_yuanrong_backend(const StoreOptions& options) {
  const YuanrongOptions& yuanrong = options.yuanrong;
  SL_ASSIGN(const uint32_t write_mode, parse_write_mode(yuanrong.write_mode));
  if (yuanrong.chunk_bytes < kLeastChunk || yuanrong.chunk_bytes > kMostChunk) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("chunk_bytes: {} is not within {} to {}", yuanrong.chunk_bytes,
                              kLeastChunk, kMostChunk));
  }
  SL_ASSIGN(std::shared_ptr<WorkerPort> port, WorkerPort::open(yuanrong));
  return std::shared_ptr<Backend>(std::make_shared<YuanrongBackend>(std::move(port), write_mode));
}

}  // namespace stagelink::store::yuanrong
