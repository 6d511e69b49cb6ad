#pragma once

#include <memory>
#include <optional>

#include <nanobind/nanobind.h>

#include "bindings/objects/closed_at_exit.h"
#include "stagelink/object_store.h"

namespace stagelink::bindings {

// An ObjectStore as Python sees it: closed by the garbage collector, and at interpreter exit if
// nobody did before.
//
// Thread-safety: used with the interpreter lock.
class PyStore final : public ClosedAtExit {
 public:
  explicit PyStore(std::unique_ptr<ObjectStore> store) noexcept : store_(std::move(store)) {}
  ~PyStore() override;
  PyStore(const PyStore&) = delete;
  PyStore& operator=(const PyStore&) = delete;

  ObjectStore& store() const noexcept { return *store_; }
  void close_at_exit() override;

 private:
  std::unique_ptr<ObjectStore> store_;
};

// A view as Python sees it: the lease ends with release(), or when the view and the last buffer
// that was exported from it are gone.
//
// Thread-safety: used with the interpreter lock.
class PyView {
 public:
  explicit PyView(ObjectView view) noexcept : view_(std::move(view)) {}
  ~PyView();
  PyView(const PyView&) = delete;
  PyView& operator=(const PyView&) = delete;

  // Raises InvalidState after release().
  const ObjectView& view() const;
  void release();

  // The buffer protocol, read-only.
  static int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept;
  static void release_buffer(PyObject* self, Py_buffer* view) noexcept;

 private:
  std::optional<ObjectView> view_;
  uint32_t exports_ = 0;
  bool released_ = false;
};

// A writer as Python sees it. The memory stays while buffers look at it, also when the put is
// aborted meanwhile.
//
// Thread-safety: used with the interpreter lock.
class PyWriter {
 public:
  explicit PyWriter(ObjectWriter writer) noexcept : writer_(std::move(writer)) {}
  ~PyWriter();
  PyWriter(const PyWriter&) = delete;
  PyWriter& operator=(const PyWriter&) = delete;

  // Raises InvalidState once it is sealed or aborted.
  ObjectWriter& writer();
  const ObjectWriter& any_writer() const noexcept { return *writer_; }
  void seal();
  void abort();

  void add_export() noexcept { ++exports_; }
  void drop_export() noexcept;

 private:
  std::optional<ObjectWriter> writer_;
  uint32_t exports_ = 0;
  bool open_ = true;
  bool abort_later_ = false;
};

// One piece of a writer's memory: what its memoryview looks at.
//
// Thread-safety: used with the interpreter lock.
class PyPiece {
 public:
  PyPiece(nanobind::object writer, std::span<std::byte> bytes);
  ~PyPiece();
  PyPiece(const PyPiece&) = delete;
  PyPiece& operator=(const PyPiece&) = delete;

  static int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept;

 private:
  nanobind::object writer_;
  const std::span<std::byte> bytes_;
};

}  // namespace stagelink::bindings
