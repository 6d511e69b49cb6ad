#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "base/random.h"
#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/copied_memory.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/index_array.h"
#include "bindings/convert/status_error.h"
#include "bindings/objects/closed_at_exit.h"
#include "connector/encoder_cache/consumer/fetcher.h"
#include "connector/encoder_cache/producer/producer.h"
#include "connector/encoder_cache/registry/registry_server.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

namespace ec = encoder_cache;

// One of the classes of the encoder cache as Python sees it.
//
// Thread-safety: used with the interpreter lock, which its calls give up while they work.
template <typename T>
class PyCacheEnd final : public ClosedAtExit {
 public:
  explicit PyCacheEnd(std::unique_ptr<T> end) noexcept : end_(std::move(end)) {}
  ~PyCacheEnd() override { close_at_exit(); }
  PyCacheEnd(const PyCacheEnd&) = delete;
  PyCacheEnd& operator=(const PyCacheEnd&) = delete;

  T* operator->() const noexcept { return end_.get(); }
  void close_at_exit() override { close(std::chrono::seconds(1)); }
  void close(Duration timeout) {
    without_gil([&] {
      (void)end_->close(timeout);
      return 0;
    });
  }

 private:
  const std::unique_ptr<T> end_;
};

using PyProducer = PyCacheEnd<ec::Producer>;
using PyFetcher = PyCacheEnd<ec::Fetcher>;
using PyConsumer = PyCacheEnd<ec::Consumer>;

ec::CacheOptions cache_options(nb::handle given) {
  const std::string extra = to_text(given, "extra");
  const config::ConfigNode root =
      unwrap(config::parse_config(extra, config::ConfigSyntax::kJson, "ec_connector_extra_config"));
  return unwrap(ec::load_cache_options(root));
}

template <typename T>
void close_end(PyCacheEnd<T>& self, nb::handle timeout) {
  self.close(to_duration(timeout, "timeout"));
}

// Prometheus and Python go by the same counts.
nb::dict counts_of(const ec::CacheMetrics& metrics,
                   uint64_t (ec::CacheMetrics::*count)(Reason) const noexcept) {
  nb::dict out;
  for (int at = 0; at < kReasonCount; ++at) {
    const auto reason = static_cast<Reason>(at);
    if (const uint64_t value = (metrics.*count)(reason); value != 0) {
      out[to_str(reason_name(reason))] = value;
    }
  }
  return out;
}

// --- The producer ---

void open_producer(PyProducer* self, nb::handle extra) {
  const ec::CacheOptions options = cache_options(extra);
  new (self) PyProducer(unwrap(without_gil([&] { return ec::Producer::create(options); })));
}

std::string to_hash(nb::handle mm_hash) { return to_text(mm_hash, "mm_hash"); }

std::vector<uint64_t> to_shape(nb::handle shape) {
  const IndexArray<uint64_t> dims(shape, "shape");
  if (dims.is_scalar())
    raise(Status(Reason::kInvalidArgument, "shape: expected a list of extents"));
  return {dims.values().begin(), dims.values().end()};
}

nb::list fields_of(nb::handle object, const char* name, std::string_view all, size_t count) {
  const nb::list fields = items_of(object, name);
  if (fields.size() == count) return fields;
  raise(Status(Reason::kInvalidArgument,
               fmt::format("{}: expected {}, found {} fields", name, all, fields.size())));
}

bool save(PyProducer& self, nb::handle name, nb::handle shape, nb::handle dtype, nb::handle data) {
  const std::string mm_hash = to_hash(name);
  const PythonMemory memory = memory_in_order(data);
  const ec::EmbeddingInfo info{memory.bytes(), to_shape(shape), to_text(dtype, "dtype")};
  require_element_type(data, info.dtype, "data");
  const auto* const begin = static_cast<const std::byte*>(memory.address());
  const Status status = without_gil([&] {
    return self->save(mm_hash, info, std::span(begin, memory.bytes()), ended_by_signals());
  });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return status.ok();
}

bool push(PyProducer& self, nb::handle transfer_id, nb::handle consumer_zmq, nb::handle mm_hash,
          nb::handle info) {
  const nb::list fields = fields_of(info, "info", "(nbytes, shape, dtype)", 3);
  const ec::PushOrder order{to_text(transfer_id, "transfer_id"),
                            to_text(consumer_zmq, "consumer_zmq"),
                            to_hash(mm_hash),
                            {to_integer(fields[0], "nbytes", 0, UINT64_MAX), to_shape(fields[1]),
                             to_text(fields[2], "dtype")}};
  const Status status = without_gil([&] { return self->push(order); });
  if (status.code() == Code::kInvalidState) raise(status);
  return status.ok();
}

nb::list take_push_failures(PyProducer& self) {
  nb::list out;
  for (const ec::PushFailure& failure : without_gil([&] { return self->take_push_failures(); })) {
    out.append(nb::make_tuple(to_str(failure.transfer_id), to_str(failure.mm_hash),
                              to_str(failure.why.to_string())));
  }
  return out;
}

nb::dict producer_usage(const PyProducer& self) {
  const ec::ProducerUsage usage = self->usage();
  nb::dict out;
  out["entries"] = usage.entries;
  out["pool_size"] = usage.pool_size;
  out["pool_used"] = usage.pool_used;
  out["leases"] = usage.leases;
  out["evictions"] = usage.evictions;
  out["oldest_age_seconds"] = usage.oldest_age_seconds;
  out["saves"] = counts_of(self->metrics(), &ec::CacheMetrics::saves);
  out["peer_pulls"] = counts_of(self->metrics(), &ec::CacheMetrics::peer_pulls);
  out["pushes"] = counts_of(self->metrics(), &ec::CacheMetrics::pushes);
  out["pushes_pending"] = self->pending_pushes();
  return out;
}

void bind_pushes(nb::class_<PyProducer>& producer) {
  producer
      .def("push", &push, as_given("transfer_id"), as_given("consumer_zmq"), as_given("mm_hash"),
           as_given("info"),
           nb::sig("def push(self, transfer_id: str, consumer_zmq: str, mm_hash: str, info: "
                   "tuple[int, Sequence[int], str]) -> bool"),
           "Announce (nbytes, shape, dtype) to its consumer, which gets it once it is saved. Never "
           "waits. False: it is among the failures. InvalidState: closed, or ec_mode is pull.")
      .def(
          "give_up",
          [](PyProducer& self, nb::handle mm_hash, nb::handle why) {
            self->give_up(to_hash(mm_hash), Status(Reason::kCancelled, to_text(why, "why")));
          },
          as_given("mm_hash"), as_given("why"),
          nb::sig("def give_up(self, mm_hash: str, why: str) -> None"),
          "It will not be saved: tell who was promised it.")
      .def(
          "cancel_push",
          [](PyProducer& self, nb::handle transfer_id) {
            self->cancel_push(to_text(transfer_id, "transfer_id"));
          },
          as_given("transfer_id"), nb::sig("def cancel_push(self, transfer_id: str) -> None"),
          "Nobody wants it any more.")
      .def("take_push_failures", &take_push_failures,
           nb::sig("def take_push_failures(self) -> list[tuple[str, str, str]]"),
           "transfer_id, mm_hash and why, since the last look.");
}

void bind_producer(nb::module_& m) {
  nb::class_<PyProducer> producer(m, "EncoderCacheProducer", nb::is_final(),
                                  "Keeps embeddings where consumers read them.");
  bind_pushes(producer);
  producer
      .def(
          "__init__", [](PyProducer* self, nb::handle extra) { open_producer(self, extra); },
          as_given("extra"), nb::sig("def __init__(self, extra: str) -> None"))
      .def("save", &save, as_given("mm_hash"), as_given("shape"), as_given("dtype"),
           as_given("data"),
           nb::sig("def save(self, mm_hash: str, shape: Sequence[int], dtype: str, data: Any) -> "
                   "bool"),
           "Copy and publish. False: it was not saved; why is logged and counted.")
      .def(
          "has", [](PyProducer& self, nb::handle hash) { return self->has(to_hash(hash)); },
          as_given("mm_hash"), nb::sig("def has(self, mm_hash: str) -> bool"))
      .def(
          "evict",
          [](PyProducer& self, nb::handle mm_hash) {
            const std::string hash = to_hash(mm_hash);
            return without_gil([&] { return self->evict(hash); });
          },
          as_given("mm_hash"), nb::sig("def evict(self, mm_hash: str) -> bool"))
      .def(
          "flush",
          [](PyProducer& self, nb::handle timeout) {
            const Duration limit = to_duration(timeout, "timeout");
            check(without_gil([&] { return self->flush(limit); }));
          },
          as_given("timeout") = 5, nb::sig("def flush(self, timeout: Timeout = 5) -> None"),
          "Until the registry has been told of all that was saved.")
      .def_prop_ro("producer_zmq", [](const PyProducer& self) { return self->producer_zmq(); })
      .def_prop_ro("registry_url", [](const PyProducer& self) { return self->registry_url(); })
      .def_prop_ro("usage", &producer_usage, nb::sig("def usage(self) -> dict[str, Any]"))
      .def("metrics_text", [](const PyProducer& self) { return self->metrics_text(); })
      .def("close", &close_end<ec::Producer>, as_given("timeout") = 5,
           nb::sig("def close(self, timeout: Timeout = 5) -> None"));
}

// --- The consumer ---

const char* state_name(ec::FetchState state) noexcept {
  switch (state) {
    case ec::FetchState::kUnknown: return "unknown";
    case ec::FetchState::kLooking: return "looking";
    case ec::FetchState::kExpected: return "expected";
    case ec::FetchState::kLoading: return "loading";
    case ec::FetchState::kReady: return "ready";
    case ec::FetchState::kMissing: break;
  }
  return "missing";
}

// (nbytes, shape, dtype, producer_zmq, generation)
nb::tuple place_tuple(const ec::ProducerEntry& place) {
  nb::list shape;
  for (const uint64_t dim : place.info.shape) shape.append(dim);
  return nb::make_tuple(place.info.nbytes, nb::tuple(shape), place.info.dtype, place.producer_zmq,
                        place.generation);
}

nb::tuple look(PyFetcher& self, nb::handle mm_hash) {
  const ec::FetchView view = self->look(to_hash(mm_hash));
  const bool is_ready = view.state == ec::FetchState::kReady;
  return nb::make_tuple(state_name(view.state), view.why.ok() ? "" : view.why.to_string(),
                        is_ready ? nb::object(place_tuple(view.place)) : nb::object(nb::none()));
}

void open_fetcher(PyFetcher* self, nb::handle extra, nb::handle given_readers) {
  const ec::CacheOptions options = cache_options(extra);
  const auto readers = static_cast<uint32_t>(to_integer(given_readers, "readers", 1, UINT32_MAX));
  new (self) PyFetcher(unwrap(without_gil([&] { return ec::Fetcher::create(options, readers); })));
}

nb::dict consumer_usage(const ec::Consumer& consumer) {
  const ec::ConsumerUsage usage = consumer.usage();
  nb::dict out;
  out["pool_size"] = usage.pool_size;
  out["pool_used"] = usage.pool_used;
  out["in_flight"] = usage.in_flight;
  out["handed_on"] = usage.handed_on;
  out["loads"] = counts_of(consumer.metrics(), &ec::CacheMetrics::loads);
  out["loaded_bytes"] = consumer.metrics().loaded_bytes();
  out["joined"] = consumer.metrics().joined();
  out["fallbacks"] = consumer.metrics().fallbacks();
  return out;
}

nb::dict fetcher_usage(PyFetcher& self) {
  nb::dict out = consumer_usage(self->consumer());
  const ec::FetcherUsage usage = self->usage();
  out["pushes"] = counts_of(self->consumer().metrics(), &ec::CacheMetrics::pushes);
  const ec::PushUsage pushed = self->desk() != nullptr ? self->desk()->usage() : ec::PushUsage();
  out["reservations"] = pushed.reservations;
  out["queued"] = pushed.queued;
  out["idle"] = pushed.idle;
  out["expected"] = usage.expected;
  out["wanted"] = usage.wanted;
  out["looking"] = usage.looking;
  out["loading"] = usage.loading;
  out["ready"] = usage.ready;
  return out;
}

void bind_fetcher(nb::module_& m) {
  nb::class_<PyFetcher>(m, "EncoderCacheFetcher", nb::is_final(),
                        "Finds embeddings and brings them here in the background.")
      .def(
          "__init__",
          [](PyFetcher* self, nb::handle extra, nb::handle readers) {
            open_fetcher(self, extra, readers);
          },
          as_given("extra"), as_given("readers"),
          nb::sig("def __init__(self, extra: str, readers: int) -> None"))
      .def(
          "want", [](PyFetcher& self, nb::handle hash) { self->want(to_hash(hash)); },
          as_given("mm_hash"), nb::sig("def want(self, mm_hash: str) -> None"),
          "Seek it from now on; never waits.")
      .def(
          "expect",
          [](PyFetcher& self, nb::handle mm_hash, nb::handle transfer_id) {
            self->expect(to_hash(mm_hash), to_text(transfer_id, "transfer_id"));
          },
          as_given("mm_hash"), as_given("transfer_id"),
          nb::sig("def expect(self, mm_hash: str, transfer_id: str) -> None"),
          "A producer was told to push it under this transfer; never waits.")
      .def(
          "refuse",
          [](PyFetcher& self, nb::handle transfer_id) {
            self->refuse(to_text(transfer_id, "transfer_id"));
          },
          as_given("transfer_id"), nb::sig("def refuse(self, transfer_id: str) -> None"),
          "Its request needs no push.")
      .def("look", &look, as_given("mm_hash"),
           nb::sig("def look(self, mm_hash: str) -> tuple[str, str, EmbeddingPlace | None]"),
           "State, why it is missing, and where a ready one lies.")
      .def(
          "drop", [](PyFetcher& self, nb::handle hash) { self->drop(to_hash(hash)); },
          as_given("mm_hash"), nb::sig("def drop(self, mm_hash: str) -> None"),
          "Nobody wants it any more.")
      .def(
          "handed_on", [](PyFetcher& self, nb::handle hash) { self->handed_on(to_hash(hash)); },
          as_given("mm_hash"), nb::sig("def handed_on(self, mm_hash: str) -> None"),
          "The workers will get it; forget it here.")
      .def_prop_ro("consumer_zmq", [](const PyFetcher& self) { return self->consumer_zmq(); })
      .def("count_fallback", [](PyFetcher& self) { self->consumer().metrics().count_fallback(); })
      .def_prop_ro("usage", &fetcher_usage, nb::sig("def usage(self) -> dict[str, Any]"))
      .def("metrics_text", [](const PyFetcher& self) { return self->metrics_text(); })
      .def("close", &close_end<ec::Fetcher>, as_given("timeout") = 5,
           nb::sig("def close(self, timeout: Timeout = 5) -> None"));
}

void open_consumer(PyConsumer* self, nb::handle extra) {
  const ec::CacheOptions options = cache_options(extra);
  new (self) PyConsumer(
      unwrap(without_gil([&] { return ec::Consumer::create(options, /*may_hand_on=*/false); })));
}

ec::ProducerEntry place_of(nb::handle object) {
  const nb::list fields =
      fields_of(object, "place", "(nbytes, shape, dtype, producer_zmq, generation)", 5);
  return {{to_integer(fields[0], "nbytes", 0, UINT64_MAX), to_shape(fields[1]),
           to_text(fields[2], "dtype")},
          to_text(fields[3], "producer_zmq"),
          to_integer(fields[4], "generation", 0, UINT64_MAX)};
}

// For each item None, or (reason, message).
nb::list load(PyConsumer& self, nb::handle items, nb::handle timeout, nb::handle is_handed_on) {
  const bool handed_on = to_flag(is_handed_on, "handed_on");
  std::vector<PythonMemory> memory;
  std::vector<ec::LoadRequest> requests;
  for (const nb::handle item : items_of(items, "items")) {
    const nb::list fields = fields_of(item, "item", "(mm_hash, places, memory)", 3);
    ec::LoadRequest request{to_hash(fields[0]), {}, {}, handed_on};
    for (const nb::handle place : items_of(fields[1], "places")) {
      request.producers.push_back(place_of(place));
    }
    memory.push_back(writable_in_order(fields[2], request.mm_hash));
    if (!request.producers.empty()) {
      require_element_type(fields[2], request.producers.front().info.dtype, "memory");
    }
    request.into = {static_cast<std::byte*>(memory.back().address()), memory.back().bytes()};
    requests.push_back(std::move(request));
  }
  const Duration limit = to_timeout(timeout, "timeout");
  const auto ended = without_gil([&] { return self->load(requests, {limit, ended_by_signals()}); });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  nb::list out;
  for (const auto& outcome : ended) {
    const Status& status = outcome.status();
    if (status.ok()) {
      out.append(nb::none());
    } else {
      out.append(nb::make_tuple(to_str(reason_name(status.reason())), status.to_string()));
    }
  }
  return out;
}

void bind_consumer(nb::module_& m) {
  nb::class_<PyConsumer>(m, "EncoderCacheConsumer", nb::is_final(),
                         "Reads embeddings into given memory.")
      .def(
          "__init__", [](PyConsumer* self, nb::handle extra) { open_consumer(self, extra); },
          as_given("extra"), nb::sig("def __init__(self, extra: str) -> None"))
      .def("load", &load, as_given("items"), as_given("timeout") = nb::none(),
           as_given("handed_on") = false,
           nb::sig("def load(self, items: list[tuple[str, list[EmbeddingPlace], Any]], timeout: "
                   "Timeout | None = None, handed_on: bool = False) -> list[tuple[str, str] | "
                   "None]"),
           "(mm_hash, places, memory) of each, all at once; for each None, or why not.")
      .def_prop_ro(
          "usage", [](const PyConsumer& self) { return consumer_usage(*self.operator->()); },
          nb::sig("def usage(self) -> dict[str, Any]"))
      .def("metrics_text", [](const PyConsumer& self) { return self->metrics_text(); })
      .def("close", &close_end<ec::Consumer>, as_given("timeout") = 5,
           nb::sig("def close(self, timeout: Timeout = 5) -> None"));
}

// --- The registry ---

// A registry server and what was published at it from here: a lease for each producer.
//
// Thread-safety: used with the interpreter lock.
class PyRegistry final : public ClosedAtExit {
 public:
  explicit PyRegistry(std::unique_ptr<ec::RegistryServer> server) noexcept
      : server_(std::move(server)) {}
  ~PyRegistry() override { close_at_exit(); }
  PyRegistry(const PyRegistry&) = delete;
  PyRegistry& operator=(const PyRegistry&) = delete;

  ec::RegistryServer& server() const noexcept { return *server_; }
  ec::LeaseId lease_of(const std::string& producer_zmq) {
    const auto [lease, is_new] = leases_.try_emplace(producer_zmq);
    if (is_new) lease->second = random_instance_id();
    return lease->second;
  }
  uint64_t unpublish(nb::handle name) {
    const std::string mm_hash = to_hash(name);
    uint64_t count = 0;
    for (const auto& [producer, lease] : leases_) {
      count += server_->unpublish(lease, std::span(&mm_hash, 1));
    }
    return count;
  }
  void close_at_exit() override {
    without_gil([this] {
      server_->close();
      return 0;
    });
  }

 private:
  const std::unique_ptr<ec::RegistryServer> server_;
  std::map<std::string, ec::LeaseId> leases_;
};

void open_registry(PyRegistry* self, nb::handle host, nb::handle port, nb::handle secret_file) {
  ec::RegistryOptions options;
  options.host = to_text(host, "host");
  options.port = static_cast<uint32_t>(to_integer(port, "port", 0, UINT16_MAX));
  options.secret_file = to_text(secret_file, "secret_file");
  new (self) PyRegistry(unwrap(without_gil([&] { return ec::RegistryServer::start(options); })));
}

void publish(PyRegistry& self, nb::handle name, nb::handle place) {
  const std::string mm_hash = to_hash(name);
  const ec::ProducerEntry entry = place_of(place);
  const ec::PublishedItem item{mm_hash, entry.info, entry.generation};
  const ec::PublishTerms terms{.lease = self.lease_of(entry.producer_zmq),
                               .lease_ttl = Duration::zero(),
                               .item_ttl = Duration::zero(),
                               .producer_zmq = entry.producer_zmq};
  const auto outcome = unwrap(self.server().publish(terms, std::span(&item, 1)));
  check(outcome.items.front());
}

void bind_registry(nb::module_& m) {
  nb::class_<PyRegistry>(m, "EncoderCacheRegistry", nb::is_final(),
                         "Tells consumers over HTTP who has an embedding.")
      .def(
          "__init__",
          [](PyRegistry* self, nb::handle host, nb::handle port, nb::handle secret_file) {
            open_registry(self, host, port, secret_file);
          },
          as_given("host") = "127.0.0.1", as_given("port") = 9018, as_given("secret_file") = "",
          nb::sig("def __init__(self, host: str = '127.0.0.1', port: int = 9018, secret_file: str "
                  "= '') -> None"))
      .def("publish", &publish, as_given("mm_hash"), as_given("place"),
           nb::sig("def publish(self, mm_hash: str, place: EmbeddingPlace) -> None"))
      .def("unpublish", &PyRegistry::unpublish, as_given("mm_hash"),
           nb::sig("def unpublish(self, mm_hash: str) -> int"), "How many entries it had.")
      .def_prop_ro("address",
                   [](const PyRegistry& self) { return self.server().endpoint().to_string(); })
      .def("metrics_text", [](const PyRegistry& self) { return self.server().metrics_text(); })
      .def("close", &PyRegistry::close_at_exit);
}

}  // namespace

void bind_encoder_cache(nb::module_& m) {
  bind_registry(m);
  bind_producer(m);
  bind_fetcher(m);
  bind_consumer(m);
  m.def("encoder_cache_options_text", &ec::cache_options_text,
        "The reference of the connector's options, in Markdown.");
}

}  // namespace stagelink::bindings
