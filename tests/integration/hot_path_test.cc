// After set-up a batch costs no system call, no memory and no lock for its blocks, and the process
// whose memory is read does nothing.

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <ctime>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "integration/hot_path/call_counters.h"
#include "integration/hot_path/traced_child.h"
#include "stagelink/engine.h"

namespace stagelink {
namespace {

constexpr size_t kRegionBytes = size_t{16} << 20;
constexpr uint64_t kBlock = 4096;
constexpr uint64_t kFew = 64;  // Blocks of a batch; above inline_bytes both.
constexpr uint64_t kMany = 256;
constexpr int kBatches = 20;
constexpr unsigned kChildSeconds = 60;
// A mark for each kind of batch.
constexpr uint32_t kFewMark = 1;
constexpr uint32_t kManyMark = 2;
constexpr uint32_t kInlineMark = 3;

// Heartbeats of an idle engine would be counted too, so there are none while the test runs.
EngineOptions quiet_options(const char* name) {
  EngineOptions options;
  options.name = name;
  options.heartbeat_interval = std::chrono::minutes(1);
  return options;
}

void fail_with(const Status& status) { fmt::print(stderr, "child: {}\n", status.to_string()); }

// A process that lets its memory be read.
class Owner {
 public:
  Owner() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(kChildSeconds);
      ::_exit(serve(ends[1]));
    }
    ::close(ends[1]);
    socket_.reset(ends[0]);
    engine_ = receive();
    if (const auto desc = RegionDesc::unpack(receive()); desc.ok()) region_ = *desc;
  }
  ~Owner() {
    socket_.reset();
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  bool ready() const noexcept { return region_.has_value(); }
  std::span<const std::byte> engine() const noexcept { return engine_; }
  const RegionDesc& region() const { return *region_; }

  double cpu_ms() const {
    clockid_t clock{};
    timespec time{};
    if (::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return -1;
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  }

 private:
  static int serve(int socket) {
    auto engine = Engine::create(quiet_options("hot-path-owner"));
    if (!engine.ok()) return fail_with(engine.status()), 1;
    auto pool = (*engine)->allocate(kRegionBytes);
    if (!pool.ok()) return fail_with(pool.status()), 1;
    std::memset((*pool).bytes().data(), 0x5a, kRegionBytes);
    for (const std::vector<std::byte>& blob :
         {(*engine)->descriptor(), (*pool).descriptor().pack()}) {
      if (::send(socket, blob.data(), blob.size(), MSG_NOSIGNAL) < 0) return 1;
    }
    char ignored = 0;
    (void)::recv(socket, &ignored, 1, 0);  // Until the test closes its end.
    return 0;
  }

  std::vector<std::byte> receive() {
    pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, 30'000) <= 0) return {};
    std::vector<std::byte> blob(4096);
    const ssize_t size = ::recv(socket_.get(), blob.data(), blob.size(), 0);
    blob.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return blob;
  }

  pid_t pid_ = -1;
  UniqueFd socket_;
  std::vector<std::byte> engine_;
  std::optional<RegionDesc> region_;
};

// The reading side, set up: everything that a batch needs exists before the first one.
class Reader {
 public:
  static Result<Reader> create(const Owner& owner) {
    Reader reader;
    SL_ASSIGN(reader.engine_, Engine::create(quiet_options("hot-path-reader")));
    reader.memory_.resize(kRegionBytes);
    SL_ASSIGN(Region region, reader.engine_->register_memory(reader.memory_.data(), kRegionBytes));
    reader.region_.emplace(std::move(region));
    SL_ASSIGN(Peer peer, reader.engine_->connect(owner.engine()));
    reader.peer_.emplace(std::move(peer));
    const std::array<const Region*, 1> local = {&*reader.region_};
    SL_ASSIGN(Session session, reader.peer_->session(local, std::span(&owner.region(), 1)));
    reader.session_.emplace(std::move(session));
    // Blocks that do not follow each other, so that none are merged.
    for (uint64_t i = 0; i < kMany; ++i) {
      reader.local_.push_back(i * 2 * kBlock);
      reader.remote_.push_back((kMany - i) * 3 * kBlock);
      reader.sizes_.push_back(kBlock);
    }
    // The plan storage grows to the largest batch, and copy threads start.
    for (int i = 0; i < 3; ++i) SL_TRY(reader.read(kMany));
    return reader;
  }

  Status read(uint64_t blocks) {
    const RangeList ranges{.local_offsets = std::span(local_).first(blocks),
                           .remote_offsets = std::span(remote_).first(blocks),
                           .sizes = std::span(sizes_).first(blocks),
                           .local_regions = {},
                           .remote_regions = {}};
    SL_ASSIGN(Transfer transfer, session_->read(ranges));
    return transfer.wait();
  }

  Status read_batches(uint64_t blocks) {
    for (int i = 0; i < kBatches; ++i) SL_TRY(read(blocks));
    return Status();
  }

  bool holds_what_was_read() const {
    return std::all_of(local_.begin(), local_.end(), [this](uint64_t offset) {
      return memory_[offset] == std::byte{0x5a} && memory_[offset + kBlock - 1] == std::byte{0x5a};
    });
  }

 private:
  Reader() = default;
  std::vector<std::byte> memory_;
  std::unique_ptr<Engine> engine_;
  std::optional<Region> region_;
  std::optional<Peer> peer_;
  std::optional<Session> session_;
  std::vector<uint64_t> local_;
  std::vector<uint64_t> remote_;
  std::vector<uint64_t> sizes_;
};

// With one processor no copy thread takes part, so what is counted does not depend on timing.
void stay_on_one_core() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(::sched_getcpu()), &cores);
  ::sched_setaffinity(0, sizeof cores, &cores);
}

int read_between_marks(const Owner& owner, bool one_core) {
  if (one_core) stay_on_one_core();
  auto reader = Reader::create(owner);
  if (!reader.ok()) return fail_with(reader.status()), 1;
  Reader& r = *reader;
  for (const auto& [number, blocks] : {std::pair(kFewMark, kFew), std::pair(kManyMark, kMany),
                                       std::pair(kInlineMark, uint64_t{1})}) {
    test::mark(number);
    const Status status = r.read_batches(blocks);
    test::mark(0);
    if (!status.ok()) return fail_with(status), 1;
  }
  return r.holds_what_was_read() ? 0 : 2;
}

// What the counters of this program say about batches of few and of many blocks.
struct CountedBatches {
  test::CallCounts few;
  test::CallCounts many;
};

Result<CountedBatches> count_calls(const Owner& owner) {
  SL_ASSIGN(Reader reader, Reader::create(owner));
  const auto counted = [&reader](uint64_t blocks) -> Result<test::CallCounts> {
    const test::CallCounts before = test::call_counts();
    SL_TRY(reader.read_batches(blocks));
    const test::CallCounts after = test::call_counts();
    return test::CallCounts{.allocations = after.allocations - before.allocations,
                            .locks = after.locks - before.locks};
  };
  CountedBatches batches;
  SL_ASSIGN(batches.few, counted(kFew));
  SL_ASSIGN(batches.many, counted(kMany));
  return batches;
}

// Counts in a child, so that the cores of this process stay as they are.
std::optional<CountedBatches> count_calls_on_one_core(const Owner& owner) {
  void* const shared =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return std::nullopt;
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(kChildSeconds);
    stay_on_one_core();
    auto counted = count_calls(owner);
    if (!counted.ok()) fail_with(counted.status());
    if (counted.ok()) std::memcpy(shared, &*counted, sizeof(CountedBatches));
    ::_exit(counted.ok() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  std::optional<CountedBatches> batches;
  if (status == 0) {
    batches.emplace();
    std::memcpy(&*batches, shared, sizeof(CountedBatches));
  }
  ::munmap(shared, 4096);
  return batches;
}

TEST(HotPathTest, CountersSeeWhatTheyCount) {
  if (!test::calls_are_counted()) GTEST_SKIP() << "nothing is counted under a sanitizer";
  const test::CallCounts before = test::call_counts();
  std::mutex mutex;
  mutex.lock();
  mutex.unlock();
  std::vector<int> numbers(1000);
  const test::CallCounts after = test::call_counts();
  EXPECT_EQ(after.locks - before.locks, 1U);
  EXPECT_EQ(after.allocations - before.allocations, numbers.size() / 1000);

  const auto run = test::run_traced(
      [] {
        test::mark(kFewMark);
        const pid_t parent = ::getppid();
        test::mark(0);
        return parent > 0 ? 0 : 1;
      },
      kChildSeconds);
  if (!run) GTEST_SKIP() << "this system does not let a process trace its child";
  EXPECT_EQ(run->total(kFewMark), 1U) << run->list(kFewMark);
}

TEST(HotPathTest, BatchMakesNoSystemCall) {
  if (!test::calls_are_counted()) GTEST_SKIP() << "a sanitizer makes system calls of its own";
  const Owner owner;
  ASSERT_TRUE(owner.ready());
  const auto run = test::run_traced([&] { return read_between_marks(owner, true); }, kChildSeconds);
  if (!run) GTEST_SKIP() << "this system does not let a process trace its child";
  ASSERT_EQ(run->exit_code, 0);
  EXPECT_EQ(run->total(kFewMark), 0U) << run->list(kFewMark);
  EXPECT_EQ(run->total(kManyMark), 0U) << run->list(kManyMark);
  EXPECT_EQ(run->total(kInlineMark), 0U) << run->list(kInlineMark);
}

TEST(HotPathTest, CopyThreadsAreWokenForABatchAndNotForItsBlocks) {
  if (!test::calls_are_counted()) GTEST_SKIP() << "a sanitizer makes system calls of its own";
  const Owner owner;
  ASSERT_TRUE(owner.ready());
  const auto run =
      test::run_traced([&] { return read_between_marks(owner, false); }, kChildSeconds);
  if (!run) GTEST_SKIP() << "this system does not let a process trace its child";
  ASSERT_EQ(run->exit_code, 0);
  // One to wake a thread, one in which it falls asleep, and as many when both meet at a mutex.
  constexpr uint64_t kMostCallsPerBatch = 8;
  EXPECT_LE(run->total(kManyMark), kBatches * kMostCallsPerBatch) << run->list(kManyMark);
  // Small batches wake nobody; a copy thread may still be falling asleep after the last large one.
  EXPECT_LE(run->total(kInlineMark), kMostCallsPerBatch) << run->list(kInlineMark);
}

TEST(HotPathTest, BatchAllocatesNothing) {
  if (!test::calls_are_counted()) GTEST_SKIP() << "a sanitizer replaces malloc itself";
  const Owner owner;
  ASSERT_TRUE(owner.ready());
  const auto counted = count_calls_on_one_core(owner);
  ASSERT_TRUE(counted.has_value());
  EXPECT_EQ(counted->few.allocations, 0U);
  EXPECT_EQ(counted->many.allocations, 0U);
}

TEST(HotPathTest, LocksAreTakenForABatchAndNotForItsBlocks) {
  if (!test::calls_are_counted()) GTEST_SKIP() << "a sanitizer replaces the mutex calls itself";
  const Owner owner;
  ASSERT_TRUE(owner.ready());
  const auto counted = count_calls_on_one_core(owner);
  ASSERT_TRUE(counted.has_value());
  EXPECT_EQ(counted->few.locks, counted->many.locks);
  EXPECT_LE(counted->many.locks, uint64_t{kBatches} * 8);
}

TEST(HotPathTest, ReadsCostTheOwnerNoCpuTime) {
  const Owner owner;
  ASSERT_TRUE(owner.ready());
  auto reader = Reader::create(owner);
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  const double before_ms = owner.cpu_ms();
  ASSERT_GT(before_ms, 0);
  for (int i = 0; i < 20; ++i) {
    const Status status = (*reader).read_batches(kMany);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  // 400 MiB were moved, tens of milliseconds of copying; a timer tick may fall into the time.
  EXPECT_LT(owner.cpu_ms() - before_ms, 1.0);
}

}  // namespace
}  // namespace stagelink
