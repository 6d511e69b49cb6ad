// Finding the process behind a socket, and saying why its memory cannot be copied.

#include "transport/cma/cma_owner.h"

#include <array>
#include <cerrno>
#include <string>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/cma/cma_refusal.h"
#include "unit/transport/cma/kernel_copies.h"

namespace stagelink::transport {
namespace {

// A pair of sockets has this process at both ends, so this process is the peer.
class CmaOwnerTest : public ::testing::Test {
 protected:
  CmaOwnerTest() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0) {
      here_.reset(ends[0]);
      there_.reset(ends[1]);
    }
    table_.magic = wire::kTableMagic;
    table_.version_major = 1;
    table_.version_minor = 1;
    table_.capacity = 16;
    table_.instance_high = 0x1122;
    table_.instance_low = 0x3344;
    offer(table_);
  }
  void SetUp() override {
    if (!kernel_copies()) GTEST_SKIP() << "the kernel or a seccomp filter forbids process_vm_readv";
  }
  void offer(const wire::TableHeader& header) {
    table_.identity_address = reinterpret_cast<uint64_t>(&header);
  }
  Result<std::shared_ptr<CmaOwner>> probe() const { return CmaOwner::probe(here_.get(), table_); }

  UniqueFd here_;
  UniqueFd there_;
  wire::TableHeader table_{};
};

TEST_F(CmaOwnerTest, ProcessOfTheSocketIsFoundByItsIdentity) {
  auto owner = probe();
  ASSERT_TRUE(owner.ok()) << owner.status().to_string();
  EXPECT_EQ((*owner)->pid(), ::getpid());
  EXPECT_TRUE((*owner)->alive());
  EXPECT_FALSE((*owner)->refused());
  wire::TableIdentity seen{};
  EXPECT_EQ((*owner)->read_identity(seen), 0);
  EXPECT_TRUE((*owner)->check(seen).ok());
  ++seen.instance_low;
  EXPECT_EQ((*owner)->check(seen).reason(), Reason::kRestarted);
}

// As of a table of 1.0, or of an engine without cma.
TEST_F(CmaOwnerTest, TableWithoutAnAddressOffersNothing) {
  table_.identity_address = 0;
  EXPECT_EQ(probe().status().reason(), Reason::kUnsupported);
}

TEST_F(CmaOwnerTest, AddressThatHoldsNothingIsRefused) {
  table_.identity_address = 4096;
  EXPECT_EQ(probe().status().reason(), Reason::kUnsupported);
}

// A table that somebody else's process has sent: its identity is not in this process's memory.
TEST_F(CmaOwnerTest, AnotherIdentityAtTheAddressIsRefused) {
  wire::TableHeader other{};
  other.magic = wire::kTableMagic;
  offer(other);
  EXPECT_EQ(probe().status().reason(), Reason::kRestarted);
}

TEST_F(CmaOwnerTest, SomethingThatIsNoSocketIsRefused) {
  const UniqueFd file(::memfd_create("no-socket", MFD_CLOEXEC));
  EXPECT_EQ(CmaOwner::probe(file.get(), table_).status().code(), Code::kInvalidState);
}

TEST(CmaRefusalTest, EachCauseIsNamed) {
  if (!kernel_copies()) GTEST_SKIP() << "the kernel or a seccomp filter forbids process_vm_readv";
  EXPECT_EQ(why_refused(ESRCH, 1, ::geteuid()).code(), Code::kPeerLost);
  EXPECT_EQ(why_refused(EFAULT, 1, ::geteuid()).reason(), Reason::kUnsupported);
  const uid_t stranger = ::geteuid() + 1;
  const Status other = why_refused(EPERM, ::getpid(), stranger);
  EXPECT_EQ(other.reason(), Reason::kOtherUser);
  EXPECT_NE(other.message().find(std::to_string(stranger)), std::string_view::npos);
  EXPECT_EQ(why_refused(EPERM, ::getpid(), ::geteuid()).reason(), Reason::kPermission);
  EXPECT_EQ(why_refused(EINVAL, ::getpid(), ::geteuid()).reason(), Reason::kSystem);
}

}  // namespace
}  // namespace stagelink::transport
