#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/engine_arguments.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/moriio/io_objects.h"
#include "bindings/moriio/io_ranges.h"
#include "bindings/moriio/io_status.h"

namespace nb = nanobind;

namespace stagelink::bindings {

using moriio::BackendType;
using moriio::EngineDesc;
using moriio::IoEngine;
using moriio::MemoryDesc;
using moriio::MemoryLocation;
using moriio::StatusRef;

namespace {

constexpr Duration kExitTimeout = std::chrono::seconds(2);

}  // namespace

PyIoMemory::~PyIoMemory() {
  // The last holder waits for peers that are inside.
  without_gil([this] {
    region_.reset();
    return 0;
  });
}

int PyIoMemory::get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  const auto bytes = nb::inst_ptr<PyIoMemory>(self)->bytes();
  view->obj = nullptr;
  return PyBuffer_FillInfo(view, self, bytes.data(), static_cast<Py_ssize_t>(bytes.size()), 0,
                           flags);
}

PyIoEngine::PyIoEngine(std::unique_ptr<IoEngine> engine) : engine_(std::move(engine)) {}

PyIoEngine::~PyIoEngine() {
  without_gil([this] {
    engine_.reset();
    return 0;
  });
}

void PyIoEngine::close_at_exit() { (void)close(kExitTimeout); }

Status PyIoEngine::close(std::optional<Duration> timeout) {
  const Status status = without_gil(
      [&] { return timeout.has_value() ? engine_->close(*timeout) : engine_->close(); });
  if (status.ok()) owners_.clear();
  return status;
}

namespace {

using PyIoEngineHandle = nb::handle_t<PyIoEngine>;
using Class = nb::class_<PyIoEngine>;

void create(PyIoEngine* self, std::string key, const PyIoEngineConfig& config) {
  nb::dict keywords;
  if (!config.options.is_none() && PyDict_Update(keywords.ptr(), config.options.ptr()) != 0) {
    throw nb::python_error();
  }
  moriio::IoEngineConfig resolved;
  resolved.host = config.host;
  resolved.port = config.port;
  resolved.engine = engine_options(nb::none(), nb::borrow<nb::kwargs>(keywords));
  new (self)
      PyIoEngine(unwrap(without_gil([&] { return IoEngine::create(std::move(key), resolved); })));
}

moriio::BackendConfig backend_config(nb::handle config) {
  moriio::BackendConfig result;
  const PyTransportsConfig* ours = nullptr;
  if (nb::try_cast(config, ours) && ours != nullptr) return ours->config;
  const PyRdmaConfig* rdma = nullptr;
  if (nb::try_cast(config, rdma) && rdma != nullptr) {
    result.enable_notification = rdma->enable_notification;
  }
  return result;
}

void create_backend(PyIoEngine& self, BackendType type, nb::handle config) {
  const auto resolved = backend_config(config);
  const Status status = without_gil([&] { return self.engine().create_backend(type, resolved); });
  if (status.reason() == Reason::kUnsupported) {
    const std::string message(status.message());
    PyErr_SetString(PyExc_NotImplementedError, message.c_str());
    throw nb::python_error();
  }
  check(status);
}

MemoryDesc register_address(PyIoEngine& self, uint64_t address, uint64_t bytes, int32_t device_id,
                            MemoryLocation location) {
  return unwrap(without_gil([&] {
    return self.engine().register_memory(reinterpret_cast<void*>(address), bytes, device_id,
                                         location);
  }));
}

// Only what the tensor itself can tell: torch need not be there.
MemoryDesc register_tensor(PyIoEngine& self, nb::object tensor) {
  if (!nb::cast<bool>(tensor.attr("is_contiguous")())) {
    PyErr_SetString(PyExc_RuntimeError, "the tensor must be contiguous");
    throw nb::python_error();
  }
  for (const char* const flag : {"is_conj", "is_neg"}) {
    if (!nb::hasattr(tensor, flag) || !nb::cast<bool>(tensor.attr(flag)())) continue;
    PyErr_SetString(PyExc_RuntimeError,
                    "the tensor's values are not those in its memory: "
                    "register tensor.resolve_conj().resolve_neg()");
    throw nb::python_error();
  }
  const nb::object device = tensor.attr("device");
  const auto type = nb::cast<std::string>(device.attr("type"));
  if (type != "cpu" && type != "cuda") {
    PyErr_SetString(PyExc_KeyError, type.c_str());
    throw nb::python_error();
  }
  const nb::object index = device.attr("index");
  const int32_t device_id = index.is_none() ? -1 : nb::cast<int32_t>(index);
  const auto bytes = nb::cast<uint64_t>(tensor.attr("nelement")()) *
                     nb::cast<uint64_t>(tensor.attr("element_size")());
  const auto address = nb::cast<uint64_t>(tensor.attr("data_ptr")());
  MemoryDesc desc = register_address(self, address, bytes, device_id,
                                     type == "cpu" ? MemoryLocation::kCpu : MemoryLocation::kGpu);
  self.keep(desc.id, std::move(tensor));
  return desc;
}

void deregister_memory(PyIoEngine& self, const MemoryDesc& desc) {
  check(without_gil([&] { return self.engine().deregister_memory(desc); }));
  self.let_go(desc.id);
}

nb::object create_session(PyIoEngineHandle self, const MemoryDesc& local,
                          const MemoryDesc& remote) {
  IoEngine& engine = nb::inst_ptr<PyIoEngine>(self)->engine();
  auto session = without_gil([&] { return engine.create_session(local, remote); });
  if (!session.ok()) return nb::none();  // The reason has been logged.
  return nb::cast(PyIoSession{nb::borrow(self), *std::move(session)});
}

using StartAll = std::vector<StatusRef> (IoEngine::*)(std::span<const moriio::IoTransfer>);

template <StartAll kStart>
StatusRef start_one(PyIoEngine& self, const MemoryDesc& local, nb::handle local_offsets,
                    const MemoryDesc& remote, nb::handle remote_offsets, nb::handle sizes,
                    nb::handle transfer_uid) {
  const PyIoRanges ranges(local_offsets, remote_offsets, sizes);
  const moriio::IoTransfer transfer{local, remote, ranges.ranges(),
                                    index_value(transfer_uid, "transfer_uid")};
  return without_gil([&] { return (self.engine().*kStart)(std::span(&transfer, 1)).front(); });
}

// Lists of the same length: one transfer for each index.
template <StartAll kStart>
nb::object start_many(PyIoEngine& self, nb::handle local, nb::handle local_offsets,
                      nb::handle remote, nb::handle remote_offsets, nb::handle sizes,
                      nb::handle transfer_uids) {
  if (nb::isinstance<MemoryDesc>(local)) {
    return nb::cast(start_one<kStart>(self, nb::cast<const MemoryDesc&>(local), local_offsets,
                                      nb::cast<const MemoryDesc&>(remote), remote_offsets, sizes,
                                      transfer_uids));
  }
  const size_t count = nb::len(local);
  for (const nb::handle other : {local_offsets, remote, remote_offsets, sizes, transfer_uids}) {
    if (nb::len(other) == count) continue;
    raise(Status(Reason::kInvalidArgument,
                 fmt::format("a batch of {} transfers got a list of {}", count, nb::len(other))));
  }
  std::vector<std::unique_ptr<PyIoRanges>> ranges;
  std::vector<moriio::IoTransfer> transfers;
  for (size_t i = 0; i < count; ++i) {
    ranges.push_back(std::make_unique<PyIoRanges>(
        nb::object(local_offsets[i]), nb::object(remote_offsets[i]), nb::object(sizes[i])));
    transfers.push_back({nb::cast<const MemoryDesc&>(nb::object(local[i])),
                         nb::cast<const MemoryDesc&>(nb::object(remote[i])),
                         ranges.back()->ranges(),
                         index_value(nb::object(transfer_uids[i]), "transfer_uids")});
  }
  return nb::cast(without_gil([&] { return (self.engine().*kStart)(transfers); }));
}

nb::object pop_inbound(PyIoEngine& self, const std::string& remote_key, uint64_t transfer_uid) {
  const auto status = without_gil(
      [&] { return self.engine().pop_inbound_transfer_status(remote_key, transfer_uid); });
  return status.has_value() ? nb::cast(*status) : nb::none();
}

PyIoMemory* allocate(PyIoEngine& self, nb::handle size, nb::handle pin, nb::handle huge_pages) {
  AllocateOptions options;
  options.pin = to_effort(pin, "pin");
  options.huge_pages = to_effort(huge_pages, "huge_pages");
  const uint64_t bytes = to_bytes(size, "size");
  return new PyIoMemory(
      unwrap(without_gil([&] { return self.engine().allocate(bytes, options); })));
}

#define SL_ONE_SIGNATURE(name)                                                            \
  "def " name                                                                             \
  "(self, local: MemoryDesc, local_offset: int, remote: MemoryDesc, remote_offset: int, " \
  "size: int, transfer_uid: int) -> TransferStatus"
#define SL_BATCH_OVERLOADS(name)                                           \
  "def " name                                                              \
  "(self, local: MemoryDesc, local_offsets: Indices, remote: MemoryDesc, " \
  "remote_offsets: Indices, sizes: Indices, transfer_uids: int) -> TransferStatus"
#define SL_BATCH_LIST_SIGNATURE(name)                    \
  "def " name                                            \
  "(self, local: collections.abc.Sequence[MemoryDesc], " \
  "local_offsets: collections.abc.Sequence[Indices], "   \
  "remote: collections.abc.Sequence[MemoryDesc], "       \
  "remote_offsets: collections.abc.Sequence[Indices], "  \
  "sizes: collections.abc.Sequence[Indices], "           \
  "transfer_uids: collections.abc.Sequence[int]) -> list[TransferStatus]"

template <StartAll kStart>
void bind_batch(Class& type, const char* name, const char* one, const char* many, const char* doc) {
  type.def(name, &start_one<kStart>, nb::arg("local"), nb::arg("local_offsets").none(),
           nb::arg("remote"), nb::arg("remote_offsets").none(), nb::arg("sizes").none(),
           nb::arg("transfer_uids").none(), nb::sig(one), doc)
      .def(name, &start_many<kStart>, nb::arg("local"), nb::arg("local_offsets"), nb::arg("remote"),
           nb::arg("remote_offsets"), nb::arg("sizes"), nb::arg("transfer_uids"), nb::sig(many),
           "Lists of equal length: one transfer, and one status, for each index.");
}

void bind_transfers(Class& type) {
  type.def("read", &start_one<&IoEngine::batch_read>, nb::arg("local"), nb::arg("local_offset"),
           nb::arg("remote"), nb::arg("remote_offset"), nb::arg("size"), nb::arg("transfer_uid"),
           nb::sig(SL_ONE_SIGNATURE("read")), "Starts reading one range.")
      .def("write", &start_one<&IoEngine::batch_write>, nb::arg("local"), nb::arg("local_offset"),
           nb::arg("remote"), nb::arg("remote_offset"), nb::arg("size"), nb::arg("transfer_uid"),
           nb::sig(SL_ONE_SIGNATURE("write")), "Starts writing one range.");
  bind_batch<&IoEngine::batch_read>(type, "batch_read", SL_BATCH_OVERLOADS("batch_read"),
                                    SL_BATCH_LIST_SIGNATURE("batch_read"),
                                    "As IOEngineSession.batch_read(), with a session that the "
                                    "engine makes and keeps.");
  bind_batch<&IoEngine::batch_write>(type, "batch_write", SL_BATCH_OVERLOADS("batch_write"),
                                     SL_BATCH_LIST_SIGNATURE("batch_write"),
                                     "As batch_read(), from local to remote.");
  type.def("create_session", &create_session, nb::arg("local"), nb::arg("remote"),
           nb::sig("def create_session(self, local: MemoryDesc, remote: MemoryDesc) "
                   "-> IOEngineSession | None"),
           "None if there is no backend, or the remote memory cannot be reached; the log says why.")
      .def("allocate_transfer_uid",
           [](PyIoEngine& self) { return self.engine().allocate_transfer_uid(); })
      .def("pop_inbound_transfer_status", &pop_inbound, nb::arg("remote_key"),
           nb::arg("transfer_uid"),
           nb::sig("def pop_inbound_transfer_status(self, remote_key: str, transfer_uid: int) "
                   "-> TransferStatus | None"),
           "How a transfer ended that a peer has begun: once for each, then None again.")
      .def_static("wait_all", &wait_for_all, nb::arg("statuses"), nb::arg("timeout_ms") = -1,
                  "The first error there is, though another is still in progress; SUCCESS when all "
                  "have succeeded; IN_PROGRESS after the timeout.");
}

void bind_peers(Class& type) {
  type.def(
          "get_engine_desc", [](PyIoEngine& self) { return self.engine().engine_desc(); },
          "Where this engine can be reached.")
      .def("create_backend", &create_backend, nb::arg("type"), nb::arg("config") = nb::none(),
           nb::sig("def create_backend(self, type: BackendType, config: RdmaBackendConfig | "
                   "TransportBackendConfig | XgmiBackendConfig | FabricBackendConfig | None = "
                   "None) -> None"),
           "RDMA takes the best way to each peer, TCP takes tcp alone. XGMI and FABRIC raise "
           "NotImplementedError.")
      .def(
          "remove_backend",
          [](PyIoEngine& self, BackendType t) {
            check(without_gil([&] { return self.engine().remove_backend(t); }));
          },
          nb::arg("type"), "Its sessions fail from now on.")
      .def(
          "register_remote_engine",
          [](PyIoEngine& self, const EngineDesc& desc) {
            check(without_gil([&] { return self.engine().register_remote_engine(desc); }));
          },
          nb::arg("engine_desc"), "Known from now on; connected when first needed.")
      .def(
          "deregister_remote_engine",
          [](PyIoEngine& self, const EngineDesc& desc) {
            check(without_gil([&] { return self.engine().deregister_remote_engine(desc); }));
          },
          nb::arg("engine_desc"), "Ends its sessions.");
}

void bind_io_memory(nb::module_& m, Class& type) {
  static const PyType_Slot kSlots[] = {
      {Py_bf_getbuffer, reinterpret_cast<void*>(&PyIoMemory::get_buffer)},
      {0, nullptr},
  };
  nb::class_<PyIoMemory>(m, "IOMemory", nb::is_final(), nb::type_slots(kSlots),
                         "Memory of IOEngine.allocate(). Has the buffer protocol: "
                         "torch.frombuffer(memory, dtype=...), numpy.asarray(memory). Lives as "
                         "long as it, a view of it or a registration in it.")
      .def_prop_ro(
          "address",
          [](const PyIoMemory& self) { return reinterpret_cast<uint64_t>(self.bytes().data()); })
      .def_prop_ro("nbytes", [](const PyIoMemory& self) { return self.bytes().size(); });
  type.def("allocate", &allocate, nb::arg("size"), nb::arg("pin") = nb::none(),
           nb::arg("huge_pages") = nb::none(),
           nb::sig("def allocate(self, size: Size, pin: Effort | None = None, "
                   "huge_pages: Effort | None = None) -> IOMemory"),
           "Zeroed memory that peers on this host map and copy directly. What is registered inside "
           "it is reached that way. Not part of mori.")
      .def("register_memory", &register_address, nb::arg("ptr"), nb::arg("size"),
           nb::arg("device_id") = -1, nb::arg("loc") = MemoryLocation::kCpu,
           nb::sig("def register_memory(self, ptr: int, size: int, device_id: int = -1, "
                   "loc: MemoryLocationType = ...) -> MemoryDesc"),
           "Memory of the caller, who keeps it valid until it is deregistered.")
      .def("register_torch_tensor", &register_tensor, nb::arg("tensor"),
           nb::sig("def register_torch_tensor(self, tensor: object) -> MemoryDesc"),
           "The tensor is kept until it is deregistered. RuntimeError unless it is contiguous, "
           "KeyError for a device that is neither cpu nor cuda.")
      .def("deregister_memory", &deregister_memory, nb::arg("mem_desc"),
           "After it no peer reaches the memory any more; memory inside an allocation stays "
           "reachable as long as that lives. Raises Busy while a peer is inside: call again.");
}

void bind_closing(Class& type) {
  type.def(
          "metrics_text",
          [](PyIoEngine& self) {
            return without_gil([&] { return self.engine().metrics_text(); });
          },
          "All counters, in the text format of Prometheus. Not part of mori.")
      .def(
          "close",
          [](PyIoEngine& self, nb::handle timeout) {
            check(self.close(to_optional_duration(timeout, "timeout")));
          },
          nb::arg("timeout") = nb::none(),
          nb::sig("def close(self, timeout: Timeout | None = None) -> None"),
          "Ends all transfers and gives everything back. May be called again. Not part of mori.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> typing_extensions.Self"))
      .def(
          "__exit__",
          [](PyIoEngine& self, nb::handle type_, nb::handle, nb::handle) {
            const Status status = self.close(std::nullopt);
            if (type_.is_none()) check(status);  // Else the exception under way says more.
          },
          nb::arg("exc_type").none(), nb::arg("exc").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, exc_type: type[BaseException] | None, "
                  "exc: BaseException | None, traceback: types.TracebackType | None) -> None"));
}

}  // namespace

void bind_moriio_io_engine(nb::module_& m) {
  nb::class_<PyTransportsConfig>(m, "TransportBackendConfig", nb::is_final(),
                                 "Our own choice of transports, by preference: shm cma unix tcp. "
                                 "Not part of mori.")
      .def(
          "__init__",
          [](PyTransportsConfig* self, std::vector<std::string> transports, bool notify) {
            new (self) PyTransportsConfig{{std::move(transports), notify}};
          },
          nb::arg("transports"), nb::arg("enable_notification") = true,
          nb::sig("def __init__(self, transports: collections.abc.Sequence[str], "
                  "enable_notification: bool = True) -> None"));
  Class type(m, "IOEngine", nb::is_final(), nb::is_weak_referenceable(),
             "mori's IOEngine over stagelink's engine. All methods may run at the same time, and "
             "release the interpreter lock while they wait or copy.");
  type.def("__init__", &create, nb::arg("key"),
           nb::arg("config") = PyIoEngineConfig{"", 0, nb::none()},
           nb::sig("def __init__(self, key: str, config: IOEngineConfig = ...) -> None"));
  bind_peers(type);
  bind_io_memory(m, type);
  bind_transfers(type);
  bind_closing(type);
  type.attr("Session") = m.attr("IOEngineSession");
}

}  // namespace stagelink::bindings
