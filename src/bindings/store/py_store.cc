#include "bindings/store/py_store.h"

#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

constexpr Duration kExitTimeout = std::chrono::seconds(2);

// Ends what `slot` holds without the interpreter lock: it may wait for the arena's.
template <typename T>
void drop(std::optional<T>& slot) {
  without_gil([&slot] {
    slot.reset();
    return 0;
  });
}

}  // namespace

PyStore::~PyStore() {
  without_gil([this] {
    store_.reset();
    return 0;
  });
}

void PyStore::close_at_exit() {
  (void)without_gil([this] { return store_->close(kExitTimeout); });
}

PyView::~PyView() { drop(view_); }

const ObjectView& PyView::view() const {
  if (released_) raise(Status(Reason::kInvalidState, "the view was released"));
  return *view_;
}

void PyView::release() {
  released_ = true;
  if (exports_ == 0) drop(view_);
}

int PyView::get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  auto* owner = nb::inst_ptr<PyView>(self);
  view->obj = nullptr;
  if (owner->released_) {
    PyErr_SetString(PyExc_BufferError, "the view was released");
    return -1;
  }
  const auto bytes = owner->view_->bytes();
  const int failed =
      PyBuffer_FillInfo(view, self, const_cast<std::byte*>(bytes.data()),
                        static_cast<Py_ssize_t>(bytes.size()), /*readonly=*/1, flags);
  if (failed == 0) ++owner->exports_;
  return failed;
}

void PyView::release_buffer(PyObject* self, Py_buffer*) noexcept {
  auto* owner = nb::inst_ptr<PyView>(self);
  if (--owner->exports_ == 0 && owner->released_) drop(owner->view_);
}

PyWriter::~PyWriter() { drop(writer_); }

ObjectWriter& PyWriter::writer() {
  if (!open_) raise(Status(Reason::kInvalidState, "the put is sealed or aborted already"));
  return *writer_;
}

void PyWriter::seal() {
  ObjectWriter& open = writer();
  check(without_gil([&open] { return open.seal(); }));
  open_ = false;
}

void PyWriter::abort() {
  if (!open_) return;
  open_ = false;
  if (exports_ > 0) {
    abort_later_ = true;  // Somebody may still write into it.
    return;
  }
  without_gil([this] {
    writer_->abort();
    return 0;
  });
}

void PyWriter::drop_export() noexcept {
  if (--exports_ > 0 || !abort_later_) return;
  abort_later_ = false;
  without_gil([this] {
    writer_->abort();
    return 0;
  });
}

PyPiece::PyPiece(nb::object writer, std::span<std::byte> bytes)
    : writer_(std::move(writer)), bytes_(bytes) {
  nb::inst_ptr<PyWriter>(writer_)->add_export();
}

PyPiece::~PyPiece() { nb::inst_ptr<PyWriter>(writer_)->drop_export(); }

int PyPiece::get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  auto* piece = nb::inst_ptr<PyPiece>(self);
  return PyBuffer_FillInfo(view, self, piece->bytes_.data(),
                           static_cast<Py_ssize_t>(piece->bytes_.size()), /*readonly=*/0, flags);
}

}  // namespace stagelink::bindings
