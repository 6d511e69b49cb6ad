#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "integration/support/child_process.h"
#include "integration/support/engine_test.h"
#include "stagelink/object_store.h"

namespace stagelink::test {

// Gives a test an arena of its own in a folder of its own, and checks at its end that no file, no
// descriptor and no thread is left.
class StoreTest : public ::testing::Test {
 protected:
  StoreTest();
  ~StoreTest() override;
  void SetUp() override;
  void TearDown() override;

  // 8 MiB, 256 objects.
  const StoreOptions& store_options() const noexcept { return options_; }
  std::unique_ptr<ObjectStore> open_store() const { return must(ObjectStore::open(options_)); }
  const std::string& folder() const noexcept { return folder_; }
  // Names of the files in the folder.
  std::vector<std::string> files() const;
  // Of STAGELINK_SEED, or fresh.
  uint64_t seed() const noexcept { return seed_; }

 private:
  std::string folder_;
  StoreOptions options_;
  uint64_t seed_;
  std::optional<Gauges> gauges_;
};

// `size` bytes of one value, which tells puts of one key apart.
std::vector<std::byte> filled(uint64_t size, int value);
bool all_are(std::span<const std::byte> bytes, int value);

// The process at the other end of a test: the role "store". It has one store of its own, and does
// one command at a time.
class StoreProcess {
 public:
  explicit StoreProcess(const StoreOptions& options);

  // "put KEY SIZE VALUE", "get KEY TIMEOUT_MS", "hold KEY" and "drop" (a view), "begin KEY SIZE"
  // and "seal" (a writer), "erase KEY", "close". The answer begins with "ok" or the reason's name.
  std::string ask(const std::string& command);
  void tell(const std::string& command);
  std::string answer(Duration timeout = std::chrono::seconds(30));
  ChildProcess& process() noexcept { return child_; }

 private:
  ChildProcess child_;
};

}  // namespace stagelink::test
