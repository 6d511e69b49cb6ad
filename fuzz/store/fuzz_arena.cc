#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/unique_fd.h"
#include "stagelink/object_store.h"
#include "store/shm/arena_file.h"
#include "store/shm/arena_listing.h"

// An arena whose bytes are somebody else's, and change while it is in use. The input is a list of
// steps: bytes that are written over the header, the slots or the index, and calls of a store
// between them. Whatever the answers are, each comes soon, and no byte outside the heap is ever
// shown.
namespace stagelink {
namespace {

using store::shm::Geometry;

constexpr uint64_t kCapacity = 64 << 10;
constexpr uint32_t kSlots = 8;
constexpr size_t kMaxSteps = 48;

// An arena as a decent process leaves it, with some objects in it.
class Image {
 public:
  Image() {
    std::string folder = "/dev/shm/sl-fuzz-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) std::abort();
    options_.arena.directory = folder;
    options_.arena.capacity = kCapacity;
    options_.arena.max_objects = kSlots;
    options_.arena.keep = true;
    options_.arena.lock_timeout = std::chrono::milliseconds(1);
    path_ = store::shm::arena_path(options_.arena);
    {
      auto store = ObjectStore::open(options_);
      if (!store.ok()) std::abort();
      const std::vector<std::byte> bytes(3000, std::byte{1});
      for (const char* key : {"a", "b", "c", "d"}) (void)(*store)->put(key, bytes);
      (void)(*store)->put(std::string(300, 'k'), bytes);
      (void)(*store)->erase("b");
    }
    std::ifstream file(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }
  ~Image() {
    std::error_code ignored;
    std::filesystem::remove_all(options_.arena.directory, ignored);
  }

  const StoreOptions& options() const noexcept { return options_; }
  // The file anew; its bytes as they can be written over.
  std::span<char> fresh() {
    if (!mapped_.empty()) ::munmap(mapped_.data(), mapped_.size());
    (void)::unlink(path_.c_str());
    const UniqueFd fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (::write(fd.get(), bytes_.data(), bytes_.size()) != static_cast<ssize_t>(bytes_.size())) {
      std::abort();
    }
    void* const memory =
        ::mmap(nullptr, bytes_.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (memory == MAP_FAILED) std::abort();
    mapped_ = {static_cast<char*>(memory), bytes_.size()};
    return mapped_;
  }

 private:
  StoreOptions options_;
  std::string path_;
  std::vector<char> bytes_;
  std::span<char> mapped_;
};

class Input {
 public:
  Input(const uint8_t* data, size_t size) noexcept : data_(data), size_(size) {}
  bool empty() const noexcept { return size_ == 0; }
  template <typename T>
  T take() noexcept {
    T value{};
    const size_t part = size_ < sizeof value ? size_ : sizeof value;
    std::memcpy(&value, data_, part);
    data_ += part;
    size_ -= part;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

volatile int g_seen = 0;  // So that bytes are read.

// Most of what is interesting lies in few places.
void write_over(std::span<char> file, Input& input) {
  const Geometry geometry = Geometry::of(kCapacity, kSlots);
  const auto area = input.take<uint8_t>();
  const auto at = input.take<uint16_t>();
  const auto value = input.take<uint64_t>();
  const uint64_t begin[] = {0, geometry.slots_at, geometry.index_at};
  const uint64_t bytes[] = {sizeof(store::shm::Header), sizeof(store::shm::Slot) * (kSlots + 1),
                            sizeof(uint64_t) * geometry.index_size};
  const size_t width = size_t{1} << (area >> 2 & 3);
  const size_t which = area & 3;
  const uint64_t offset =
      which < 3 ? begin[which] + at % bytes[which] / width * width : at / width * width;
  std::memcpy(file.data() + offset, &value, width);
}

void step(ObjectStore& store, Input& input, std::vector<ObjectView>& views) {
  static const char* const kKeys[] = {"a", "b", "c", "d"};
  const auto what = input.take<uint8_t>();
  const std::string key = what >> 5 == 7 ? std::string(300, 'k') : kKeys[what >> 5 & 3];
  PutOptions at_once;
  at_once.timeout = Duration::zero();
  switch (what & 7) {
    case 0:
    case 1: {
      auto writer = store.create(key, input.take<uint16_t>(), at_once);
      if (!writer.ok()) return;
      for (const std::span<std::byte> piece : writer->pieces()) {
        if (!piece.empty()) std::memset(piece.data(), 1, piece.size());
      }
      if ((what & 7) == 0) (void)writer->seal();
      return;
    }
    case 2: {
      auto view = store.get(key);
      if (!view.ok()) return;
      const std::span<const std::byte> bytes = view->bytes();
      if (!bytes.empty()) g_seen = static_cast<int>(bytes.front()) + static_cast<int>(bytes.back());
      views.push_back(*std::move(view));
      return;
    }
    case 3: return (void)store.erase(key);
    case 4: return (void)store.expire(key, Duration(input.take<uint8_t>()));
    case 5: return (void)store.usage();
    case 6: return views.clear();
    default: return (void)store.exists(key);
  }
}

}  // namespace
}  // namespace stagelink

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stagelink;
  static Image image;
  set_log_level(LogLevel::kOff);
  Input input(data, size);
  const std::span<char> file = image.fresh();
  for (auto count = input.take<uint8_t>() & 7; count > 0; --count) write_over(file, input);
  StoreOptions options = image.options();
  if ((input.take<uint8_t>() & 1) != 0) options.arena.capacity = 0;
  if ((input.take<uint8_t>() & 1) != 0) options.eviction = EvictionMode::kEvict;
  auto store = ObjectStore::open(options);
  if (!store.ok()) return 0;
  std::vector<ObjectView> views;
  for (size_t steps = 0; steps < kMaxSteps && !input.empty(); ++steps) {
    if ((input.take<uint8_t>() & 1) != 0) {
      write_over(file, input);
    } else {
      step(**store, input, views);
    }
  }
  return 0;
}
