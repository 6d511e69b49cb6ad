#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// Our keys (1 to 1024 bytes, any) as keys of the datasystem, whose bytes are A-Z a-z 0-9 and
// - _ ! @ # % ^ * ( ) + = : ; only.
namespace stagelink::store::yuanrong {

// A byte outside the set becomes %XX, as do % itself and a ! at the beginning. Beyond 200 bytes:
// "!d!" and a digest of 128 bits. Different keys give different ones, as far as digests do; the
// whole key stands in the object's header and is compared.
std::string store_key(std::string_view key);

// Of a piece of one put of a key: "!c!", the key's digest, the generation and the index.
std::string chunk_key(std::string_view key, uint64_t generation, uint32_t index);

}  // namespace stagelink::store::yuanrong
