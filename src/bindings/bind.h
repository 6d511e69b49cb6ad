#pragma once

#include <nanobind/nanobind.h>

namespace stagelink::bindings {

// Each adds one concept to the extension module; defined in the bind_*.cc of that name.
void bind_status(nanobind::module_& m);
void bind_capabilities(nanobind::module_& m);
void bind_notification(nanobind::module_& m);
void bind_region(nanobind::module_& m);
void bind_transfer(nanobind::module_& m);
void bind_session(nanobind::module_& m);
void bind_peer(nanobind::module_& m);
void bind_engine(nanobind::module_& m);
void bind_store(nanobind::module_& m);
void bind_moriio_messages(nanobind::module_& m);
void bind_moriio_layout(nanobind::module_& m);
void bind_moriio_io_types(nanobind::module_& m);
void bind_moriio_io_status(nanobind::module_& m);
void bind_moriio_io_session(nanobind::module_& m);
void bind_moriio_io_engine(nanobind::module_& m);
void bind_moriio_rank(nanobind::module_& m);
void bind_moriio_wrapper(nanobind::module_& m);
void bind_moriio_writer(nanobind::module_& m);
void bind_omni_config(nanobind::module_& m);
void bind_store_connector(nanobind::module_& m);
void bind_pull_connector(nanobind::module_& m);
void bind_serializer(nanobind::module_& m);
void bind_encoder_cache(nanobind::module_& m);
void bind_kv(nanobind::module_& m);
void bind_kv_straight(nanobind::module_& m);
void bind_kv_in_place(nanobind::module_& m);

}  // namespace stagelink::bindings
