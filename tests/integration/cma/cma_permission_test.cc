// Owners whose memory the kernel does not let us copy: one warning that says why, and the socket.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "integration/support/child_process.h"
#include "integration/support/engine_test.h"
#include "integration/support/ranges.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kSeed = 77;
constexpr uid_t kSomeUser = 1500;

// Root may copy from anybody, so these tests are about a user without rights.
uid_t plain_user() { return ::geteuid() == 0 ? kSomeUser : ::geteuid(); }

bool become(uid_t user) {
  if (user == ::geteuid()) return true;
  return ::setgroups(0, nullptr) == 0 && ::setresgid(user, user, user) == 0 &&
         ::setresuid(user, user, user) == 0;
}

// Root, but without the right to look into others' processes.
bool give_up_ptrace() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  const uint32_t keep = ~(uint32_t{1} << CAP_SYS_PTRACE);
  data[0].effective &= keep;
  data[0].permitted &= keep;
  return ::syscall(SYS_capset, &header, data) == 0;
}

struct TempDir {
  TempDir() {
    char name[] = "/tmp/sl-cma-XXXXXX";
    if (::mkdtemp(name) != nullptr) path = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string path;
};

EngineOptions role_options(const char* name, const TempDir& dir) {
  EngineOptions options;
  options.name = name;
  options.runtime_dir = dir.path;
  options.allow_ptrace = true;
  return options;
}

// Says its descriptors, then does what it is told.
int guarded_owner(Channel& parent) {
  const auto user = parent.receive_text();
  const auto dumpable = parent.receive_text();
  if (!user || !dumpable || !become(static_cast<uid_t>(std::stoul(*user)))) return 1;
  ::prctl(PR_SET_DUMPABLE, *dumpable == "dumpable" ? 1 : 0);
  const TempDir dir;
  const auto engine = must(Engine::create(role_options("guarded", dir)));
  const PrivateMemory memory(kBytes);
  fill_pattern(memory.bytes(), kSeed);
  const Region region = must(engine->register_memory(memory.data(), memory.size()));
  parent.send(engine->descriptor());
  parent.send(region.descriptor().pack());
  while (const auto command = parent.receive_text()) {
    if (*command != "guard") break;
    ::prctl(PR_SET_DUMPABLE, 0);
    parent.send("guarded");
  }
  return 0;
}
const RoleRegistration kGuardedOwner("guarded_owner", &guarded_owner);

// What the reader's process has written to stderr since it was made.
class CaughtStderr {
 public:
  CaughtStderr() : file_(::memfd_create("stderr", MFD_CLOEXEC)) { ::dup2(file_.get(), 2); }
  std::string text() const {
    std::string out(1 << 16, 0);
    const ssize_t got = ::pread(file_.get(), out.data(), out.size(), 0);
    out.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return out;
  }

 private:
  UniqueFd file_;
};

// Reads all of the owner's region again and again; says for each read how it went, over which
// transport, and what stands in the log.
int plain_reader(Channel& parent) {
  const auto user = parent.receive_text();
  const auto transports = parent.receive_text();
  const auto engine_desc = parent.receive();
  const auto region_desc = parent.receive();
  if (!user || !transports || !engine_desc || !region_desc) return 1;
  if (*user == "weak root" ? !give_up_ptrace() : !become(static_cast<uid_t>(std::stoul(*user)))) {
    return 1;
  }
  const CaughtStderr caught;
  const TempDir dir;
  EngineOptions options = role_options("plain", dir);
  if (*transports == "cma") options.transports = {"cma"};
  const auto engine = must(Engine::create(options));
  Peer peer = must(engine->connect(*engine_desc));
  const RegionDesc desc = must(RegionDesc::unpack(*region_desc));
  const PrivateMemory memory(kBytes);
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  const std::array<const Region*, 1> own = {&local};
  auto session = peer.session(own, std::span(&desc, 1));
  (void)peer.session(own, std::span(&desc, 1));
  do {
    memory.reset();
    Status status = session.status();
    if (status.ok()) {
      auto transfer = session->read(whole(kBytes));
      status = transfer.ok() ? transfer->wait(5s) : transfer.status();
    }
    std::string report = status.ok() ? "ok" : status.to_string();
    if (status.ok() && first_wrong(memory.bytes(), kSeed)) report = "wrong bytes";
    report += metric(*engine, "cma_bytes_total") > 0 ? "; by cma" : "";
    report += metric(*engine, "unix_bytes_total") > 0 ? "; by stream" : "";
    parent.send(report);
    parent.send(caught.text());
  } while (parent.receive_text());
  return 0;
}
const RoleRegistration kPlainReader("plain_reader", &plain_reader);

size_t count_of(std::string_view text, std::string_view word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++count;
  return count;
}

class CmaPermissionTest : public ::testing::Test {
 protected:
  struct Report {
    std::string outcome;
    std::string log;
  };

  void SetUp() override {
    if (!kernel_copies()) GTEST_SKIP() << "the kernel or a seccomp filter forbids process_vm_readv";
  }
  void start_owner(const char* dumpable) {
    owner_.channel().send(std::to_string(plain_user()));
    owner_.channel().send(dumpable);
    engine_ = owner_.channel().receive().value();
    region_ = owner_.channel().receive().value();
  }
  Report start_reader(const std::string& user, const char* transports) {
    reader_.channel().send(user);
    reader_.channel().send(transports);
    reader_.channel().send(engine_);
    reader_.channel().send(region_);
    return next_report();
  }
  Report next_report() {
    const std::string outcome = reader_.channel().receive_text().value_or("the reader has gone");
    return {outcome, reader_.channel().receive_text().value_or("")};
  }
  Report read_again() {
    reader_.channel().send("again");
    return next_report();
  }

  ChildProcess owner_{"guarded_owner"};
  ChildProcess reader_{"plain_reader"};
  std::vector<std::byte> engine_;
  std::vector<std::byte> region_;
};

TEST_F(CmaPermissionTest, ProcessesOfOneUserCopyWithoutAWarning) {
  start_owner("dumpable");
  const Report report = start_reader(std::to_string(plain_user()), "all");
  EXPECT_EQ(report.outcome, "ok; by cma") << report.log;
  EXPECT_EQ(report.log, "");
}

TEST_F(CmaPermissionTest, OwnerThatIsNotDumpableIsReadBySocketWithOneWarning) {
  start_owner("not dumpable");
  const Report report = start_reader(std::to_string(plain_user()), "all");
  EXPECT_EQ(report.outcome, "ok; by stream") << report.log;
  EXPECT_EQ(count_of(report.log, "cma cannot be used"), 1U) << report.log;
  EXPECT_NE(report.log.find("dumpable"), std::string::npos) << report.log;
}

TEST_F(CmaPermissionTest, WithCmaAloneTheCauseIsTheError) {
  start_owner("not dumpable");
  const Report report = start_reader(std::to_string(plain_user()), "cma");
  EXPECT_EQ(report.outcome.find("unreachable"), 0U) << report.outcome;
  EXPECT_NE(report.outcome.find("dumpable"), std::string::npos) << report.outcome;
}

// The batch that finds out fails so that it may be tried again; the next one goes by socket.
TEST_F(CmaPermissionTest, OwnerThatGuardsItselfLaterIsReadBySocketFromThenOn) {
  start_owner("dumpable");
  ASSERT_EQ(start_reader(std::to_string(plain_user()), "all").outcome, "ok; by cma");
  owner_.channel().send("guard");
  ASSERT_EQ(owner_.channel().receive_text(), "guarded");
  const Report refused = read_again();
  EXPECT_EQ(refused.outcome.find("busy"), 0U) << refused.outcome;
  EXPECT_EQ(read_again().outcome, "ok; by cma; by stream");
}

TEST_F(CmaPermissionTest, AnotherUsersMemoryIsReadBySocketAndTheUsersAreNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users: run it as root";
  start_owner("dumpable");
  const Report report = start_reader("weak root", "all");
  EXPECT_EQ(report.outcome, "ok; by stream") << report.log;
  EXPECT_EQ(count_of(report.log, "cma cannot be used"), 1U) << report.log;
  EXPECT_NE(report.log.find("uid 1500"), std::string::npos) << report.log;
}

}  // namespace
}  // namespace stagelink::test
