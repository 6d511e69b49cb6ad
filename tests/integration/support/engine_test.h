#pragma once

#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "integration/support/eventually.h"
#include "integration/support/gauges.h"
#include "integration/support/owner_process.h"
#include "integration/support/private_memory.h"
#include "integration/support/sanitized.h"
#include "stagelink/engine.h"

namespace stagelink::test {

using namespace std::chrono_literals;

inline constexpr uint64_t kNone = ~uint64_t{0};

// The value, or a failed test.
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return *std::move(result);
}

// With `<<` like gtest's own.
#define EXPECT_OK(expr)                                               \
  GTEST_AMBIGUOUS_ELSE_BLOCKER_                                       \
  if (const ::stagelink::Status sl_status = (expr); sl_status.ok()) { \
  } else                                                              \
    ADD_FAILURE() << #expr << ": " << sl_status.to_string() << " "
#define ASSERT_OK(expr)                                               \
  GTEST_AMBIGUOUS_ELSE_BLOCKER_                                       \
  if (const ::stagelink::Status sl_status = (expr); sl_status.ok()) { \
  } else                                                              \
    GTEST_FAIL() << #expr << ": " << sl_status.to_string() << " "
#define EXPECT_REASON(expected, expr)                                                         \
  GTEST_AMBIGUOUS_ELSE_BLOCKER_                                                               \
  if (const ::stagelink::Status sl_status = (expr); sl_status.reason() == (expected)) {       \
  } else                                                                                      \
    ADD_FAILURE() << #expr << ": expected " << ::stagelink::reason_name(expected) << ", got " \
                  << sl_status.to_string() << " "

std::vector<std::byte> bytes_of(std::string_view text);
std::string text_of(std::span<const std::byte> bytes);

// Gives a test a runtime directory of its own, a printed seed, and checks at its end that fds,
// threads and entries are what they were.
class EngineTest : public ::testing::Test {
 protected:
  EngineTest();
  ~EngineTest() override;
  void SetUp() override;
  void TearDown() override;

  // Short heartbeats, so that a stopped peer is noticed within half a second.
  EngineOptions options(const std::string& name) const;
  std::unique_ptr<Engine> make_engine(const std::string& name) const {
    return must(Engine::create(options(name)));
  }
  const std::string& runtime_dir() const noexcept { return runtime_dir_; }
  // Of STAGELINK_SEED, or fresh.
  uint64_t seed() const noexcept { return seed_; }

 private:
  std::string runtime_dir_;
  uint64_t seed_;
  std::optional<Gauges> gauges_;
};

// How the bytes travel: mapped memory, or private memory copied directly or through a
// socket; with kTcp the control connection goes over TCP as well.
enum class Path : uint8_t { kShm, kCma, kUnix, kTcp };
std::string path_name(const ::testing::TestParamInfo<Path>& info);
std::string transport_of(Path path);
// Through a socket: the owner's process takes part.
constexpr bool is_socket(Path path) { return path == Path::kUnix || path == Path::kTcp; }
// False where process_vm_readv does not even work within one process.
bool kernel_copies();

class PathTest : public EngineTest, public ::testing::WithParamInterface<Path> {
 protected:
  void SetUp() override;
  Path path() const { return GetParam(); }
  // Options of a reader that reaches memory on this path only.
  EngineOptions reader_options(const std::string& name) const;
};
#define SL_FOR_BOTH_PATHS(suite)                                                        \
  INSTANTIATE_TEST_SUITE_P(                                                             \
      Both, suite,                                                                      \
      ::testing::Values(::stagelink::test::Path::kShm, ::stagelink::test::Path::kCma,   \
                        ::stagelink::test::Path::kUnix, ::stagelink::test::Path::kTcp), \
      ::stagelink::test::path_name)

OwnedRegion make_region(OwnerProcess& owner, Path path, uint64_t bytes,
                        Access access = Access::kReadWrite);

// A reader in this process and an owner in another, one region each, and a session between them.
struct Link {
  Link(const EngineOptions& reader, const EngineOptions& owner_options, Path path, uint64_t bytes);
  Session new_session();

  OwnerProcess owner;
  OwnedRegion remote;
  PrivateMemory memory;
  std::unique_ptr<Engine> engine;
  Region local;
  Peer peer;
  Session session;
};

inline StridedRange whole(uint64_t bytes) { return {.bytes = bytes, .count = 1}; }

}  // namespace stagelink::test
