#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "stagelink/notification.h"

namespace nb = nanobind;

namespace stagelink::bindings {

void bind_notification(nb::module_& m) {
  nb::class_<Notification>(
      m, "Notification", nb::is_final(),
      "A message from a peer. One that was sent after a transfer arrives when the "
      "bytes of that transfer are in place, or with the reason why they are not.")
      .def_prop_ro(
          "source", [](const Notification& self) { return self.source.to_string(); },
          "Instance id of the sender.")
      .def_ro("source_name", &Notification::source_name, "The sender's engine name.")
      .def_prop_ro("payload",
                   [](const Notification& self) { return to_bytes_object(self.payload); })
      .def_prop_ro(
          "outcome", [](const Notification& self) { return to_str(reason_name(self.outcome)); },
          "\"ok\", or the reason for which the transfer before it failed.")
      .def("__repr__", [](const Notification& self) {
        return fmt::format("<stagelink.Notification from {}, {} bytes, {}>", self.source_name,
                           self.payload.size(), reason_name(self.outcome));
      });
}

}  // namespace stagelink::bindings
