#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "base/text.h"
#include "connector/encoder_cache/registry/publisher.h"
#include "connector/encoder_cache/registry/registry_server.h"
#include "integration/support/child_process.h"
#include "integration/support/eventually.h"

// The registry, its producers and its consumers, each in a process of its own, and what is left
// when one of them dies.
namespace stagelink::test {
namespace {

using namespace std::chrono_literals;
using namespace encoder_cache;

constexpr const char* kProducerAddress = "tcp://127.0.0.1:5000";

// Listens at the port that it is told, tells which one it got, and ends with the channel.
int serve_registry(Channel& parent) {
  const auto port = parent.receive_text();
  auto server = RegistryServer::start({.port = static_cast<uint32_t>(std::stoul(port.value()))});
  if (!server.ok()) return 1;
  parent.send(std::to_string((*server)->endpoint().port));
  while (parent.receive_text(60s).has_value()) continue;
  return 0;
}
const RoleRegistration kRegistryRole("ec-registry", &serve_registry);

PublishedItem item_of(std::string mm_hash) {
  return {std::move(mm_hash), {.nbytes = 64, .shape = {4, 8}, .dtype = "bfloat16"}, 1};
}

std::unique_ptr<RegistryPublisher> publisher_at(uint16_t port, Duration lease_ttl) {
  auto publisher =
      RegistryPublisher::start({.registry = {.url = fmt::format("http://127.0.0.1:{}", port)},
                                .producer_zmq = kProducerAddress,
                                .lease_ttl = lease_ttl});
  if (!publisher.ok()) throw std::runtime_error(publisher.status().to_string());
  return *std::move(publisher);
}

// Publishes one entry and goes on renewing its lease until it is killed.
int produce_one(Channel& parent) {
  const auto port = parent.receive_text();
  const auto publisher = publisher_at(static_cast<uint16_t>(std::stoul(port.value())), 900ms);
  if (!publisher->publish(item_of("mine")).ok()) return 1;
  if (!publisher->flush(Deadline::in(20s)).ok()) return 1;
  parent.send("published");
  while (parent.receive_text(60s).has_value()) continue;
  return 0;
}
const RoleRegistration kProducerRole("ec-registered-producer", &produce_one);

class RegistryProcess {
 public:
  explicit RegistryProcess(uint16_t port = 0) : child_("ec-registry") {
    child_.channel().send(std::to_string(port));
    const auto got = child_.channel().receive_text();
    if (!got.has_value()) throw std::runtime_error("no registry");
    port_ = static_cast<uint16_t>(std::stoul(*got));
  }
  uint16_t port() const noexcept { return port_; }
  void kill_hard() { child_.kill_hard(); }
  void stop() { child_.stop(); }

 private:
  ChildProcess child_;
  uint16_t port_ = 0;
};

std::unique_ptr<RegistryClient> client_at(uint16_t port) {
  auto client = RegistryClient::create({.url = fmt::format("http://127.0.0.1:{}", port)});
  if (!client.ok()) throw std::runtime_error(client.status().to_string());
  return *std::move(client);
}

TEST(RegistryProcessTest, AKilledProducersEntriesEndWithItsLease) {
  const RegistryProcess registry;
  ChildProcess producer("ec-registered-producer");
  producer.channel().send(std::to_string(registry.port()));
  ASSERT_EQ(producer.channel().receive_text(), "published");
  const auto client = client_at(registry.port());
  EXPECT_TRUE((*client->lookup("mine", Deadline::in(20s))).has_value());
  producer.kill_hard();
  EXPECT_TRUE(eventually([&] {
    auto found = client->lookup("mine", Deadline::in(20s));
    return found.ok() && !found->has_value();
  }));
}

TEST(RegistryProcessTest, AStoppedRegistryCostsAConsumerItsDeadline) {
  RegistryProcess registry;
  const auto client = client_at(registry.port());
  ASSERT_TRUE(client->lookup("a", Deadline::in(20s)).ok());
  registry.stop();
  EXPECT_EQ(client->lookup("a", Deadline::in(50ms)).status().code(), Code::kTimedOut);
  EXPECT_EQ(client->lookup("a", Deadline::in(50ms)).status().code(), Code::kTimedOut);
}

TEST(RegistryProcessTest, AWaitingConsumerOfAKilledRegistryHearsOfItAtOnce) {
  RegistryProcess registry;
  const auto client = client_at(registry.port());
  std::thread killer([&] {
    const auto other = client_at(registry.port());
    // Asked behind the wait on a connection of its own: the wait has most likely begun.
    EXPECT_TRUE(other->lookup("b", Deadline::in(20s), 100ms).ok());
    registry.kill_hard();
  });
  const auto start = std::chrono::steady_clock::now();
  const auto found = client->lookup("a", Deadline::in(40s), 40s);
  killer.join();
  EXPECT_EQ(found.status().scope(), Scope::kPeer) << found.status().to_string();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

// Producers and consumers at work while the registry is killed and comes back empty. A short form
// runs always; STAGELINK_REGISTRY_LOAD=60s runs it longer, with wrk beside it.
class Load {
 public:
  static constexpr Duration kPatience = 2s;

  explicit Load(uint16_t port) : port_(port), publisher_(publisher_at(port, 900ms)) {
    threads_.emplace_back([this] { churn(); });
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { consume(); });
  }
  ~Load() { end(); }
  void end() {
    ended_.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  uint64_t answers() const { return answers_.load(); }
  uint64_t too_late() const { return too_late_.load(); }
  RegistryPublisher& publisher() { return *publisher_; }

 private:
  void churn() {
    SplitMix64 random(1);
    while (!ended_.load()) {
      const std::string mm_hash = std::to_string(random.below(500));
      EXPECT_TRUE(random.below(2) == 0 ? publisher_->unpublish(mm_hash).ok()
                                       : publisher_->publish(item_of(mm_hash)).ok());
      // Told in rounds, as the steps of a producer are, and failing while there is no registry.
      if (random.below(50) == 0) (void)publisher_->flush(Deadline::in(100ms));
    }
  }
  void consume() {
    const auto client = client_at(port_);
    SplitMix64 random(2);
    while (!ended_.load()) {
      const auto start = std::chrono::steady_clock::now();
      const auto found =
          client->lookup(std::to_string(random.below(600)), Deadline::in(kPatience), 5ms);
      if (found.ok()) answers_.fetch_add(1);
      // The deadline, and what a loaded machine adds.
      if (std::chrono::steady_clock::now() - start > kPatience + 8s) too_late_.fetch_add(1);
    }
  }

  const uint16_t port_;
  const std::unique_ptr<RegistryPublisher> publisher_;
  std::atomic<bool> ended_{false};
  std::atomic<uint64_t> answers_{0};
  std::atomic<uint64_t> too_late_{0};
  std::vector<std::thread> threads_;
};

constexpr uint64_t kAnswers = 300;

// Zero: counts alone say how long.
Duration load_time() {
  const char* const text = std::getenv("STAGELINK_REGISTRY_LOAD");
  return text == nullptr ? Duration::zero() : *parse_duration(text);
}

// wrk in a process of its own; 0: not asked for.
pid_t start_wrk(uint16_t port, Duration time) {
  if (std::getenv("STAGELINK_REGISTRY_LOAD") == nullptr) return 0;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count() + 1;
  std::vector<std::string> words = {
      "wrk",       "-t1",
      "-c64",      fmt::format("-d{}s", seconds),
      "--latency", fmt::format("http://127.0.0.1:{}/ec/info/1", port)};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  EXPECT_EQ(::posix_spawnp(&pid, "wrk", nullptr, nullptr, pointers.data(), environ), 0)
      << "apt-get install wrk";
  return pid;
}

void go_on_for(Duration time) {
  if (time > Duration::zero()) std::this_thread::sleep_for(time);
}

TEST(RegistryProcessTest, UnderLoadAKilledRegistryIsToldAllAgainAndNobodyHangs) {
  auto registry = std::make_unique<RegistryProcess>();
  const uint16_t port = registry->port();
  const Duration time = load_time();
  const pid_t wrk = start_wrk(port, time);
  Load load(port);
  EXPECT_TRUE(eventually([&] { return load.answers() >= kAnswers; }, 30s));
  go_on_for(time / 2);
  registry->kill_hard();
  registry = std::make_unique<RegistryProcess>(port);
  const uint64_t before = load.answers();
  EXPECT_TRUE(eventually([&] { return load.answers() >= before + kAnswers; }, 30s));
  go_on_for(time / 2);
  load.end();
  EXPECT_EQ(load.too_late(), 0u);
  ASSERT_TRUE(load.publisher().publish(item_of("last")).ok());
  ASSERT_TRUE(load.publisher().flush(Deadline::in(30s)).ok());
  // What the producer has is what the registry says.
  const auto client = client_at(port);
  uint64_t known = 0;
  for (int i = 0; i < 500; ++i) {
    known += (*client->lookup(std::to_string(i), Deadline::in(20s))).has_value() ? 1 : 0;
  }
  EXPECT_EQ(known + 1, load.publisher().entries());
  EXPECT_GE(load.publisher().counts().republished, 1u);
  if (wrk > 0) {
    int status = 0;
    EXPECT_EQ(::waitpid(wrk, &status, 0), wrk);
  }
}

}  // namespace
}  // namespace stagelink::test
