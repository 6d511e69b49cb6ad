// A peer that is closed while one of its threads still copies.

#include <algorithm>
#include <array>
#include <thread>

#include "integration/support/engine_test.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kBytes = kSanitized ? 32 << 20 : 256 << 20;

class LostPeerTest : public EngineTest {};

// One slice, so that the copy goes on after its end has been decided.
EngineOptions one_slice(EngineOptions options) {
  options.slice_bytes = kBytes;
  options.copy_threads = 0;
  return options;
}

TEST_F(LostPeerTest, MemoryIsNotFreeWhileAClosedPeerStillWrites) {
  const auto owner = make_engine("owner");
  const auto writer = must(Engine::create(one_slice(options("writer"))));
  Region pool = must(owner->allocate(kBytes));
  const auto held = pool.hold();
  const auto target = pool.bytes();
  const PrivateMemory source(kBytes);
  std::fill(source.bytes().begin(), source.bytes().end(), std::byte{7});
  const Region local = must(writer->register_memory(source.data(), kBytes));
  Peer peer = must(writer->connect(owner->descriptor()));
  const std::array<const Region*, 1> own = {&local};
  const std::array<RegionDesc, 1> remote = {pool.descriptor()};
  Session session = must(peer.session(own, remote));
  Transfer transfer = must(session.write(whole(kBytes)));
  std::thread copier([&] { (void)transfer.wait(60s); });
  const volatile std::byte& first = target[4096];
  const bool began = eventually([&] { return first == std::byte{7}; });
  EXPECT_OK(peer.close());
  EXPECT_OK(pool.deregister(60s));
  const std::vector<std::byte> now(target.end() - 4096, target.end());
  copier.join();
  EXPECT_TRUE(began);
  EXPECT_TRUE(std::equal(now.begin(), now.end(), target.end() - 4096))
      << "bytes changed after the owner had the memory back";
}

}  // namespace
}  // namespace stagelink::test
