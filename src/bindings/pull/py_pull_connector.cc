#include "bindings/pull/py_pull_connector.h"

#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

constexpr Duration kPullExitTimeout = std::chrono::seconds(2);

// The pool's lock may be held by a thread that waits for the interpreter's.
void drop_piece(pull::Piece& piece) {
  without_gil([&piece] {
    piece = {};
    return 0;
  });
}

}  // namespace

PyPullConnector::~PyPullConnector() {
  without_gil([this] {
    connector_.reset();
    return 0;
  });
}

void PyPullConnector::close_at_exit() {
  (void)without_gil([this] { return connector_->close(kPullExitTimeout); });
}

PyPullBuffer::~PyPullBuffer() { drop_piece(piece_); }

const pull::Piece& PyPullBuffer::piece() const {
  if (released_) raise(Status(Reason::kInvalidState, "the buffer was released"));
  return piece_;
}

void PyPullBuffer::release() {
  released_ = true;
  if (exports_ == 0) drop_piece(piece_);
}

int PyPullBuffer::get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  auto* owner = nb::inst_ptr<PyPullBuffer>(self);
  view->obj = nullptr;
  if (owner->released_ || owner->device_) {
    PyErr_SetString(PyExc_BufferError, owner->released_ ? "the buffer was released"
                                                        : "the buffer is memory of a device");
    return -1;
  }
  const auto bytes = owner->piece_.bytes();
  const int failed = PyBuffer_FillInfo(
      view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()), /*readonly=*/0, flags);
  if (failed == 0) ++owner->exports_;
  return failed;
}

void PyPullBuffer::release_buffer(PyObject* self, Py_buffer*) noexcept {
  auto* owner = nb::inst_ptr<PyPullBuffer>(self);
  if (--owner->exports_ == 0 && owner->released_) drop_piece(owner->piece_);
}

}  // namespace stagelink::bindings
