#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <poll.h>

#include "base/random.h"
#include "cli/bench/encoder_cache/encoder_cache_groups.h"
#include "cli/bench/encoder_cache/registry_process.h"
#include "cli/bench/rig/process_load.h"
#include "connector/encoder_cache/registry/registry_client.h"

namespace stagelink::cli::bench {

namespace {

using encoder_cache::PublishedItem;
using encoder_cache::RegistryClient;

constexpr uint64_t kEntries = 100'000;
constexpr uint64_t kItemsInOne = 1000;
constexpr size_t kConnections = 16;
constexpr auto kFor = std::chrono::seconds(5);
constexpr auto kRequestTime = std::chrono::seconds(20);

// As long as the hashes of vLLM.
std::string hash_of(uint64_t number) { return fmt::format("{:064x}", number); }

Status fill(const RegistryProcess& registry) {
  SL_ASSIGN(const auto client, RegistryClient::create({.url = registry.url()}));
  const encoder_cache::PublishTerms terms{.lease = random_instance_id(),
                                          .lease_ttl = std::chrono::hours(1),
                                          .producer_zmq = "tcp://10.0.0.7:5555"};
  for (uint64_t first = 0; first < kEntries; first += kItemsInOne) {
    std::vector<PublishedItem> items;
    for (uint64_t i = first; i < first + kItemsInOne; ++i) {
      items.push_back({hash_of(i), {1024 * 4096 * 2, {1024, 4096}, "bfloat16"}, i});
    }
    SL_ASSIGN(const auto outcome, client->publish(terms, items, Deadline::in(kRequestTime)));
    for (const Status& status : outcome.items) SL_TRY(status);
  }
  return {};
}

struct Lookups {
  double a_second = 0;
  double p99_us = 0;
};

// Each connection has one request on its way all the time.
Result<Lookups> look_up(const RegistryProcess& registry) {
  std::vector<PlainConnection> connections;
  std::vector<pollfd> polled;
  std::vector<double> asked_us(kConnections, 0);
  for (size_t i = 0; i < kConnections; ++i) {
    SL_ASSIGN(PlainConnection connection, PlainConnection::open(registry.endpoint()));
    polled.push_back({.fd = connection.fd(), .events = POLLIN, .revents = 0});
    connections.push_back(std::move(connection));
  }
  SplitMix64 random(1);
  const auto ask = [&](size_t i) {
    asked_us[i] = now_us();
    return connections[i].send(fmt::format("GET /ec/info/{} HTTP/1.1\r\nHost: r\r\n\r\n",
                                           hash_of(random.below(kEntries))));
  };
  for (size_t i = 0; i < kConnections; ++i) SL_TRY(ask(i));
  std::vector<double> taken_us;
  const double start_us = now_us();
  const double end_us = start_us + std::chrono::duration<double, std::micro>(kFor).count();
  while (now_us() < end_us) {
    if (::poll(polled.data(), polled.size(), 1000) <= 0) {
      return Status(Reason::kTimedOut, "the registry does not answer");
    }
    for (size_t i = 0; i < kConnections; ++i) {
      if (polled[i].revents == 0) continue;
      SL_ASSIGN(const bool whole, connections[i].receive());
      if (!whole) continue;
      if (!connections[i].succeeded()) return Status(Reason::kNotFound, "an entry is not there");
      taken_us.push_back(now_us() - asked_us[i]);
      SL_TRY(ask(i));
    }
  }
  const double seconds = (now_us() - start_us) / 1e6;
  const auto p99 = taken_us.begin() + static_cast<ptrdiff_t>(taken_us.size() * 99 / 100);
  std::nth_element(taken_us.begin(), p99, taken_us.end());
  return Lookups{static_cast<double>(taken_us.size()) / seconds, *p99};
}

}  // namespace

// The registry is one thread, and so never has more than one core.
Status run_registry_group(SuiteContext& context) {
  SL_ASSIGN(const auto registry, RegistryProcess::start(context.exe()));
  const uint64_t before = registry->resident_bytes();
  SL_TRY(fill(*registry));
  const uint64_t after = registry->resident_bytes();
  SL_ASSIGN(const Lookups lookups, look_up(*registry));
  context.add({.name = "registry",
               .value = lookups.a_second,
               .unit = "1/s",
               .goal = Goal::kAtLeast,
               .target = 20'000});
  context.add({.name = "registry-p99",
               .value = lookups.p99_us / 1000,
               .unit = "ms",
               .goal = Goal::kAtMost,
               .target = 2});
  context.add({.name = "registry-entry",
               .value = static_cast<double>(after - std::min(before, after)) / kEntries,
               .unit = "B",
               .goal = Goal::kAtMost,
               .target = 400});
  return Status();
}

}  // namespace stagelink::cli::bench
