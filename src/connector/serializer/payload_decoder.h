#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "connector/serializer/payload.h"
#include "stagelink/result.h"

namespace stagelink::serializer {

// Takes the parts of a value in order. Texts, byte strings and arrays are views of the frame. Each
// call may end the decoding by returning false, for which it has its own reason.
class PayloadSink {
 public:
  virtual ~PayloadSink() = default;

  virtual bool nil() = 0;
  virtual bool boolean(bool value) = 0;
  virtual bool integer(int64_t value) = 0;
  virtual bool unsigned_integer(uint64_t value) = 0;  // Only what integer() has no room for.
  virtual bool real(double value) = 0;
  virtual bool time(int64_t seconds, uint32_t nanoseconds) = 0;  // Since 1970, UTC.
  virtual bool text(std::string_view value) = 0;                 // Not yet known to be UTF-8.
  virtual bool bytes(std::span<const std::byte> value) = 0;
  virtual bool array(const ArrayView& value) = 0;
  // `count` entries follow, then end(). All counts of a frame together are less than its bytes.
  virtual bool begin_list(uint64_t count, ListKind kind) = 0;
  // `count` keys, each followed by its value; then end(). A key is no map, no array and no set; a
  // list as a key, and what it holds, is given as a tuple.
  virtual bool begin_map(uint64_t count) = 0;
  virtual bool end() = 0;
};

// Gives the value of a frame of either form to the sink, all of it that is well-formed.
// Errors: corrupt (frame); incompatible (version); cancelled if the sink has said so.
Status decode_payload(std::span<const std::byte> frame, PayloadSink& sink);

// Ok if the frame carries no sum, or the right one. Reads all of its bytes.
// Errors: corrupt (checksum).
Status check_sum(std::span<const std::byte> frame);

}  // namespace stagelink::serializer
