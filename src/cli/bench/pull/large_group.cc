#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/limit/tcp_pair.h"
#include "cli/bench/pull/pull_groups.h"
#include "cli/bench/pull/pull_pair.h"
#include "cli/bench/rig/percentile.h"
#include "cli/bench/rig/private_memory.h"
#include "cli/bench/rig/process_load.h"

namespace stagelink::cli::bench {

namespace {

constexpr uint64_t kPullMib = 1 << 20;
constexpr double kPullOverLimit = 0.85;
constexpr auto kPullSocketTime = std::chrono::seconds(20);

struct LargeCase {
  const char* name;
  uint64_t bytes;
  uint32_t rounds;
  bool is_tcp;
  double target;
};

constexpr LargeCase kLargeCases[] = {
    {"get-1m", kPullMib, 200, false, 0},
    {"get-16m", 16 * kPullMib, 40, false, kPullOverLimit},
    {"get-256m", 256 * kPullMib, 6, false, kPullOverLimit},
    {"get-16m-tcp", 16 * kPullMib, 40, true, kPullOverLimit},
    {"get-256m-tcp", 256 * kPullMib, 6, true, kPullOverLimit},
};

// One side of a case: a second process that waits, and how long one payload takes.
class LargeSide {
 public:
  virtual ~LargeSide() = default;
  virtual Result<double> round_us() = 0;
};

// One payload that is read again and again into one piece, so that neither side's memory is fresh.
class PullSide final : public LargeSide {
 public:
  static Result<std::unique_ptr<LargeSide>> start(const LargeCase& each) {
    const uint64_t pool = each.bytes + kPullMib;
    pull::PullOptions options = bench_pull_options(pull::Role::kSender, pool);
    pull::PullOptions own = bench_pull_options(pull::Role::kReceiver, pool);
    if (each.is_tcp) options.protocol = own.protocol = "tcp";
    SL_ASSIGN(
        auto pair,
        PullPair::start(options, [&](pull::PullConnector& connector, PairPage& page) -> Status {
          SL_ASSIGN(const pull::Piece piece,
                    connector.allocate(each.bytes, std::chrono::seconds(5)));
          std::memset(piece.bytes().data(), 7, piece.bytes().size());
          SL_TRY(connector.put_piece("large@0_1", piece, {.readers = 0}).status());
          page.set(1);
          return page.wait_for(2) ? Status() : Status(Reason::kTimedOut, "no turn");
        }));
    SL_ASSIGN(auto receiver, pull::PullConnector::create(own));
    if (!pair->page().wait_for(1)) return Status(Reason::kTimedOut, "the other process is lost");
    return std::unique_ptr<LargeSide>(
        new PullSide(each.bytes, std::move(pair), std::move(receiver)));
  }
  ~PullSide() override { pair_->page().set(2); }

  Result<double> round_us() override {
    const double start_us = now_us();
    SL_ASSIGN(const pull::Received got,
              receiver_->get({.key = "large@0_1", .metadata = &sender_, .into = {}}));
    const double took_us = now_us() - start_us;
    const auto bytes = got.piece.bytes();
    if (bytes.size() != bytes_ || bytes.back() != std::byte{7}) {
      return Status(Reason::kCorrupt, "not what was put");
    }
    return took_us;
  }

 private:
  PullSide(uint64_t bytes, std::unique_ptr<PullPair> pair,
           std::unique_ptr<pull::PullConnector> receiver)
      : bytes_(bytes),
        pair_(std::move(pair)),
        receiver_(std::move(receiver)),
        sender_(pair_->address()) {}
  const uint64_t bytes_;
  const std::unique_ptr<PullPair> pair_;
  const std::unique_ptr<pull::PullConnector> receiver_;
  const pull::PullMetadata sender_;
};

class MemcpySide final : public LargeSide {
 public:
  explicit MemcpySide(uint64_t bytes) : from_(bytes, std::byte{7}), to_(bytes) {}

  Result<double> round_us() override {
    const double start_us = now_us();
    std::memcpy(to_.data(), from_.data(), to_.size());
    const double took_us = now_us() - start_us;
    if (to_.back() != std::byte{7}) return Status(Reason::kCorrupt, "not what was there");
    to_.back() = std::byte{0};
    return took_us;
  }

 private:
  const std::vector<std::byte> from_;
  std::vector<std::byte> to_;
};

// One plain connection: a byte asks for the payload, which comes as it is.
class PlainSocketSide final : public LargeSide {
 public:
  static Result<std::unique_ptr<LargeSide>> start(const LargeCase& each) {
    SL_ASSIGN(const TcpListener listener, TcpListener::create());
    SL_ASSIGN(ForkedPair process, ForkedPair::start([&](PairPage& page) -> Status {
                const std::vector<std::byte> from(each.bytes, std::byte{7});
                SL_ASSIGN(const TcpEnd end, TcpEnd::connect(listener.port(), kPullSocketTime));
                page.set(1);
                std::byte order{};
                for (uint32_t round = 0; round <= each.rounds; ++round) {
                  SL_TRY(end.receive(std::span(&order, 1)));
                  SL_TRY(end.send(from));
                }
                return Status();
              }));
    SL_ASSIGN(TcpEnd end, listener.accept(kPullSocketTime));
    return std::unique_ptr<LargeSide>(
        new PlainSocketSide(each.bytes, std::move(process), std::move(end)));
  }

  Result<double> round_us() override {
    const std::byte order{1};
    const double start_us = now_us();
    SL_TRY(end_.send(std::span(&order, 1)));
    SL_TRY(end_.receive(to_));
    return now_us() - start_us;
  }

 private:
  PlainSocketSide(uint64_t bytes, ForkedPair process, TcpEnd end)
      : process_(std::move(process)), end_(std::move(end)), to_(bytes) {}
  ForkedPair process_;
  const TcpEnd end_;
  std::vector<std::byte> to_;
};

// How many times as long the plain way takes. The two take turns, so that both meet the same
// machine.
Result<double> ratio_of(const LargeCase& each) {
  std::unique_ptr<LargeSide> plain;
  if (each.is_tcp) {
    // Forks, which has to be before this process has a connector.
    SL_ASSIGN(plain, PlainSocketSide::start(each));
  } else {
    plain = std::make_unique<MemcpySide>(each.bytes);
  }
  SL_ASSIGN(const auto ours, PullSide::start(each));
  std::vector<double> ours_us;
  std::vector<double> plain_us;
  for (uint32_t round = 0; round <= each.rounds; ++round) {
    SL_ASSIGN(const double our, ours->round_us());
    SL_ASSIGN(const double other, plain->round_us());
    if (round == 0) continue;
    ours_us.push_back(our);
    plain_us.push_back(other);
  }
  return percentile(std::move(plain_us), 0.5) / percentile(std::move(ours_us), 0.5);
}

}  // namespace

Status run_pull_large_group(SuiteContext& context) {
  for (const LargeCase& each : kLargeCases) {
    SL_ASSIGN(const double ratio, ratio_of(each));
    context.add({.name = each.name,
                 .value = ratio,
                 .unit = "x",
                 .goal = Goal::kAtLeast,
                 .target = each.target});
  }
  return Status();
}

}  // namespace stagelink::cli::bench
