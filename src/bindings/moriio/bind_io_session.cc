#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "bindings/convert/gil.h"
#include "bindings/moriio/io_objects.h"
#include "bindings/moriio/io_ranges.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using moriio::IoSession;
using moriio::StatusRef;

using Start = StatusRef (IoSession::*)(const moriio::IoRanges&, uint64_t);

template <Start kStart>
StatusRef start(PyIoSession& self, nb::handle local_offsets, nb::handle remote_offsets,
                nb::handle sizes, nb::handle transfer_uid) {
  const PyIoRanges ranges(local_offsets, remote_offsets, sizes);
  const uint64_t id = index_value(transfer_uid, "transfer_uid");
  const auto run = [&] { return ((*self.session).*kStart)(ranges.ranges(), id); };
  return ranges.is_tiny() ? run() : without_gil(run);
}

template <Start kStart>
void bind_start(nb::class_<PyIoSession>& type, const char* name, const char* signature,
                const char* doc) {
  type.def(name, &start<kStart>, nb::arg("local_offsets").none(), nb::arg("remote_offsets").none(),
           nb::arg("sizes").none(), nb::arg("transfer_uid").none(), nb::sig(signature), doc);
}

template <Start kStart>
void bind_start_one(nb::class_<PyIoSession>& type, const char* name, const char* signature,
                    const char* doc) {
  type.def(name, &start<kStart>, nb::arg("local_offset").none(), nb::arg("remote_offset").none(),
           nb::arg("size").none(), nb::arg("transfer_uid").none(), nb::sig(signature), doc);
}

}  // namespace

#define SL_ONE_SIGNATURE(name) \
  "def " name                  \
  "(self, local_offset: int, remote_offset: int, size: int, transfer_uid: int) -> TransferStatus"
#define SL_BATCH_SIGNATURE(name)                                                                \
  "def " name                                                                                   \
  "(self, local_offsets: Indices, remote_offsets: Indices, sizes: Indices, transfer_uid: int) " \
  "-> TransferStatus"

void bind_moriio_io_session(nb::module_& m) {
  nb::class_<PyIoSession> type(m, "IOEngineSession", nb::is_final(),
                               "One local and one remote memory, prepared for transfers.");
  bind_start_one<&IoSession::batch_read>(type, "read", SL_ONE_SIGNATURE("read"),
                                         "Starts reading one range.");
  bind_start_one<&IoSession::batch_write>(type, "write", SL_ONE_SIGNATURE("write"),
                                          "Starts writing one range.");
  bind_start<&IoSession::batch_read>(type, "batch_read", SL_BATCH_SIGNATURE("batch_read"),
                                     "Starts reading sizes[i] bytes at remote_offsets[i] to "
                                     "local_offsets[i], for all i, under one "
                                     "status. What is refused (\"SQ full\", \"length out of "
                                     "range\") is a status that has failed on "
                                     "return, and no byte has moved.");
  bind_start<&IoSession::batch_write>(type, "batch_write", SL_BATCH_SIGNATURE("batch_write"),
                                      "As batch_read(), from local to remote.");
  type.def("allocate_transfer_uid",
           [](PyIoSession& self) { return self.session->allocate_transfer_uid(); })
      .def(
          "alive", [](PyIoSession& self) { return self.session->alive(); },
          "The peer answers, and what the session stands on is still registered.")
      .def(
          "explain", [](PyIoSession& self) { return self.session->explain(); },
          "The transport that serves it, and why it was chosen. Not part of mori.");
}

}  // namespace stagelink::bindings
