#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/copied_memory.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/pull/pull_metadata.h"
#include "bindings/pull/py_data_plane.h"
#include "bindings/pull/py_pull_connector.h"
#include "bindings/serializer/object_encoder.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using pull::PullConnector;
using pull::PullOptions;

double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

pull::LoadedPullOptions pull_options_of(std::string_view extra) {
  const config::ConfigNode root =
      unwrap(config::parse_config(extra, config::ConfigSyntax::kJson, "extra"));
  return unwrap(pull::load_pull_options(root));
}

PyPullConnector* open_pull_connector(std::string_view extra, nb::object plane) {
  const PullOptions options = pull_options_of(extra).options;
  std::unique_ptr<pull::DataPlane> foreign;
  const bool device = !plane.is_none();
  if (device) foreign = std::make_unique<PyDataPlane>(std::move(plane));
  return new PyPullConnector(
      unwrap(without_gil([&] { return PullConnector::create(options, std::move(foreign)); })),
      device);
}

nb::dict pull_options_dict(const PullOptions& options) {
  nb::dict out;
  out["host"] = options.host;
  out["advertise_host"] = options.advertise_host;
  out["interface"] = options.interface;
  out["zmq_port"] = options.zmq_port;
  out["rpc_port"] = options.rpc_port;
  out["sender_host"] = options.sender_host;
  out["sender_zmq_port"] = options.sender_zmq_port;
  out["secret_file"] = options.secret_file;
  out["runtime_dir"] = options.runtime_dir;
  out["protocol"] = options.protocol;
  out["device_name"] = options.device_name;
  out["memory_pool_size"] = options.memory_pool_size;
  out["pool_device"] = options.pool_device();
  out["can_put"] = options.may_put();
  out["compat_030"] = options.compat_030;
  out["checksum"] = options.checksum;
  out["buffer_ttl"] = seconds_of(options.buffer_ttl);
  out["claim_timeout"] = seconds_of(options.claim_timeout);
  out["ask_timeout"] = seconds_of(options.ask_timeout);
  out["put_timeout"] = seconds_of(options.put_timeout);
  out["max_offers"] = options.max_offers;
  out["max_waiting"] = options.max_waiting;
  out["from_stage"] = options.from_stage;
  out["to_stage"] = options.to_stage;
  out["stage_id"] = options.stage_id;
  return out;
}

// What a call came to: (reason, message, value or None).
nb::tuple outcome(const Status& status) {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();  // Ctrl-C.
  return nb::make_tuple(to_str(reason_name(status.reason())), status.message(), nb::none());
}
nb::tuple outcome(nb::object value) { return nb::make_tuple("ok", "", std::move(value)); }

pull::PutTerms put_terms(nb::handle readers, nb::handle ttl, bool fast) {
  pull::PutTerms terms;
  terms.readers = static_cast<uint32_t>(to_integer(readers, "readers", 0, UINT32_MAX));
  // None: as the options say. 0: for ever.
  if (!ttl.is_none()) {
    terms.ttl = to_duration(ttl, "ttl");
    if (terms.ttl == Duration::zero()) terms.ttl = Duration(-1);
  }
  terms.is_fast_path = fast;
  terms.interrupted = ended_by_signals();
  return terms;
}

// Counted here: the core sees no put before there is memory for it.
template <typename T>
Status refused_put(PyPullConnector& self, const T& failed) {
  self.connector().refuse_put(failed.status());
  return failed.status();
}

nb::tuple put_outcome(const Result<pull::PullMetadata>& put) {
  return put.ok() ? outcome(metadata_dict(*put)) : outcome(put.status());
}

nb::tuple put_bytes(PyPullConnector& self, nb::handle name, nb::handle data, nb::handle readers,
                    nb::handle ttl) {
  const std::string key = to_text(name, "key");
  const pull::PutTerms terms = put_terms(readers, ttl, true);
  if (nb::isinstance<PyPullBuffer>(data)) {
    const auto& buffer = *nb::inst_ptr<PyPullBuffer>(data);
    if (buffer.is_of(self)) {
      const pull::Piece piece = buffer.piece();
      return put_outcome(
          without_gil([&] { return self.connector().put_piece(key, piece, terms); }));
    }
  }
  const PythonMemory memory = memory_in_order(data);
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(memory.address()),
                                         memory.bytes());
  return put_outcome(without_gil([&] { return self.connector().put(key, {&bytes, 1}, terms); }));
}

// Written straight into the pool. A device's pool gets it by its plane, from a copy.
nb::tuple put_plan(PyPullConnector& self, nb::handle name, const KeptPlan& kept, nb::handle readers,
                   nb::handle ttl) {
  const std::string key = to_text(name, "key");
  const pull::PutTerms terms = put_terms(readers, ttl, false);
  return put_outcome(without_gil([&]() -> Result<pull::PullMetadata> {
    if (self.device()) {
      std::vector<std::byte> copy(kept.plan.size());
      SL_TRY(kept.plan.write(copy));
      const std::span<const std::byte> bytes = copy;
      return self.connector().put(key, {&bytes, 1}, terms);
    }
    const Duration timeout = self.connector().options().put_timeout;
    auto piece = self.connector().allocate(kept.plan.size(), timeout, terms.interrupted);
    if (!piece.ok()) return refused_put(self, piece);
    SL_TRY(kept.plan.write(piece->bytes()));
    return self.connector().put_piece(key, *piece, terms);
  }));
}

nb::tuple allocate(PyPullConnector& self, nb::handle size, nb::handle timeout) {
  const uint64_t bytes = to_bytes(size, "size");
  const Duration limit =
      timeout.is_none() ? self.connector().options().put_timeout : to_duration(timeout, "timeout");
  auto piece =
      without_gil([&] { return self.connector().allocate(bytes, limit, ended_by_signals()); });
  if (!piece.ok()) return outcome(piece.status());
  return outcome(
      nb::cast(new PyPullBuffer(*std::move(piece), self), nb::rv_policy::take_ownership));
}

nb::tuple get_outcome(const PyPullConnector& self, Result<pull::Received> got) {
  if (!got.ok()) return outcome(got.status());
  nb::object buffer =
      nb::cast(new PyPullBuffer(std::move(got->piece), self), nb::rv_policy::take_ownership);
  const pull::GetTimes& times = got->times;
  return outcome(nb::make_tuple(std::move(buffer), got->is_fast_path,
                                nb::make_tuple(seconds_of(times.query), seconds_of(times.alloc),
                                               seconds_of(times.read), seconds_of(times.total))));
}

pull::GetTerms get_terms(nb::handle wait, nb::handle timeout) {
  pull::GetTerms terms;
  terms.wait = to_duration(wait, "wait");
  terms.timeout = to_timeout(timeout, "timeout");
  terms.interrupted = ended_by_signals();
  return terms;
}

nb::tuple get_one(PyPullConnector& self, nb::handle name, nb::handle metadata, nb::handle wait,
                  nb::handle timeout) {
  const std::string key = to_text(name, "key");
  const auto place = to_metadata(metadata);
  const pull::GetRequest request{key, place ? &*place : nullptr, {}};
  const pull::GetTerms terms = get_terms(wait, timeout);
  return get_outcome(self, without_gil([&] { return self.connector().get(request, terms); }));
}

nb::list get_many(PyPullConnector& self, nb::handle names, nb::handle metadata, nb::handle wait,
                  nb::handle timeout) {
  std::vector<std::string> keys;
  for (const nb::handle one : items_of(names, "keys")) keys.push_back(to_text(one, "key"));
  std::vector<std::optional<pull::PullMetadata>> places;
  for (const nb::handle one : items_of(metadata, "metadata")) places.push_back(to_metadata(one));
  if (places.size() != keys.size()) {
    raise(Status(Reason::kInvalidArgument, "there must be metadata, or None, for each key"));
  }
  std::vector<pull::GetRequest> requests;
  for (size_t at = 0; at < keys.size(); ++at) {
    requests.push_back({keys[at], places[at] ? &*places[at] : nullptr, {}});
  }
  const pull::GetTerms terms = get_terms(wait, timeout);
  auto received = without_gil([&] { return self.connector().get_many(requests, terms); });
  nb::list out;
  for (auto& one : received) out.append(get_outcome(self, std::move(one)));
  return out;
}

nb::dict health_dict(const PyPullConnector& self) {
  const pull::PullHealth health = without_gil([&] { return self.connector().health(); });
  nb::dict out;
  out["host"] = health.address.host;
  out["zmq_port"] = health.address.zmq_port;
  out["rpc_port"] = health.address.rpc_port;
  out["pool_size"] = health.pool_size;
  out["pool_used"] = health.pool_used;
  out["puts"] = health.puts;
  out["gets"] = health.gets;
  out["bytes_transferred"] = health.bytes_transferred;
  out["errors"] = health.errors;
  out["timeouts"] = health.timeouts;
  out["misses"] = health.misses;
  out["offers"] = health.offers;
  out["claims"] = health.claims;
  out["waiting"] = health.waiting;
  return out;
}

PyType_Slot kPullBufferSlots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(PyPullBuffer::get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(PyPullBuffer::release_buffer)},
    {0, nullptr}};

void bind_pull_buffer(nb::module_& m) {
  nb::class_<PyPullBuffer>(
      m, "PullBuffer", nb::is_weak_referenceable(), nb::type_slots(kPullBufferSlots),
      "A piece of a pool. Has the buffer protocol where the pool is memory of the host: "
      "memoryview(buffer), numpy.frombuffer(buffer). The memory goes back when it is released, or "
      "gone, and nothing looks at it any more.")
      .def(nb::init<const PyPullBuffer&>(), nb::arg("buffer"), "Another share in the same memory.")
      .def_prop_ro("nbytes", [](const PyPullBuffer& self) { return self.piece().bytes().size(); })
      .def("__len__", [](const PyPullBuffer& self) { return self.piece().bytes().size(); })
      .def_prop_ro("address",
                   [](const PyPullBuffer& self) {
                     return reinterpret_cast<uint64_t>(self.piece().bytes().data());
                   })
      .def_prop_ro("on_device", &PyPullBuffer::device, "Whether it is memory of a device.")
      .def_prop_ro("released", &PyPullBuffer::released)
      .def("release", &PyPullBuffer::release,
           "Give the memory back, as soon as no buffer looks at it. May be called again.");
}

void bind_pull_looks(nb::class_<PyPullConnector>& type) {
  type.def_prop_ro(
          "options",
          [](const PyPullConnector& self) { return pull_options_dict(self.connector().options()); },
          nb::sig("def options(self) -> dict[str, Any]"))
      .def("health", &health_dict, nb::sig("def health(self) -> dict[str, Any]"))
      .def("metrics_text",
           [](const PyPullConnector& self) {
             return without_gil([&] { return self.connector().metrics_text(); });
           })
      .def_prop_ro("closed", [](const PyPullConnector& self) { return self.connector().closed(); })
      .def(
          "close",
          [](PyPullConnector& self, nb::handle timeout) {
            const Duration limit = to_duration(timeout, "timeout");
            check(without_gil([&] { return self.connector().close(limit); }));
          },
          as_given("timeout") = 5, nb::sig("def close(self, timeout: Timeout = 5) -> None"));
}

}  // namespace

void bind_pull_connector(nb::module_& m) {
  bind_pull_buffer(m);
  nb::class_<PyPullConnector> type(
      m, "PullConnector", nb::is_final(),
      "The core of stagelink.connectors.YuanrongTransferEngineConnector. Calls that may fail give "
      "(reason, message, value), where the reason is `ok` or why not.");
  type.def(nb::new_(&open_pull_connector), nb::arg("extra"), nb::arg("plane") = nb::none())
      .def("put", &put_bytes, as_given("key"), as_given("data"), as_given("readers") = 1,
           as_given("ttl") = nb::none(),
           nb::sig("def put(self, key: str, data: object, readers: int = 1, "
                   "ttl: Timeout | None = None) -> tuple[str, str, dict[str, Any] | None]"),
           "Offer the bytes of an object. A buffer of this connector's pool is offered as it is.")
      .def("put_plan", &put_plan, as_given("key"), nb::arg("plan"), as_given("readers") = 1,
           as_given("ttl") = nb::none(),
           nb::sig("def put_plan(self, key: str, plan: EncodePlan, readers: int = 1, "
                   "ttl: Timeout | None = None) -> tuple[str, str, dict[str, Any] | None]"),
           "Write a payload's plan into the pool and offer it.")
      .def(
          "cleanup",
          [](PyPullConnector& self, nb::handle name) {
            const std::string key = to_text(name, "key");
            return without_gil([&] { return self.connector().cleanup(key); });
          },
          as_given("key"), nb::sig("def cleanup(self, key: str) -> bool"))
      .def("allocate", &allocate, as_given("size"), as_given("timeout") = nb::none(),
           nb::sig("def allocate(self, size: Size, timeout: Timeout | None = None) "
                   "-> tuple[str, str, PullBuffer | None]"))
      .def("get", &get_one, as_given("key"), as_given("metadata"), as_given("wait"),
           as_given("timeout") = nb::none(),
           nb::sig("def get(self, key: str, metadata: Mapping[str, Any] | None, wait: Timeout, "
                   "timeout: Timeout | None = None) -> tuple[str, str, Pulled | None]"),
           "Value: the buffer, whether it holds raw bytes, and the seconds of query, allocation, "
           "read and everything.")
      .def("get_many", &get_many, as_given("keys"), as_given("metadata"), as_given("wait"),
           as_given("timeout") = nb::none(),
           nb::sig("def get_many(self, keys: Sequence[str], "
                   "metadata: list[Mapping[str, Any] | None], wait: Timeout, "
                   "timeout: Timeout | None = None) -> list[tuple[str, str, Pulled | None]]"),
           "From several senders at once.")
      .def(
          "refuse_put",
          [](PyPullConnector& self) {
            self.connector().refuse_put(Status(Reason::kInvalidArgument, ""));
          },
          "Count a put whose payload has no form.")
      .def(
          "refuse_get",
          [](PyPullConnector& self, bool corrupt) {
            const Reason why = corrupt ? Reason::kCorrupt : Reason::kInvalidArgument;
            self.connector().refuse_get(Status(why, ""));
          },
          nb::arg("corrupt"), "Count a get whose metadata, or whose payload, cannot be.")
      .def(
          "update_sender",
          [](PyPullConnector& self, nb::handle host, nb::handle zmq_port) {
            const std::string name = to_text(host, "sender_host");
            const uint64_t port = to_integer(zmq_port, "sender_zmq_port", 1, UINT16_MAX);
            without_gil([&] {
              self.connector().update_sender(name, static_cast<uint16_t>(port));
              return 0;
            });
          },
          as_given("host"), as_given("zmq_port"),
          nb::sig("def update_sender(self, host: str, zmq_port: int) -> None"));
  bind_pull_looks(type);
  m.attr("MAX_READERS") = pull::kMaxReaders;
  m.def("pull_connector_options_text", &pull::pull_options_text,
        "The reference of a pull connector's options, in Markdown.");
  m.def(
      "pull_connector_options",
      [](std::string_view extra) {
        auto loaded = pull_options_of(extra);
        check(pull::check_pull_options(loaded.options));
        return nb::make_tuple(pull_options_dict(loaded.options), loaded.notes);
      },
      nb::arg("extra"),
      nb::sig("def pull_connector_options(extra: str) -> tuple[dict[str, Any], list[str]]"),
      "The options that a connector would have, and what was changed.");
}

}  // namespace stagelink::bindings
