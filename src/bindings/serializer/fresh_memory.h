#pragma once

#include <cstddef>

namespace stagelink::bindings {

// For memory that was just taken and is to be filled: asks for huge pages where it is large,
// because the faults of small ones take several times as long as the copy. A wish; it may go
// unheard.
void expect_filling(void* memory, size_t bytes) noexcept;

}  // namespace stagelink::bindings
