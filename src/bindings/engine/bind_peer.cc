#include <vector>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/status_error.h"
#include "bindings/objects/py_peer.h"
#include "bindings/objects/py_region.h"
#include "bindings/objects/py_session.h"
#include "bindings/objects/py_transfer.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

const char* phase_name(PeerPhase phase) {
  switch (phase) {
    case PeerPhase::kConnected: return "connected";
    case PeerPhase::kUnreachable: return "unreachable";
    case PeerPhase::kLost: return "lost";
  }
  return "";
}

// One object or a sequence of them; a bytes object is one.
std::vector<nb::object> items_of(nb::handle object) {
  std::vector<nb::object> items;
  if (PyList_Check(object.ptr()) != 0 || PyTuple_Check(object.ptr()) != 0) {
    for (const nb::handle item : object) items.push_back(nb::borrow(item));
  } else {
    items.push_back(nb::borrow(object));
  }
  return items;
}

std::vector<nb::object> local_regions(nb::handle local) {
  std::vector<nb::object> regions = items_of(local);
  for (size_t i = 0; i < regions.size(); ++i) {
    if (nb::isinstance<PyRegion>(regions[i])) continue;
    raise(Status(Reason::kInvalidArgument,
                 fmt::format("local[{}] must be a Region, not {}", i, type_name_of(regions[i]))));
  }
  return regions;
}

std::vector<RegionDesc> remote_regions(nb::handle remote) {
  std::vector<RegionDesc> descs;
  for (const nb::object& item : items_of(remote)) {
    const RegionDesc* desc = nullptr;
    if (nb::try_cast(item, desc) && desc != nullptr) {
      descs.push_back(*desc);
    } else if (PyObject_CheckBuffer(item.ptr()) != 0 && !nb::isinstance<PyRegion>(item)) {
      descs.push_back(unwrap(RegionDesc::unpack(BytesView(item, "remote").bytes())));
    } else {
      raise(Status(Reason::kInvalidArgument,
                   fmt::format("remote[{}] must be a RegionDesc or a packed one, not {}",
                               descs.size(), type_name_of(item))));
    }
  }
  return descs;
}

PySession* make_session(nb::handle_t<PyPeer> self, nb::handle local, nb::handle remote) {
  Peer& peer = nb::inst_ptr<PyPeer>(self)->peer;
  std::vector<nb::object> locals = local_regions(local);
  std::vector<const Region*> regions;
  for (const nb::object& region : locals) {
    regions.push_back(&nb::cast<PyRegion&>(region).region());
  }
  const bool by_address = nb::isinstance<ByAddress>(remote);
  const auto descs = by_address ? std::vector<RegionDesc>() : remote_regions(remote);
  auto session = without_gil(
      [&] { return by_address ? peer.session_by_address(regions) : peer.session(regions, descs); });
  return new PySession(nb::borrow(self), std::move(locals), unwrap(std::move(session)));
}

void notify(PyPeer& self, nb::handle payload, nb::handle after) {
  const BytesView view(payload, "payload");
  PyTransfer* transfer = nullptr;
  if (!after.is_none()) transfer = nb::cast<PyTransfer*>(after);
  check(without_gil([&] {
    return transfer == nullptr ? self.peer.notify(view.bytes())
                               : self.peer.notify(view.bytes(), transfer->transfer);
  }));
}

}  // namespace

void bind_peer(nb::module_& m) {
  nb::class_<ByAddress>(m, "ByAddress", nb::is_final()).def("__repr__", [](const ByAddress&) {
    return "stagelink.BY_ADDRESS";
  });
  m.attr("BY_ADDRESS") = nb::cast(ByAddress{});

  nb::class_<PyPeer>(m, "Peer", nb::is_final(),
                     "Another engine, connected: one life of one process. After PeerLost, connect "
                     "again.")
      .def(
          "session", &make_session, nb::arg("local"), nb::arg("remote"),
          nb::rv_policy::take_ownership,
          nb::sig("def session(self, local: Region | collections.abc.Sequence[Region], "
                  "remote: RemoteRegions | ByAddress) -> Session"),
          "Prepares transfers between local regions and regions of the peer (RegionDesc, packed or "
          "not), or, with remote=BY_ADDRESS, whatever the peer has registered.")
      .def("notify", &notify, nb::arg("payload"), nb::arg("after") = nb::none(),
           nb::sig(
               "def notify(self, payload: typing_extensions.Buffer, after: Transfer | None = None) "
               "-> None"),
           "Sends a message; with `after`, one that arrives only once that transfer has ended.")
      .def(
          "close", [](PyPeer& self) { check(without_gil([&] { return self.peer.close(); })); },
          "Ends the connection and its sessions.")
      .def_prop_ro("instance", [](const PyPeer& self) { return self.peer.instance().to_string(); })
      .def_prop_ro("name", [](const PyPeer& self) { return self.peer.name(); })
      .def_prop_ro(
          "phase", [](const PyPeer& self) { return phase_name(self.peer.phase()); },
          nb::sig("def phase(self) -> PeerPhase"))
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> typing_extensions.Self"))
      .def(
          "__exit__",
          [](PyPeer& self, nb::handle, nb::handle, nb::handle) {
            // Closing a peer that is gone already is what this wants.
            (void)without_gil([&] { return self.peer.close(); });
          },
          nb::arg("exc_type").none(), nb::arg("exc").none(), nb::arg("traceback").none(),
          nb::sig("def __exit__(self, exc_type: type[BaseException] | None, "
                  "exc: BaseException | None, traceback: types.TracebackType | None) -> None"))
      .def("__repr__", [](const PyPeer& self) {
        return fmt::format("<stagelink.Peer {}, {}>", self.peer.name(),
                           phase_name(self.peer.phase()));
      });
}

}  // namespace stagelink::bindings
