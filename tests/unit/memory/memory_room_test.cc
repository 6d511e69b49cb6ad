#include "memory/memory_room.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <gtest/gtest.h>
#include <unistd.h>

#include "memory/segment.h"
#include "unit/memory/in_child.h"

namespace stagelink::memory {
namespace {

TEST(MemoryRoomTest, ReadableBytesPicksTheUnitAndKeepsTheExactNumber) {
  EXPECT_EQ(readable_bytes(0), "0 B");
  EXPECT_EQ(readable_bytes(1023), "1023 B");
  EXPECT_EQ(readable_bytes(1024), "1 KiB");
  EXPECT_EQ(readable_bytes(64 << 20), "64 MiB");
  EXPECT_EQ(readable_bytes((1 << 20) + 1), "1.0 MiB (1048577 B)");
  EXPECT_EQ(readable_bytes(uint64_t{1} << 63), "8 EiB");
}

TEST(MemoryRoomTest, ALimitIsKnownAndNamed) {
  const MemoryRoom room = memory_room(-1);
  EXPECT_GT(room.bytes, 0U);
  EXPECT_LT(room.bytes, uint64_t{1} << 50);
  EXPECT_NE(room.limit.find("/"), std::string::npos) << room.limit;
}

TEST(MemoryRoomTest, ANodeHasNoMoreRoomThanTheHost) {
  EXPECT_LE(memory_room(0).bytes, memory_room(-1).bytes + (256 << 20));  // Others allocate too.
}

// A memory cgroup of its own below ours, for one child process. Not every user may make one.
class TestGroup {
 public:
  explicit TestGroup(uint64_t limit_bytes) {
    std::string line;
    for (std::ifstream file("/proc/self/cgroup"); std::getline(file, line);) {
      const size_t v1 = line.find(":memory:");
      if (v1 != std::string::npos) make("/sys/fs/cgroup/memory" + line.substr(v1 + 8));
      if (line.starts_with("0::") && folder_.empty()) make("/sys/fs/cgroup" + line.substr(3));
    }
    if (folder_.empty()) return;
    const bool is_v1 = std::filesystem::exists(folder_ + "/memory.limit_in_bytes");
    if (!write(is_v1 ? "memory.limit_in_bytes" : "memory.max", limit_bytes)) remove();
  }
  ~TestGroup() { remove(); }
  TestGroup(const TestGroup&) = delete;
  TestGroup& operator=(const TestGroup&) = delete;

  bool usable() const { return !folder_.empty(); }
  bool join() const { return write("cgroup.procs", static_cast<uint64_t>(::getpid())); }
  const std::string& folder() const { return folder_; }

 private:
  void make(const std::string& parent) {
    std::error_code error;
    const std::string folder = parent + "/stagelink-test-" + std::to_string(::getpid());
    if (std::filesystem::create_directory(folder, error)) folder_ = folder;
  }
  bool write(const char* file, uint64_t value) const {
    std::ofstream out(folder_ + "/" + file);
    out << value << std::flush;
    return out.good();
  }
  void remove() {
    if (!folder_.empty()) ::rmdir(folder_.c_str());
    folder_.clear();
  }

  std::string folder_;
};

TEST(MemoryRoomTest, SmallCgroupIsNoSpaceInsteadOfAKill) {
  const TestGroup group(64 << 20);
  if (!group.usable()) GTEST_SKIP() << "making a memory cgroup is not permitted here";
  const int result = in_child([&] {
    if (!group.join()) return 1;
    const auto refused = Segment::create(128 << 20, {}, {});
    if (refused.ok()) return 2;
    if (refused.status().reason() != Reason::kShmFull) return 3;
    const std::string_view text = refused.status().message();
    if (text.find(group.folder()) == std::string_view::npos) return 4;
    if (text.find("64 MiB") == std::string_view::npos) return 5;
    return Segment::create(32 << 20, {}, {}).ok() ? 0 : 6;
  });
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace stagelink::memory
