#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stagelink/status.h"

// The numbers and names of mori's IO API, and our failures in its terms.
namespace stagelink::moriio {

enum class BackendType : uint32_t { kUnknown = 0, kXgmi = 1, kRdma = 2, kTcp = 3, kFabric = 4 };
enum class MemoryLocation : uint32_t { kUnknown = 0, kCpu = 1, kGpu = 2 };

enum class StatusCode : uint32_t {
  kSuccess = 0,
  kInit = 1,
  kInProgress = 2,
  kInvalidArgs = 11,
  kNotFound = 12,
  kRdmaOp = 13,
  kBadState = 14,
  kGpuOp = 15,
};

constexpr bool is_failure(StatusCode code) noexcept { return static_cast<uint32_t>(code) > 10; }

// "XGMI", "SUCCESS"; "unknown" for a number that has no name.
std::string_view backend_name(BackendType type) noexcept;
std::string_view status_code_name(StatusCode code) noexcept;

// The one table from our reasons to mori's codes: invalid_args for what the caller must change,
// not_found for memory and engines that are not there (any more), bad_state for an engine that
// cannot do it, rdma_op for an operation that failed on its way and may be tried again.
StatusCode status_code_of(Reason reason) noexcept;
// Begins with what callers of mori look for: "SQ full" when too many transfers are in flight,
// "length out of range" for a range beyond its memory.
std::string status_message_of(const Status& status);

}  // namespace stagelink::moriio
