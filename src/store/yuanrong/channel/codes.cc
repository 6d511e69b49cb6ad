#include "store/yuanrong/channel/codes.h"

#include <array>

#include <fmt/format.h>

namespace stagelink::store::yuanrong {
namespace {

struct CodeRow {
  uint32_t code;
  Reason reason;
  std::string_view words;
};

constexpr uint32_t kCodeRuntime = 5;
constexpr uint32_t kCodeNotAuthorized = 9;
constexpr uint32_t kCodeUnavailable = 1002;

constexpr std::array<CodeRow, 24> kCodes = {{
    {2, Reason::kInvalidArgument, "invalid"},
    {kCodeNotFound, Reason::kNotFound, "not found"},
    {kCodeRuntime, Reason::kUnreachable, "runtime error"},
    {6, Reason::kNoSpace, "out of memory"},
    {7, Reason::kSystem, "input or output"},
    {8, Reason::kUnreachable, "not ready"},
    {kCodeNotAuthorized, Reason::kAuthentication, "not authorized"},
    {13, Reason::kNoSpace, "no space"},
    {19, Reason::kTimedOut, "try again"},
    {21, Reason::kUnreachable, "shutting down"},
    {22, Reason::kUnreachable, "worker abnormal"},
    {23, Reason::kUnreachable, "client and worker are disconnected"},
    {24, Reason::kTimedOut, "the worker timed out"},
    {25, Reason::kTimedOut, "the master timed out"},
    {28, Reason::kVersion, "client and worker have different versions"},
    {29, Reason::kUnreachable, "the worker's memory is closed"},
    {34, Reason::kNoSpace, "above the limit of memory"},
    {1000, Reason::kUnreachable, "cancelled"},
    {1001, Reason::kTimedOut, "deadline exceeded"},
    {kCodeUnavailable, Reason::kUnreachable, "unavailable"},
    {kCodeBadRequest, Reason::kFrame, "the broker could not read the request"},
    {kCodeNoHandles, Reason::kLimit, "the broker holds too many objects"},
    {kCodeNoMemory, Reason::kShmFull, "the broker had no memory for a copy"},
    {kCodeStopping, Reason::kPeerLost, "the broker is stopping"},
}};

const CodeRow* row_of(uint32_t code) noexcept {
  for (const CodeRow& row : kCodes) {
    if (row.code == code) return &row;
  }
  return nullptr;
}

// A refusal by keys comes as a runtime error too; only the words tell.
bool speaks_of_keys(std::string_view message) noexcept {
  return message.find("AK/SK") != message.npos || message.find("token not") != message.npos;
}

Status failure(std::string_view what, uint32_t code, std::string_view message) {
  const CodeRow* const row = row_of(code);
  Reason reason = row == nullptr ? Reason::kSystem : row->reason;
  if (code == kCodeRuntime && speaks_of_keys(message)) reason = Reason::kAuthentication;
  const std::string_view advice = reason == Reason::kAuthentication
                                      ? "; see access_key_file and secret_key_file, or token_file"
                                      : "";
  return Status(reason, fmt::format("{}: {} (code {}){}: {}", what,
                                    row == nullptr ? "an unknown failure" : row->words, code,
                                    advice, message));
}

}  // namespace

std::string_view op_name(Op op) noexcept {
  switch (op) {
    case Op::kSet: return "set";
    case Op::kCreate: return "create";
    case Op::kPublish: return "publish";
    case Op::kGet: return "get";
    case Op::kErase: return "erase";
    case Op::kExists: return "exists";
    case Op::kExpire: return "expire";
  }
  return "request";
}

bool is_miss(uint32_t code) noexcept { return code == kCodeNotFound || code == kCodeRuntime; }

Status call_failure(Op op, uint32_t code, std::string_view message) {
  return failure(op_name(op), code, message);
}

Status connect_failure(uint32_t code, std::string_view message) {
  if (code != kCodeUnavailable || message.find("refused") != message.npos) {
    return failure("connecting to the Yuanrong worker", code, message);
  }
  return failure(
      "connecting to the Yuanrong worker, which lets nobody in or wants Curve keys "
      "(client_public_key_file, client_private_key_file, server_public_key_file)",
      code, message);
}

}  // namespace stagelink::store::yuanrong
