#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "base/log.h"
#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/status_error.h"
#include "bindings/moriio/io_objects.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using moriio::BackendType;
using moriio::EngineDesc;
using moriio::MemoryDesc;
using moriio::MemoryLocation;
using moriio::StatusCode;

enum class PollCqMode : uint8_t { kPolling = 0, kEvent = 1 };

void bind_enums(nb::module_& m) {
  nb::enum_<BackendType>(m, "BackendType", nb::is_arithmetic(),
                         "RDMA stands for the best way to each peer, TCP for tcp alone.")
      .value("Unknown", BackendType::kUnknown)
      .value("XGMI", BackendType::kXgmi)
      .value("RDMA", BackendType::kRdma)
      .value("TCP", BackendType::kTcp)
      .value("FABRIC", BackendType::kFabric);
  nb::enum_<MemoryLocation>(m, "MemoryLocationType", nb::is_arithmetic())
      .value("Unknown", MemoryLocation::kUnknown)
      .value("CPU", MemoryLocation::kCpu)
      .value("GPU", MemoryLocation::kGpu);
  nb::enum_<PollCqMode>(m, "PollCqMode", nb::is_arithmetic(), "Without effect: nothing polls here.")
      .value("POLLING", PollCqMode::kPolling)
      .value("EVENT", PollCqMode::kEvent);
  nb::enum_<StatusCode>(m, "StatusCode", nb::is_arithmetic())
      .value("SUCCESS", StatusCode::kSuccess)
      .value("INIT", StatusCode::kInit)
      .value("IN_PROGRESS", StatusCode::kInProgress)
      .value("ERR_INVALID_ARGS", StatusCode::kInvalidArgs)
      .value("ERR_NOT_FOUND", StatusCode::kNotFound)
      .value("ERR_RDMA_OP", StatusCode::kRdmaOp)
      .value("ERR_BAD_STATE", StatusCode::kBadState)
      .value("ERR_GPU_OP", StatusCode::kGpuOp);
}

// pack(), unpack() and ==, which both descriptors have.
template <typename Desc>
void bind_value(nb::class_<Desc>& type, const char* unpack_signature) {
  type.def(
          "pack", [](const Desc& desc) { return to_bytes_object(desc.pack()); },
          nb::sig("def pack(self) -> bytes"))
      .def_static(
          "unpack",
          [](nb::handle blob) { return unwrap(Desc::unpack(BytesView(blob, "blob").bytes())); },
          nb::arg("blob"), nb::sig(unpack_signature), "Raises Corrupt, naming the field.")
      .def(
          "__eq__",
          [](const Desc& desc, nb::handle other) {
            const Desc* that = nullptr;
            return nb::try_cast(other, that) && that != nullptr && desc == *that;
          },
          nb::sig("def __eq__(self, other: object) -> bool"))
      .def("__hash__", [](const Desc& desc) {
        return static_cast<Py_hash_t>(nb::hash(to_bytes_object(desc.pack())));
      });
}

void bind_engine_desc(nb::module_& m) {
  nb::class_<EngineDesc> type(m, "EngineDesc", nb::is_final(),
                              "Where an IO engine can be reached. A value: compare it, pack it, "
                              "send it.");
  type.def_ro("key", &EngineDesc::key)
      .def_ro("node_id", &EngineDesc::node_id)
      .def_ro("hostname", &EngineDesc::hostname)
      .def_ro("host", &EngineDesc::host)
      .def_ro("port", &EngineDesc::port)
      .def_ro("pid", &EngineDesc::pid)
      .def("__repr__", [](const EngineDesc& desc) {
        return fmt::format("<EngineDesc {} at {}:{}, process {}>", desc.key, desc.host, desc.port,
                           desc.pid);
      });
  bind_value(type, "def unpack(blob: typing_extensions.Buffer) -> EngineDesc");
}

void bind_memory_desc(nb::module_& m) {
  nb::class_<MemoryDesc> type(
      m, "MemoryDesc", nb::is_final(),
      "Memory that peers may reach. A value: compare it, pack it, send it.");
  type.def_ro("engine_key", &MemoryDesc::engine_key)
      .def_ro("id", &MemoryDesc::id)
      .def_ro("device_id", &MemoryDesc::device_id)
      .def_ro("device_bus_id", &MemoryDesc::device_bus_id)
      .def_ro("numa_node", &MemoryDesc::numa_node)
      .def_ro("data", &MemoryDesc::data, "The address in the owner's process.")
      .def_ro("size", &MemoryDesc::size)
      .def_ro("loc", &MemoryDesc::loc)
      .def_prop_ro(
          "ipc_handle", [](const MemoryDesc& desc) { return to_bytes_object(desc.ipc_handle); },
          nb::sig("def ipc_handle(self) -> bytes"))
      .def("__repr__", [](const MemoryDesc& desc) {
        return fmt::format("<MemoryDesc {} of {}: {} bytes at {:#x}>", desc.id, desc.engine_key,
                           desc.size, desc.data);
      });
  bind_value(type, "def unpack(blob: typing_extensions.Buffer) -> MemoryDesc");
}

void bind_engine_config(nb::module_& m) {
  nb::class_<PyIoEngineConfig>(
      m, "IOEngineConfig", nb::is_final(),
      "Where an engine listens. An empty host is what option `bind` says (127.0.0.1); port 0 takes "
      "any free one. `options`: further options of stagelink.Engine by name.")
      .def(
          "__init__",
          [](PyIoEngineConfig* self, std::string host, uint16_t port, nb::object options) {
            new (self) PyIoEngineConfig{std::move(host), port, std::move(options)};
          },
          nb::arg("host") = "", nb::arg("port") = 0, nb::arg("options") = nb::none(),
          nb::sig("def __init__(self, host: str = '', port: int = 0, "
                  "options: collections.abc.Mapping[str, object] | None = None) -> None"))
      .def_rw("host", &PyIoEngineConfig::host)
      .def_rw("port", &PyIoEngineConfig::port);
}

void bind_rdma_config(nb::module_& m) {
  using C = PyRdmaConfig;
  nb::class_<C>(m, "RdmaBackendConfig", nb::is_final(),
                "mori's settings. `enable_notification` is obeyed; the others are kept and have no "
                "effect, because there are no queue pairs.")
      .def(
          "__init__",
          [](C* self, int64_t qp_per_transfer, int64_t post_batch_size, int64_t num_worker_threads,
             nb::object poll_cq_mode, bool enable_notification, int64_t notif_per_qp,
             bool enable_transfer_chunking, int64_t chunk_bytes, int64_t max_chunks_per_transfer,
             int64_t num_nics_per_transfer) {
            new (self) C{.qp_per_transfer = qp_per_transfer,
                         .post_batch_size = post_batch_size,
                         .num_worker_threads = num_worker_threads,
                         .poll_cq_mode = std::move(poll_cq_mode),
                         .enable_notification = enable_notification,
                         .notif_per_qp = notif_per_qp,
                         .enable_transfer_chunking = enable_transfer_chunking,
                         .chunk_bytes = chunk_bytes,
                         .max_chunks_per_transfer = max_chunks_per_transfer,
                         .num_nics_per_transfer = num_nics_per_transfer};
          },
          nb::arg("qp_per_transfer") = 1, nb::arg("post_batch_size") = -1,
          nb::arg("num_worker_threads") = -1, nb::arg("poll_cq_mode") = PollCqMode::kPolling,
          nb::arg("enable_notification") = true, nb::arg("notif_per_qp") = 1024,
          nb::arg("enable_transfer_chunking") = false, nb::arg("chunk_bytes") = 65536,
          nb::arg("max_chunks_per_transfer") = 64, nb::arg("num_nics_per_transfer") = 1,
          nb::sig("def __init__(self, qp_per_transfer: int = 1, post_batch_size: int = -1, "
                  "num_worker_threads: int = -1, poll_cq_mode: PollCqMode = ..., "
                  "enable_notification: bool = True, notif_per_qp: int = 1024, "
                  "enable_transfer_chunking: bool = False, chunk_bytes: int = 65536, "
                  "max_chunks_per_transfer: int = 64, num_nics_per_transfer: int = 1) -> None"))
      .def_rw("qp_per_transfer", &C::qp_per_transfer)
      .def_rw("post_batch_size", &C::post_batch_size)
      .def_rw("num_worker_threads", &C::num_worker_threads)
      .def_prop_rw(
          "poll_cq_mode", [](const C& self) { return self.poll_cq_mode; },
          [](C& self, nb::object mode) { self.poll_cq_mode = std::move(mode); },
          nb::for_getter(nb::sig("def poll_cq_mode(self) -> PollCqMode")),
          nb::for_setter(nb::sig("def poll_cq_mode(self, mode: PollCqMode, /) -> None")))
      .def_rw("enable_notification", &C::enable_notification)
      .def_rw("notif_per_qp", &C::notif_per_qp)
      .def_rw("enable_transfer_chunking", &C::enable_transfer_chunking)
      .def_rw("chunk_bytes", &C::chunk_bytes)
      .def_rw("max_chunks_per_transfer", &C::max_chunks_per_transfer)
      .def_rw("num_nics_per_transfer", &C::num_nics_per_transfer)
      .def_rw("max_send_wr", &C::max_send_wr)
      .def_rw("max_cqe_num", &C::max_cqe_num)
      .def_rw("max_msg_sge", &C::max_msg_sge);
}

template <typename Config>
void bind_streams_config(nb::module_& m, const char* name, const char* doc) {
  nb::class_<Config>(m, name, nb::is_final(), doc)
      .def(
          "__init__",
          [](Config* self, int64_t num_streams, int64_t num_events) {
            new (self) Config{{num_streams, num_events}};
          },
          nb::arg("num_streams") = 64, nb::arg("num_events") = 64)
      .def_prop_rw(
          "num_streams", [](const Config& self) { return self.num_streams; },
          [](Config& self, int64_t value) { self.num_streams = value; })
      .def_prop_rw(
          "num_events", [](const Config& self) { return self.num_events; },
          [](Config& self, int64_t value) { self.num_events = value; });
}

void bind_log_level(nb::module_& m) {
  m.def(
      "set_log_level",
      [](std::string_view level) {
        constexpr std::pair<std::string_view, LogLevel> kLevels[] = {
            {"trace", LogLevel::kDebug},     {"debug", LogLevel::kDebug},
            {"info", LogLevel::kInfo},       {"warn", LogLevel::kWarning},
            {"warning", LogLevel::kWarning}, {"error", LogLevel::kError},
            {"err", LogLevel::kError},       {"critical", LogLevel::kError},
            {"off", LogLevel::kOff}};
        for (const auto& [name, value] : kLevels) {
          if (name == level) return stagelink::set_log_level(value);
        }
        raise(Status(Reason::kInvalidArgument,
                     fmt::format("log level \"{}\": expected trace, debug, info, warning, error, "
                                 "critical or off",
                                 level)));
      },
      nb::arg("level"), nb::sig("def set_log_level(level: str) -> None"),
      "Of this process, for all of stagelink: trace debug info warning error critical off.");
}

}  // namespace

void bind_moriio_io_types(nb::module_& m) {
  bind_enums(m);
  bind_engine_desc(m);
  bind_memory_desc(m);
  bind_engine_config(m);
  bind_rdma_config(m);
  bind_streams_config<PyXgmiConfig>(m, "XgmiBackendConfig",
                                    "mori's settings for copies between GPUs of one host. "
                                    "create_backend() refuses them by name.");
  bind_streams_config<PyFabricConfig>(m, "FabricBackendConfig",
                                      "mori's settings for copies over a GPU fabric. "
                                      "create_backend() refuses them by name.");
  bind_log_level(m);
}

}  // namespace stagelink::bindings
