#pragma once

#include <nanobind/nanobind.h>

#include "bindings/convert/index_array.h"
#include "connector/moriio/io/io_session.h"

namespace stagelink::bindings {

// The offsets and sizes of a batch as Python gives them: lists of int, or arrays that are used in
// place. One size may stand for all ranges. Lives until the engine has copied them.
class PyIoRanges {
 public:
  PyIoRanges(nanobind::handle local_offsets, nanobind::handle remote_offsets,
             nanobind::handle sizes)
      : local_(local_offsets, "local_offsets"),
        remote_(remote_offsets, "remote_offsets"),
        sizes_(sizes, "sizes") {
    if (sizes_.is_scalar() && !local_.is_scalar()) sizes_.repeat(local_.values().size());
  }

  moriio::IoRanges ranges() const noexcept {
    return {local_.values(), remote_.values(), sizes_.values()};
  }
  // Copied with the interpreter lock held: giving it up and taking it back costs more.
  bool is_tiny() const noexcept {
    return sizes_.values().size() == 1 && sizes_.values().front() <= 4096;
  }

 private:
  IndexArray<uint64_t> local_;
  IndexArray<uint64_t> remote_;
  IndexArray<uint64_t> sizes_;
};

}  // namespace stagelink::bindings
