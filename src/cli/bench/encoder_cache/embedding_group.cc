#include <atomic>
#include <cstring>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>

#include "cli/bench/encoder_cache/encoder_cache_groups.h"
#include "cli/bench/rig/core_scope.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/rig/rig.h"
#include "cli/bench/store/store_pair.h"
#include "connector/encoder_cache/consumer/consumer.h"
#include "connector/encoder_cache/producer/producer.h"

namespace stagelink::cli::bench {
namespace {

namespace ec = encoder_cache;

constexpr uint64_t kEmbeddingKib = 1 << 10;
constexpr uint64_t kOneBytes = 2048 * kEmbeddingKib;
constexpr uint64_t kBatchBytes = 256 * kEmbeddingKib;
constexpr uint64_t kBatchItems = 64;
constexpr uint64_t kEmbeddingPool = uint64_t{64} << 20;
constexpr uint32_t kOneRounds = 200;
constexpr uint32_t kBatchRounds = 200;
constexpr double kFixedUs = 150;  // What a single embedding may cost beyond three copies.
constexpr std::byte kEmbeddingByte{7};

// What the producing process tells.
struct EmbeddingTold {
  std::atomic<uint32_t> ready{0};
  uint16_t zmq_port = 0;
  uint32_t engine_bytes = 0;
  uint32_t region_bytes = 0;
  std::byte engine[4096] = {};
  std::byte region[256] = {};
};

ec::CacheOptions embedding_options() {
  ec::CacheOptions options;
  options.host = "127.0.0.1";
  options.registry_http_port = 0;
  options.buffer_size = kEmbeddingPool;
  options.huge_pages = Effort::kTry;  // As the engine's own figures.
  return options;
}

EngineOptions plain_engine_options() {
  EngineOptions options;
  options.huge_pages = Effort::kTry;
  return options;
}

ec::EmbeddingInfo embedding_info(uint64_t bytes) {
  return {bytes, {bytes / 2048, 1024}, "bfloat16"};
}
std::string item_name(uint64_t item) { return fmt::format("item-{}", item); }

// Embeddings, and beside them a region of the plain engine with as many bytes.
Status produce_embeddings(PairPage& page, EmbeddingTold& told) {
  SL_ASSIGN(const auto producer, ec::Producer::create(embedding_options()));
  const std::vector<std::byte> bytes(kOneBytes, kEmbeddingByte);
  SL_TRY(producer->save("one", embedding_info(kOneBytes), bytes));
  for (uint64_t item = 0; item < kBatchItems; ++item) {
    SL_TRY(producer->save(item_name(item), embedding_info(kBatchBytes),
                          std::span(bytes).first(kBatchBytes)));
  }
  SL_ASSIGN(const auto engine, Engine::create(plain_engine_options()));
  SL_ASSIGN(const Region region, engine->allocate(kBatchItems * kBatchBytes));
  std::memset(region.bytes().data(), static_cast<int>(kEmbeddingByte), region.bytes().size());
  const std::vector<std::byte> descriptor = engine->descriptor();
  const std::vector<std::byte> packed = region.descriptor().pack();
  if (descriptor.size() > sizeof told.engine || packed.size() > sizeof told.region) {
    return Status(Reason::kTooLarge, "a descriptor has outgrown the page");
  }
  std::memcpy(told.engine, descriptor.data(), descriptor.size());
  std::memcpy(told.region, packed.data(), packed.size());
  told.engine_bytes = static_cast<uint32_t>(descriptor.size());
  told.region_bytes = static_cast<uint32_t>(packed.size());
  SL_ASSIGN(const Endpoint at, parse_endpoint(producer->producer_zmq().substr(6)));
  told.zmq_port = at.port;
  told.ready.store(1);
  page.set(1);
  return page.wait_for(2) ? Status() : Status(Reason::kTimedOut, "no turn");
}

// p50 of `rounds` calls, the first of which does not count.
template <typename Once>
Result<double> median_us(uint32_t rounds, Once&& once) {
  std::vector<double> took_us;
  for (uint32_t round = 0; round <= rounds; ++round) {
    const double start_us = now_us();
    SL_TRY(once());
    if (round > 0) took_us.push_back(now_us() - start_us);
  }
  return percentile(std::move(took_us), 0.5);
}

Status check_loaded(const Result<ec::Embedding>& one, std::span<const std::byte> bytes) {
  SL_TRY(one.status());
  if (!bytes.empty() && bytes.front() == kEmbeddingByte && bytes.back() == kEmbeddingByte)
    return {};
  return Status(Reason::kCorrupt, "not what was saved");
}

ec::LoadRequest embedding_request(const EmbeddingTold& told, std::string hash, uint64_t bytes) {
  return {std::move(hash),
          {{embedding_info(bytes), fmt::format("tcp://127.0.0.1:{}", told.zmq_port), 0}},
          {}};
}

// From the request to the tensor of the caller.
Status run_one(SuiteContext& context, ec::Consumer& consumer, const EmbeddingTold& told) {
  std::vector<std::byte> tensor(kOneBytes);
  ec::LoadRequest request = embedding_request(told, "one", kOneBytes);
  request.into = tensor;
  SL_ASSIGN(const double ours, median_us(kOneRounds, [&]() -> Status {
              auto got = consumer.load(std::span(&request, 1));
              return check_loaded(got.front(), tensor);
            }));
  const std::vector<std::byte> from(kOneBytes, kEmbeddingByte);
  SL_ASSIGN(const double copy, median_us(kOneRounds, [&]() -> Status {
              std::memcpy(tensor.data(), from.data(), kOneBytes);
              return tensor.back() == kEmbeddingByte ? Status() : Status(Reason::kCorrupt, "");
            }));
  context.add({.name = "one",
               .value = ours / (3 * copy + kFixedUs),
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = 1});
  return {};
}

// The plain engine: as many ranges in one batch, into memory that is registered once.
class EngineBatch {
 public:
  static Result<EngineBatch> start(const EmbeddingTold& told) {
    SL_ASSIGN(auto engine, Engine::create(plain_engine_options()));
    SL_ASSIGN(Peer peer, engine->connect(std::span(told.engine, told.engine_bytes)));
    SL_ASSIGN(const RegionDesc remote,
              RegionDesc::unpack(std::span(told.region, told.region_bytes)));
    SL_ASSIGN(Region local, engine->allocate(kBatchItems * kBatchBytes));
    const Region* const locals = &local;
    SL_ASSIGN(Session session, peer.session(std::span(&locals, 1), std::span(&remote, 1)));
    return EngineBatch(std::move(engine), std::move(local), std::move(session));
  }
  Status read() {
    SL_ASSIGN(Transfer transfer, session_.read({offsets_, offsets_, sizes_, {}, {}}));
    return transfer.wait();
  }

 private:
  EngineBatch(std::unique_ptr<Engine> engine, Region local, Session session)
      : engine_(std::move(engine)),
        local_(std::move(local)),
        session_(std::move(session)),
        sizes_(kBatchItems, kBatchBytes) {
    for (uint64_t item = 0; item < kBatchItems; ++item) offsets_.push_back(item * kBatchBytes);
  }
  std::unique_ptr<Engine> engine_;
  Region local_;
  Session session_;
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t> sizes_;
};

// The two take turns, so that both meet the same machine.
Status run_batch(SuiteContext& context, ec::Consumer& consumer, const EmbeddingTold& told) {
  SL_ASSIGN(EngineBatch engine, EngineBatch::start(told));
  std::vector<double> ours_us;
  std::vector<double> engine_us;
  for (uint32_t round = 0; round <= kBatchRounds; ++round) {
    std::vector<ec::LoadRequest> requests;  // Fresh ones, as when a registry has just answered.
    for (uint64_t item = 0; item < kBatchItems; ++item) {
      requests.push_back(embedding_request(told, item_name(item), kBatchBytes));
    }
    const double start_us = now_us();
    auto loaded = consumer.load(requests);
    const double loaded_us = now_us();
    for (auto& got : loaded) {
      SL_TRY(check_loaded(got, got.ok() ? got->piece.bytes() : std::span<std::byte>()));
    }
    loaded.clear();
    const double before_us = now_us();
    SL_TRY(engine.read());
    if (round == 0) continue;
    ours_us.push_back(loaded_us - start_us);
    engine_us.push_back(now_us() - before_us);
  }
  context.add({.name = "batch",
               .value = percentile(std::move(engine_us), 0.5) / percentile(std::move(ours_us), 0.5),
               .unit = "x",
               .goal = Goal::kAtLeast,
               .target = 0.8});
  return {};
}

}  // namespace

Status run_embedding_group(SuiteContext& context) {
  void* const memory = ::mmap(nullptr, sizeof(EmbeddingTold), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status(Reason::kLimit, "no memory for two processes");
  auto* const told = new (memory) EmbeddingTold;
  // A core for each process, as where the engine is measured: neither copies on the other's.
  const auto measured = [&]() -> Status {
    SL_ASSIGN(ForkedPair process, ForkedPair::start([told](PairPage& page) {
                const CoreScope core(kTargetCore);
                const Status status = produce_embeddings(page, *told);
                if (!status.ok()) page.failed.store(1);
                return status;
              }));
    if (!process.page().wait_for(1)) return Status(Reason::kTimedOut, "no producer");
    const CoreScope core(kInitiatorCore);
    SL_ASSIGN(const auto consumer, ec::Consumer::create(embedding_options(), false));
    SL_TRY(run_one(context, *consumer, *told));
    SL_TRY(run_batch(context, *consumer, *told));
    process.page().set(2);
    return {};
  };
  const Status status = measured();
  ::munmap(memory, sizeof(EmbeddingTold));
  return status;
}

}  // namespace stagelink::cli::bench
