#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>

#include "bindings/convert/convert.h"
#include "bindings/serializer/payload_path.h"
#include "connector/serializer/encode_plan.h"

namespace stagelink::bindings {

// A plan, and the Python objects whose memory it reads.
struct KeptPlan {
  KeptPlan() = default;
  KeptPlan(KeptPlan&&) = default;
  KeptPlan& operator=(KeptPlan&&) = default;
  KeptPlan(const KeptPlan&) = delete;
  KeptPlan& operator=(const KeptPlan&) = delete;

  serializer::EncodePlan plan;
  std::vector<nanobind::object> owners;
  std::vector<std::unique_ptr<BytesView>> buffers;
};

// Walks a Python object. Nothing is imported: a tensor, an array, a picture can only be there if
// its package is loaded. What is none of the kinds that the table below knows goes to `reduce`, a
// callable of stagelink.serializer, which gives ("value", object), ("time", (seconds, nanoseconds))
// or None.
//
// Thread-safety: used with the interpreter lock, once.
class ObjectEncoder {
 public:
  ObjectEncoder(serializer::Wire wire, bool sum, nanobind::handle reduce);

  // Raises TypeError, naming the place within `object`, for what has no form; Limit (too_large).
  KeptPlan encode(nanobind::handle object) &&;

 private:
  enum class Kind : uint8_t {
    kTensor,
    kNdarray,
    kImage,
    kStruct,
    kDataclass,
    kAttrs,
    kSlice,
    kOther,
  };

  using Fields = std::vector<std::pair<nanobind::object, nanobind::object>>;

  void value(nanobind::handle object);
  bool plain_value(nanobind::handle object);
  void container_or_other(nanobind::handle object);
  void integer(nanobind::handle object);
  void text(nanobind::handle object);
  void bytes(nanobind::handle object);
  void buffer(nanobind::handle object);
  void sequence(nanobind::handle object, serializer::ListKind kind);
  void set(nanobind::handle object, serializer::ListKind kind);
  void dict(nanobind::handle object);
  void key(nanobind::handle object);
  void begin_map(uint64_t count, uint64_t widest);

  Kind kind_of(nanobind::handle type);
  void tensor(nanobind::handle object);
  void ndarray(nanobind::handle object);
  void image(nanobind::handle object);
  void give(const serializer::PlanBuilder::ArrayPart& part, nanobind::handle owner);
  void structure(nanobind::handle object);
  void dataclass(nanobind::handle object);
  void attrs(nanobind::handle object);
  void write_fields(const Fields& fields, uint64_t widest);
  void other(nanobind::handle object);

  void check(const Status& status) const;
  static std::string advice_for(nanobind::handle object);
  [[noreturn]] void refuse(nanobind::handle object, const std::string& why) const;

  serializer::Wire wire_;
  serializer::PlanBuilder builder_;
  nanobind::handle reduce_;
  PayloadPath path_;
  bool in_key_ = false;
  size_t reductions_ = 0;                                 // Answers of `reduce` within answers.
  std::vector<std::pair<nanobind::object, Kind>> kinds_;  // Of the types met so far.
  KeptPlan kept_;
};

}  // namespace stagelink::bindings
