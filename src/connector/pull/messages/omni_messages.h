#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "connector/pull/messages/messages.h"

// The control messages of vLLM-Omni 0.30's YuanrongTransferEngineConnector, byte for byte: a word
// and, behind it, a MessagePack map.
//
//   request       "query_info" {"request_id": key}    "cleanup_key" {"request_id": key}
//   answer        {request_id, rpc_port, data_size,   "ack_ok" or "ack_error"
//                  is_fast_path, src_addrs, lengths}
//                 or "info_not_found"
namespace stagelink::pull {

inline constexpr size_t kMaxOmniFrameBytes = 128 << 10;
inline constexpr std::string_view kOmniNotFound = "info_not_found";
inline constexpr std::string_view kOmniAckOk = "ack_ok";
inline constexpr std::string_view kOmniAckError = "ack_error";

enum class OmniRequest : uint8_t { kQuery, kCleanup };

// What a request asks for; a key that is empty could not be read. Nothing: it is neither.
struct OmniAsk {
  OmniRequest request = OmniRequest::kQuery;
  std::string key;
};
std::optional<OmniAsk> read_omni_request(MessageSpan in);
Message omni_request(OmniRequest request, std::string_view key);

struct OmniInfo {
  std::string key;
  uint16_t rpc_port = 0;
  uint64_t data_size = 0;
  bool is_fast_path = true;
  std::vector<uint64_t> addresses;
  std::vector<uint64_t> lengths;
};
Message omni_info(const OmniInfo& info);
// Errors: corrupt (frame): also if the lengths are not the data's, or not as many as addresses.
Result<OmniInfo> read_omni_info(MessageSpan in);

Message omni_word(std::string_view word);
bool is_omni_word(MessageSpan in, std::string_view word) noexcept;

}  // namespace stagelink::pull
