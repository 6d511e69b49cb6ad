#pragma once

#include <utility>

#include <nanobind/nanobind.h>

#include "stagelink/transfer.h"

namespace stagelink::bindings {

// A Transfer as Python sees it: it keeps its session, and thereby the local memory, alive.
//
// Thread-safety: used with the interpreter lock.
struct PyTransfer {
  PyTransfer(nanobind::object session_, Transfer transfer_)
      : session(std::move(session_)), transfer(std::move(transfer_)) {}

  nanobind::object session;
  Transfer transfer;
  bool ended = false;  // Known to have; what it answers then takes no time.
};

}  // namespace stagelink::bindings
