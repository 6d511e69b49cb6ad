#include <algorithm>
#include <cstring>
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
    {"get-16m-tcp", 16 * kPullMib, 20, true, kPullOverLimit},
    {"get-256m-tcp", 256 * kPullMib, 4, true, kPullOverLimit},
};

// One payload that is read again and again into one piece, so that neither side's memory is fresh.
Result<double> pull_us(const LargeCase& each) {
  const uint64_t pool = each.bytes + kPullMib;
  pull::PullOptions options = bench_pull_options(pull::Role::kSender, pool);
  pull::PullOptions own = bench_pull_options(pull::Role::kReceiver, pool);
  if (each.is_tcp) options.protocol = own.protocol = "tcp";
  SL_ASSIGN(const auto pair,
            PullPair::start(options, [&](pull::PullConnector& connector, PairPage& page) -> Status {
              SL_ASSIGN(const pull::Piece piece,
                        connector.allocate(each.bytes, std::chrono::seconds(5)));
              std::memset(piece.bytes().data(), 7, piece.bytes().size());
              SL_TRY(connector.put_piece("large@0_1", piece, {.readers = 0}).status());
              page.set(1);
              return page.wait_for(2) ? Status() : Status(Reason::kTimedOut, "no turn");
            }));
  SL_ASSIGN(const auto receiver, pull::PullConnector::create(own));
  if (!pair->page().wait_for(1)) return Status(Reason::kTimedOut, "the other process is lost");
  const pull::PullMetadata sender = pair->address();
  std::vector<double> took_us;
  for (uint32_t round = 0; round <= each.rounds; ++round) {
    const double start_us = now_us();
    SL_ASSIGN(const pull::Received got,
              receiver->get({.key = "large@0_1", .metadata = &sender, .into = {}}));
    if (round > 0) took_us.push_back(now_us() - start_us);
    const auto bytes = got.piece.bytes();
    if (bytes.size() != each.bytes || bytes.back() != std::byte{7}) {
      return Status(Reason::kCorrupt, "not what was put");
    }
  }
  pair->page().set(2);
  return percentile(std::move(took_us), 0.5);
}

Result<double> memcpy_us(const LargeCase& each) {
  std::vector<std::byte> from(each.bytes, std::byte{7});
  std::vector<std::byte> to(each.bytes);
  std::vector<double> took_us;
  for (uint32_t round = 0; round <= each.rounds; ++round) {
    const double start_us = now_us();
    std::memcpy(to.data(), from.data(), each.bytes);
    if (round > 0) took_us.push_back(now_us() - start_us);
    if (to[each.bytes - 1] != std::byte{7}) return Status(Reason::kCorrupt, "not what was there");
    to[each.bytes - 1] = std::byte{0};
  }
  return percentile(std::move(took_us), 0.5);
}

// One plain connection: a byte asks for the payload, which comes as it is.
Result<double> plain_socket_us(const LargeCase& each) {
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
  SL_ASSIGN(const TcpEnd end, listener.accept(kPullSocketTime));
  std::vector<std::byte> to(each.bytes);
  std::vector<double> took_us;
  for (uint32_t round = 0; round <= each.rounds; ++round) {
    const std::byte order{1};
    const double start_us = now_us();
    SL_TRY(end.send(std::span(&order, 1)));
    SL_TRY(end.receive(to));
    if (round > 0) took_us.push_back(now_us() - start_us);
  }
  return percentile(std::move(took_us), 0.5);
}

}  // namespace

Status run_pull_large_group(SuiteContext& context) {
  for (const LargeCase& each : kLargeCases) {
    SL_ASSIGN(const double ours, pull_us(each));
    SL_ASSIGN(const double limit, each.is_tcp ? plain_socket_us(each) : memcpy_us(each));
    context.add({.name = each.name,
                 .value = limit / ours,
                 .unit = "x",
                 .goal = Goal::kAtLeast,
                 .target = each.target});
  }
  return Status();
}

}  // namespace stagelink::cli::bench
