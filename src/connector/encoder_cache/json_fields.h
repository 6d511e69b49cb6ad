#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "connector/encoder_cache/registry/entry.h"
#include "stagelink/engine_options.h"
#include "stagelink/result.h"

// Fields of JSON that a peer has said. Every one is total: any text gives a value or an error.
// Errors: corrupt (frame) names the field and what is expected.
namespace stagelink::encoder_cache::fields {

Status bad_message(std::string_view field, std::string_view wanted);
// An object of few levels.
Result<nlohmann::json> parse_object(std::string_view body);
const nlohmann::json* find(const nlohmann::json& object, const char* field);  // Null: not there.

Result<std::string> text_of(const nlohmann::json& object, const char* field);
Result<uint64_t> unsigned_value(const nlohmann::json& value, const char* field);
Result<uint64_t> unsigned_of(const nlohmann::json& object, const char* field);
// Of seconds; not given: zero.
Result<Duration> duration_of(const nlohmann::json& object, const char* field);
// 32 lower-case hex digits.
Result<InstanceId> id_of(const nlohmann::json& object, const char* field);
// An array of `least` to `most`.
Result<const nlohmann::json*> array_of(const nlohmann::json& object, const char* field,
                                       size_t least, size_t most);
// nbytes, shape, dtype, as they are said: check_embedding() tells whether they go together.
Result<EmbeddingInfo> info_of(const nlohmann::json& object);
Result<Reason> reason_of(const std::string& name);

// In quotes. A byte that belongs to no plain text becomes a control character, so that whoever
// reads it refuses the text and not the whole message.
void append_text(std::string& out, std::string_view text);

}  // namespace stagelink::encoder_cache::fields
