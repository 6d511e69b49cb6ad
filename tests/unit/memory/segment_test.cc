#include "memory/segment.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/log.h"
#include "memory/memfd.h"
#include "unit/memory/in_child.h"

namespace stagelink::memory {
namespace {

constexpr InstanceId kInstance{0x1111, 0x2222};

Segment make_segment(size_t bytes, const SegmentOptions& options = {}) {
  auto segment = Segment::create(bytes, options, kInstance);
  if (!segment.ok()) ADD_FAILURE() << segment.status().to_string();
  return *std::move(segment);
}

size_t open_fds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

size_t lines_of_maps() {
  UniqueFd fd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  size_t lines = 0;
  char text[4096];
  for (ssize_t got = 0; (got = ::read(fd.get(), text, sizeof text)) > 0;) {
    lines += static_cast<size_t>(std::count(text, text + got, '\n'));
  }
  return lines;
}

TEST(SegmentTest, BytesStartAtZeroAndAreWritable) {
  Segment segment = make_segment(100'000);
  ASSERT_EQ(segment.bytes().size(), 100'000U);
  EXPECT_TRUE(std::all_of(segment.bytes().begin(), segment.bytes().end(),
                          [](std::byte b) { return b == std::byte{0}; }));
  std::memset(segment.bytes().data(), 0x5a, segment.bytes().size());
  EXPECT_EQ(segment.bytes()[99'999], std::byte{0x5a});
}

TEST(SegmentTest, StartsAtAHugePageBoundary) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{3} << 20}) {
    Segment segment = make_segment(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(segment.bytes().data()) % kHugePageBytes, 0U) << bytes;
  }
}

TEST(SegmentTest, ZeroBytesIsInvalidArgument) {
  EXPECT_EQ(Segment::create(0, {}, kInstance).status().reason(), Reason::kInvalidArgument);
}

TEST(SegmentTest, AbsurdSizeIsTooLarge) {
  EXPECT_EQ(Segment::create(~size_t{0}, {}, kInstance).status().reason(), Reason::kTooLarge);
  EXPECT_EQ(Segment::create((size_t{1} << 46) + 1, {}, kInstance).status().reason(),
            Reason::kTooLarge);
}

TEST(SegmentTest, MoreThanTheHostHasIsNoSpaceAtOnceAndLeavesNothing) {
  const size_t fds = open_fds();
  const size_t maps = lines_of_maps();
  const auto refused = Segment::create((size_t{1} << 45) - page_bytes(), {}, kInstance);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().reason(), Reason::kShmFull) << refused.status().to_string();
  EXPECT_NE(refused.status().message().find("32 TiB"), std::string_view::npos)
      << refused.status().to_string();
  EXPECT_EQ(open_fds(), fds);
  if (!kSanitized) {
    EXPECT_LE(lines_of_maps(), maps + 1);  // The heap may have grown.
  }
}

TEST(SegmentTest, AllPagesAreReservedBeforeTheyAreTouched) {
  SegmentOptions options;
  options.prefault = Effort::kOff;
  Segment segment = make_segment(1 << 20, options);
  struct stat info {};
  ASSERT_EQ(::fstat(segment.fd(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 1 << 20);
}

TEST(SegmentTest, ShrinkIsSealed) {
  Segment segment = make_segment(1 << 20);
  EXPECT_EQ(::ftruncate(segment.fd(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SegmentTest, GrowIsSealed) {
  Segment segment = make_segment(1 << 20);
  EXPECT_EQ(::ftruncate(segment.fd(), 64 << 20), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SegmentTest, NoPeerCanAddASealThatShutsOutOthers) {
  Segment segment = make_segment(1 << 20);
  EXPECT_EQ(::fcntl(segment.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SegmentTest, FdIsClosedOnExec) {
  Segment segment = make_segment(4096);
  EXPECT_NE(::fcntl(segment.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SegmentTest, ReadOnlySegmentCannotBeMappedWritableEvenThroughAReopenedFd) {
  SegmentOptions options;
  options.access = Access::kReadOnly;
  Segment segment = make_segment(1 << 20, options);
  const std::string path = fmt::format("/proc/self/fd/{}", segment.fd());
  const int result = in_child([&] {
    const int again = ::open(path.c_str(), O_RDWR);
    if (again < 0) return 1;
    if (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) != MAP_FAILED) return 2;
    if (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd(), 0) != MAP_FAILED) {
      return 3;
    }
    void* read_only = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, again, 0);
    if (read_only == MAP_FAILED) return 4;
    if (::mprotect(read_only, 4096, PROT_READ | PROT_WRITE) == 0) return 5;
    if (::pwrite(again, "x", 1, 0) == 1) return 6;
    if (::fallocate(again, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0) return 7;
    return 0;
  });
  EXPECT_EQ(result, 0);
}

TEST(SegmentTest, OwnerWritesAReadOnlySegment) {
  SegmentOptions options;
  options.access = Access::kReadOnly;
  Segment segment = make_segment(8192, options);
  segment.bytes()[8191] = std::byte{7};
  char seen = 0;
  ASSERT_EQ(::pread(segment.fd(), &seen, 1, 8191), 1);
  EXPECT_EQ(seen, 7);
}

TEST(SegmentTest, WritableSegmentIsSharedWithAnotherProcess) {
  Segment segment = make_segment(1 << 20);
  const int result = in_child([&] {
    void* there = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd(), 0);
    if (there == MAP_FAILED) return 1;
    std::memcpy(static_cast<char*>(there) + 5000, "written by the peer", 19);
    return 0;
  });
  ASSERT_EQ(result, 0);
  EXPECT_EQ(std::memcmp(segment.bytes().data() + 5000, "written by the peer", 19), 0);
}

TEST(SegmentTest, MovingLeavesOneOwner) {
  const size_t fds = open_fds();
  {
    Segment first = make_segment(4096);
    first.bytes()[0] = std::byte{9};
    Segment second(std::move(first));
    EXPECT_EQ(second.bytes()[0], std::byte{9});
    EXPECT_TRUE(first.bytes().empty());  // NOLINT(bugprone-use-after-move): what is tested.
    Segment third = make_segment(8192);
    third = std::move(second);
    EXPECT_EQ(third.bytes().size(), 4096U);
    EXPECT_EQ(third.bytes()[0], std::byte{9});
    EXPECT_EQ(open_fds(), fds + 1);
  }
  EXPECT_EQ(open_fds(), fds);
}

TEST(SegmentTest, FileSizeLimitIsNamedAndRaisesNoSignal) {
  const int result = in_child([] {
    const rlimit limit{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    const auto refused = Segment::create(1 << 20, {}, kInstance);  // The trailer is one page more.
    if (refused.ok()) return 2;
    if (refused.status().reason() != Reason::kTooLarge) return 3;
    if (refused.status().message().find("RLIMIT_FSIZE is 1 MiB") == std::string_view::npos)
      return 4;
    return Segment::create((1 << 20) - page_bytes(), {}, kInstance).ok() ? 0 : 5;
  });
  EXPECT_EQ(result, 0);
}

TEST(SegmentTest, OutOfFdsIsNofile) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs fds of its own";
  const int result = in_child([] {
    const auto used = static_cast<rlim_t>(::dup(0));  // The lowest free number.
    const rlimit limit{used, used};
    ::close(static_cast<int>(used));
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    const auto refused = Segment::create(4096, {}, kInstance);
    if (refused.ok()) return 2;
    if (refused.status().reason() != Reason::kNofile) return 3;
    return refused.status().message().find("RLIMIT_NOFILE") == std::string_view::npos ? 4 : 0;
  });
  EXPECT_EQ(result, 0);
}

TEST(SegmentTest, AddressSpaceLimitIsNamed) {
  if (kSanitized) GTEST_SKIP() << "sanitizers map more than any limit";
  const int result = in_child([] {
    const rlimit limit{1 << 30, 1 << 30};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    const auto refused = Segment::create(size_t{2} << 30, {}, kInstance);
    if (refused.ok()) return 2;
    if (refused.status().code() != Code::kLimit) return 3;
    return refused.status().message().find("RLIMIT_AS is 1073741824") == std::string_view::npos ? 4
                                                                                                : 0;
  });
  EXPECT_EQ(result, 0);
}

// Root may lock without a limit, but not in a user namespace of its own. Gives 50 if the system
// does not allow such a namespace.
template <typename Body>
int in_child_with_memlock(rlim_t bytes, Body body) {
  return in_child([&] {
    const rlimit limit{bytes, bytes};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 51;
    if (::unshare(CLONE_NEWUSER) != 0) return 50;
    return body();
  });
}

TEST(SegmentTest, RequiredPinBeyondTheLimitNamesIt) {
  if (kSanitized) GTEST_SKIP() << "sanitizers answer mlock() themselves";
  const int result = in_child_with_memlock(64 << 10, [] {
    SegmentOptions options;
    options.pin = Effort::kRequire;
    const size_t maps = lines_of_maps();
    const auto refused = Segment::create(1 << 20, options, kInstance);
    if (refused.ok()) return 1;
    if (refused.status().reason() != Reason::kMemlock) return 2;
    const std::string_view text = refused.status().message();
    if (text.find("RLIMIT_MEMLOCK is 64 KiB") == std::string_view::npos) return 3;
    if (text.find("locking 1 MiB") == std::string_view::npos) return 4;
    return lines_of_maps() > maps + 1 ? 5 : 0;
  });
  if (result == 50) GTEST_SKIP() << "user namespaces are not permitted here";
  EXPECT_EQ(result, 0);
}

TEST(SegmentTest, TriedPinBeyondTheLimitGoesOnWithout) {
  if (kSanitized) GTEST_SKIP() << "sanitizers answer mlock() themselves";
  const int result = in_child_with_memlock(64 << 10, [] {
    set_log_level(LogLevel::kOff);
    SegmentOptions options;
    options.pin = Effort::kTry;
    return Segment::create(1 << 20, options, kInstance).ok() ? 0 : 1;
  });
  if (result == 50) GTEST_SKIP() << "user namespaces are not permitted here";
  EXPECT_EQ(result, 0);
}

TEST(SegmentTest, PinWithinTheLimitLocks) {
  if (kSanitized) GTEST_SKIP() << "sanitizers answer mlock() themselves";
  const int result = in_child_with_memlock(4 << 20, [] {
    SegmentOptions options;
    options.pin = Effort::kRequire;
    const auto segment = Segment::create(1 << 20, options, kInstance);
    if (!segment.ok()) return 1;
    // Locked memory is counted: as much again as the limit leaves does not fit any more.
    return Segment::create(4 << 20, options, kInstance).status().reason() == Reason::kMemlock ? 0
                                                                                              : 2;
  });
  if (result == 50) GTEST_SKIP() << "user namespaces are not permitted here";
  EXPECT_EQ(result, 0);
}

TEST(SegmentTest, UnknownNumaNodeIsNamed) {
  for (const int32_t node : {900, 5000}) {
    SegmentOptions options;
    options.numa_node = node;
    const auto refused = Segment::create(1 << 20, options, kInstance);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().reason(), Reason::kNuma);
    EXPECT_NE(refused.status().message().find(fmt::format("NUMA node {}", node)),
              std::string_view::npos)
        << refused.status().to_string();
  }
}

TEST(SegmentTest, NodeZeroExistsEverywhere) {
  SegmentOptions options;
  options.numa_node = 0;
  EXPECT_EQ(make_segment(1 << 20, options).bytes().size(), size_t{1} << 20);
}

TEST(SegmentTest, RequiredHugePagesAreThereOrTheFailureNamesTheSetting) {
  SegmentOptions options;
  options.huge_pages = Effort::kRequire;
  auto segment = Segment::create((4 << 20) + 1, options, kInstance);
  if (!segment.ok()) {
    EXPECT_EQ(segment.status().reason(), Reason::kHugePages);
    EXPECT_NE(segment.status().message().find("transparent_hugepage/shmem_enabled is "),
              std::string_view::npos)
        << segment.status().to_string();
    return;
  }
  // The mapping's own line in smaps says how much of it huge pages hold.
  UniqueFd fd(::open("/proc/self/smaps", O_RDONLY | O_CLOEXEC));
  std::string text;
  char chunk[4096];
  for (ssize_t got = 0; (got = ::read(fd.get(), chunk, sizeof chunk)) > 0;) {
    text.append(chunk, static_cast<size_t>(got));
  }
  const std::string begin =
      fmt::format("{:x}-", reinterpret_cast<uintptr_t>(segment->bytes().data()));
  const size_t line = text.find(begin);
  ASSERT_NE(line, std::string::npos);
  const size_t field = text.find("ShmemPmdMapped:", line);
  ASSERT_NE(field, std::string::npos);
  EXPECT_EQ(std::stoul(text.substr(field + 15)), 6144U);  // In KiB: three huge pages.
}

TEST(SegmentTest, ReservingSurvivesAStormOfSignals) {
  const int result = in_child([] {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, nullptr);  // Without SA_RESTART.
    const itimerval storm{{0, 500}, {0, 500}};
    ::setitimer(ITIMER_REAL, &storm, nullptr);
    auto segment = Segment::create(64 << 20, {}, kInstance);
    return segment.ok() && segment->bytes().size() == size_t{64} << 20 ? 0 : 1;
  });
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace stagelink::memory
