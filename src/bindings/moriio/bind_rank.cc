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
#include "bindings/moriio/io_objects.h"
#include "connector/moriio/rank/rank.h"

namespace nb = nanobind;

namespace stagelink::bindings {

using moriio::CacheLayer;
using moriio::MemoryDesc;
using moriio::PeerAddress;
using moriio::Rank;
using moriio::RankOptions;
using Place = std::pair<std::string, uint16_t>;
using Places = std::vector<Place>;
using Blocks = std::vector<int64_t>;
using Pairs = std::vector<std::pair<Blocks, Blocks>>;
using Spans = std::vector<std::pair<uint64_t, Blocks>>;

namespace {

// A rank as Python sees it; closed at interpreter exit if nobody did before.
//
// Thread-safety: used with the interpreter lock; calls that wait let it go.
class PyRank final : public ClosedAtExit {
 public:
  PyRank(const RankOptions& options, nb::object engine)
      : engine_(std::move(engine)),
        rank_(std::make_unique<Rank>(
            options, std::shared_ptr<moriio::IoEngine>(
                         std::shared_ptr<void>(), &nb::cast<PyIoEngine&>(engine_).engine()))) {}
  ~PyRank() override { close_at_exit(); }
  PyRank(const PyRank&) = delete;
  PyRank& operator=(const PyRank&) = delete;

  Rank& rank() noexcept { return *rank_; }
  void close_at_exit() override {
    without_gil([this] {
      rank_->close();
      return 0;
    });
  }

 private:
  const nb::object engine_;  // Outlives the rank.
  const std::unique_ptr<Rank> rank_;
};

// What computes a layer on a device: the host's event, waited for off its own thread.
class EventTicket final : public moriio::LayerTicket {
 public:
  explicit EventTicket(nb::object event) : event_(std::move(event)) {}
  ~EventTicket() override {
    nb::gil_scoped_acquire gil;
    event_.reset();
  }
  EventTicket(const EventTicket&) = delete;
  EventTicket& operator=(const EventTicket&) = delete;

  Status synchronize() override {
    nb::gil_scoped_acquire gil;
    try {
      event_.attr("synchronize")();
    } catch (const nb::python_error& error) {
      return {Reason::kSystem, fmt::format("the layer's event: {}", error.what())};
    }
    return {};
  }

 private:
  nb::object event_;
};

std::vector<Endpoint> to_endpoints(const Places& places) {
  std::vector<Endpoint> endpoints;
  for (const Place& place : places) endpoints.push_back({place.first, place.second});
  return endpoints;
}

Places to_places(const std::vector<Endpoint>& endpoints) {
  Places places;
  for (const Endpoint& endpoint : endpoints) places.emplace_back(endpoint.host, endpoint.port);
  return places;
}

std::vector<moriio::BlockSpan> to_spans(Spans spans) {
  std::vector<moriio::BlockSpan> result;
  for (auto& [first, ids] : spans) result.push_back({first, std::move(ids)});
  return result;
}

// Reason and text; None for success.
nb::object to_outcome(const Status& status) {
  if (status.ok()) return nb::none();
  return nb::make_tuple(to_str(reason_name(status.reason())), to_str(status.message()));
}

moriio::Role to_role(const std::string& name) {
  if (name == "producer") return moriio::Role::kProducer;
  if (name == "consumer") return moriio::Role::kConsumer;
  if (name == "both") return moriio::Role::kAny;
  raise(Status(Reason::kInvalidArgument, "role: producer, consumer or both, not " + name));
}

void create(PyRank* self, nb::object engine, const nb::kwargs& given) {
  RankOptions options;
  const auto number = [&](const char* name) { return nb::cast<uint32_t>(given[name]); };
  options.role = to_role(nb::cast<std::string>(given["role"]));
  options.host = nb::cast<std::string>(given["host"]);
  options.handshake_port = number("handshake_port");
  options.notify_port = number("notify_port");
  options.place = {number("tp_rank"), number("tp_size"), number("total_kv_heads")};
  options.dp_rank = number("dp_rank");
  options.dp_local = number("dp_local");
  options.zmq_library = nb::cast<std::string>(given["zmq_library"]);
  options.secret_file = nb::cast<std::string>(given["secret_file"]);
  options.transfer_timeout = to_duration(given["transfer_timeout"], "transfer_timeout");
  options.defer_timeout = to_duration(given["defer_timeout"], "defer_timeout");
  new (self) PyRank(options, std::move(engine));
}

void serve(PyRank& self, std::vector<MemoryDesc> memories, std::vector<CacheLayer> layers,
           const nb::dict& about) {
  moriio::RankCache cache;
  cache.memories = std::move(memories);
  cache.layers = std::move(layers);
  cache.groups = nb::cast<uint32_t>(about["groups"]);
  cache.total_kv_heads = nb::cast<uint32_t>(about["total_kv_heads"]);
  cache.tp_rank = nb::cast<uint32_t>(about["tp_rank"]);
  cache.tp_size = nb::cast<uint32_t>(about["tp_size"]);
  cache.engine_id = nb::cast<std::string>(about["engine_id"]);
  cache.attn_backend_name = nb::cast<std::string>(about["attn_backend"]);
  for (const auto& [key, value] : nb::cast<nb::dict>(about["compat"])) {
    cache.compat.emplace(nb::cast<std::string>(key), nb::cast<std::string>(value));
  }
  check(without_gil([&] { return self.rank().serve(std::move(cache)); }));
}

nb::list connect(PyRank& self, const Places& places, nb::handle timeout) {
  const Duration limit = to_duration(timeout, "timeout");
  const std::vector<Endpoint> endpoints = to_endpoints(places);
  const auto outcomes = without_gil([&] { return self.rank().connect(endpoints, limit); });
  nb::list result;
  for (const Status& outcome : outcomes) result.append(to_outcome(outcome));
  return result;
}

Places producers(PyRank& self, const PeerAddress& peer) {
  std::vector<Endpoint> places;
  for (const auto& route : unwrap(self.rank().producers(peer))) places.push_back(route.handshake);
  return to_places(places);
}

nb::object read(PyRank& self, const std::string& transfer_id, const PeerAddress& peer, Pairs pairs,
                nb::handle timeout) {
  const Duration limit = to_duration(timeout, "timeout");
  std::vector<moriio::GroupBlocks> groups;
  for (auto& [local, remote] : pairs) groups.push_back({std::move(local), std::move(remote)});
  return to_outcome(
      without_gil([&] { return self.rank().read(transfer_id, peer, groups, limit); }));
}

nb::object receive(PyRank& self, const std::string& transfer_id, const PeerAddress& peer,
                   std::string request_id, std::string token, Spans spans) {
  Rank::Destination destination{std::move(request_id), std::move(token),
                                to_spans(std::move(spans))};
  return to_outcome(
      without_gil([&] { return self.rank().receive(transfer_id, peer, std::move(destination)); }));
}

nb::object write_layer(PyRank& self, const std::string& transfer_id, uint32_t chunk, uint32_t layer,
                       nb::object event) {
  std::unique_ptr<moriio::LayerTicket> ticket;
  if (!event.is_none()) ticket = std::make_unique<EventTicket>(std::move(event));
  return to_outcome(without_gil(
      [&] { return self.rank().write_layer(transfer_id, chunk, layer, std::move(ticket)); }));
}

Status named_failure(const std::string& reason, const std::string& text) {
  for (int i = 1; i < kReasonCount; ++i) {
    if (reason_name(static_cast<Reason>(i)) == reason) return {static_cast<Reason>(i), text};
  }
  return {Reason::kSystem, text};
}

nb::list take_events(PyRank& self) {
  const auto events = without_gil([&] { return self.rank().take_events(); });
  nb::list result;
  for (const auto& [event, bytes, ranges] : events) {
    result.append(nb::make_tuple(to_str(moriio::event_name(event.kind)), event.transfer_id,
                                 to_outcome(event.outcome), bytes, ranges));
  }
  return result;
}

void bind_values(nb::module_& m) {
  nb::class_<PeerAddress>(m, "PeerAddress", nb::is_final(),
                          "Another engine of a connector, as a request speaks of it.")
      .def(
          "__init__",
          [](PeerAddress* self, std::string host, std::vector<std::string> hosts,
             std::pair<uint32_t, uint32_t> ports, uint32_t tp_size,
             std::pair<uint32_t, uint32_t> dp) {
            new (self) PeerAddress{std::move(host), std::move(hosts), ports.first, ports.second,
                                   tp_size,         dp.first,         dp.second};
          },
          nb::arg("host"), nb::arg("hosts"), nb::arg("ports"), nb::arg("tp_size"), nb::arg("dp"),
          "`ports`: base of handshakes, base of notifications. `tp_size`: 0 for as ours. `dp`: "
          "global data parallel rank, ranks in one pod.");
  nb::class_<CacheLayer>(m, "CacheLayer", nb::is_final(), "One layer of a KV cache.")
      .def(
          "__init__",
          [](CacheLayer* self, std::string name, std::pair<uint32_t, uint32_t> place, uint64_t base,
             std::vector<uint64_t> shape, std::vector<uint64_t> strides, uint32_t element_bytes) {
            new (self) CacheLayer{std::move(name),
                                  place.first,
                                  place.second,
                                  base,
                                  {std::move(shape), std::move(strides), element_bytes},
                                  {}};
          },
          nb::arg("name"), nb::arg("place"), nb::arg("base"), nb::arg("shape"), nb::arg("strides"),
          nb::arg("element_bytes"),
          "`place`: index of its group, index of its memory. Strides in elements.")
      .def(
          "describe",
          [](CacheLayer& self, uint32_t block_size, uint32_t kv_heads, uint32_t head_size,
             uint32_t content_bytes, bool mla, bool opaque) {
            self.spec.block_size = block_size;
            self.spec.num_kv_heads = kv_heads;
            self.spec.head_size = head_size;
            self.spec.content_bytes = content_bytes;
            self.spec.mla = mla;
            self.spec.opaque = opaque;
          },
          nb::arg("block_size"), nb::arg("kv_heads"), nb::arg("head_size"),
          nb::arg("content_bytes"), nb::arg("mla"), nb::arg("opaque"),
          "What the engine knows of the layer apart from the tensor.");
}

using Class = nb::class_<PyRank>;

void bind_links(Class& type) {
  type.def("serve", &serve, nb::arg("memories"), nb::arg("layers"), nb::arg("about"),
           nb::sig("def serve(self, memories: collections.abc.Sequence[MemoryDesc], "
                   "layers: collections.abc.Sequence[CacheLayer], about: dict[str, object]) "
                   "-> None"),
           "Listens for handshakes and notifications; the ports are bound when it returns.")
      .def("connect", &connect, nb::arg("places"), nb::arg("timeout"),
           nb::sig("def connect(self, places: collections.abc.Sequence[tuple[str, int]], "
                   "timeout: Timeout) -> list[tuple[str, str] | None]"),
           "Shakes hands with each; None, or reason and text of the failure.")
      .def("producers", &producers, nb::arg("peer"),
           "Handshake places of the ranks that this rank takes from.")
      .def(
          "linked",
          [](PyRank& self, const Places& places) {
            return self.rank().linked(to_endpoints(places));
          },
          nb::arg("places"))
      .def(
          "take_wanted", [](PyRank& self) { return to_places(self.rank().take_wanted()); },
          "Places for which writes wait; each is given once.")
      .def(
          "refuse_link",
          [](PyRank& self, const Place& place, const std::string& reason, const std::string& text) {
            self.rank().refuse_link({place.first, place.second}, named_failure(reason, text));
          },
          nb::arg("place"), nb::arg("reason"), nb::arg("text"), "Writes to that place fail.");
}

void bind_loads(Class& type) {
  type.def("read", &read, nb::arg("transfer_id"), nb::arg("peer"), nb::arg("pairs"),
           nb::arg("timeout"),
           nb::sig("def read(self, transfer_id: str, peer: PeerAddress, "
                   "pairs: collections.abc.Sequence[tuple[collections.abc.Sequence[int], "
                   "collections.abc.Sequence[int]]], timeout: Timeout) -> tuple[str, str] | None"),
           "Starts pulling blocks: for each group, ours and the peer's.")
      .def(
          "wait_read",
          [](PyRank& self, const std::string& transfer_id, nb::handle timeout) {
            const Duration limit = to_duration(timeout, "timeout");
            return to_outcome(
                without_gil([&] { return self.rank().wait_read(transfer_id, limit); }));
          },
          nb::arg("transfer_id"), nb::arg("timeout"),
          nb::sig("def wait_read(self, transfer_id: str, timeout: Timeout) "
                  "-> tuple[str, str] | None"))
      .def(
          "cancel_read",
          [](PyRank& self, const std::string& transfer_id, nb::handle timeout) {
            const Duration limit = to_duration(timeout, "timeout");
            return to_outcome(
                without_gil([&] { return self.rank().cancel_read(transfer_id, limit); }));
          },
          nb::arg("transfer_id"), nb::arg("timeout"),
          nb::sig("def cancel_read(self, transfer_id: str, timeout: Timeout) "
                  "-> tuple[str, str] | None"))
      .def("receive", &receive, nb::arg("transfer_id"), nb::arg("peer"), nb::arg("request_id"),
           nb::arg("token"), nb::arg("spans"),
           nb::sig("def receive(self, transfer_id: str, peer: PeerAddress, request_id: str, "
                   "token: str, spans: collections.abc.Sequence[tuple[int, "
                   "collections.abc.Sequence[int]]]) -> tuple[str, str] | None"),
           "Tells the peer where its blocks go: for each group the first index, and the blocks.")
      .def(
          "producers_alive",
          [](PyRank& self, const PeerAddress& peer) { return self.rank().producers_alive(peer); },
          nb::arg("peer"))
      .def(
          "end_received",
          [](PyRank& self, const std::string& transfer_id, const std::string& reason,
             const std::string& text) {
            return self.rank().end_received(transfer_id, named_failure(reason, text));
          },
          nb::arg("transfer_id"), nb::arg("reason"), nb::arg("text"),
          "The end of a load that did not begin, or that nobody reports any more.")
      .def(
          "release",
          [](PyRank& self, const std::string& transfer_id, const PeerAddress& peer,
             const std::string& token) {
            return to_outcome(self.rank().release(transfer_id, peer, token));
          },
          nb::arg("transfer_id"), nb::arg("peer"), nb::arg("token") = "",
          nb::sig("def release(self, transfer_id: str, peer: PeerAddress, token: str = '') "
                  "-> tuple[str, str] | None"),
          "Tells the peer that its blocks are not wanted (any more).");
}

void bind_sources(Class& type) {
  type.def(
          "offer",
          [](PyRank& self, const std::string& transfer_id, const std::string& token,
             uint32_t releases) {
            return to_outcome(self.rank().offer(transfer_id, token, releases));
          },
          nb::arg("transfer_id"), nb::arg("token"), nb::arg("releases"),
          nb::sig("def offer(self, transfer_id: str, token: str, releases: int) "
                  "-> tuple[str, str] | None"),
          "Blocks wait for readers: for `releases` of them, or (0) as many as they say.")
      .def(
          "end_offer",
          [](PyRank& self, const std::string& transfer_id, const std::string& reason,
             const std::string& text) {
            return self.rank().end_offer(transfer_id, named_failure(reason, text));
          },
          nb::arg("transfer_id"), nb::arg("reason"), nb::arg("text"))
      .def(
          "start_write",
          [](PyRank& self, const std::string& transfer_id, const std::string& request_id,
             const PeerAddress& peer, const std::string& token) {
            return to_outcome(self.rank().start_write(transfer_id, request_id, peer, token));
          },
          nb::arg("transfer_id"), nb::arg("request_id"), nb::arg("peer"), nb::arg("token"),
          nb::sig("def start_write(self, transfer_id: str, request_id: str, peer: PeerAddress, "
                  "token: str) -> tuple[str, str] | None"))
      .def(
          "add_chunk",
          [](PyRank& self, const std::string& transfer_id, Spans spans, bool last) {
            return unwrap(self.rank().add_chunk(transfer_id, to_spans(std::move(spans)), last));
          },
          nb::arg("transfer_id"), nb::arg("spans"), nb::arg("last"),
          nb::sig("def add_chunk(self, transfer_id: str, spans: collections.abc.Sequence[tuple["
                  "int, collections.abc.Sequence[int]]], last: bool) -> int"),
          "Blocks that follow those before; the number of the chunk.")
      .def("write_layer", &write_layer, nb::arg("transfer_id"), nb::arg("chunk"), nb::arg("layer"),
           nb::arg("event").none() = nb::none(),
           nb::sig("def write_layer(self, transfer_id: str, chunk: int, layer: int, "
                   "event: object | None = None) -> tuple[str, str] | None"),
           "The layer's blocks of a chunk are complete, or will be when the event is over.")
      .def(
          "seal",
          [](PyRank& self, const std::string& transfer_id) {
            without_gil([&] {
              self.rank().seal(transfer_id);
              return 0;
            });
          },
          nb::arg("transfer_id"))
      .def(
          "abort_write",
          [](PyRank& self, const std::string& transfer_id, const std::string& why,
             nb::handle timeout) {
            const Duration limit = to_duration(timeout, "timeout");
            return without_gil([&] { return self.rank().abort_write(transfer_id, why, limit); });
          },
          nb::arg("transfer_id"), nb::arg("why"), nb::arg("timeout") = 0,
          nb::sig("def abort_write(self, transfer_id: str, why: str, timeout: Timeout = 0) "
                  "-> bool"),
          "No more is written, and the peer is told. True if nothing reads the blocks any more; "
          "waits for that if asked to.");
}

}  // namespace

void bind_moriio_rank(nb::module_& m) {
  bind_values(m);
  Class type(m, "ConnectorRank", nb::is_final(),
             "The data plane of one rank of a MoRIIO connector: whole requests, by block ids.");
  type.def("__init__", &create, nb::arg("engine"), nb::arg("options"),
           nb::sig("def __init__(self, engine: IOEngine, **options: object) -> None"));
  bind_links(type);
  bind_loads(type);
  bind_sources(type);
  type.def("take_events", &take_events,
           nb::sig("def take_events(self) -> list[tuple[str, str, tuple[str, str] | None, int, "
                   "int]]"),
           "Kind, transfer id, failure, bytes and ranges of each transfer that has ended.")
      .def_prop_ro("incarnation", [](PyRank& self) { return self.rank().incarnation(); })
      .def_prop_ro("bytes_moved", [](PyRank& self) { return self.rank().bytes_moved(); })
      .def("metrics_text",
           [](PyRank& self) { return without_gil([&] { return self.rank().metrics_text(); }); })
      .def("close", &PyRank::close_at_exit, "Stops what runs. May be called again.");
}

}  // namespace stagelink::bindings
