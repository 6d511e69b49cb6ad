#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/deadline.h"
#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/engine_arguments.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/index_array.h"
#include "bindings/convert/status_error.h"
#include "bindings/objects/py_engine.h"
#include "bindings/objects/py_peer.h"
#include "bindings/objects/py_region.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

constexpr Duration kExitTimeout = std::chrono::seconds(2);

}  // namespace

PyEngine::PyEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

PyEngine::~PyEngine() {
  without_gil([this] {
    engine_.reset();
    return 0;
  });
}

void PyEngine::close_at_exit() { (void)close(kExitTimeout); }

Status PyEngine::close(std::optional<Duration> timeout) {
  const Status status = without_gil(
      [&] { return timeout.has_value() ? engine_->close(*timeout) : engine_->close(); });
  if (status.ok()) adopted_.clear();
  return status;
}

namespace {

using PyEngineHandle = nb::handle_t<PyEngine>;

Engine& engine_of(nb::handle self) { return nb::inst_ptr<PyEngine>(self)->engine(); }

PyRegion* allocate(PyEngineHandle self, nb::handle size, nb::handle access, nb::handle pin,
                   nb::handle huge_pages, nb::handle prefault, nb::handle numa_node) {
  AllocateOptions options;
  options.access = to_access(access, "access");
  options.pin = to_effort(pin, "pin");
  options.huge_pages = to_effort(huge_pages, "huge_pages");
  options.prefault = to_effort(prefault, "prefault");
  if (!numa_node.is_none()) options.numa_node = nb::cast<int32_t>(numa_node);
  const uint64_t bytes = to_bytes(size, "size");
  auto region = unwrap(without_gil([&] { return engine_of(self).allocate(bytes, options); }));
  return new PyRegion(nb::borrow(self), std::move(region), std::nullopt);
}

PyRegion* register_object(PyEngineHandle self, nb::handle memory, nb::handle access) {
  PythonMemory held = PythonMemory::of(memory);
  RegisterOptions options;
  options.access = to_access(access, "access");
  if (held.read_only() && options.access != Access::kReadOnly) {
    raise(Status(Reason::kReadOnly,
                 "the memory is read-only; register it with access=\"ro\", or a writable copy"));
  }
  auto region = unwrap(without_gil(
      [&] { return engine_of(self).register_memory(held.address(), held.bytes(), options); }));
  return new PyRegion(nb::borrow(self), std::move(region), std::move(held));
}

PyPeer* connect(PyEngineHandle self, nb::handle target, nb::handle timeout) {
  const Duration limit = to_timeout(timeout, "timeout");
  Engine& engine = engine_of(self);
  if (PyUnicode_Check(target.ptr()) != 0) {
    const auto address = nb::cast<std::string>(target);
    return new PyPeer(nb::borrow(self),
                      unwrap(without_gil([&] { return engine.connect(address, limit); })));
  }
  const BytesView blob(target, "target");
  return new PyPeer(nb::borrow(self),
                    unwrap(without_gil([&] { return engine.connect(blob.bytes(), limit); })));
}

// Waits in pieces, so that Ctrl-C interrupts it.
nb::list notifications(PyEngine& self, nb::handle timeout, nb::handle max) {
  constexpr Duration kSignalInterval = std::chrono::milliseconds(100);
  const Deadline deadline = Deadline::in(to_duration(timeout, "timeout"));
  const uint64_t limit = index_value(max, "max");
  for (;;) {
    const Duration piece = std::min(deadline.left(), kSignalInterval);
    auto messages = unwrap(without_gil([&] { return self.engine().notifications(piece, limit); }));
    if (!messages.empty() || deadline.passed()) {
      nb::list list;
      for (Notification& message : messages) list.append(nb::cast(std::move(message)));
      return list;
    }
    check_signals();
  }
}

void bind_memory(nb::class_<PyEngine>& type) {
  type.def("allocate", &allocate, nb::arg("size"), nb::arg("access") = "rw",
           nb::arg("pin") = nb::none(), nb::arg("huge_pages") = nb::none(),
           nb::arg("prefault") = nb::none(), nb::arg("numa_node") = nb::none(),
           nb::sig(
               "def allocate(self, size: Size, access: Access = 'rw', pin: Effort | None = None, "
               "huge_pages: Effort | None = None, prefault: Effort | None = None, "
               "numa_node: int | None = None) -> Region"),
           "Memory that peers on this host map and copy directly. Zeroed. `access` is what peers "
           "may "
           "do; the rest overrides the engine's options.")
      .def(
          "register", &register_object, nb::arg("memory"), nb::arg("access") = "rw",
          nb::sig("def register(self, memory: object, access: Access = 'rw') -> Region"),
          "Makes existing memory reachable: an array, a tensor of the host's memory, anything with "
          "the buffer protocol, or (address, nbytes). The region keeps the object alive until it "
          "is "
          "deregistered.");
}

void bind_messages(nb::class_<PyEngine>& type) {
  type.def("connect", &connect, nb::arg("target"), nb::arg("timeout") = nb::none(),
           nb::sig("def connect(self, target: typing_extensions.Buffer | str, "
                   "timeout: Timeout | None = None) -> Peer"),
           "Connects to an engine by its descriptor() or its \"host:port\".")
      .def("notifications", &notifications, nb::arg("timeout") = 0, nb::arg("max") = 256,
           nb::sig("def notifications(self, timeout: Timeout = 0, max: int = 256) "
                   "-> list[Notification]"),
           "Messages that have arrived, at most `max`, oldest first for each peer. Waits for the "
           "first "
           "one; an empty list means that none came.")
      .def(
          "fileno", [](PyEngine& self) { return unwrap(self.engine().fileno()); },
          "A descriptor that is readable while notifications wait, for event loops. The engine "
          "owns "
          "it.");
}

void bind_identity(nb::class_<PyEngine>& type) {
  type.def(
          "descriptor", [](PyEngine& self) { return to_bytes_object(self.engine().descriptor()); },
          nb::sig("def descriptor(self) -> bytes"), "What a peer passes to connect().")
      .def_prop_ro(
          "address", [](PyEngine& self) { return self.engine().address(); },
          "\"host:port\", as told to peers.")
      .def_prop_ro("name", [](PyEngine& self) { return self.engine().options().name; })
      .def_prop_ro(
          "instance", [](PyEngine& self) { return self.engine().instance().to_string(); },
          "The id of this life of this engine, 32 hex digits.")
      .def(
          "metrics_text",
          [](PyEngine& self) { return without_gil([&] { return self.engine().metrics_text(); }); },
          "All counters, in the text format of Prometheus.")
      .def("__repr__", [](PyEngine& self) {
        return fmt::format("<stagelink.Engine {} at {}>", self.engine().options().name,
                           self.engine().address());
      });
}

void bind_closing(nb::class_<PyEngine>& type) {
  type.def(
          "close",
          [](PyEngine& self, nb::handle timeout) {
            check(self.close(to_optional_duration(timeout, "timeout")));
          },
          nb::arg("timeout") = nb::none(),
          nb::sig("def close(self, timeout: Timeout | None = None) -> None"),
          "Ends all transfers, tells the peers, gives everything back. May be called again. Raises "
          "Busy, naming what still holds memory.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> typing_extensions.Self"))
      .def(
          "__exit__",
          [](PyEngine& self, nb::handle type_, nb::handle, nb::handle) {
            const Status status = self.close(std::nullopt);
            if (type_.is_none()) check(status);  // Else the exception under way says more.
          },
          nb::arg("exc_type").none(), nb::arg("exc").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, exc_type: type[BaseException] | None, "
                  "exc: BaseException | None, traceback: types.TracebackType | None) -> None"));
}

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<PyEngine> type(
      m, "Engine", nb::is_final(), nb::is_weak_referenceable(),
      "The endpoint of one process. A context manager that closes. All methods "
      "may run at the same time, and release the interpreter lock while they "
      "wait or copy.");
  type.def(
      "__init__",
      [](PyEngine* self, nb::handle config, const nb::kwargs& options) {
        const EngineOptions resolved = engine_options(config, options);
        new (self) PyEngine(unwrap(without_gil([&] { return Engine::create(resolved); })));
      },
      nb::arg("config") = nb::none(), nb::arg("options"), nb::sig(engine_signature()),
      "Options come, in rising order of precedence, from defaults, the file `config`, the "
      "environment (STAGELINK_...), and the keywords.");
  bind_memory(type);
  bind_messages(type);
  bind_identity(type);
  bind_closing(type);
}

}  // namespace stagelink::bindings
