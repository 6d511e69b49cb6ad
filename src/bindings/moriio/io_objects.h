#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <nanobind/nanobind.h>

#include "bindings/objects/closed_at_exit.h"
#include "connector/moriio/io/io_engine.h"

namespace stagelink::bindings {

// moriio::IoEngineConfig with the options as Python gave them.
struct PyIoEngineConfig {
  std::string host;
  uint16_t port = 0;
  nanobind::object options;  // A mapping of names of the option table, or None.
};

// mori's RdmaBackendConfig. Only enable_notification has a meaning here; the rest is kept.
struct PyRdmaConfig {
  int64_t qp_per_transfer = 1;
  int64_t post_batch_size = -1;
  int64_t num_worker_threads = -1;
  nanobind::object poll_cq_mode;
  bool enable_notification = true;
  int64_t notif_per_qp = 1024;
  bool enable_transfer_chunking = false;
  int64_t chunk_bytes = 65536;
  int64_t max_chunks_per_transfer = 64;
  int64_t num_nics_per_transfer = 1;
  int64_t max_send_wr = 0;
  int64_t max_cqe_num = 0;
  int64_t max_msg_sge = 0;
};

// mori's XgmiBackendConfig and FabricBackendConfig: there to be named; no such backend is.
struct PyStreamsConfig {
  int64_t num_streams = 64;
  int64_t num_events = 64;
};
struct PyXgmiConfig : PyStreamsConfig {};
struct PyFabricConfig : PyStreamsConfig {};

// Memory of IOEngine.allocate(): the buffer protocol over a region that lives as long as this or
// any view of it.
class PyIoMemory {
 public:
  explicit PyIoMemory(std::shared_ptr<Region> region) noexcept : region_(std::move(region)) {}
  ~PyIoMemory();
  PyIoMemory(const PyIoMemory&) = delete;
  PyIoMemory& operator=(const PyIoMemory&) = delete;

  std::span<std::byte> bytes() const noexcept { return region_->bytes(); }
  static int get_buffer(PyObject* self, Py_buffer* view, int flags) noexcept;

 private:
  std::shared_ptr<Region> region_;
};

// An IO engine as Python sees it: it keeps the tensors that are registered, and is closed at
// interpreter exit if nobody did before.
//
// Thread-safety: used with the interpreter lock.
class PyIoEngine final : public ClosedAtExit {
 public:
  explicit PyIoEngine(std::unique_ptr<moriio::IoEngine> engine);
  ~PyIoEngine() override;
  PyIoEngine(const PyIoEngine&) = delete;
  PyIoEngine& operator=(const PyIoEngine&) = delete;

  moriio::IoEngine& engine() const noexcept { return *engine_; }
  Status close(std::optional<Duration> timeout);
  void close_at_exit() override;
  void keep(uint32_t id, nanobind::object owner) { owners_[id] = std::move(owner); }
  void let_go(uint32_t id) { owners_.erase(id); }

 private:
  std::unique_ptr<moriio::IoEngine> engine_;
  std::map<uint32_t, nanobind::object> owners_;  // Of registered memory.
};

// Our own choice of transports for create_backend().
struct PyTransportsConfig {
  moriio::BackendConfig config;
};

// A session that keeps its engine alive.
struct PyIoSession {
  nanobind::object engine;
  std::shared_ptr<moriio::IoSession> session;
};

}  // namespace stagelink::bindings
