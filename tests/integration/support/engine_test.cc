#include "integration/support/engine_test.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <sys/uio.h>
#include <unistd.h>

#include "base/runtime_dir.h"

namespace stagelink::test {
namespace {

uint64_t seed_of_environment() {
  const char* const text = std::getenv("STAGELINK_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : random_u64() >> 32;
}

}  // namespace

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

EngineTest::EngineTest() : seed_(seed_of_environment()) {
  if (kSanitized) std::thread([] {}).join();  // A sanitizer's own thread comes with the first one.
  std::string name = ::testing::TempDir() + "sl-test-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp: " + name);
  runtime_dir_ = name;
}

EngineTest::~EngineTest() {
  std::error_code ignored;
  std::filesystem::remove_all(runtime_dir_, ignored);
}

void EngineTest::SetUp() {
  std::printf("STAGELINK_SEED=%" PRIu64 "\n", seed_);
  gauges_.emplace(runtime_dir_);
}

void EngineTest::TearDown() {
  reclaim_dead_entries(runtime_dir_);  // Of killed children; the next engine would do it.
  EXPECT_EQ("", gauges_->difference());
}

EngineOptions EngineTest::options(const std::string& name) const {
  EngineOptions options;
  options.name = name;
  options.runtime_dir = runtime_dir_;
  options.heartbeat_interval = 100ms;
  options.cma_min_run = 4 << 10;  // Blocks of tests are of 4 KiB.
  options.allow_ptrace = true;    // For kernels whose Yama would refuse cma between siblings.
  return options;
}

std::string path_name(const ::testing::TestParamInfo<Path>& info) {
  switch (info.param) {
    case Path::kShm: return "Shm";
    case Path::kCma: return "Cma";
    case Path::kTcp: return "Tcp";
    case Path::kUnix: break;
  }
  return "Unix";
}

std::string transport_of(Path path) {
  switch (path) {
    case Path::kShm: return "shm";
    case Path::kCma: return "cma";
    case Path::kTcp: return "tcp";
    case Path::kUnix: break;
  }
  return "unix";
}

void PathTest::SetUp() {
  EngineTest::SetUp();
  if (path() == Path::kCma && !kernel_copies()) {
    GTEST_SKIP() << "the kernel or a seccomp filter forbids process_vm_readv";
  }
}

bool kernel_copies() {
  char from = 1;
  char to = 0;
  const iovec here{&to, 1};
  const iovec there{&from, 1};
  return ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) == 1;
}

EngineOptions PathTest::reader_options(const std::string& name) const {
  EngineOptions reader = options(name);
  reader.transports = {transport_of(path())};
  return reader;
}

OwnedRegion make_region(OwnerProcess& owner, Path path, uint64_t bytes, Access access) {
  return path == Path::kShm ? owner.allocate(bytes, access) : owner.register_memory(bytes, access);
}

Link::Link(const EngineOptions& reader, const EngineOptions& owner_options, Path path,
           uint64_t bytes)
    : owner(owner_options),
      remote(make_region(owner, path, bytes)),
      memory(bytes),
      engine(must(Engine::create(reader))),
      local(must(engine->register_memory(memory.data(), memory.size()))),
      peer(must(engine->connect(owner.descriptor()))),
      session(new_session()) {}

Session Link::new_session() {
  const std::array<const Region*, 1> own = {&local};
  return must(peer.session(own, std::span(&remote.desc, 1)));
}

}  // namespace stagelink::test
