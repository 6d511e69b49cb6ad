#include "metrics/stat_snapshot.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/random.h"

namespace stagelink::metrics {
namespace {

namespace fs = std::filesystem;

// A file of one counter and one histogram with one bound, to be broken field by field.
struct SmallFile {
  StatHeader header;
  StatRow rows[2];
  uint64_t values[5] = {42, std::bit_cast<uint64_t>(1.5), 10, 20, std::bit_cast<uint64_t>(7.25)};
};

SmallFile small_file() {
  SmallFile file;
  file.header.owner.pid = 4711;
  file.header.owner.start_time = 99;
  file.header.rows_offset = offsetof(SmallFile, rows);
  file.header.row_count = 2;
  file.header.row_bytes = sizeof(StatRow);
  file.header.values_offset = offsetof(SmallFile, values);
  file.header.value_count = 5;
  file.header.file_bytes = sizeof(SmallFile);
  std::strcpy(file.header.engine_name, "e");
  std::strcpy(file.rows[0].name, "stagelink_a_total");
  std::strcpy(file.rows[0].labels, "k=\"v\",k2=\"a\\\"b\"");
  std::strcpy(file.rows[0].help, "Help.");
  file.rows[0].kind = static_cast<uint32_t>(StatKind::kCounter);
  file.rows[0].value_count = 1;
  std::strcpy(file.rows[1].name, "stagelink_h");
  file.rows[1].kind = static_cast<uint32_t>(StatKind::kHistogram);
  file.rows[1].first_value = 1;
  file.rows[1].value_count = 4;
  return file;
}

Result<StatSnapshot> decode(const SmallFile& file) {
  return decode_stat(std::as_bytes(std::span(&file, 1)));
}

template <typename Change>
Reason reason_after(Change change) {
  SmallFile file = small_file();
  change(file);
  return decode(file).status().reason();
}

TEST(StatSnapshotTest, AValidFileDecodes) {
  auto snapshot = decode(small_file());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().to_string();
  EXPECT_EQ(snapshot->process.pid, 4711);
  EXPECT_EQ(snapshot->engine_name, "e");
  ASSERT_EQ(snapshot->samples.size(), 2U);
  EXPECT_EQ(snapshot->samples[0].counter, 42U);
  EXPECT_EQ(snapshot->samples[1].bounds, std::vector<double>{1.5});
  EXPECT_EQ(snapshot->samples[1].buckets, (std::vector<uint64_t>{10, 20}));
  EXPECT_EQ(snapshot->samples[1].sum, 7.25);
}

TEST(StatSnapshotTest, EveryTruncationIsRefused) {
  const SmallFile file = small_file();
  const auto bytes = std::as_bytes(std::span(&file, 1));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(decode_stat(bytes.first(size)).status().reason(), Reason::kFrame) << size;
  }
}

TEST(StatSnapshotTest, AnotherMajorVersionIsIncompatibleAndALaterMinorIsRead) {
  EXPECT_EQ(reason_after([](SmallFile& f) { f.header.major = 2; }), Reason::kVersion);
  EXPECT_EQ(reason_after([](SmallFile& f) { f.header.major = 0; }), Reason::kVersion);
  EXPECT_EQ(reason_after([](SmallFile& f) { f.header.minor = 7; }), Reason::kOk);
}

TEST(StatSnapshotTest, EachFieldOfTheHeaderIsChecked) {
  const auto refused = [](auto change) { return reason_after(change) == Reason::kFrame; };
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.owner.magic ^= 1; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.owner.magic = 0; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.owner.pid = 0; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.header_bytes -= 1; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.rows_offset -= 1; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.rows_offset = UINT32_MAX; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.row_count = 3; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.row_count = kMaxStatRows + 1; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.row_bytes -= 1; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.row_bytes = UINT32_MAX; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.values_offset += 8; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.values_offset -= 4; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.value_count += 1; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.value_count = UINT32_MAX; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.file_bytes += 1; }));
  EXPECT_TRUE(refused(
      [](SmallFile& f) { std::memset(f.header.engine_name, 'x', sizeof f.header.engine_name); }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.header.engine_name[0] = '\n'; }));
}

TEST(StatSnapshotTest, EachFieldOfARowIsChecked) {
  const auto refused = [](auto change) { return reason_after(change) == Reason::kFrame; };
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[0].name[0] = '\0'; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[0].name[0] = '9'; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[0].name[3] = '{'; }));
  EXPECT_TRUE(refused([](SmallFile& f) { std::memset(f.rows[0].name, 'n', 64); }));
  EXPECT_TRUE(refused([](SmallFile& f) { std::memset(f.rows[0].help, 'n', 136); }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[0].help[0] = '\n'; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[0].kind = 0; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[0].kind = 4; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[0].value_count = 0; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[0].value_count = 2; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[0].first_value = 5; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[0].first_value = UINT32_MAX; }));
  for (const char* labels : {"k", "k=", "k=v", "k=\"v", "k=\"v\",", "=\"v\"", "k=\"v\"x",
                             "k=\"\\x\"", "k=\"v\\", "k=\"v\\\"", "9k=\"v\"", ",k=\"v\""}) {
    EXPECT_TRUE(refused([labels](SmallFile& f) { std::strcpy(f.rows[0].labels, labels); }))
        << labels;
  }
}

TEST(StatSnapshotTest, EachFieldOfAHistogramIsChecked) {
  const auto refused = [](auto change) { return reason_after(change) == Reason::kFrame; };
  const auto nan = std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN());
  const auto infinity = std::bit_cast<uint64_t>(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[1].value_count = 3; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[1].value_count = 2; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.rows[1].value_count = 0; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.values[1] = nan; }));
  EXPECT_TRUE(refused([](SmallFile& f) { f.values[1] = infinity; }));
}

TEST(StatSnapshotTest, RandomChangesNeverCrash) {
  SplitMix64 random(20261129);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    SmallFile file = small_file();
    auto* bytes = reinterpret_cast<unsigned char*>(&file);
    for (uint64_t i = random.below(4) + 1; i > 0; --i) {
      bytes[random.below(sizeof file)] = static_cast<unsigned char>(random.next());
    }
    auto snapshot = decode(file);
    if (snapshot.ok()) {
      ++accepted;
      EXPECT_FALSE(to_prometheus(*snapshot).empty());
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(StatSnapshotTest, WhatIsNoPlainFileIsAnError) {
  char name[] = "/tmp/sl-stat-XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  const std::string dir = name;
  EXPECT_EQ(read_stat_file(dir + "/none").status().code(), Code::kNotFound);
  EXPECT_EQ(read_stat_file(dir).status().reason(), Reason::kFrame);
  ASSERT_EQ(::mkfifo((dir + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(read_stat_file(dir + "/fifo").status().reason(), Reason::kFrame);
  const SmallFile file = small_file();
  std::ofstream(dir + "/good", std::ios::binary)
      .write(reinterpret_cast<const char*>(&file), sizeof file);
  EXPECT_TRUE(read_stat_file(dir + "/good").ok());
  fs::create_symlink(dir + "/good", dir + "/link");
  EXPECT_EQ(read_stat_file(dir + "/link").status().reason(), Reason::kFrame);
  fs::resize_file(dir + "/good", sizeof file - 1);
  const auto shorter = read_stat_file(dir + "/good");
  EXPECT_EQ(shorter.status().reason(), Reason::kFrame);
  EXPECT_NE(shorter.status().message().find(dir + "/good"), std::string_view::npos);
  fs::resize_file(dir + "/good", kMaxStatBytes + 1);
  EXPECT_EQ(read_stat_file(dir + "/good").status().reason(), Reason::kFrame);
  fs::remove_all(dir);
}

}  // namespace
}  // namespace stagelink::metrics
