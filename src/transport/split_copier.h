#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace stagelink::transport {

// Hands each slice to the transport of its regions; a plan never mixes the two in one slice.
//
// Thread-safety: as that of the transports inside.
class SplitCopier final : public CopyTransport {
 public:
  // `by_cma[i]` is not 0 if remote_index i is served by `cma`.
  SplitCopier(std::unique_ptr<CopyTransport> shm, std::unique_ptr<CopyTransport> cma,
              std::vector<uint8_t> by_cma) noexcept
      : shm_(std::move(shm)), cma_(std::move(cma)), by_cma_(std::move(by_cma)) {}

  Status copy(std::span<const CopyItem> items, Direction direction) override {
    return (by_cma_[items.front().remote_index] != 0 ? *cma_ : *shm_).copy(items, direction);
  }

 private:
  const std::unique_ptr<CopyTransport> shm_;
  const std::unique_ptr<CopyTransport> cma_;
  const std::vector<uint8_t> by_cma_;
};

}  // namespace stagelink::transport
