#pragma once

#include <cstdlib>
#include <optional>
#include <utility>

#include "stagelink/status.h"

namespace stagelink {

// A value, or the Status that says why there is none. Reading the value of a failure aborts: check
// ok() first.
//
// Thread-safety: as that of T.
template <typename T>
class [[nodiscard]] Result {
 public:
  // Implicit on purpose: `return value;` and `return status;` both read well.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(T value) : value_(std::move(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Status status) noexcept : status_(std::move(status)) {
    if (status_.ok()) std::abort();  // A success must carry a value.
  }

  bool ok() const noexcept { return status_.ok(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }

  T& operator*() & { return checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->checked(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }

 private:
  T& checked() {
    if (!value_.has_value()) std::abort();
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace stagelink

// Return early with the failure of `expr`, a Status. One of two control-flow macros.
#define SL_TRY(expr)                                                                           \
  do {                                                                                         \
    if (::stagelink::Status sl_try_status = (expr); !sl_try_status.ok()) return sl_try_status; \
  } while (false)

// Declare `var` from the value of `expr`, a Result, or return early with its failure.
#define SL_CONCAT_INNER(a, b) a##b
#define SL_CONCAT(a, b) SL_CONCAT_INNER(a, b)
#define SL_ASSIGN(var, expr) SL_ASSIGN_AS(SL_CONCAT(sl_result_, __LINE__), var, expr)
#define SL_ASSIGN_AS(tmp, var, expr)  \
  auto tmp = (expr);                  \
  if (!tmp.ok()) return tmp.status(); \
  var = *std::move(tmp)
