#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/deadline.h"
#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/objects/py_transfer.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

// How long a wait goes on before it looks for Ctrl-C.
constexpr Duration kSignalInterval = std::chrono::milliseconds(100);

const char* phase_name(TransferPhase phase) {
  switch (phase) {
    case TransferPhase::kRunning: return "running";
    case TransferPhase::kSucceeded: return "succeeded";
    case TransferPhase::kFailed: return "failed";
  }
  return "";
}

TransferPhase poll_for(PyTransfer& self, Duration limit) {
  if (self.ended) return self.transfer.poll();
  const auto phase = without_gil([&] { return self.transfer.poll(limit); });
  self.ended = phase != TransferPhase::kRunning;
  return phase;
}

// Waits in pieces, so that Ctrl-C interrupts it. An interrupted transfer runs on.
void wait(PyTransfer& self, nb::handle timeout) {
  const auto limit = to_optional_duration(timeout, "timeout");
  if (!self.ended) {
    const Deadline deadline = Deadline::in(limit.value_or(Deadline::kLongest));
    while (poll_for(self, std::min(deadline.left(), kSignalInterval)) == TransferPhase::kRunning) {
      check_signals();
      if (!deadline.passed()) continue;
      check(without_gil([&] { return self.transfer.wait(Duration::zero()); }));
      return;
    }
  }
  check(self.transfer.status());
}

const char* poll(PyTransfer& self, nb::handle timeout) {
  return phase_name(poll_for(self, to_duration(timeout, "timeout")));
}

const char* phase(PyTransfer& self) { return phase_name(poll_for(self, Duration::zero())); }

nb::object error(const PyTransfer& self) {
  const Status status = self.transfer.status();
  return status.ok() ? nb::none() : to_exception(status);
}

}  // namespace

void bind_transfer(nb::module_& m) {
  nb::class_<PyTransfer>(m, "Transfer", nb::is_final(),
                         "The handle of a submitted batch. Dropping it lets the transfer run on.")
      .def("wait", &wait, nb::arg("timeout") = nb::none(),
           nb::sig("def wait(self, timeout: Timeout | None = None) -> None"),
           "Returns when all bytes are in place; raises what went wrong otherwise. In both cases "
           "nothing touches the local memory any more. Past the timeout (default: the deadline "
           "given "
           "at submission) the transfer is cancelled and TimedOut raised.")
      .def("poll", &poll, nb::arg("timeout") = 0,
           nb::sig("def poll(self, timeout: Timeout = 0) -> Phase"),
           "The phase, after copying for at most `timeout`. Never cancels, never raises the "
           "outcome.")
      .def(
          "cancel",
          [](PyTransfer& self) {
            return phase_name(without_gil([&] { return self.transfer.cancel(); }));
          },
          nb::sig("def cancel(self) -> Phase"),
          "Ends the transfer. When it returns, nothing touches the local memory any more. The "
          "phase "
          "tells whether it had succeeded before.")
      .def_prop_ro("phase", &phase, nb::sig("def phase(self) -> Phase"))
      .def_prop_ro("error", &error, nb::sig("def error(self) -> stagelink.errors.Error | None"),
                   "Why it failed, as the exception that wait() raises; else None.")
      .def_prop_ro("nbytes", [](const PyTransfer& self) { return self.transfer.bytes(); })
      .def("__repr__", [](PyTransfer& self) {
        return fmt::format("<stagelink.Transfer of {} bytes, {}>", self.transfer.bytes(),
                           phase(self));
      });
}

}  // namespace stagelink::bindings
