#include "connector/encoder_cache/push/push_messages.h"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "connector/encoder_cache/json_fields.h"

namespace stagelink::encoder_cache {
namespace {

using Object = nlohmann::json;

std::string push_text(std::string_view text) {
  std::string out;
  fields::append_text(out, text);
  return out;
}

// Not said: false.
Result<bool> flag_of(const Object& object, const char* field) {
  const Object* const value = fields::find(object, field);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return fields::bad_message(field, "true or false");
  return value->get<bool>();
}

Result<std::string> transfer_of(const Object& object) {
  SL_ASSIGN(std::string id, fields::text_of(object, "transfer_id"));
  if (Status status = check_transfer_id(id); !status.ok()) {
    return Status(Reason::kFrame, std::string(status.message()));
  }
  return id;
}

Result<Ticket> ticket_of(const Object& object) {
  Ticket ticket;
  SL_ASSIGN(ticket.reservation, fields::id_of(object, "reservation_id"));
  SL_ASSIGN(ticket.secret, fields::id_of(object, "secret"));
  return ticket;
}

Result<PushAsk> reserve_of(const Object& object) {
  ReserveAsk ask;
  SL_ASSIGN(ask.transfer_id, transfer_of(object));
  SL_ASSIGN(ask.mm_hash, fields::text_of(object, "mm_hash"));
  SL_ASSIGN(ask.info, fields::info_of(object));
  // Before anything is allocated for it.
  SL_TRY(check_mm_hash(ask.mm_hash));
  SL_TRY(check_embedding(ask.info));
  if (fields::find(object, "identity") != nullptr) {
    SL_ASSIGN(ask.identity, fields::text_of(object, "identity"));
    if (ask.identity.size() > kMaxIdentityText) {
      return fields::bad_message("identity", fmt::format("at most {} bytes", kMaxIdentityText));
    }
  }
  if (fields::find(object, "wait") != nullptr) {
    SL_ASSIGN(ask.wait, fields::duration_of(object, "wait"));
  }
  if (fields::find(object, "secret") != nullptr) {
    SL_ASSIGN(ask.ticket, ticket_of(object));
  }
  return PushAsk(std::move(ask));
}

Result<PushAsk> complete_of(const Object& object) {
  CompleteAsk ask;
  SL_ASSIGN(ask.transfer_id, transfer_of(object));
  SL_ASSIGN(ask.ticket, ticket_of(object));
  SL_ASSIGN(ask.producer_zmq, fields::text_of(object, "producer_zmq"));
  SL_TRY(check_producer_address(ask.producer_zmq));
  SL_ASSIGN(ask.generation, fields::unsigned_of(object, "generation"));
  return PushAsk(std::move(ask));
}

Result<PushAsk> cancel_of(const Object& object) {
  CancelAsk ask;
  SL_ASSIGN(ask.transfer_id, transfer_of(object));
  SL_ASSIGN(ask.ticket, ticket_of(object));
  return PushAsk(std::move(ask));
}

Result<PushAsk> status_of(const Object& object) {
  SL_ASSIGN(std::string id, transfer_of(object));
  return PushAsk(StatusAsk{std::move(id)});
}

using ReadAsk = Result<PushAsk> (*)(const Object&);

struct Operation {
  const char* name;
  ReadAsk read;
  bool is_batch;
};
constexpr Operation kOperations[] = {
    {"reserve", reserve_of, false},      {"complete", complete_of, false},
    {"cancel", cancel_of, false},        {"status", status_of, false},
    {"reserve_batch", reserve_of, true}, {"complete_batch", complete_of, true},
};

Result<const Operation*> operation_of(const Object& object) {
  SL_ASSIGN(const std::string name, fields::text_of(object, "op"));
  for (const Operation& operation : kOperations) {
    if (name == operation.name) return &operation;
  }
  return Status(Reason::kFrame, fmt::format("unknown control op: {}", to_plain_text(name, 64)));
}

struct Sayer {
  void ticket(const Ticket& ticket) {
    out += fmt::format(R"(,"reservation_id":"{}","secret":"{}")", ticket.reservation.to_string(),
                       ticket.secret.to_string());
  }
  void operator()(const ReserveAsk& ask) {
    out += fmt::format(
        R"("reserve","transfer_id":{},"mm_hash":{},"nbytes":{},"shape":[{}],"dtype":{},"identity":{})",
        push_text(ask.transfer_id), push_text(ask.mm_hash), ask.info.nbytes,
        fmt::join(ask.info.shape, ","), push_text(ask.info.dtype), push_text(ask.identity));
    if (ask.wait.has_value()) {
      out += fmt::format(R"(,"wait":{:.3f})", std::chrono::duration<double>(*ask.wait).count());
    }
    if (ask.ticket.has_value()) ticket(*ask.ticket);
  }
  void operator()(const CompleteAsk& ask) {
    out += fmt::format(R"("complete","transfer_id":{},"producer_zmq":{},"generation":{})",
                       push_text(ask.transfer_id), push_text(ask.producer_zmq), ask.generation);
    ticket(ask.ticket);
  }
  void operator()(const CancelAsk& ask) {
    out += fmt::format(R"("cancel","transfer_id":{})", push_text(ask.transfer_id));
    ticket(ask.ticket);
  }
  void operator()(const StatusAsk& ask) {
    out += fmt::format(R"("status","transfer_id":{})", push_text(ask.transfer_id));
  }
  std::string out;
};

}  // namespace

Status check_transfer_id(std::string_view transfer_id) {
  if (!transfer_id.empty() && transfer_id.size() <= kMaxTransferIdBytes &&
      is_plain_text(transfer_id)) {
    return {};
  }
  return Status(Reason::kInvalidArgument,
                fmt::format("transfer_id \"{}\" is not plain text of 1 to {} bytes",
                            to_plain_text(transfer_id, 64), kMaxTransferIdBytes));
}

Result<PushMessage> decode_push(std::string_view text, uint64_t& id) {
  if (text.size() > kMaxPushBytes) {
    return fields::bad_message("message", fmt::format("at most {} bytes", kMaxPushBytes));
  }
  SL_ASSIGN(const Object object, fields::parse_object(text));
  PushMessage message;
  if (fields::find(object, "id") != nullptr) {
    SL_ASSIGN(message.id, fields::unsigned_of(object, "id"));
    id = message.id;
  }
  SL_ASSIGN(const Operation* const operation, operation_of(object));
  message.is_batch = operation->is_batch;
  if (!message.is_batch) {
    message.items.push_back(operation->read(object));
    return message;
  }
  SL_ASSIGN(const Object* const items, fields::array_of(object, "items", 1, kMaxPushItems));
  for (const Object& item : *items) {
    message.items.push_back(item.is_object() ? operation->read(item)
                                             : fields::bad_message("items", "objects"));
  }
  return message;
}

std::string encode_push(uint64_t id, const PushAsk& ask) {
  Sayer sayer{fmt::format(R"({{"id":{},"op":)", id)};
  std::visit(sayer, ask);
  return sayer.out + '}';
}

std::string encode_result(const Reserved& reserved) {
  const bool none = reserved.cancelled;
  return fmt::format(
      R"({{"reservation_id":"{}","secret":"{}","nbytes":{},"write":{},"ready":{},"cached":{},"cancelled":{},"ttl":{:.3f}}})",
      none ? "" : reserved.ticket.reservation.to_string(),
      none ? "" : reserved.ticket.secret.to_string(), reserved.nbytes, reserved.write,
      reserved.ready, reserved.cached, reserved.cancelled,
      std::chrono::duration<double>(reserved.ttl).count());
}

std::string encode_result(const Completed& completed) {
  return fmt::format(R"({{"completed":{},"became_ready":{}}})", completed.completed,
                     completed.became_ready);
}

std::string encode_cancelled(bool cancelled) {
  return fmt::format(R"({{"cancelled":{}}})", cancelled);
}

std::string encode_result(const std::optional<PushStatus>& status) {
  if (!status.has_value()) return "null";
  return fmt::format(
      R"({{"mm_hash":{},"ready":{},"write":{},"reservation_id":"{}","nbytes":{},"shape":[{}],"dtype":{}}})",
      push_text(status->mm_hash), status->ready, status->write, status->reservation.to_string(),
      status->info.nbytes, fmt::join(status->info.shape, ","), push_text(status->info.dtype));
}

namespace {

std::string body_of(const Result<std::string>& result) {
  if (result.ok()) return R"("ok":true,"result":)" + *result;
  return fmt::format(R"("ok":false,"reason":"{}","error":{})",
                     reason_name(result.status().reason()), push_text(result.status().message()));
}

Result<Reserved> reserved_of(const Object& result) {
  Reserved reserved;
  SL_ASSIGN(reserved.cancelled, flag_of(result, "cancelled"));
  if (!reserved.cancelled) {
    SL_ASSIGN(reserved.ticket, ticket_of(result));
  }
  SL_ASSIGN(reserved.nbytes, fields::unsigned_of(result, "nbytes"));
  SL_ASSIGN(reserved.write, flag_of(result, "write"));
  SL_ASSIGN(reserved.ready, flag_of(result, "ready"));
  SL_ASSIGN(reserved.cached, flag_of(result, "cached"));
  SL_ASSIGN(reserved.ttl, fields::duration_of(result, "ttl"));
  return reserved;
}

}  // namespace

std::string encode_answer(uint64_t id, const Result<std::string>& result) {
  return fmt::format(R"({{"id":{},{}}})", id, body_of(result));
}

std::string encode_batch_answer(uint64_t id, std::span<const Result<std::string>> results) {
  std::string items;
  for (const auto& result : results) {
    if (!items.empty()) items += ',';
    items += '{' + body_of(result) + '}';
  }
  return encode_answer(id, R"({"items":[)" + items + "]}");
}

Result<PushReply> decode_reply(std::string_view text) {
  SL_ASSIGN(const Object object, fields::parse_object(text));
  PushReply reply;
  SL_ASSIGN(reply.id, fields::unsigned_of(object, "id"));
  SL_ASSIGN(const bool ok, flag_of(object, "ok"));
  if (!ok) {
    SL_ASSIGN(const std::string name, fields::text_of(object, "reason"));
    SL_ASSIGN(const Reason reason, fields::reason_of(name));
    SL_ASSIGN(const std::string why, fields::text_of(object, "error"));
    reply.status = Status(reason, to_plain_text(why, 512));
    return reply;
  }
  const Object* const result = fields::find(object, "result");
  if (result == nullptr || !result->is_object()) {
    return fields::bad_message("result", "an object");
  }
  if (fields::find(*result, "nbytes") != nullptr) {
    SL_ASSIGN(reply.reserved, reserved_of(*result));
  }
  SL_ASSIGN(reply.completed.completed, flag_of(*result, "completed"));
  SL_ASSIGN(reply.completed.became_ready, flag_of(*result, "became_ready"));
  return reply;
}

}  // namespace stagelink::encoder_cache
