#include "connector/moriio/io/codes.h"

namespace stagelink::moriio {

std::string_view backend_name(BackendType type) noexcept {
  switch (type) {
    case BackendType::kUnknown: return "Unknown";
    case BackendType::kXgmi: return "XGMI";
    case BackendType::kRdma: return "RDMA";
    case BackendType::kTcp: return "TCP";
    case BackendType::kFabric: return "FABRIC";
  }
  return "unknown";
}

std::string_view status_code_name(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kSuccess: return "SUCCESS";
    case StatusCode::kInit: return "INIT";
    case StatusCode::kInProgress: return "IN_PROGRESS";
    case StatusCode::kInvalidArgs: return "ERR_INVALID_ARGS";
    case StatusCode::kNotFound: return "ERR_NOT_FOUND";
    case StatusCode::kRdmaOp: return "ERR_RDMA_OP";
    case StatusCode::kBadState: return "ERR_BAD_STATE";
    case StatusCode::kGpuOp: return "ERR_GPU_OP";
  }
  return "unknown";
}

StatusCode status_code_of(Reason reason) noexcept {
  switch (reason) {
    case Reason::kReadOnly:
    case Reason::kTooLarge:
    case Reason::kTooManyRanges: return StatusCode::kInvalidArgs;
    case Reason::kRestarted: return StatusCode::kNotFound;
    default: break;
  }
  switch (code_of(reason)) {
    case Code::kOk: return StatusCode::kSuccess;
    case Code::kInvalidArgument: return StatusCode::kInvalidArgs;
    case Code::kNotRegistered:
    case Code::kNotFound:
    case Code::kSuperseded:
    case Code::kIncompatible: return StatusCode::kNotFound;
    case Code::kTimedOut:
    case Code::kCancelled:
    case Code::kBusy:
    case Code::kUnreachable:
    case Code::kPeerLost:
    case Code::kCorrupt: return StatusCode::kRdmaOp;
    case Code::kPermission:
    case Code::kAlreadyExists:
    case Code::kNoSpace:
    case Code::kLimit:
    case Code::kInvalidState: return StatusCode::kBadState;
  }
  return StatusCode::kBadState;
}

std::string status_message_of(const Status& status) {
  if (status.ok()) return "";
  switch (status.reason()) {
    case Reason::kTooManyTransfers: return "SQ full: " + status.to_string();
    case Reason::kOutOfBounds:
    case Reason::kOverflow: return "length out of range: " + status.to_string();
    default: return status.to_string();
  }
}

}  // namespace stagelink::moriio
