#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace stagelink::store::yuanrong {

// Memory of this process, aligned to 64, not filled.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size)
      : data_(static_cast<std::byte*>(::operator new(size, kAlignment))), size_(size) {}
  std::span<std::byte> bytes() const noexcept { return {data_.get(), size_}; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* data) const noexcept { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_;
};

}  // namespace stagelink::store::yuanrong
