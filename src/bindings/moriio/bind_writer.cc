#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/moriio/py_wrapper.h"
#include "bindings/moriio/py_writer_host.h"
#include "connector/moriio/writer/writer.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

// The writer as Python sees it. Its thread calls back into Python, so all that waits for it does so
// without the interpreter lock.
//
// Thread-safety: used with the interpreter lock.
class PyMoriioWriter final : public ClosedAtExit {
 public:
  PyMoriioWriter(const moriio::WriterOptions& options, const PyMoriioWrapper& wrapper,
                 nb::object host)
      : writer_(std::make_unique<moriio::Writer>(
            options, wrapper.shared(), std::make_shared<PyWriterHost>(std::move(host)))) {}
  ~PyMoriioWriter() override {
    if (writer_->on_own_thread()) {
      // The last one to hold the worker was a call of ours: somebody else joins the thread.
      std::thread([writer = std::move(writer_)] {}).detach();
      return;
    }
    without_gil([this] {
      writer_.reset();
      return 0;
    });
  }
  moriio::Writer* operator->() const noexcept { return writer_.get(); }
  void close() {
    without_gil([this] {
      writer_->close();
      return 0;
    });
  }
  void close_at_exit() override { close(); }

 private:
  std::unique_ptr<moriio::Writer> writer_;
};

using Self = PyMoriioWriter;

void create(Self* self, const PyMoriioWrapper& wrapper, nb::object host, uint32_t tp_rank,
            nb::handle defer_timeout, nb::handle transfer_timeout) {
  moriio::WriterOptions options;
  options.tp_rank = tp_rank;
  options.defer_timeout = to_duration(defer_timeout, "defer_timeout");
  options.transfer_timeout = to_duration(transfer_timeout, "transfer_timeout");
  options.notify_timeout = wrapper->options().notify_timeout;
  new (self) Self(options, wrapper, std::move(host));
}

bool schedule(Self& self, nb::object task, std::string request_id, std::string transfer_id,
              std::string layer, nb::handle age) {
  moriio::WriteTask made;
  made.request_id = std::move(request_id);
  made.transfer_id = std::move(transfer_id);
  made.layer = std::move(layer);
  made.enqueued -= to_duration(age, "age");
  made.ticket = make_ticket(std::move(task));
  return unwrap(without_gil([&] { return self->schedule(std::move(made)); }));
}

}  // namespace

void bind_moriio_writer(nb::module_& m) {
  nb::class_<Self>(m, "MoriioPush", nb::is_final(), nb::is_weak_referenceable(),
                   "Writes layers of transfers to where the consumer says, and tells it when all "
                   "is there.")
      .def("__init__", &create, nb::arg("control"), nb::arg("host"), nb::kw_only(),
           nb::arg("tp_rank") = 0, nb::arg("defer_timeout") = 60, nb::arg("transfer_timeout") = 30,
           nb::sig("def __init__(self, control: MoriioControl, host: object, *, tp_rank: int = 0, "
                   "defer_timeout: Timeout = 60, transfer_timeout: Timeout = 30) -> None"),
           "`host` has consumer_of(), plan() and post(); they are called by the writer's thread.")
      .def("schedule", &schedule, nb::arg("task"), nb::arg("request_id"), nb::arg("transfer_id"),
           nb::arg("layer_name"), nb::arg("age") = 0,
           nb::sig("def schedule(self, task: object, request_id: str, transfer_id: str, "
                   "layer_name: str, age: Timeout = 0) -> bool"),
           "`task` is what the host gets again; its `event` is None or has synchronize(). False if "
           "that layer is scheduled already or the transfer has ended.")
      .def(
          "is_scheduled",
          [](Self& self, const std::string& id, const std::string& layer) {
            return self->is_scheduled(id, layer);
          },
          nb::arg("transfer_id"), nb::arg("layer_name"))
      .def(
          "seal_pending", [](Self& self) { self->seal_pending(); },
          "What is scheduled so far is all there is of these transfers. Never waits.")
      .def(
          "abort",
          [](Self& self, const std::string& id, nb::handle timeout) {
            const Duration limit = to_duration(timeout, "timeout");
            check(without_gil([&] { return self->abort(id, limit); }));
          },
          nb::arg("transfer_id"), nb::arg("timeout") = 5,
          nb::sig("def abort(self, transfer_id: str, timeout: Timeout = 5) -> None"),
          "When it returns nothing of the transfer touches memory any more. Raises TimedOut, and "
          "goes on.")
      .def(
          "state",
          [](Self& self, const std::string& id) {
            return to_str(moriio::write_state_name(self->state(id)));
          },
          nb::arg("transfer_id"), nb::sig("def state(self, transfer_id: str) -> str"))
      .def_prop_ro("active", [](Self& self) { return self->active(); })
      .def_prop_ro("batches_posted", [](Self& self) { return self->batches_posted(); })
      .def_prop_ro("bytes_written", [](Self& self) { return self->bytes_written(); })
      .def("close", &Self::close, "Aborts what is under way and joins the thread.");
}

}  // namespace stagelink::bindings
