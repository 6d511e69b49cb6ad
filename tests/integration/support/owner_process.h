#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "integration/support/child_process.h"
#include "stagelink/engine.h"

namespace stagelink::test {

// What the test asks its owner process to do.
enum class OwnerCommand : uint8_t {
  kAllocate = 1,
  kRegister,
  kRegisterAliased,
  kFill,
  kSet,
  kFirstWrong,
  kFirstNot,
  kDeregister,
  kDrop,
  kConnect,
  kDropPeer,
  kNotify,
  kTake,
  kRead,
  kWrite,
  kMetrics,
  kClose,
};

// A region of the owner: `id` names it in commands.
struct OwnedRegion {
  uint32_t id = 0;
  RegionDesc desc;
};

// Another process with an engine of its own, driven step by step from the test. A command that gets
// no answer throws, which fails the test.
class OwnerProcess {
 public:
  explicit OwnerProcess(const EngineOptions& options);

  ChildProcess& process() noexcept { return child_; }
  const std::vector<std::byte>& descriptor() const noexcept { return descriptor_; }
  const std::string& address() const noexcept { return address_; }

  OwnedRegion allocate(uint64_t bytes, Access access = Access::kReadWrite);
  // Memory of the process itself, all kUntouched.
  OwnedRegion register_memory(uint64_t bytes, Access access = Access::kReadWrite);
  OwnedRegion register_aliased(uint64_t body, uint64_t tail);

  // The pattern of `seed`, from its beginning, at `offset`.
  void fill(const OwnedRegion& region, uint64_t seed, uint64_t offset = 0, uint64_t bytes = 0);
  void set(const OwnedRegion& region, std::byte value, uint64_t offset = 0, uint64_t bytes = 0);
  // Place of the first byte in [offset, offset + bytes) that differs; ~0 if none does.
  uint64_t first_wrong(const OwnedRegion& region, uint64_t seed, uint64_t offset = 0,
                       uint64_t bytes = 0, uint64_t place = 0);
  uint64_t first_not(const OwnedRegion& region, std::byte value, uint64_t offset = 0,
                     uint64_t bytes = 0);

  Status deregister(const OwnedRegion& region, Duration timeout);
  void drop(const OwnedRegion& region);  // Destroys the Region.

  Status connect(std::span<const std::byte> descriptor);
  void drop_peer();
  Status notify(std::string_view payload);
  std::vector<Notification> take(Duration timeout, size_t max = 256);
  // Moves `bytes` between the beginnings of an own region and one of the connected peer.
  Status read(const OwnedRegion& own, const RegionDesc& remote, uint64_t bytes);
  Status write(const OwnedRegion& own, const RegionDesc& remote, uint64_t bytes);

  std::string metrics_text();
  Status close(Duration timeout = std::chrono::seconds(5));

 private:
  struct Answer {
    Status status;
    std::vector<std::byte> rest;
  };
  Answer ask(ByteWriter& command);
  Answer must(ByteWriter& command);
  OwnedRegion region_from(const Answer& answer);
  Status move(OwnerCommand command, const OwnedRegion& own, const RegionDesc& remote,
              uint64_t bytes);

  ChildProcess child_;
  std::vector<std::byte> descriptor_;
  std::string address_;
};

}  // namespace stagelink::test
