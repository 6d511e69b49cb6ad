#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "store/backend.h"
#include "store/yuanrong/channel/worker_port.h"
#include "store/yuanrong/large_objects.h"

namespace stagelink::store::yuanrong {

// How the datasystem is to keep what is put.
struct PutShape {
  uint32_t write_mode = 0;
  uint32_t ttl_s = 0;
};

// A put: small values are written into memory of this process and travel with the request, larger
// ones into the worker's own memory, beyond a chunk into several objects of it. Errors: no_space,
// unreachable, peer_lost, timed_out, limit (too_large).
Result<WriterPtr> begin_put(std::shared_ptr<WorkerPort> port, std::shared_ptr<LargeObjects> large,
                            std::string_view key, uint64_t size, const PutTerms& terms,
                            const PutShape& shape);

// Memory of the worker for a kCreate call. Errors: no_space, and those of the call.
Result<HeldMemory> create_memory(WorkerPort& port, const LinkCall& call, const Deadline& deadline);
// Gives the chunks of one put back. What cannot be reached is left.
void erase_chunk_keys(WorkerPort& port, std::string_view key, uint64_t generation, uint32_t count);

// The number of a write mode by its name in the datasystem. Errors: invalid_argument.
Result<uint32_t> parse_write_mode(std::string_view name);
// Whole seconds, rounded up; 0: for ever.
uint32_t ttl_seconds(Duration ttl) noexcept;

}  // namespace stagelink::store::yuanrong
