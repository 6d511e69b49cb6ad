#include "integration/support/private_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "base/random.h"
#include "base/unique_fd.h"

namespace stagelink::test {
namespace {

constexpr size_t kPage = 4096;
constexpr std::byte kCanary{0xC7};
constexpr size_t kBlock = 4096;

uint64_t pattern_word(uint64_t seed, uint64_t word) {
  return SplitMix64::mix(seed * 0x9e3779b97f4a7c15ULL + word);
}

// The bytes [place, place + size) of the pattern, size at most kBlock.
std::span<const std::byte> pattern_block(std::array<uint64_t, kBlock / 8 + 2>& words, uint64_t seed,
                                         uint64_t place, size_t size) {
  const uint64_t first = place / 8;
  for (size_t i = 0; i < (place % 8 + size + 7) / 8; ++i) words[i] = pattern_word(seed, first + i);
  return std::as_bytes(std::span(words)).subspan(place % 8, size);
}

}  // namespace

void fill_pattern(std::span<std::byte> bytes, uint64_t seed, uint64_t place) {
  std::array<uint64_t, kBlock / 8 + 2> words{};
  for (size_t at = 0; at < bytes.size(); at += kBlock) {
    const size_t size = std::min(kBlock, bytes.size() - at);
    std::memcpy(bytes.data() + at, pattern_block(words, seed, place + at, size).data(), size);
  }
}

std::optional<size_t> first_wrong(std::span<const std::byte> bytes, uint64_t seed, uint64_t place) {
  std::array<uint64_t, kBlock / 8 + 2> words{};
  for (size_t at = 0; at < bytes.size(); at += kBlock) {
    const size_t size = std::min(kBlock, bytes.size() - at);
    const auto right = pattern_block(words, seed, place + at, size);
    if (std::memcmp(bytes.data() + at, right.data(), size) == 0) continue;
    for (size_t i = 0; i < size; ++i) {
      if (bytes[at + i] != right[i]) return at + i;
    }
  }
  return std::nullopt;
}

std::optional<size_t> first_not(std::span<const std::byte> bytes, std::byte value) {
  if (bytes.empty() ||
      (bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0)) {
    return std::nullopt;
  }
  const auto at = std::find_if(bytes.begin(), bytes.end(), [&](std::byte b) { return b != value; });
  return static_cast<size_t>(at - bytes.begin());
}

PageMap::PageMap(size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  bytes_ = {static_cast<std::byte*>(at), bytes};
}

PageMap::PageMap(PageMap&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

PageMap::~PageMap() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

PrivateMemory::PrivateMemory(size_t bytes)
    : map_((bytes + kPage - 1) / kPage * kPage + 2 * kPage),
      data_(map_.bytes().subspan(kPage, bytes)) {
  std::memset(map_.bytes().data(), static_cast<int>(kCanary), map_.bytes().size());
  reset();
}

void PrivateMemory::reset() const {
  std::memset(data_.data(), static_cast<int>(kUntouched), data_.size());
}

bool PrivateMemory::canaries_intact() const {
  return !first_not(map_.bytes().first(kPage), kCanary) &&
         !first_not(map_.bytes().subspan(kPage + data_.size()), kCanary);
}

AliasedMemory::AliasedMemory(size_t body, size_t tail) : tail_(tail) {
  constexpr size_t kWindow = size_t{64} << 20;
  void* const base =
      ::mmap(nullptr, body + tail, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const UniqueFd window(::memfd_create("test-window", MFD_CLOEXEC));
  const UniqueFd end(::memfd_create("test-tail", MFD_CLOEXEC));
  bool ok = base != MAP_FAILED && ::ftruncate(window.get(), kWindow) == 0 &&
            ::ftruncate(end.get(), static_cast<off_t>(tail)) == 0;
  auto* const at = static_cast<std::byte*>(base);
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  for (size_t offset = 0; ok && offset < body; offset += kWindow) {
    ok = ::mmap(at + offset, std::min(kWindow, body - offset), kProtection, MAP_SHARED | MAP_FIXED,
                window.get(), 0) != MAP_FAILED;
  }
  ok = ok &&
       ::mmap(at + body, tail, kProtection, MAP_SHARED | MAP_FIXED, end.get(), 0) != MAP_FAILED;
  if (!ok) throw std::bad_alloc();
  bytes_ = {at, body + tail};
}

AliasedMemory::~AliasedMemory() { ::munmap(bytes_.data(), bytes_.size()); }

uint64_t own_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  uint64_t kib = 0;
  while (file >> word) {
    if (word == "Private_Dirty:") {
      file >> kib;
      break;
    }
  }
  return kib << 10;
}

}  // namespace stagelink::test
