#include "base/runtime_dir.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace stagelink {
namespace {

namespace fs = std::filesystem;

constexpr InstanceId kInstance{0x0123456789abcdef, 0};

class RuntimeDirTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/sl-runtime-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string entry(pid_t pid, const char* kind) const {
    return runtime_entry_path(root_, pid, kInstance, kind);
  }
  std::string write_stat(const ProcessId& id) const {
    const EntryOwner owner{
        .pid = id.pid, .start_time = id.start_time, .pid_namespace = id.pid_namespace};
    std::string path = entry(id.pid, "stat");
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(&owner), sizeof owner);
    return path;
  }
  static void make_old(const std::string& path) {
    const timespec times[2] = {{.tv_sec = 1000, .tv_nsec = 0}, {.tv_sec = 1000, .tv_nsec = 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  }
  static UniqueFd bind_socket(const std::string& path, bool listening) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_TRUE(!listening || ::listen(fd.get(), 1) == 0);
    return fd;
  }
  // The identity of a child that has been killed and reaped.
  static ProcessId dead_process() {
    const pid_t child = ::fork();
    if (child == 0) {
      ::pause();
      ::_exit(0);
    }
    ProcessId id = ProcessId::self();
    id.pid = child;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    return id;
  }

  std::string root_;
};

TEST_F(RuntimeDirTest, ConfiguredDirectoryIsCreatedForTheOwnerOnly) {
  auto dir = runtime_dir(root_ + "/run/");
  ASSERT_TRUE(dir.ok()) << dir.status().to_string();
  EXPECT_EQ(*dir, root_ + "/run");
  EXPECT_EQ(fs::status(*dir).permissions(), fs::perms::owner_all);
  EXPECT_TRUE(runtime_dir(root_ + "/run").ok());
}

TEST_F(RuntimeDirTest, RelativeConfiguredDirectoryBecomesAbsolute) {
  const fs::path before = fs::current_path();
  fs::current_path(root_);
  auto dir = runtime_dir("here");
  fs::current_path(before);
  ASSERT_TRUE(dir.ok()) << dir.status().to_string();
  EXPECT_EQ(*dir, root_ + "/here");
}

TEST_F(RuntimeDirTest, MissingParentIsNotFoundAndNamed) {
  auto dir = runtime_dir(root_ + "/no/such");
  EXPECT_EQ(dir.status().code(), Code::kNotFound);
  EXPECT_NE(dir.status().message().find(root_ + "/no/such"), std::string_view::npos);
}

TEST_F(RuntimeDirTest, AFileInItsPlaceIsRefused) {
  std::ofstream(root_ + "/file") << "x";
  EXPECT_EQ(runtime_dir(root_ + "/file").status().code(), Code::kInvalidArgument);
}

TEST_F(RuntimeDirTest, WriteForTheGroupIsRefusedWithItsMode) {
  fs::create_directory(root_ + "/open");
  ::chmod((root_ + "/open").c_str(), 0720);
  const auto refused = runtime_dir(root_ + "/open");
  EXPECT_EQ(refused.status().reason(), Reason::kPermission);
  EXPECT_NE(refused.status().message().find("0720"), std::string_view::npos);
  EXPECT_NE(refused.status().message().find(root_ + "/open"), std::string_view::npos);
  ::chmod((root_ + "/open").c_str(), 0702);
  EXPECT_FALSE(runtime_dir(root_ + "/open").ok());
  ::chmod((root_ + "/open").c_str(), 0755);  // Reading is no danger.
  EXPECT_TRUE(runtime_dir(root_ + "/open").ok());
}

TEST_F(RuntimeDirTest, AnotherUsersDirectoryIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a directory away";
  fs::create_directory(root_ + "/theirs");
  ASSERT_EQ(::chown((root_ + "/theirs").c_str(), 12345, 12345), 0);
  const auto refused = runtime_dir(root_ + "/theirs");
  EXPECT_EQ(refused.status().reason(), Reason::kOtherUser);
  EXPECT_NE(refused.status().message().find("12345"), std::string_view::npos);
}

TEST_F(RuntimeDirTest, LongestPathThatFitsASocketIsTakenAndOneMoreIsNot) {
  constexpr size_t kLimit = 85;
  const std::string fits = root_ + "/" + std::string(kLimit - root_.size() - 1, 'd');
  EXPECT_TRUE(runtime_dir(fits).ok());
  EXPECT_EQ(runtime_dir(fits + "d").status().code(), Code::kInvalidArgument);
}

TEST_F(RuntimeDirTest, XdgDirectoryComesFirst) {
  const char* before = std::getenv("XDG_RUNTIME_DIR");
  const std::string saved = before == nullptr ? "" : before;
  ::setenv("XDG_RUNTIME_DIR", root_.c_str(), 1);
  auto dir = runtime_dir("");
  ::setenv("XDG_RUNTIME_DIR", (root_ + "/missing").c_str(), 1);
  auto fallback = runtime_dir("");
  if (before == nullptr) {
    ::unsetenv("XDG_RUNTIME_DIR");
  } else {
    ::setenv("XDG_RUNTIME_DIR", saved.c_str(), 1);
  }
  ASSERT_TRUE(dir.ok()) << dir.status().to_string();
  EXPECT_EQ(*dir, root_ + "/stagelink");
  ASSERT_TRUE(fallback.ok()) << fallback.status().to_string();
  EXPECT_NE(fallback->find("/stagelink-" + std::to_string(::geteuid())), std::string::npos);
  remove_if_empty(*fallback);
}

TEST_F(RuntimeDirTest, RemoveIfEmptyKeepsADirectoryInUse) {
  remove_if_empty(root_ + "/missing");
  const std::string path = write_stat(ProcessId::self());
  remove_if_empty(root_);
  EXPECT_TRUE(fs::exists(path));
  fs::remove(path);
  remove_if_empty(root_);
  EXPECT_FALSE(fs::exists(root_));
}

TEST_F(RuntimeDirTest, EntryNamesAreParsedStrictly) {
  const auto entry = parse_runtime_entry("4711-0123abcd.sock");
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->pid, 4711);
  EXPECT_EQ(entry->stem, "4711-0123abcd");
  EXPECT_EQ(entry->kind, "sock");
  EXPECT_EQ(parse_runtime_entry("4711-0123abcd.stat")->kind, "stat");
  EXPECT_EQ(parse_runtime_entry("4711-0123abcd.init")->kind, "init");
  for (const char* bad :
       {"", ".", "x", "4711", "4711-0123abcd", "4711-0123abcd.txt", "4711-0123abcD.sock",
        "4711-0123abc.sock", "4711-0123abcde.sock", "-1-0123abcd.sock", "0-0123abcd.sock",
        "4711-0123abcd.initx", "4711-0123abcd.ini", "007-0123abcd.sock",
        "99999999999-0123abcd.stat", "4711-0123abcd.stat~"}) {
    EXPECT_FALSE(parse_runtime_entry(bad).has_value()) << bad;
  }
}

TEST_F(RuntimeDirTest, ReclaimRemovesWhatAKilledProcessLeft) {
  const ProcessId dead = dead_process();
  const std::string stat = write_stat(dead);
  const std::string sock = entry(dead.pid, "sock");
  bind_socket(sock, true).reset();
  EXPECT_EQ(reclaim_dead_entries(root_), 2);
  EXPECT_FALSE(fs::exists(stat));
  EXPECT_FALSE(fs::exists(sock));
}

TEST_F(RuntimeDirTest, ReclaimKeepsALiveProcess) {
  const std::string stat = write_stat(ProcessId::self());
  const std::string sock = entry(::getpid(), "sock");
  const UniqueFd listening = bind_socket(sock, false);  // Bound, and not yet listening.
  make_old(stat);
  make_old(sock);
  EXPECT_EQ(reclaim_dead_entries(root_), 0);
  EXPECT_TRUE(fs::exists(stat));
  EXPECT_TRUE(fs::exists(sock));
}

TEST_F(RuntimeDirTest, ReclaimSeesThatAPidWasGivenOutAgain) {
  ProcessId former = ProcessId::self();
  ASSERT_NE(former.start_time, 0U);
  former.start_time -= 1;
  write_stat(former);
  EXPECT_EQ(reclaim_dead_entries(root_), 1);
}

TEST_F(RuntimeDirTest, ReclaimCountsAZombieAsDead) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};  // Wait for its end without reaping it.
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  ProcessId id = ProcessId::self();
  id.pid = child;
  id.start_time = 0;
  write_stat(id);
  EXPECT_EQ(reclaim_dead_entries(root_), 1);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(RuntimeDirTest, ReclaimTrustsTheLockOfAnotherPidNamespace) {
  ProcessId foreign = dead_process();
  foreign.pid_namespace += 1;
  const std::string path = write_stat(foreign);
  UniqueFd owner(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(owner.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(reclaim_dead_entries(root_), 0);
  owner.reset();
  EXPECT_EQ(reclaim_dead_entries(root_), 1);
}

TEST_F(RuntimeDirTest, ReclaimTakesASocketWithoutCountersOnlyWhenItIsOld) {
  const ProcessId dead = dead_process();
  const std::string sock = entry(dead.pid, "sock");
  bind_socket(sock, true).reset();
  EXPECT_EQ(reclaim_dead_entries(root_), 0);
  make_old(sock);
  EXPECT_EQ(reclaim_dead_entries(root_), 1);
}

TEST_F(RuntimeDirTest, ReclaimKeepsASocketThatSomebodyServes) {
  const ProcessId dead = dead_process();
  const std::string sock = entry(dead.pid, "sock");
  const UniqueFd served = bind_socket(sock, true);
  make_old(sock);
  EXPECT_EQ(reclaim_dead_entries(root_), 0);
}

TEST_F(RuntimeDirTest, ReclaimTakesABrokenStatFileOnlyWhenItIsOld) {
  const ProcessId dead = dead_process();
  const std::string path = entry(dead.pid, "stat");
  std::ofstream(path) << "short";
  EXPECT_EQ(reclaim_dead_entries(root_), 0);
  make_old(path);
  EXPECT_EQ(reclaim_dead_entries(root_), 1);
}

TEST_F(RuntimeDirTest, AnInitEntryStaysAsLongAsItsOwnerHoldsIt) {
  const std::string path = entry(::getpid(), "init");
  auto file = create_init_entry(path);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  make_old(path);
  EXPECT_EQ(reclaim_dead_entries(root_), 0);
  EXPECT_EQ(create_init_entry(path).status().reason(), Reason::kSystem);  // It is taken.
  EXPECT_TRUE(fs::exists(path));
  file->reset();  // As by the owner's end, however old the file and whoever has its pid now.
  EXPECT_EQ(reclaim_dead_entries(root_), 1);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(RuntimeDirTest, AnInitEntryIsItsCreatorsHoweverManyReclaim) {
  const std::string path = entry(::getpid(), "init");
  std::atomic<bool> stop{false};
  const auto reclaim = [&] {
    while (!stop.load()) reclaim_dead_entries(root_);
  };
  std::jthread one(reclaim);
  std::jthread other(reclaim);
  for (int i = 0; i < 500; ++i) {
    auto file = create_init_entry(path);
    ASSERT_TRUE(file.ok()) << i << ": " << file.status().to_string();
    struct stat named {};
    struct stat held {};
    ASSERT_EQ(::lstat(path.c_str(), &named), 0) << i;
    ASSERT_EQ(::fstat(file->get(), &held), 0);
    EXPECT_EQ(named.st_ino, held.st_ino);
    EXPECT_EQ(::unlink(path.c_str()), 0);  // Ours alone.
  }
  stop = true;
}

TEST_F(RuntimeDirTest, AnInitEntryInAMissingDirectoryIsNotFound) {
  const std::string path = root_ + "/missing/1-00000000.init";
  const auto file = create_init_entry(path);
  EXPECT_EQ(file.status().reason(), Reason::kNotFound);
  EXPECT_NE(file.status().message().find(path), std::string_view::npos);
}

TEST_F(RuntimeDirTest, ReclaimLeavesForeignFilesAlone) {
  std::ofstream(root_ + "/notes.stat") << "x";
  fs::create_symlink("/etc/passwd", root_ + "/1-00000000.stat");
  EXPECT_EQ(reclaim_dead_entries(root_), 0);
  EXPECT_EQ(reclaim_dead_entries(root_ + "/missing"), 0);
}

TEST(ProcessIdTest, SelfIsAliveAndNamed) {
  const ProcessId self = ProcessId::self();
  EXPECT_EQ(self.pid, ::getpid());
  EXPECT_NE(self.start_time, 0U);
  EXPECT_NE(self.pid_namespace, 0U);
  EXPECT_EQ(liveness_of(self), Liveness::kAlive);
  EXPECT_TRUE(pid_in_use(self.pid));
  EXPECT_FALSE(pid_in_use(0));
}

TEST(ProcessIdTest, AnotherNamespaceIsUnknown) {
  ProcessId id = ProcessId::self();
  id.pid_namespace += 1;
  EXPECT_EQ(liveness_of(id), Liveness::kUnknown);
}

}  // namespace
}  // namespace stagelink
