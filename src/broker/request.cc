#include "broker/request.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/bytes.h"

namespace stagelink::broker {
namespace {

namespace proto = store::yuanrong;
using proto::Op;
using proto::Place;
using proto::Request;

constexpr uint32_t kMostWriteMode = 4;
constexpr uint32_t kMostWaitMs = 60'000;
constexpr uint32_t kNotFound = 3;

Answer bad_request(const char* what) { return {{proto::kCodeBadRequest, what}, {}}; }

SdkStatus to_sdk_status(const Status& status) {
  const uint32_t code =
      status.code() == Code::kLimit ? proto::kCodeNoHandles : proto::kCodeNoMemory;
  return {code, status.to_string()};
}

// Nothing if they are not what the request says.
std::optional<std::vector<std::string>> read_keys(const proto::Lane& lane, const Request& request) {
  if (request.keys > proto::kMaxKeysPerRequest || request.key_bytes > lane.keys.size()) {
    return std::nullopt;
  }
  std::vector<std::byte> raw(request.key_bytes);
  std::copy_n(lane.keys.begin(), raw.size(), raw.begin());
  ByteReader reader(raw);
  std::vector<std::string> keys;
  for (uint32_t i = 0; i < request.keys; ++i) {
    keys.emplace_back(reader.get_string());
    if (keys.back().empty() || keys.back().size() > proto::kMaxStoreKeyBytes) return std::nullopt;
  }
  if (!reader.done()) return std::nullopt;
  return keys;
}

Answer hold(SdkStatus status, std::vector<SdkMemory> found, HeldObjects& held) {
  Answer answer{std::move(status), std::vector<Place>(found.size())};
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].data == nullptr) continue;
    auto place = held.add(std::move(found[i]), HeldObjects::Use::kRead);
    if (place.ok()) {
      answer.places[i] = *place;
    } else {
      answer.status = to_sdk_status(place.status());
    }
  }
  return answer;
}

Answer create(const std::string& key, const Request& request, SdkClient& client,
              HeldObjects& held) {
  SdkMemory memory;
  SdkStatus status = client.create(key, request.size, {request.write_mode, request.ttl_s}, memory);
  if (!status.ok()) return {std::move(status), {}};
  auto place = held.add(std::move(memory), HeldObjects::Use::kFill);
  if (!place.ok()) return {to_sdk_status(place.status()), {}};
  return {std::move(status), {*place}};
}

Answer publish(const Request& request, SdkClient& client, HeldObjects& held) {
  const auto memory = held.take_filled(request.handle);
  if (memory == nullptr) return bad_request("publish: the handle is not held");
  return {client.publish(*memory), {}};
}

Answer look(const std::vector<std::string>& keys, SdkClient& client) {
  std::vector<bool> there;
  Answer answer{client.exists(keys, there), std::vector<Place>(keys.size())};
  for (size_t i = 0; i < there.size() && i < keys.size(); ++i) answer.places[i].found = there[i];
  return answer;
}

Answer set(const std::string& key, const proto::Lane& lane, const Request& request,
           SdkClient& client) {
  // The client may change the bytes meanwhile: then it stores what it has changed them to.
  const auto value = std::as_bytes(std::span(lane.value)).first(request.size);
  return {client.set(key, value, {request.write_mode, request.ttl_s}), {}};
}

const char* objection(const Request& request) noexcept {
  const bool one_key = request.op == Op::kSet || request.op == Op::kCreate;
  if (request.op != Op::kPublish && (one_key ? request.keys != 1 : request.keys == 0)) {
    return "the count of keys";
  }
  if (request.op == Op::kSet && (request.size == 0 || request.size > proto::kInlineBytes)) {
    return "the size of the value";
  }
  if (request.op == Op::kCreate && (request.size == 0 || request.size > proto::kMaxObjectBytes)) {
    return "the size of the object";
  }
  if (one_key && request.write_mode > kMostWriteMode) return "the write mode";
  return nullptr;
}

}  // namespace

Answer carry_out(const proto::Lane& lane, SdkClient& client, HeldObjects& held) {
  Request request;
  std::memcpy(&request, &lane.request, sizeof(request));
  if (const char* what = objection(request)) return bad_request(what);
  const auto keys = read_keys(lane, request);
  if (!keys) return bad_request("the keys");
  switch (request.op) {
    case Op::kSet: return set(keys->front(), lane, request, client);
    case Op::kCreate: return create(keys->front(), request, client, held);
    case Op::kPublish: return publish(request, client, held);
    case Op::kGet: {
      std::vector<SdkMemory> found;
      const auto wait_ms = static_cast<int32_t>(std::min(request.wait_ms, kMostWaitMs));
      SdkStatus status = client.get(*keys, wait_ms, found);
      return hold(std::move(status), std::move(found), held);
    }
    case Op::kErase: {
      SdkStatus status = client.erase(*keys);
      if (status.code == kNotFound) status = {};
      return {std::move(status), {}};
    }
    case Op::kExists: return look(*keys, client);
    case Op::kExpire: return {client.expire(*keys, request.ttl_s), {}};
  }
  return bad_request("the operation");
}

void write_reply(const Answer& answer, proto::Lane& lane) {
  proto::Reply reply;
  reply.code = answer.status.code;
  reply.places = static_cast<uint32_t>(std::min(answer.places.size(), lane.places.size()));
  reply.message_bytes =
      static_cast<uint32_t>(std::min(answer.status.message.size(), lane.message.size()));
  std::copy_n(answer.places.begin(), reply.places, lane.places.begin());
  std::memcpy(lane.message.data(), answer.status.message.data(), reply.message_bytes);
  lane.reply = reply;
}

}  // namespace stagelink::broker
