#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "base/deadline.h"
#include "bindings/bind.h"
#include "bindings/convert/gil.h"
#include "bindings/moriio/io_status.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using moriio::StatusCode;
using moriio::StatusRef;
using moriio::TransferStatus;

// How long a wait goes on before it looks for Ctrl-C.
constexpr Duration kSignalInterval = std::chrono::milliseconds(100);

Deadline deadline_in_ms(int64_t timeout_ms) {
  constexpr int64_t kLongestMs = Deadline::kLongest / std::chrono::milliseconds(1);
  if (timeout_ms < 0 || timeout_ms > kLongestMs) return Deadline::in(Deadline::kLongest);
  return Deadline::in(std::chrono::milliseconds(timeout_ms));
}

// Waits in pieces, so that Ctrl-C interrupts it.
template <typename Wait>
StatusCode wait_in_pieces(int64_t timeout_ms, Wait&& wait) {
  const Deadline deadline = deadline_in_ms(timeout_ms);
  for (;;) {
    const Duration piece = std::min(deadline.left(), kSignalInterval);
    const StatusCode code = without_gil([&] { return wait(piece); });
    if (code != StatusCode::kInProgress || deadline.passed()) return code;
    check_signals();
  }
}

StatusCode wait_for(TransferStatus& self, int64_t timeout_ms) {
  return wait_in_pieces(timeout_ms, [&](Duration piece) { return self.wait_for(piece); });
}

std::string describe(TransferStatus& self) {
  const std::string message = self.message();
  return fmt::format("<TransferStatus {}{}{}>", moriio::status_code_name(self.code()),
                     message.empty() ? "" : ": ", message);
}

}  // namespace

StatusCode wait_for_all(const std::vector<StatusRef>& statuses, int64_t timeout_ms) {
  return wait_in_pieces(timeout_ms, [&](Duration piece) { return wait_all(statuses, piece); });
}

void bind_moriio_io_status(nb::module_& m) {
  using S = TransferStatus;
  nb::class_<S>(m, "TransferStatus", nb::is_final(),
                "What became of a transfer. Dropping it lets the transfer run on.")
      .def(nb::init<>())
      .def("Code", &S::code)
      .def("Message", &S::message, "Why it failed; else empty.")
      .def("Init", &S::init)
      .def("InProgress", &S::in_progress)
      .def("Succeeded", &S::succeeded)
      .def("Failed", &S::failed)
      .def("Update", &S::update, nb::arg("code"), nb::arg("message"),
           "Sets both, unless there is an error already. Wakes waiters.")
      .def("SetCode", &S::set_code, nb::arg("code"), "Whatever it was. Wakes waiters.")
      .def("SetMessage", &S::set_message, nb::arg("message"))
      .def(
          "Wait", [](S& self) { (void)wait_for(self, -1); },
          "Returns when the transfer is over: look at Code() then.")
      .def("WaitFor", &wait_for, nb::arg("timeout_ms") = -1,
           "The code, which is IN_PROGRESS if the transfer goes on after the timeout. A negative "
           "timeout is none.")
      .def(
          "Cancel", [](S& self) { return without_gil([&] { return self.cancel(); }); },
          "Ends the transfer. When it returns, nothing touches the local memory any more; the code "
          "tells whether it had succeeded before. Not part of mori.")
      .def("__repr__", &describe);
}

}  // namespace stagelink::bindings
