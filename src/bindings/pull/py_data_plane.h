#pragma once

#include <nanobind/nanobind.h>

#include "connector/pull/data_plane.h"

namespace stagelink::bindings {

// A data plane that is written in Python (stagelink.pull.ascend): the engines of vendors come with
// Python packages. Its methods answer None, or why not; what they raise is a failure.
//
//   memory() -> (address, bytes)       endpoint() -> (host, port)
//   copy_in(sources: list[(address, bytes)], target: int) -> str | None
//   read(host, port, local: list[int], remote: list[int], sizes: list[int], seconds) -> str | None
//
// Thread-safety: all methods may run at the same time; each takes the interpreter lock.
class PyDataPlane final : public pull::DataPlane {
 public:
  // With the interpreter lock. Raises what the object's memory() and endpoint() raise.
  explicit PyDataPlane(nanobind::object plane);
  ~PyDataPlane() override;
  PyDataPlane(const PyDataPlane&) = delete;
  PyDataPlane& operator=(const PyDataPlane&) = delete;

  std::span<std::byte> memory() override { return memory_; }
  Endpoint endpoint() const override { return endpoint_; }
  Status copy_in(std::span<const std::span<const std::byte>> from,
                 std::span<std::byte> to) override;
  Status read(const Endpoint& sender, std::span<const pull::AddressedRange> ranges,
              Duration timeout) override;

 private:
  nanobind::object plane_;
  std::span<std::byte> memory_;
  Endpoint endpoint_;
};

}  // namespace stagelink::bindings
