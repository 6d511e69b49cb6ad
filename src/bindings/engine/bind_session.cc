#include <array>
#include <cstdint>
#include <span>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/bind.h"
#include "bindings/convert/convert.h"
#include "bindings/convert/gil.h"
#include "bindings/convert/index_array.h"
#include "bindings/convert/status_error.h"
#include "bindings/objects/py_region.h"
#include "bindings/objects/py_session.h"
#include "bindings/objects/py_transfer.h"

namespace nb = nanobind;

namespace stagelink::bindings {

PySession::PySession(nb::object peer, std::vector<nb::object> locals, Session session)
    : peer_(std::move(peer)), locals_(std::move(locals)), session_(std::move(session)) {
  for (const nb::object& local : locals_) {
    read_only_.push_back(nb::cast<PyRegion&>(local).read_only());
    any_read_only_ = any_read_only_ || read_only_.back();
  }
}

void PySession::check_destination(uint32_t local_region) const {
  // An index that is out of bounds is the engine's to refuse.
  if (local_region >= read_only_.size() || !read_only_[local_region]) return;
  raise(Status(Reason::kReadOnly,
               fmt::format("local region {} lies in read-only memory and cannot be read into",
                           local_region)));
}

void PySession::check_destination(const RangeList& ranges) const {
  if (!any_read_only_) return;
  if (ranges.local_regions.empty()) check_destination(0);
  for (const uint32_t region : ranges.local_regions) check_destination(region);
}

namespace {

enum class Operation : uint8_t { kRead, kWrite };

// A single range up to this is copied with the interpreter lock held: giving it up and taking it
// back costs more than the copy, and when other threads run Python, thousands of times more.
constexpr uint64_t kTinyBytes = 4096;

// The arguments of one batch. Lives until the engine has copied them.
class Ranges {
 public:
  Ranges(nb::handle local_offsets, nb::handle remote_offsets, nb::handle sizes)
      : local_(local_offsets, "local_offsets"),
        remote_(remote_offsets, "remote_offsets"),
        sizes_(sizes, "sizes") {
    const size_t count = local_.values().size();
    if (sizes_.is_scalar() && !local_.is_scalar()) sizes_.repeat(count);
    require_count(remote_.values().size(), "remote_offsets");
    require_count(sizes_.values().size(), "sizes");
    list_ = {local_.values(), remote_.values(), sizes_.values(), {}, {}};
  }

  void set_local_regions(nb::handle indices) {
    list_.local_regions = take(local_regions_, indices, "local_regions");
  }
  void set_remote_regions(nb::handle indices) {
    list_.remote_regions = take(remote_regions_, indices, "remote_regions");
  }

  const RangeList& list() const noexcept { return list_; }
  bool is_tiny() const noexcept {
    return list_.sizes.size() == 1 && list_.sizes.front() <= kTinyBytes;
  }

 private:
  std::span<const uint32_t> take(std::optional<IndexArray<uint32_t>>& array, nb::handle indices,
                                 const char* name) {
    if (indices.is_none()) return {};
    array.emplace(indices, name);
    if (array->is_scalar() && !local_.is_scalar()) array->repeat(local_.values().size());
    require_count(array->values().size(), name);
    return array->values();
  }

  void require_count(size_t count, const char* name) const {
    if (count == local_.values().size()) return;
    raise(Status(Reason::kInvalidArgument, fmt::format("{} has {} values, but local_offsets has {}",
                                                       name, count, local_.values().size())));
  }

  IndexArray<uint64_t> local_;
  IndexArray<uint64_t> remote_;
  IndexArray<uint64_t> sizes_;
  std::optional<IndexArray<uint32_t>> local_regions_;
  std::optional<IndexArray<uint32_t>> remote_regions_;
  RangeList list_;
};

using PySessionHandle = nb::handle_t<PySession>;

template <Operation kOperation, typename Range>
Result<Transfer> start(Session& session, const Range& range, Duration timeout) {
  return kOperation == Operation::kRead ? session.read(range, timeout)
                                        : session.write(range, timeout);
}

template <Operation kOperation>
PyTransfer submit(PySessionHandle self, nb::handle local_offsets, nb::handle remote_offsets,
                  nb::handle sizes, nb::handle local_regions, nb::handle remote_regions,
                  nb::handle timeout) {
  auto& session = *nb::inst_ptr<PySession>(self);
  Ranges ranges(local_offsets, remote_offsets, sizes);
  ranges.set_local_regions(local_regions);
  ranges.set_remote_regions(remote_regions);
  if (kOperation == Operation::kRead) session.check_destination(ranges.list());
  const Duration limit = to_timeout(timeout, "timeout");
  const auto run = [&] { return start<kOperation>(session.session(), ranges.list(), limit); };
  if (!ranges.is_tiny()) return PyTransfer(nb::borrow(self), unwrap(without_gil(run)));
  PyTransfer transfer(nb::borrow(self), unwrap(run()));
  transfer.ended = transfer.transfer.poll() != TransferPhase::kRunning;
  return transfer;
}

// nanobind hands over Python's arguments as they are: (local_offset, remote_offset, nbytes, count,
// local_stride, remote_stride, local_region, remote_region).
using StridedArguments = std::array<nb::handle, 8>;

uint32_t region_index(nb::handle object, const char* name) {
  const uint64_t value = index_value(object, name);
  if (value > UINT32_MAX) {
    raise(Status(Reason::kInvalidArgument, fmt::format("{} = {} is out of range", name, value)));
  }
  return static_cast<uint32_t>(value);
}

template <Operation kOperation>
PyTransfer submit_strided(PySessionHandle self, const StridedArguments& arguments,
                          nb::handle timeout) {
  auto& session = *nb::inst_ptr<PySession>(self);
  StridedRange range;
  range.local_offset = index_value(arguments[0], "local_offset");
  range.remote_offset = index_value(arguments[1], "remote_offset");
  range.bytes = index_value(arguments[2], "nbytes");
  range.count = index_value(arguments[3], "count");
  range.local_stride = index_value(arguments[4], "local_stride");
  range.remote_stride = index_value(arguments[5], "remote_stride");
  range.local_region = region_index(arguments[6], "local_region");
  range.remote_region = region_index(arguments[7], "remote_region");
  if (kOperation == Operation::kRead) session.check_destination(range.local_region);
  const Duration limit = to_timeout(timeout, "timeout");
  return PyTransfer(
      nb::borrow(self),
      unwrap(without_gil([&] { return start<kOperation>(session.session(), range, limit); })));
}

template <Operation kOperation>
void bind_batch(nb::class_<PySession>& type, const char* name, const char* signature,
                const char* doc) {
  type.def(name, &submit<kOperation>, nb::arg("local_offsets").none(),
           nb::arg("remote_offsets").none(), nb::arg("sizes").none(),
           nb::arg("local_regions") = nb::none(), nb::arg("remote_regions") = nb::none(),
           nb::arg("timeout") = nb::none(), nb::sig(signature), doc);
}

template <Operation kOperation>
void bind_strided(nb::class_<PySession>& type, const char* name, const char* signature,
                  const char* doc) {
  type.def(
      name,
      [](PySessionHandle self, nb::handle local_offset, nb::handle remote_offset, nb::handle nbytes,
         nb::handle count, nb::handle local_stride, nb::handle remote_stride,
         nb::handle local_region, nb::handle remote_region, nb::handle timeout) {
        return submit_strided<kOperation>(self,
                                          {local_offset, remote_offset, nbytes, count, local_stride,
                                           remote_stride, local_region, remote_region},
                                          timeout);
      },
      nb::arg("local_offset"), nb::arg("remote_offset"), nb::arg("nbytes"), nb::arg("count"),
      nb::arg("local_stride"), nb::arg("remote_stride"), nb::arg("local_region") = 0,
      nb::arg("remote_region") = 0, nb::arg("timeout") = nb::none(), nb::sig(signature), doc);
}

}  // namespace

#define SL_BATCH_SIGNATURE(name)                                                  \
  "def " name                                                                     \
  "(self, local_offsets: Indices, remote_offsets: Indices, sizes: Indices, "      \
  "local_regions: Indices | None = None, remote_regions: Indices | None = None, " \
  "timeout: Timeout | None = None) -> Transfer"
#define SL_STRIDED_SIGNATURE(name)                                                         \
  "def " name                                                                              \
  "(self, local_offset: int, remote_offset: int, nbytes: int, count: int, "                \
  "local_stride: int, remote_stride: int, local_region: int = 0, remote_region: int = 0, " \
  "timeout: Timeout | None = None) -> Transfer"

void bind_session(nb::module_& m) {
  nb::class_<PySession> type(m, "Session", nb::is_final(),
                             "A peer, local regions and remote regions, prepared for transfers.");
  bind_batch<Operation::kRead>(
      type, "read", SL_BATCH_SIGNATURE("read"),
      "Starts copying sizes[i] bytes from remote_offsets[i] of remote region remote_regions[i] to "
      "local_offsets[i] of local region local_regions[i], for all i, and returns. All or nothing: "
      "a "
      "range out of bounds refuses the batch before a byte moves. An int is one range; sizes and "
      "region indices may be one int for all ranges. Without region indices all ranges lie in "
      "region "
      "0. In a session BY_ADDRESS, remote offsets are addresses in the peer.");
  bind_batch<Operation::kWrite>(type, "write", SL_BATCH_SIGNATURE("write"),
                                "As read(), from local to remote.");
  bind_strided<Operation::kRead>(type, "read_strided", SL_STRIDED_SIGNATURE("read_strided"),
                                 "Reads `count` pieces of `nbytes`, a stride apart on each side.");
  bind_strided<Operation::kWrite>(
      type, "write_strided", SL_STRIDED_SIGNATURE("write_strided"),
      "Writes `count` pieces of `nbytes`, a stride apart on each side.");
  type.def(
      "explain", [](PySession& self) { return self.session().explain(); },
      "One line for each remote region: the transport that serves it, and why it was chosen.");
}

}  // namespace stagelink::bindings
