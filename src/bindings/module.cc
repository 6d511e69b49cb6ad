#include <nanobind/nanobind.h>

#include "bindings/bind.h"
#include "stagelink/version.h"

// Importing this module defines types and does nothing else: no thread, no file, no memory mapping.
NB_MODULE(_core, m) {
  using namespace stagelink::bindings;
  m.doc() = "The engine of stagelink; use it through the package `stagelink`.";
  // What is alive at interpreter exit is closed by the exit handler of objects/closed_at_exit.cc; a
  // report on stderr about objects that the interpreter itself keeps until the end would only
  // alarm.
  nanobind::set_leak_warnings(false);
  m.attr("version") = stagelink::kVersion;
  bind_status(m);
  bind_capabilities(m);
  bind_notification(m);
  bind_region(m);
  bind_transfer(m);
  bind_session(m);
  bind_peer(m);
  bind_engine(m);
  bind_store(m);
  bind_moriio_messages(m);
  bind_moriio_layout(m);
  bind_moriio_io_types(m);
  bind_moriio_io_status(m);
  bind_moriio_io_session(m);
  bind_moriio_io_engine(m);
  bind_moriio_rank(m);
  bind_moriio_wrapper(m);
  bind_moriio_writer(m);
  bind_omni_config(m);
  bind_store_connector(m);
  bind_serializer(m);
  bind_encoder_cache(m);
  bind_kv(m);
  bind_kv_straight(m);
  bind_kv_in_place(m);
  bind_pull_connector(m);
}
