#include "bindings/pull/py_data_plane.h"

#include <chrono>
#include <string>
#include <utility>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

uint64_t address_of(const void* at) noexcept { return reinterpret_cast<uint64_t>(at); }

// What a method answered, or raised, as a status. Exceptions end here: a wait of C++ is below.
template <typename Call>
Status told(Call&& call) {
  const nb::gil_scoped_acquire gil;
  try {
    const nb::object answer = std::forward<Call>(call)();
    if (answer.is_none()) return {};
    return Status(Reason::kUnreachable, nb::cast<std::string>(nb::str(answer)));
  } catch (const nb::python_error& error) {
    return Status(Reason::kUnreachable, error.what());
  } catch (const nb::cast_error& error) {
    return Status(Reason::kUnreachable, error.what());
  }
}

}  // namespace

PyDataPlane::PyDataPlane(nb::object plane) : plane_(std::move(plane)) {
  const auto [address, bytes] = nb::cast<std::pair<uint64_t, uint64_t>>(plane_.attr("memory")());
  memory_ = {reinterpret_cast<std::byte*>(address), bytes};
  auto [host, port] = nb::cast<std::pair<std::string, uint16_t>>(plane_.attr("endpoint")());
  endpoint_ = {std::move(host), port};
}

PyDataPlane::~PyDataPlane() {
  const nb::gil_scoped_acquire gil;
  plane_.reset();
}

Status PyDataPlane::copy_in(std::span<const std::span<const std::byte>> from,
                            std::span<std::byte> to) {
  return told([&] {
    nb::list sources;
    for (const auto piece : from) {
      sources.append(nb::make_tuple(address_of(piece.data()), piece.size()));
    }
    return plane_.attr("copy_in")(sources, address_of(to.data()));
  });
}

Status PyDataPlane::read(const Endpoint& sender, std::span<const pull::AddressedRange> ranges,
                         Duration timeout) {
  return told([&] {
    nb::list local;
    nb::list remote;
    nb::list sizes;
    for (const pull::AddressedRange& range : ranges) {
      local.append(range.local);
      remote.append(range.remote);
      sizes.append(range.bytes);
    }
    return plane_.attr("read")(sender.host, sender.port, local, remote, sizes,
                               std::chrono::duration<double>(timeout).count());
  });
}

}  // namespace stagelink::bindings
