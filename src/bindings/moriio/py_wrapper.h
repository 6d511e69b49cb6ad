#pragma once

#include <memory>
#include <utility>

#include "bindings/objects/closed_at_exit.h"
#include "connector/moriio/wrapper/wrapper.h"

namespace stagelink::bindings {

// The control plane of a rank as Python sees it.
//
// Thread-safety: used with the interpreter lock.
class PyMoriioWrapper final : public ClosedAtExit {
 public:
  explicit PyMoriioWrapper(const moriio::WrapperOptions& options)
      : wrapper_(std::make_shared<moriio::Wrapper>(options)) {}
  ~PyMoriioWrapper() override { close(); }

  moriio::Wrapper& operator*() const noexcept { return *wrapper_; }
  moriio::Wrapper* operator->() const noexcept { return wrapper_.get(); }
  const std::shared_ptr<moriio::Wrapper>& shared() const noexcept { return wrapper_; }
  void close();
  void close_at_exit() override { close(); }

 private:
  const std::shared_ptr<moriio::Wrapper> wrapper_;
};

}  // namespace stagelink::bindings
