#include <chrono>
#include <optional>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/moriio/py_wrapper.h"

namespace nb = nanobind;

namespace stagelink::bindings {

void PyMoriioWrapper::close() {
  without_gil([this] {
    wrapper_->close();
    return 0;
  });
}

namespace {

using Self = PyMoriioWrapper;
using Place = std::pair<std::string, uint16_t>;

moriio::Role role_of(const std::string& name) {
  if (name == "producer") return moriio::Role::kProducer;
  if (name == "consumer") return moriio::Role::kConsumer;
  if (name == "any") return moriio::Role::kAny;
  raise(Status(Reason::kInvalidArgument,
               fmt::format("role: producer, consumer or any, not \"{}\"", name)));
}

void create(Self* self, const std::string& role, uint32_t tp_size, std::string zmq_library,
            nb::handle notify_timeout, nb::handle unmatched_timeout) {
  moriio::WrapperOptions options;
  options.table.role = role_of(role);
  options.table.tp_size = tp_size;
  options.table.unmatched_timeout = to_duration(unmatched_timeout, "unmatched_timeout");
  options.zmq_library = std::move(zmq_library);
  options.notify_timeout = to_duration(notify_timeout, "notify_timeout");
  new (self) Self(options);
}

Place listen(Self& self, std::string host, uint16_t port, bool allow_wildcard) {
  const zmq::BindOptions options{
      .host = std::move(host), .interface = {}, .port = port, .allow_wildcard = allow_wildcard};
  const Endpoint bound = unwrap(without_gil([&] { return self->listen(options); }));
  return {bound.host, bound.port};
}

moriio::NotifyMessage message_of(const std::optional<std::string>& type, const std::string& id,
                                 uint32_t consumer_tp_size) {
  if (!type) return moriio::LegacyId{id};
  if (*type == "write_done") return moriio::WriteDone{id, {}};
  if (*type == "release") return moriio::Release{id, consumer_tp_size, {}};
  if (*type == "write_failed") return moriio::WriteFailed{id, {}};
  if (*type == "renew") return moriio::Renew{id, {}};
  raise(Status(Reason::kUnsupported, fmt::format("no notification is called {}", *type)));
}

void notify(Self& self, const std::string& host, uint16_t port, const std::string& transfer_id,
            const std::optional<std::string>& type, uint32_t consumer_tp_size, bool wait) {
  const moriio::NotifyMessage message = message_of(type, transfer_id, consumer_tp_size);
  const Endpoint peer{host, port};
  check(without_gil([&] {
    return wait ? self->notify_and_wait(peer, message, self->options().notify_timeout)
                : self->notify(peer, message);
  }));
}

void handle_frame(Self& self, nb::handle frame) {
  const BytesView view(frame, "frame");
  without_gil([&] {
    self->handle_frame(view.bytes());
    return 0;
  });
}

using AllocationTuple = std::tuple<std::string, std::vector<int64_t>, uint32_t>;

std::optional<AllocationTuple> allocation(Self& self, const std::string& transfer_id) {
  const auto found = self->table().allocation(transfer_id);
  if (found == nullptr) return std::nullopt;
  return AllocationTuple{found->request_id, found->block_ids, found->decode_rank};
}

void set_allocation(Self& self, const std::string& transfer_id, std::string request_id,
                    std::vector<int64_t> block_ids, uint32_t decode_rank) {
  moriio::Allocation made{std::move(request_id), std::move(block_ids), decode_rank, {}};
  without_gil([&] {
    self->table().set_allocation(transfer_id, std::move(made));
    return 0;
  });
}

std::vector<std::pair<std::string, uint32_t>> take_acks(Self& self) {
  std::vector<std::pair<std::string, uint32_t>> acks;
  for (auto& ack : self->table().take_acks()) {
    acks.emplace_back(std::move(ack.transfer_id), ack.consumer_tp_size);
  }
  return acks;
}

using EventTuple = std::tuple<std::string, std::string, std::string, std::string>;

std::vector<EventTuple> take_events(Self& self) {
  std::vector<EventTuple> events;
  for (auto& event : self->table().take_events()) {
    events.emplace_back(std::string(moriio::event_name(event.kind)), std::move(event.transfer_id),
                        std::string(reason_name(event.outcome.reason())),
                        std::string(event.outcome.message()));
  }
  return events;
}

nb::dict rejects(Self& self) {
  nb::dict counts;
  for (size_t i = 0; i < moriio::kRejectCount; ++i) {
    const auto reason = static_cast<moriio::Reject>(i);
    counts[to_str(moriio::reject_name(reason))] = self->table().rejects().of(reason);
  }
  return counts;
}

void bind_table(nb::class_<Self>& type) {
  type.def("allocation", &allocation, nb::arg("transfer_id"),
           "(request id, block ids, decode rank) of remote_blocks, or None.")
      .def("set_allocation", &set_allocation, nb::arg("transfer_id"), nb::arg("request_id"),
           nb::arg("block_ids"), nb::arg("decode_rank"), "As if remote_blocks had come.")
      .def(
          "drop_allocation",
          [](Self& self, const std::string& id) { return self->table().drop_allocation(id); },
          nb::arg("transfer_id"))
      .def(
          "allocated", [](Self& self) { return self->table().allocated(); },
          "Ids of the transfers whose blocks are known.")
      .def("take_acks", &take_acks, "Releases since the last call: (id, consumer_tp_size).")
      .def(
          "take_completions", [](Self& self) { return self->table().take_completions(); },
          "Ids of the writes that have been reported done since the last call.")
      .def("take_events", &take_events,
           "(kind, id, reason, message) of what the other two do not tell.")
      .def(
          "add_ack",
          [](Self& self, std::string id, uint32_t size) {
            self->table().add_ack({std::move(id), size});
          },
          nb::arg("transfer_id"), nb::arg("consumer_tp_size") = 1)
      .def(
          "ended", [](Self& self, const std::string& id) { return self->table().ended(id); },
          nb::arg("transfer_id"))
      .def(
          "mark_ended", [](Self& self, const std::string& id) { self->table().mark_ended(id); },
          nb::arg("transfer_id"), "Late messages of it are ignored from now on.");
}

}  // namespace

void bind_moriio_wrapper(nb::module_& m) {
  nb::class_<Self> type(m, "MoriioControl", nb::is_final(), nb::is_weak_referenceable(),
                        "Notifications of one rank: listener, senders and the table of transfers.");
  type.def("__init__", &create, nb::arg("role") = "any", nb::kw_only(), nb::arg("tp_size") = 0,
           nb::arg("zmq_library") = "", nb::arg("notify_timeout") = 5,
           nb::arg("unmatched_timeout") = 120,
           nb::sig("def __init__(self, role: str = 'any', *, tp_size: int = 0, zmq_library: str = "
                   "'', notify_timeout: Timeout = 5, unmatched_timeout: Timeout = 120) -> None"),
           "ZeroMQ is loaded from `zmq_library`, or by its name, when it is first needed.")
      .def("listen", &listen, nb::arg("host"), nb::arg("port"), nb::kw_only(),
           nb::arg("allow_wildcard") = false, "Starts the notify listener; the bound (host, port).")
      .def("notify", &notify, nb::arg("host"), nb::arg("port"), nb::arg("transfer_id"),
           nb::arg("type") = nb::none(), nb::kw_only(), nb::arg("consumer_tp_size") = 1,
           nb::arg("wait") = false,
           "Sends one notification; a bare id without a type. Unless told to wait it returns at "
           "once, and a failure is logged and counted.")
      .def("handle_frame", &handle_frame, nb::arg("frame"),
           nb::sig("def handle_frame(self, frame: Buffer) -> None"),
           "As if the frame had come to the notify port.")
      .def("rejects", &rejects, nb::sig("def rejects(self) -> dict[str, int]"),
           "Messages that were not acted upon, by reason.")
      .def("metrics_text", [](Self& self) { return self->metrics_text(); })
      .def_prop_ro("incarnation", [](Self& self) { return self->incarnation(); })
      .def("close", &Self::close, "Stops the listener and joins its thread.");
  bind_table(type);
}

}  // namespace stagelink::bindings
