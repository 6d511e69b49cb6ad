#include <thread>
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

constexpr size_t kWaiters = 1000;
constexpr auto kIdleFor = std::chrono::seconds(2);
constexpr auto kServedWithin = std::chrono::seconds(20);
constexpr std::string_view kHash = "that-all-wait-for";

Status publish(const RegistryProcess& registry, std::string mm_hash, double& taken_ms) {
  SL_ASSIGN(const auto client, RegistryClient::create({.url = registry.url()}));
  const encoder_cache::PublishTerms terms{.lease = random_instance_id(),
                                          .producer_zmq = "tcp://10.0.0.7:5555"};
  const PublishedItem item{std::move(mm_hash), {64, {4, 8}, "bfloat16"}, 1};
  const double start_us = now_us();
  SL_ASSIGN(const auto outcome,
            client->publish(terms, std::span(&item, 1), Deadline::in(kServedWithin)));
  taken_ms = (now_us() - start_us) / 1000;
  return outcome.items.front();
}

Result<std::vector<PlainConnection>> begin_waiting(const RegistryProcess& registry) {
  raise_file_limit();
  std::vector<PlainConnection> waiters;
  const std::string request =
      fmt::format("GET /ec/info/{}?wait=60 HTTP/1.1\r\nHost: r\r\n\r\n", kHash);
  for (size_t i = 0; i < kWaiters; ++i) {
    SL_ASSIGN(PlainConnection waiter, PlainConnection::open(registry.endpoint()));
    SL_TRY(waiter.send(request));
    waiters.push_back(std::move(waiter));
  }
  return waiters;
}

// How many have been answered with the entry before the deadline.
Result<size_t> count_served(std::vector<PlainConnection>& waiters) {
  const Deadline deadline = Deadline::in(kServedWithin);
  size_t served = 0;
  for (PlainConnection& waiter : waiters) {
    for (bool whole = false; !whole;) {
      pollfd at{.fd = waiter.fd(), .events = POLLIN, .revents = 0};
      if (::poll(&at, 1, deadline.left_ms()) <= 0) return served;
      SL_ASSIGN(whole, waiter.receive());
    }
    served += waiter.succeeded() ? 1 : 0;
  }
  return served;
}

}  // namespace

Status run_waiters_group(SuiteContext& context) {
  SL_ASSIGN(const auto registry, RegistryProcess::start(context.exe()));
  SL_ASSIGN(auto waiters, begin_waiting(*registry));
  std::this_thread::sleep_for(std::chrono::seconds(2));  // All have been read by now.
  const double before_us = cpu_time_us(registry->pid());
  std::this_thread::sleep_for(kIdleFor);
  const double idle_us =
      (cpu_time_us(registry->pid()) - before_us) / std::chrono::duration<double>(kIdleFor).count();
  const int threads = registry->threads();
  double other_ms = 0;
  SL_TRY(publish(*registry, "another", other_ms));
  double awaited_ms = 0;
  SL_TRY(publish(*registry, std::string(kHash), awaited_ms));
  const double answered_us = now_us();
  SL_ASSIGN(const size_t served, count_served(waiters));
  fmt::print(stderr, "waiters: all served {:.1f} ms after the publish was answered\n",
             (now_us() - answered_us) / 1000);
  context.add({.name = "waiters",
               .value = std::max(other_ms, awaited_ms),
               .unit = "ms",
               .goal = Goal::kAtMost,
               .target = 20});
  context.add({.name = "waiters-served",
               .value = static_cast<double>(served),
               .unit = "",
               .goal = Goal::kAtLeast,
               .target = kWaiters});
  context.add({.name = "waiters-threads",
               .value = static_cast<double>(threads),
               .unit = "",
               .goal = Goal::kAtMost,
               .target = 4});
  context.add({.name = "waiters-idle-cpu",
               .value = idle_us,
               .unit = "us/s",
               .goal = Goal::kAtMost,
               .target = 5000});
  return Status();
}

}  // namespace stagelink::cli::bench
