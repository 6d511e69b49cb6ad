#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "broker/mappings.h"
#include "broker/sdk.h"
#include "stagelink/result.h"
#include "store/yuanrong/channel/protocol.h"

namespace stagelink::broker {

// A segment that a client needs before it can use a place.
struct ArenaNotice {
  uint64_t id = 0;
  uint64_t bytes = 0;
  UniqueFd fd;
};

// What one client holds of the library's memory, by handle. Memory of the worker is handed over as
// it is; where the library gives other memory (the worker is of another user, or far away) a memfd
// of the same size stands for it and the bytes are copied.
//
// Thread-safety: all methods may run at the same time.
class HeldObjects {
 public:
  enum class Use : uint8_t { kRead, kFill };

  explicit HeldObjects(Mappings& mappings) : mappings_(mappings) {}

  // Errors: limit, no_space.
  Result<store::yuanrong::Place> add(SdkMemory memory, Use use);
  // The notice of the place's segment the first time that it is needed, else without an fd.
  ArenaNotice notice_for(const store::yuanrong::Place& place);
  // Takes the memory back from a client that has filled it. Null: the handle is unknown.
  std::shared_ptr<const SdkMemory> take_filled(uint64_t handle);
  void release(std::span<const uint64_t> handles);
  void release_all();
  // Ids of segments that the client was told of and that are gone now.
  std::vector<uint64_t> gone();

  uint64_t copies() const;  // Values that were copied.
  size_t size() const;

 private:
  struct Copy {
    UniqueFd fd;
    std::span<std::byte> bytes;
    ~Copy();
  };
  struct Held {
    std::shared_ptr<const SdkMemory> memory;
    std::unique_ptr<Copy> copy;  // Null: the worker's own memory.
    uint64_t arena = 0;
  };
  static Result<std::unique_ptr<Copy>> make_copy(uint64_t bytes);

  static constexpr size_t kMostHeld = 65'536;

  Mappings& mappings_;
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Held> held_ SL_GUARDED_BY(mutex_);
  std::vector<uint64_t> told_ SL_GUARDED_BY(mutex_);  // Segments of the worker; a few tens.
  std::vector<uint64_t> gone_ SL_GUARDED_BY(mutex_);  // Copies.
  uint64_t seen_changes_ SL_GUARDED_BY(mutex_) = 0;
  uint64_t last_handle_ SL_GUARDED_BY(mutex_) = 0;
  uint64_t copies_ SL_GUARDED_BY(mutex_) = 0;
};

}  // namespace stagelink::broker
