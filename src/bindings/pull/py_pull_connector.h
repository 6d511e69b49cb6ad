#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <nanobind/nanobind.h>

#include "bindings/objects/closed_at_exit.h"
#include "connector/pull/pull_connector.h"

namespace stagelink::bindings {

// A PullConnector as Python sees it: closed at interpreter exit if nobody did before.
//
// Thread-safety: used with the interpreter lock, which its calls give up while they work.
class PyPullConnector final : public ClosedAtExit {
 public:
  // `device`: the pool is no memory of the host.
  PyPullConnector(std::unique_ptr<pull::PullConnector> connector, bool device) noexcept
      : connector_(std::move(connector)), device_(device) {}
  ~PyPullConnector() override;
  PyPullConnector(const PyPullConnector&) = delete;
  PyPullConnector& operator=(const PyPullConnector&) = delete;

  pull::PullConnector& connector() const noexcept { return *connector_; }
  bool device() const noexcept { return device_; }
  void close_at_exit() override;

 private:
  std::unique_ptr<pull::PullConnector> connector_;
  const bool device_;
};

// A share in a piece of a pool as Python sees it: it ends with release(), or when this and the last
// buffer that was exported from it are gone.
//
// Thread-safety: used with the interpreter lock.
class PyPullBuffer {
 public:
  PyPullBuffer(pull::Piece piece, const PyPullConnector& owner) noexcept
      : piece_(std::move(piece)), owner_(&owner), device_(owner.device()) {}
  // Another share in the same memory.
  PyPullBuffer(const PyPullBuffer& other) = default;
  PyPullBuffer& operator=(const PyPullBuffer&) = delete;
  ~PyPullBuffer();

  // Raises InvalidState after release().
  const pull::Piece& piece() const;
  // Only ever compared: the connector may be gone.
  bool is_of(const PyPullConnector& connector) const noexcept { return owner_ == &connector; }
  bool device() const noexcept { return device_; }
  bool released() const noexcept { return released_; }
  void release();

  // The buffer protocol; not for memory of a device.
  static int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept;
  static void release_buffer(PyObject* self, Py_buffer* view) noexcept;

 private:
  pull::Piece piece_;
  const PyPullConnector* owner_;
  bool device_;
  bool released_ = false;
  uint32_t exports_ = 0;
};

}  // namespace stagelink::bindings
