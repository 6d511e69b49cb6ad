#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nanobind/nanobind.h>

#include "stagelink/engine_options.h"
#include "stagelink/region.h"

namespace stagelink::bindings {

// Values of Python as those of the engine. Each raises InvalidArgument, naming the argument and the
// value.

// Seconds as int or float, or text with a unit ("500ms").
Duration to_duration(nanobind::handle value, const char* name);
// None where the engine's own default is meant: no value.
std::optional<Duration> to_optional_duration(nanobind::handle value, const char* name);
// For calls of which zero means the engine's default: None gives zero, and 0 the shortest wait.
Duration to_timeout(nanobind::handle value, const char* name);
// UTF-8 of a str; half a surrogate pair has none.
std::string to_text(nanobind::handle value, const char* name);
// An int from `lowest` to `highest`; what else counts as an index (NumPy's) counts here.
uint64_t to_integer(nanobind::handle value, const char* name, uint64_t lowest, uint64_t highest);
// True or false, and nothing that only looks like it.
bool to_flag(nanobind::handle value, const char* name);
// The items of an iterable that is no text: a text among them would count as its letters.
nanobind::list items_of(nanobind::handle value, const char* name);
// An argument that the function converts by itself, None too.
inline auto as_given(const char* name) { return nanobind::arg(name).none(); }
// Bytes as int, or text with a unit ("64MiB").
uint64_t to_bytes(nanobind::handle value, const char* name);
Access to_access(nanobind::handle value, const char* name);
std::optional<Effort> to_effort(nanobind::handle value, const char* name);

// The bytes of a bytes-like argument, in place.
class BytesView {
 public:
  BytesView(nanobind::handle object, const char* name);
  ~BytesView();
  BytesView(const BytesView&) = delete;
  BytesView& operator=(const BytesView&) = delete;
  std::span<const std::byte> bytes() const noexcept;

 private:
  Py_buffer view_;
};

// What Python shows of an object: at most `most` bytes, cut between two characters, and "..." for
// the rest. "?" where that fails.
std::string shown_of(nanobind::handle object, size_t most = 120);
// The name of an object's type, for messages.
const char* type_name_of(nanobind::handle object) noexcept;

nanobind::str to_str(std::string_view text);
nanobind::bytes to_bytes_object(std::span<const std::byte> bytes);

}  // namespace stagelink::bindings
