// Copies between a test and a child of it that holds the memory: what is right, and what must never
// be taken for right.

#include "transport/cma/cma_transport.h"

#include <csignal>
#include <cstring>
#include <optional>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/transport/cma/kernel_copies.h"
#include "unit/transport/shm/page_memory.h"

namespace stagelink::transport {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBytes = 64 * kPage;
constexpr uint64_t kLive = 4 << 1 | 1;
constexpr wire::TableIdentity kIdentity = {wire::kTableMagic, 1, 1, 16, 0x1122, 0x3344};

// Private memory of which a child has its own copy at the same address, with other bytes.
class CmaTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kernel_copies()) GTEST_SKIP() << "the kernel or a seccomp filter forbids process_vm_readv";
    void* const at =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    memory_ = std::span(static_cast<std::byte*>(at), kBytes);
    identity_ = kIdentity;
    start_child();
    page_.table().epoch.store(1);
    row_.state.store(kLive);
  }
  void TearDown() override {
    end_child();
    if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
  }

  // The child fills its copy with 7, unmaps page 8, and waits for its end.
  void start_child() {
    int ready[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(60);
      std::memset(memory_.data(), 7, memory_.size());
      ::munmap(memory_.data() + 8 * kPage, kPage);
      (void)!::write(ready[1], "r", 1);
      for (;;) ::pause();
    }
    ASSERT_GT(child_, 0);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
    pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, child_, 0)));
    ASSERT_GE(pidfd_.get(), 0);
  }
  void end_child() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
  }

  CmaTransport transport(const wire::TableIdentity& expected = kIdentity) {
    owner_ = std::make_shared<CmaOwner>(child_, UniqueFd(::dup(pidfd_.get())),
                                        reinterpret_cast<uint64_t>(&identity_), expected);
    return CmaTransport(owner_, lanes_, lost_, {{&row_, kLive, 0}});
  }
  CopyItem item(size_t local, size_t remote, size_t bytes) {
    return {local_.data() + local, reinterpret_cast<uint64_t>(memory_.data()) + remote, bytes, 0};
  }
  Status copy(CmaTransport& cma, std::vector<CopyItem> items,
              Direction direction = Direction::kRead) {
    return cma.copy(items, direction);
  }
  // What the child has at `offset`.
  std::byte child_byte(size_t offset) {
    std::byte byte{};
    const iovec here{&byte, 1};
    const iovec there{memory_.data() + offset, 1};
    EXPECT_EQ(::process_vm_readv(child_, &here, 1, &there, 1, 0), 1);
    return byte;
  }

  std::span<std::byte> memory_;
  wire::TableIdentity identity_{};  // The child inherits it at this address.
  pid_t child_ = -1;
  UniqueFd pidfd_;
  PageMemory page_;
  AccessLanes lanes_{page_.page(), page_.table()};
  wire::TableEntry row_{};
  std::atomic<bool> lost_{false};
  std::shared_ptr<CmaOwner> owner_;
  std::vector<std::byte> local_ = std::vector<std::byte>(kBytes, std::byte{0xEE});
};

TEST_F(CmaTransportTest, ReadsOnlyWhatWasAskedFor) {
  CmaTransport cma = transport();
  ASSERT_TRUE(copy(cma, {item(10, 100, 50), item(5000, 2 * kPage, 3 * kPage)}).ok());
  for (size_t i = 0; i < local_.size(); ++i) {
    const bool wanted = (i >= 10 && i < 60) || (i >= 5000 && i < 5000 + 3 * kPage);
    ASSERT_EQ(local_[i], wanted ? std::byte{7} : std::byte{0xEE}) << i;
  }
  EXPECT_TRUE(lanes_.idle());
}

TEST_F(CmaTransportTest, WritesOnlyWhatWasAskedFor) {
  CmaTransport cma = transport();
  ASSERT_TRUE(copy(cma, {item(0, 100, 50)}, Direction::kWrite).ok());
  EXPECT_EQ(child_byte(99), std::byte{7});
  EXPECT_EQ(child_byte(100), std::byte{0xEE});
  EXPECT_EQ(child_byte(149), std::byte{0xEE});
  EXPECT_EQ(child_byte(150), std::byte{7});
  EXPECT_EQ(memory_[100], std::byte{0}) << "this process has a copy of its own";
}

// 1023 pieces and the identity fill a call; one more needs another call.
TEST_F(CmaTransportTest, AnyNumberOfPiecesArrives) {
  for (const size_t count : {1U, 1022U, 1023U, 1024U, 1025U, 3000U}) {
    CmaTransport cma = transport();
    local_.assign(kBytes, std::byte{0xEE});
    std::vector<CopyItem> items;
    for (size_t i = 0; i < count; ++i) items.push_back(item(i * 8, i * 8, 4));
    ASSERT_TRUE(copy(cma, items).ok()) << count;
    for (size_t i = 0; i < count * 8; ++i) {
      ASSERT_EQ(local_[i], i % 8 < 4 ? std::byte{7} : std::byte{0xEE}) << count << " at " << i;
    }
    EXPECT_EQ(local_[count * 8], std::byte{0xEE});
    ASSERT_TRUE(copy(cma, items, Direction::kWrite).ok()) << count;
  }
}

TEST_F(CmaTransportTest, AnotherIdentityIsNoSuccess) {
  wire::TableIdentity expected = kIdentity;
  ++expected.instance_low;
  CmaTransport cma = transport(expected);
  const Status status = copy(cma, {item(0, 0, 100)});
  EXPECT_EQ(status.reason(), Reason::kRestarted) << status.to_string();
}

TEST_F(CmaTransportTest, AnotherIdentityIsNotWrittenTo) {
  wire::TableIdentity expected = kIdentity;
  ++expected.instance_high;
  CmaTransport cma = transport(expected);
  EXPECT_EQ(copy(cma, {item(0, 0, 100)}, Direction::kWrite).reason(), Reason::kRestarted);
  EXPECT_EQ(child_byte(0), std::byte{7});
}

TEST_F(CmaTransportTest, EndedProcessIsLost) {
  CmaTransport cma = transport();
  ASSERT_TRUE(copy(cma, {item(0, 0, 100)}).ok());
  ::kill(child_, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(owner_->alive()) << "not yet reaped, but ended";
  EXPECT_EQ(copy(cma, {item(0, 0, 100)}).code(), Code::kPeerLost);
  end_child();
  EXPECT_EQ(copy(cma, {item(0, 0, 100)}).code(), Code::kPeerLost);
  EXPECT_EQ(copy(cma, {item(0, 0, 100)}, Direction::kWrite).code(), Code::kPeerLost);
}

// The pid is a living process's, and the identity is right, as in a process that forked off the
// owner: the pidfd says that the owner itself has gone.
TEST_F(CmaTransportTest, EndedOwnerIsLostThoughItsPidAndItsBytesLive) {
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, gone, 0)));
  ::waitpid(gone, nullptr, 0);
  auto owner = std::make_shared<CmaOwner>(child_, UniqueFd(::dup(ended.get())),
                                          reinterpret_cast<uint64_t>(&identity_), kIdentity);
  CmaTransport cma(owner, lanes_, lost_, {{&row_, kLive, 0}});
  EXPECT_EQ(copy(cma, {item(0, 0, 100)}).code(), Code::kPeerLost);
  EXPECT_EQ(copy(cma, {item(0, 0, 100)}, Direction::kWrite).code(), Code::kPeerLost);
  EXPECT_EQ(child_byte(0), std::byte{7});
}

// The kernel stops short at the hole, is asked for the rest, and says that there is none.
TEST_F(CmaTransportTest, MemoryThatIsNotMappedIsNotRegistered) {
  CmaTransport cma = transport();
  const Status status = copy(cma, {item(0, 7 * kPage, 3 * kPage)});
  EXPECT_EQ(status.reason(), Reason::kNotRegistered) << status.to_string();
  EXPECT_EQ(copy(cma, {item(0, 0, 64), item(64, 8 * kPage, 64), item(128, 0, 64)}).reason(),
            Reason::kNotRegistered);
  EXPECT_EQ(copy(cma, {item(0, 8 * kPage, 64)}, Direction::kWrite).reason(),
            Reason::kNotRegistered);
  EXPECT_TRUE(copy(cma, {item(0, 7 * kPage, kPage), item(kPage, 9 * kPage, kPage)}).ok());
  EXPECT_TRUE(lanes_.idle());
}

// What could not be read is explained by the region that has gone.
TEST_F(CmaTransportTest, PassedGenerationIsSupersededAndMovesNothing) {
  CmaTransport cma = transport();
  row_.state.store(5 << 1);
  EXPECT_EQ(copy(cma, {item(0, 0, 100)}).reason(), Reason::kSuperseded);
  EXPECT_EQ(copy(cma, {item(0, 0, 100)}, Direction::kWrite).reason(), Reason::kSuperseded);
  EXPECT_EQ(local_[0], std::byte{0xEE});
  EXPECT_EQ(child_byte(0), std::byte{7});
}

TEST_F(CmaTransportTest, LostPeerIsNoSuccess) {
  CmaTransport cma = transport();
  lost_.store(true);
  EXPECT_EQ(copy(cma, {item(0, 0, 100)}).code(), Code::kPeerLost);
  EXPECT_EQ(local_[0], std::byte{0xEE});
}

// A stopped process still has its memory.
TEST_F(CmaTransportTest, StoppedProcessIsReadAndWritten) {
  CmaTransport cma = transport();
  ::kill(child_, SIGSTOP);
  ASSERT_EQ(::waitpid(child_, nullptr, WUNTRACED), child_);
  EXPECT_TRUE(copy(cma, {item(0, 0, 100)}).ok());
  EXPECT_EQ(local_[99], std::byte{7});
  local_.assign(kBytes, std::byte{9});
  EXPECT_TRUE(copy(cma, {item(0, 0, 100)}, Direction::kWrite).ok());
  EXPECT_EQ(child_byte(99), std::byte{9});
}

}  // namespace
}  // namespace stagelink::transport
