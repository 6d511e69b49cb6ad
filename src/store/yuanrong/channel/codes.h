#pragma once

#include <cstdint>
#include <string_view>

#include "stagelink/status.h"
#include "store/yuanrong/channel/protocol.h"

// The datasystem's status codes, and what each means here. One table.
namespace stagelink::store::yuanrong {

inline constexpr uint32_t kCodeNotFound = 3;

std::string_view op_name(Op op) noexcept;
// A get whose answer has this code found nothing: also 5, which comes for a key whose only copy was
// on a worker that has restarted.
bool is_miss(uint32_t code) noexcept;
// Why an operation failed.
Status call_failure(Op op, uint32_t code, std::string_view message);
// Why the broker could not connect to the worker.
Status connect_failure(uint32_t code, std::string_view message);

}  // namespace stagelink::store::yuanrong
