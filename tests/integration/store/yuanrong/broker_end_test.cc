// How a broker ends, what it leaves, and what is said of one that does not answer.
#include <filesystem>
#include <fstream>
#include <set>

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/runtime_dir.h"
#include "integration/store/yuanrong/fake_worker.h"
#include "integration/support/child_process.h"
#include "integration/support/eventually.h"
#include "store/yuanrong/channel/broker_lock.h"

namespace stagelink::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using store::yuanrong::claim_broker_files;
using store::yuanrong::give_up_broker_files;
using store::yuanrong::lock_to_start;
using store::yuanrong::remove_dead_brokers;

// A process that was killed is a zombie some time before its last thread lets go of its files.
bool nobody_claims(const std::string& lock_path) {
  const UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  return ::fcntl(lock.get(), F_OFD_GETLK, &whole) == 0 && whole.l_type == F_UNLCK;
}

// Opens a store, forks a child that does nothing, and is killed.
int fork_idle_child(Channel& parent) {
  const auto folder_and_port = parent.receive_text();
  if (!folder_and_port) return 1;
  const size_t space = folder_and_port->find(' ');
  StoreOptions options;
  options.backend = StoreBackend::kYuanrong;
  options.yuanrong.tenant_id = folder_and_port->substr(0, space);
  options.yuanrong.port = static_cast<uint16_t>(std::stoi(folder_and_port->substr(space + 1)));
  options.yuanrong.connect_timeout = 20s;
  ::setenv("STAGELINK_YUANRONG_PLUGIN", STAGELINK_FAKE_DATASYSTEM, 1);
  const auto store = ObjectStore::open(options);
  if (!store.ok()) return 2;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    for (;;) ::pause();
  }
  parent.send(fmt::format("{} {}", broker_pid(**store), child));
  (void)parent.receive_text(60s);
  return 0;
}

const RoleRegistration kForkRole("yuanrong-fork-idle-child", &fork_idle_child);

TEST(YuanrongBrokerEndTest, AForkedChildOfItsLastClientDoesNotKeepIt) {
  const FakeWorker worker;
  ChildProcess client("yuanrong-fork-idle-child");
  const StoreOptions options = worker.options();
  client.channel().send(fmt::format("{} {}", options.yuanrong.tenant_id, options.yuanrong.port));
  const std::string pids = client.channel().receive_text().value_or("0 0");
  const pid_t broker = std::stoi(pids);
  const pid_t idle = std::stoi(pids.substr(pids.find(' ')));
  ASSERT_GT(broker, 1);
  ASSERT_GT(idle, 1);
  client.kill_hard();
  EXPECT_TRUE(eventually([&] { return ended(broker); }));
  EXPECT_FALSE(ended(idle));  // It held the socket all the time.
  ::kill(idle, SIGKILL);
}

// The library gives nothing back once its worker has gone, perhaps. Takes the broker's patience.
TEST(YuanrongBrokerEndTest, ALibraryThatHangsDoesNotKeepIt) {
  FakeWorker worker;
  auto store = worker.open();
  ASSERT_NE(store, nullptr);
  const pid_t broker = broker_pid(*store);
  ASSERT_GT(broker, 1);
  worker.tell("stuck");
  worker.die();
  store = nullptr;
  EXPECT_TRUE(eventually([&] { return ended(broker); }, 20s));
}

TEST(YuanrongBrokerEndTest, WhatAKilledOneLeftGoesWithTheNextStartOfAnyAndNothingElse) {
  const auto files_of = [](pid_t broker) {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(*runtime_dir(""))) {
      const std::string path = entry.path().string();
      if (store::yuanrong::broker_pid(path) != broker) continue;
      files = {path, path + ".lock"};
      std::ifstream text(path + ".lock");
      std::string logs;
      text >> logs >> logs;
      files.push_back(logs);
    }
    return files;
  };
  const FakeWorker one;
  const FakeWorker two;
  const FakeWorker three;
  const auto killed = one.open();
  const auto living = two.open();
  ASSERT_TRUE(killed != nullptr && living != nullptr);
  const auto left = files_of(broker_pid(*killed));
  const auto kept = files_of(broker_pid(*living));
  ASSERT_EQ(left.size(), 3U);
  ASSERT_EQ(kept.size(), 3U);
  for (const std::string& file : left) EXPECT_TRUE(fs::exists(file)) << file;
  const pid_t broker = broker_pid(*killed);
  ASSERT_GT(broker, 1);
  ::kill(broker, SIGKILL);
  ASSERT_TRUE(eventually([&] { return nobody_claims(left[1]); }));
  const auto next = three.open();
  for (const std::string& file : left) EXPECT_FALSE(fs::exists(file)) << file;
  for (const std::string& file : kept) EXPECT_TRUE(fs::exists(file)) << file;
  EXPECT_TRUE(living->health().ok());
}

TEST(YuanrongBrokerEndTest, OneThatIsStoppedOrWaitsForItsLibraryIsNamedWithWhatItDoes) {
  FakeWorker worker;
  const auto store = worker.open();
  ASSERT_NE(store, nullptr);
  const pid_t broker = broker_pid(*store);
  ASSERT_GT(broker, 1);
  StoreOptions options = worker.options();
  options.yuanrong.connect_timeout = 300ms;
  ::kill(broker, SIGSTOP);
  const Status stopped = ObjectStore::open(options).status();
  ::kill(broker, SIGCONT);
  EXPECT_EQ(stopped.reason(), Reason::kConnectTimeout);
  EXPECT_NE(stopped.message().find("has not read the hello"), stopped.message().npos)
      << stopped.message();
  worker.tell("silent");
  options.yuanrong.access_key_file = "";
  options.yuanrong.request_timeout = 7s;  // Not what the first has: a connection of its own.
  const Status silent = ObjectStore::open(options).status();
  worker.untell("silent");
  EXPECT_EQ(silent.reason(), Reason::kConnectTimeout);
  EXPECT_NE(silent.message().find(fmt::format("pid {}, still opens a connection", broker)),
            silent.message().npos)
      << silent.message();
}

class BrokerLockTest : public ::testing::Test {
 protected:
  BrokerLockTest() {
    char name[] = "/tmp/stagelink-locks-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~BrokerLockTest() override {
    std::error_code error;
    fs::remove_all(folder_, error);
  }
  std::string file(const std::string& name, const std::string& text = "") const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      out.insert(entry.path().filename().string());
    }
    return out;
  }

  std::string folder_;
};

TEST_F(BrokerLockTest, OnlyWhatNobodyLocksAndIsNamedLikeABrokersGoes) {
  file("yuanrong-dead");
  file("yuanrong-dead.new");
  file("yuanrong-dead.lock");
  const std::string starting = file("yuanrong-starting");
  file("other.lock");
  file("yuanrong-.txt");
  file(".lock");
  const auto start = lock_to_start(starting, Deadline::in(1s));
  ASSERT_TRUE(start.ok());
  const std::string living = file("yuanrong-living");
  file("yuanrong-living.lock");
  const auto life = claim_broker_files(living, "");
  ASSERT_TRUE(life.ok());
  EXPECT_EQ(remove_dead_brokers(folder_), 1);
  EXPECT_EQ(names(), (std::set<std::string>{"yuanrong-starting", "yuanrong-starting.lock",
                                            "yuanrong-living", "yuanrong-living.lock", "other.lock",
                                            "yuanrong-.txt", ".lock"}));
}

TEST_F(BrokerLockTest, LogsGoOnlyWhereABrokerPutsThem) {
  char logs[] = "/tmp/stagelink-yuanrong-XXXXXX";
  ASSERT_NE(::mkdtemp(logs), nullptr);
  fs::create_directory(folder_ + "/mine");
  file("yuanrong-a.lock", fmt::format("2147483647 {}", logs));
  file("yuanrong-b.lock", fmt::format("2147483647 {}/mine", folder_));
  file("yuanrong-c.lock", fmt::format("2147483647 {}/../{}/mine", logs, folder_.substr(5)));
  EXPECT_EQ(remove_dead_brokers(folder_), 3);
  EXPECT_FALSE(fs::exists(logs));
  EXPECT_TRUE(fs::exists(folder_ + "/mine"));
}

TEST_F(BrokerLockTest, ABrokerWhoseFilesAreAnothersLeavesThem) {
  const std::string socket = file("yuanrong-x");
  file("yuanrong-x.lock");
  const auto first = claim_broker_files(socket, "");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(claim_broker_files(socket, "").status().code(), Code::kAlreadyExists);
  fs::remove(socket + ".lock");
  EXPECT_EQ(claim_broker_files(socket, "").status().code(), Code::kNotFound);
  { const auto start = lock_to_start(socket, Deadline::in(1s)); }
  const auto second = claim_broker_files(socket, "");
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(give_up_broker_files(socket, *first));
  EXPECT_TRUE(fs::exists(socket));
  {
    const auto start = lock_to_start(socket, Deadline::in(1s));
    EXPECT_FALSE(give_up_broker_files(socket, *second));  // Somebody is about to connect.
  }
  EXPECT_TRUE(give_up_broker_files(socket, *second));
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace stagelink::test
