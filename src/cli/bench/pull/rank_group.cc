#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/pull/pull_groups.h"
#include "cli/bench/pull/pull_pair.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/process_load.h"
#include "connector/kv/in_place/registered_cache.h"
#include "connector/kv/payload_plan.h"
#include "connector/kv/rank_map.h"
#include "connector/kv/straight_get.h"

namespace stagelink::cli::bench {

namespace {

constexpr uint64_t kRankMib = 1 << 20;
constexpr size_t kRankSenders = 4;
constexpr size_t kRankKeys = 8;
constexpr uint64_t kRankKeyBytes = 4 * kRankMib;
constexpr uint32_t kRankRounds = 40;
constexpr double kRanksLimit = 1.3;
constexpr double kFanLimit = 1.01;  // The headers.
constexpr double kStraightLimit = 1.0;
constexpr double kPutLimitUs = 100;

Status offer_filled(pull::PullConnector& connector, const std::string& key, uint64_t bytes) {
  SL_ASSIGN(const pull::Piece piece, connector.allocate(bytes, std::chrono::seconds(5)));
  std::memset(piece.bytes().data(), 7, piece.bytes().size());
  return connector.put_piece(key, piece, {.readers = 0}).status();
}

std::string rank_key(size_t at) { return fmt::format("k{}@0_1", at); }

// Of one rank: its share of the keys and, at the first one, all of their bytes under one key.
Status serve_keys(size_t rank, pull::PullConnector& connector, PairPage& page) {
  for (size_t at = rank; at < kRankKeys; at += kRankSenders) {
    SL_TRY(offer_filled(connector, rank_key(at), kRankKeyBytes));
  }
  if (rank == 0) SL_TRY(offer_filled(connector, "one@0_1", kRankKeys * kRankKeyBytes));
  page.set(1);
  return page.wait_for(2) ? Status() : Status(Reason::kTimedOut, "no turn");
}

// Eight payloads of four senders at once, against the same bytes of one.
Status run_ranks(SuiteContext& context) {
  std::vector<std::unique_ptr<PullPair>> pairs;
  std::vector<pull::PullMetadata> places;
  const uint64_t pool = (2 * kRankKeys * kRankKeyBytes) + kRankMib;
  for (size_t rank = 0; rank < kRankSenders; ++rank) {
    SL_ASSIGN(auto pair, PullPair::start(bench_pull_options(pull::Role::kSender, pool),
                                         [rank](pull::PullConnector& connector, PairPage& page) {
                                           return serve_keys(rank, connector, page);
                                         }));
    if (!pair->page().wait_for(1)) return Status(Reason::kTimedOut, "a sender is lost");
    places.push_back(pair->address());
    pairs.push_back(std::move(pair));
  }
  SL_ASSIGN(const auto receiver,
            pull::PullConnector::create(bench_pull_options(pull::Role::kReceiver, pool)));
  std::array<std::string, kRankKeys> keys;
  std::vector<pull::GetRequest> requests;
  for (size_t at = 0; at < kRankKeys; ++at) {
    keys[at] = rank_key(at);
    requests.push_back({keys[at], &places[at % kRankSenders], {}});
  }
  std::vector<double> many_us;
  std::vector<double> one_us;
  for (uint32_t round = 0; round <= kRankRounds; ++round) {
    double start_us = now_us();
    for (auto& got : receiver->get_many(requests)) SL_TRY(got.status());
    if (round > 0) many_us.push_back(now_us() - start_us);
    start_us = now_us();
    SL_TRY(receiver->get({"one@0_1", &places[0], {}}).status());
    if (round > 0) one_us.push_back(now_us() - start_us);
  }
  for (auto& pair : pairs) pair->page().set(2);
  context.add({.name = "ranks",
               .value = percentile(std::move(many_us), 0.5) / percentile(std::move(one_us), 0.5),
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = kRanksLimit});
  return Status();
}

// A paged cache [2, blocks, tokens, heads, dim] of 16 bits, and a request whose blocks are
// scattered over it.
class PagedCache {
 public:
  static constexpr int64_t kTokens = 16;
  static constexpr int64_t kHeads = 8;
  static constexpr int64_t kDim = 128;
  static constexpr size_t kLayers = 16;
  static constexpr int64_t kBlocks = 48;

  PagedCache() {
    constexpr int64_t kRow = kHeads * kDim * 2;
    constexpr int64_t kBlock = kTokens * kRow;
    for (size_t layer = 0; layer < kLayers; ++layer) {
      memory_.emplace_back(static_cast<size_t>(2 * kBlocks * kBlock), std::byte{5});
      const kv::StridedTensor tensor{memory_.back().data(),
                                     kv::find_kv_dtype("bfloat16"),
                                     {2, kBlocks, kTokens, kHeads, kDim},
                                     {kBlocks * kBlock, kBlock, kRow, kDim * 2, 2}};
      planes_.push_back(*kv::planes_of(tensor, {kTokens, false, block_layout::Layout::kKvFirst}));
    }
    for (int64_t at = 0; at < kBlocks / 2; ++at) blocks_.push_back((at * 2 + 7) % kBlocks);
  }
  Result<kv::PayloadPlan> plan(const kv::HeadShare& heads) const {
    kv::PayloadRequest request{"r", blocks_, bytes_of_tokens(), "{}", heads};
    return kv::PayloadPlan::create(planes_, request);
  }
  const std::vector<kv::LayerPlanes>& planes() const noexcept { return planes_; }
  // Of the request: what has to be moved, headers apart.
  uint64_t kv_bytes() const noexcept { return bytes_of_tokens() * kHeads * kDim * 2 * 2 * kLayers; }

 private:
  uint64_t bytes_of_tokens() const noexcept { return blocks_.size() * uint64_t{kTokens}; }

  std::vector<std::vector<std::byte>> memory_;
  std::vector<kv::LayerPlanes> planes_;
  std::vector<int64_t> blocks_;
};

Result<double> put_payload_us(pull::PullConnector& connector, const PagedCache& cache,
                              const std::string& key, const kv::HeadShare& heads,
                              uint32_t readers) {
  const double start_us = now_us();
  SL_ASSIGN(const kv::PayloadPlan plan, cache.plan(heads));
  SL_ASSIGN(const pull::Piece piece, connector.allocate(plan.size(), std::chrono::seconds(5)));
  SL_TRY(plan.write(piece.bytes()));
  SL_TRY(connector.put_piece(key, piece, {.readers = readers}).status());
  return now_us() - start_us;
}

// One sender, four receivers: how many times the cache crosses.
Status run_fan_out(SuiteContext& context) {
  SL_ASSIGN(const kv::RankMap map, kv::RankMap::create({1, 4, PagedCache::kHeads, false}));
  SL_ASSIGN(const std::vector<kv::RankRoute> routes, map.sends(0));
  const auto key_of = [&](uint32_t to) {
    return kv::kv_key(map.topology(), "r", {"0", "1"}, 0, to) + "@0_1";
  };
  const uint64_t pool = 64 * kRankMib;
  SL_ASSIGN(
      const auto pair,
      PullPair::start(
          bench_pull_options(pull::Role::kSender, pool),
          [&](pull::PullConnector& connector, PairPage& page) -> Status {
            const PagedCache cache;
            for (const kv::RankRoute& route : routes) {
              SL_TRY(put_payload_us(connector, cache, key_of(route.rank), route.ours, 1).status());
            }
            page.set(1);
            return page.wait_for(2) ? Status() : Status(Reason::kTimedOut, "no turn");
          }));
  if (!pair->page().wait_for(1)) return Status(Reason::kTimedOut, "the sender is lost");
  const pull::PullMetadata sender = pair->address();
  uint64_t bytes = 0;
  for (const kv::RankRoute& route : routes) {
    SL_ASSIGN(const auto receiver,
              pull::PullConnector::create(bench_pull_options(pull::Role::kReceiver, pool)));
    const std::string key = key_of(route.rank);
    SL_ASSIGN(const pull::Received got, receiver->get({key, &sender, {}}));
    bytes += got.bytes;
  }
  pair->page().set(2);
  const PagedCache cache;
  context.add({.name = "fan-out",
               .value = static_cast<double>(bytes) / static_cast<double>(cache.kv_bytes()),
               .unit = "x",
               .goal = Goal::kAtMost,
               .target = kFanLimit});
  return Status();
}

// The payload of a request into its final tensors, by way of the own pool.
Status get_and_place(pull::PullConnector& receiver, const pull::GetRequest& request,
                     const kv::RankRoute& route, std::span<std::byte> memory) {
  SL_ASSIGN(const pull::Received got, receiver.get(request));
  const std::span<const std::byte> payload = got.piece.bytes();
  SL_ASSIGN(const kv::PayloadHeader header, kv::decode_header(payload, payload.size(), "r"));
  const kv::MergePart part{&header, route, /*sliced=*/true};
  SL_ASSIGN(const kv::MergePlan plan, kv::MergePlan::create(std::span(&part, 1)));
  return plan.place(0, payload, memory);
}

// How many times as long that takes as reading them straight from the sender's pool.
Status run_straight(SuiteContext& context) {
  const uint64_t pool = 64 * kRankMib;
  SL_ASSIGN(const auto pair,
            PullPair::start(bench_pull_options(pull::Role::kSender, pool),
                            [](pull::PullConnector& connector, PairPage& page) -> Status {
                              const PagedCache cache;
                              SL_TRY(put_payload_us(connector, cache, "r@0_1", {}, 0).status());
                              page.set(1);
                              return page.wait_for(2) ? Status()
                                                      : Status(Reason::kTimedOut, "no turn");
                            }));
  if (!pair->page().wait_for(1)) return Status(Reason::kTimedOut, "the sender is lost");
  const pull::PullMetadata sender = pair->address();
  SL_ASSIGN(const auto receiver,
            pull::PullConnector::create(bench_pull_options(pull::Role::kReceiver, pool)));
  const kv::RankRoute route;  // From one rank to one.
  const pull::GetRequest request{"r@0_1", &sender, {}};
  std::vector<std::byte> memory(PagedCache().kv_bytes());
  std::vector<double> straight_us;
  std::vector<double> placed_us;
  for (uint32_t round = 0; round <= kRankRounds; ++round) {
    double start_us = now_us();
    SL_ASSIGN(const auto claimed,
              kv::StraightGet::claim(*receiver, {{&request, 1}, {&route, 1}, "r", 0, 0}, {}));
    SL_TRY(claimed.outcomes.front());
    SL_TRY(claimed.get->read(memory, std::chrono::seconds(5)));
    if (round > 0) straight_us.push_back(now_us() - start_us);
    start_us = now_us();
    SL_TRY(get_and_place(*receiver, request, route, memory));
    if (round > 0) placed_us.push_back(now_us() - start_us);
  }
  pair->page().set(2);
  context.add(
      {.name = "straight",
       .value = percentile(std::move(placed_us), 0.5) / percentile(std::move(straight_us), 0.5),
       .unit = "x",
       .goal = Goal::kAtLeast,
       .target = kStraightLimit});
  return Status();
}

// What a put of a request's cache takes beyond one plain copy of its bytes, for each layer. This is
// where nothing is put on another thread.
Status run_put_cost(SuiteContext& context) {
  const PagedCache cache;
  SL_ASSIGN(const auto connector,
            pull::PullConnector::create(bench_pull_options(pull::Role::kSender, 128 * kRankMib)));
  SL_ASSIGN(const kv::PayloadPlan plan, cache.plan({}));
  SL_ASSIGN(const pull::Piece piece, connector->allocate(plan.size(), std::chrono::seconds(5)));
  const std::vector<std::byte> from(plan.size(), std::byte{5});
  std::vector<double> beyond_us;
  for (uint32_t round = 0; round <= kRankRounds; ++round) {
    const double start_us = now_us();
    std::memcpy(piece.bytes().data(), from.data(), from.size());
    const double copy_us = now_us() - start_us;
    SL_ASSIGN(const double put_us, put_payload_us(*connector, cache, "r@0_1", {}, 0));
    if (round > 0) beyond_us.push_back((put_us - copy_us) / PagedCache::kLayers);
  }
  context.add({.name = "put-cost",
               .value = percentile(std::move(beyond_us), 0.5),
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kPutLimitUs});
  return Status();
}

// The same of a registered cache, whose blocks stay where they are: there is no copy to subtract.
Status run_put_in_place(SuiteContext& context) {
  const PagedCache cache;
  SL_ASSIGN(const auto connector,
            pull::PullConnector::create(bench_pull_options(pull::Role::kSender, 4 * kRankMib)));
  SL_ASSIGN(const auto registered, kv::RegisteredCache::create(*connector, cache.planes()));
  std::vector<double> put_us;
  for (uint32_t round = 0; round <= kRankRounds; ++round) {
    const double start_us = now_us();
    SL_ASSIGN(const kv::PayloadPlan plan, cache.plan({}));
    SL_TRY(registered->put("r@0_1", plan, round).status());
    if (round > 0) put_us.push_back((now_us() - start_us) / PagedCache::kLayers);
  }
  context.add({.name = "put-in-place",
               .value = percentile(std::move(put_us), 0.5),
               .unit = "us",
               .goal = Goal::kAtMost,
               .target = kPutLimitUs});
  return registered->close(std::chrono::seconds(5));
}

}  // namespace

Status run_pull_rank_group(SuiteContext& context) {
  SL_TRY(run_ranks(context));
  SL_TRY(run_fan_out(context));
  SL_TRY(run_straight(context));
  SL_TRY(run_put_cost(context));
  return run_put_in_place(context);
}

}  // namespace stagelink::cli::bench
