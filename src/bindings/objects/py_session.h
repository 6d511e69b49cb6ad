#pragma once

#include <vector>

#include <nanobind/nanobind.h>

#include "stagelink/range_list.h"
#include "stagelink/session.h"

namespace stagelink::bindings {

// A Session as Python sees it: it keeps its peer and its local regions alive, and knows which of
// them lie in memory that Python does not let anybody write.
//
// Thread-safety: used with the interpreter lock.
class PySession {
 public:
  // `locals` are PyRegions, in the order of the session.
  PySession(nanobind::object peer, std::vector<nanobind::object> locals, Session session);

  Session& session() noexcept { return session_; }
  // Raises Permission (read_only) if a read would go into read-only memory.
  void check_destination(const RangeList& ranges) const;
  void check_destination(uint32_t local_region) const;

 private:
  nanobind::object peer_;
  std::vector<nanobind::object> locals_;
  std::vector<bool> read_only_;
  bool any_read_only_ = false;
  Session session_;
};

}  // namespace stagelink::bindings
