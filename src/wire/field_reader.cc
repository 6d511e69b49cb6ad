#include "wire/field_reader.h"

#include <fmt/format.h>

#include "base/text.h"

namespace stagelink::wire {

std::string FieldReader::get_text(const char* field, size_t max_bytes) {
  const auto text = in_.get_string();
  note(field);
  if (text.size() > max_bytes) {
    reject(field, "is too long, bytes", text.size());
  } else if (!is_plain_text(text)) {
    reject(field, "is no plain text, bytes", text.size());
  }
  return ok() ? std::string(text) : std::string();
}

void FieldReader::reject(const char* field, const char* why, uint64_t value) {
  if (failed_field_ != nullptr) return;
  failed_field_ = field;
  why_ = fmt::format("{} ({})", why, value);
  in_.fail();
}

Status FieldReader::finish(bool may_have_more) const {
  if (failed_field_ != nullptr) {
    return Status(Reason::kFrame, fmt::format("{}: {} {}", what_, failed_field_,
                                              why_.empty() ? "is cut off" : why_));
  }
  if (in_.left() != 0 && !may_have_more) {
    return Status(Reason::kFrame, fmt::format("{}: {} bytes follow its end", what_, in_.left()));
  }
  return {};
}

}  // namespace stagelink::wire
