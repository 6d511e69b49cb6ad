#include "connector/encoder_cache/registry/messages.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "connector/encoder_cache/registry/http/request_target.h"

namespace stagelink::encoder_cache {
namespace {

using nlohmann::json;

constexpr int kDeepest = 6;

Status bad_message(std::string_view field, std::string_view wanted) {
  return Status(Reason::kFrame, fmt::format("{}: {} is expected", field, wanted));
}

// An object; what lies deeper than any message does is never kept.
Result<json> parse_object(std::string_view body) {
  const json::parser_callback_t shallow = [](int depth, json::parse_event_t, json&) {
    return depth <= kDeepest;
  };
  json parsed = json::parse(body, shallow, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return bad_message("body", "a JSON object");
  return parsed;
}

const json* find(const json& object, const char* field) {
  const auto at = object.find(field);
  return at == object.end() ? nullptr : &*at;
}

Result<std::string> text_of(const json& object, const char* field) {
  const json* const value = find(object, field);
  if (value == nullptr || !value->is_string()) return bad_message(field, "a text");
  return value->get_ref<const std::string&>();
}

Result<uint64_t> unsigned_value(const json& value, const char* field) {
  if (!value.is_number_unsigned()) return bad_message(field, "an integer of at least 0");
  return value.get<uint64_t>();
}

Result<uint64_t> unsigned_of(const json& object, const char* field) {
  const json* const value = find(object, field);
  if (value == nullptr) return bad_message(field, "an integer of at least 0");
  return unsigned_value(*value, field);
}

// Not given: zero.
Result<Duration> duration_of(const json& object, const char* field) {
  const json* const value = find(object, field);
  if (value == nullptr || value->is_null()) return Duration::zero();
  if (!value->is_number()) return bad_message(field, "a number of seconds");
  auto seconds = seconds_of(value->get<double>(), field);
  if (!seconds.ok()) return Status(Reason::kFrame, std::string(seconds.status().message()));
  return seconds;
}

Result<LeaseId> lease_of(const json& object) {
  SL_ASSIGN(const std::string text, text_of(object, "lease"));
  auto lease = parse_instance(text);
  if (!lease.ok()) return bad_message("lease", "32 lower-case hex digits");
  return lease;
}

// An array of `least` to `most`.
Result<const json*> array_of(const json& object, const char* field, size_t least, size_t most) {
  const json* const value = find(object, field);
  if (value == nullptr || !value->is_array() || value->size() < least || value->size() > most) {
    return bad_message(field, fmt::format("an array of {} to {}", least, most));
  }
  return value;
}

Result<std::vector<std::string>> hashes_of(const json& object, size_t least) {
  SL_ASSIGN(const json* const list, array_of(object, "mm_hashes", least, kMaxBatchHashes));
  std::vector<std::string> hashes;
  hashes.reserve(list->size());
  for (const json& each : *list) {
    if (!each.is_string()) return bad_message("mm_hashes", "texts");
    hashes.push_back(each.get<std::string>());
  }
  return hashes;
}

Result<EmbeddingInfo> info_of(const json& object) {
  EmbeddingInfo info;
  SL_ASSIGN(info.nbytes, unsigned_of(object, "nbytes"));
  SL_ASSIGN(info.dtype, text_of(object, "dtype"));
  SL_ASSIGN(const json* const shape, array_of(object, "shape", 0, kMaxShapeDims));
  for (const json& dim : *shape) {
    SL_ASSIGN(const uint64_t size, unsigned_value(dim, "shape"));
    info.shape.push_back(size);
  }
  return info;
}

// Not given, as by a registry of the seed: 0.
Result<uint64_t> generation_of(const json& object) {
  if (find(object, "generation") == nullptr) return uint64_t{0};
  return unsigned_of(object, "generation");
}

Result<ProducerEntry> producer_of(const json& object) {
  if (!object.is_object()) return bad_message("producers", "objects");
  ProducerEntry entry;
  SL_ASSIGN(entry.info, info_of(object));
  SL_ASSIGN(entry.producer_zmq, text_of(object, "producer_zmq"));
  SL_ASSIGN(entry.generation, generation_of(object));
  // A registry is not trusted with what a consumer is going to allocate and connect to.
  for (const Status& status :
       {check_embedding(entry.info), check_producer_address(entry.producer_zmq)}) {
    if (!status.ok()) return Status(Reason::kFrame, std::string(status.message()));
  }
  return entry;
}

Result<PublishedItem> item_of(const json& object) {
  if (!object.is_object()) return bad_message("items", "objects");
  PublishedItem item;
  SL_ASSIGN(item.mm_hash, text_of(object, "mm_hash"));
  SL_ASSIGN(item.info, info_of(object));
  SL_ASSIGN(item.generation, generation_of(object));
  return item;
}

// The entries of the table are plain texts without quotes and backslashes, and go in as they are.
void append_info(std::string& out, const ProducerEntry& entry) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"nbytes\":{},\"shape\":[{}],\"dtype\":\"{}\",\"producer_zmq\":\"{}\"",
                 entry.info.nbytes, fmt::join(entry.info.shape, ","), entry.info.dtype,
                 entry.producer_zmq);
}

std::string dump(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Reason> reason_of(const std::string& name) {
  for (int i = 1; i < kReasonCount; ++i) {
    const auto reason = static_cast<Reason>(i);
    if (reason_name(reason) == name) return reason;
  }
  return bad_message("reason", "a reason that this version knows");
}

}  // namespace

std::string encode_info(const ProducerEntry& entry) {
  std::string out;
  append_info(out, entry);
  out += '}';
  return out;
}

Result<ProducerEntry> decode_info(std::string_view body) {
  SL_ASSIGN(const json object, parse_object(body));
  return producer_of(object);
}

std::string encode(const QueryRequest& request) {
  return dump({{"mm_hashes", request.mm_hashes}, {"wait", to_seconds(request.wait)}});
}

Result<QueryRequest> decode_query(std::string_view body) {
  SL_ASSIGN(const json object, parse_object(body));
  QueryRequest request;
  SL_ASSIGN(request.mm_hashes, hashes_of(object, 1));
  SL_ASSIGN(request.wait, duration_of(object, "wait"));
  return request;
}

std::string encode_producers(const Producers& producers) {
  std::string out = "{\"items\":[";
  for (size_t i = 0; i < producers.size(); ++i) {
    out += i == 0 ? "[" : ",[";
    for (size_t k = 0; k < producers[i].size(); ++k) {
      if (k > 0) out += ',';
      append_info(out, producers[i][k]);
      fmt::format_to(std::back_inserter(out), ",\"generation\":{}}}", producers[i][k].generation);
    }
    out += ']';
  }
  out += "]}";
  return out;
}

Result<Producers> decode_producers(std::string_view body, size_t hashes) {
  SL_ASSIGN(const json object, parse_object(body));
  SL_ASSIGN(const json* const list, array_of(object, "items", hashes, hashes));
  Producers producers;
  for (const json& each : *list) {
    if (!each.is_array()) return bad_message("items", "arrays");
    auto& found = producers.emplace_back();
    for (const json& producer : each) {
      SL_ASSIGN(ProducerEntry entry, producer_of(producer));
      found.push_back(std::move(entry));
    }
  }
  return producers;
}

std::string encode_publish(const PublishTerms& terms, std::span<const PublishedItem> items) {
  json list = json::array();
  for (const PublishedItem& item : items) {
    list.push_back({{"mm_hash", item.mm_hash},
                    {"nbytes", item.info.nbytes},
                    {"shape", item.info.shape},
                    {"dtype", item.info.dtype},
                    {"generation", item.generation}});
  }
  return dump({{"lease", terms.lease.to_string()},
               {"ttl", to_seconds(terms.lease_ttl)},
               {"item_ttl", to_seconds(terms.item_ttl)},
               {"producer_zmq", terms.producer_zmq},
               {"items", std::move(list)}});
}

Result<PublishRequest> decode_publish(std::string_view body) {
  SL_ASSIGN(const json object, parse_object(body));
  PublishRequest request;
  SL_ASSIGN(request.terms.lease, lease_of(object));
  SL_ASSIGN(request.terms.lease_ttl, duration_of(object, "ttl"));
  SL_ASSIGN(request.terms.item_ttl, duration_of(object, "item_ttl"));
  SL_ASSIGN(request.terms.producer_zmq, text_of(object, "producer_zmq"));
  SL_ASSIGN(const json* const list, array_of(object, "items", 0, kMaxBatchHashes));
  request.items.reserve(list->size());
  for (const json& each : *list) {
    SL_ASSIGN(PublishedItem item, item_of(each));
    request.items.push_back(std::move(item));
  }
  if (request.terms.lease_ttl == Duration::zero()) {
    return bad_message("ttl", "a number of seconds above 0");
  }
  return request;
}

std::string encode(const PublishOutcome& outcome) {
  json list = json::array();
  for (const Status& status : outcome.items) {
    if (status.ok()) {
      list.push_back({{"ok", true}});
    } else {
      list.push_back(
          {{"ok", false}, {"reason", reason_name(status.reason())}, {"detail", status.message()}});
    }
  }
  return dump({{"fresh", outcome.fresh}, {"items", std::move(list)}});
}

Result<PublishOutcome> decode_outcome(std::string_view body, size_t items) {
  SL_ASSIGN(const json object, parse_object(body));
  PublishOutcome outcome;
  const json* const fresh = find(object, "fresh");
  if (fresh == nullptr || !fresh->is_boolean()) return bad_message("fresh", "true or false");
  outcome.fresh = fresh->get<bool>();
  SL_ASSIGN(const json* const list, array_of(object, "items", items, items));
  for (const json& each : *list) {
    if (!each.is_object()) return bad_message("items", "objects");
    const json* const ok = find(each, "ok");
    if (ok != nullptr && ok->is_boolean() && ok->get<bool>()) {
      outcome.items.emplace_back();
      continue;
    }
    SL_ASSIGN(const std::string name, text_of(each, "reason"));
    SL_ASSIGN(const Reason reason, reason_of(name));
    SL_ASSIGN(const std::string detail, text_of(each, "detail"));
    outcome.items.emplace_back(reason, to_plain_text(detail, 512));
  }
  return outcome;
}

std::string encode(const UnpublishRequest& request) {
  json object = {{"lease", request.lease.to_string()}};
  if (request.all) {
    object["all"] = true;
  } else {
    object["mm_hashes"] = request.mm_hashes;
  }
  return dump(object);
}

Result<UnpublishRequest> decode_unpublish(std::string_view body) {
  SL_ASSIGN(const json object, parse_object(body));
  UnpublishRequest request;
  SL_ASSIGN(request.lease, lease_of(object));
  const json* const all = find(object, "all");
  if (all != nullptr && !all->is_boolean()) return bad_message("all", "true or false");
  request.all = all != nullptr && all->get<bool>();
  if (request.all) return request;
  SL_ASSIGN(request.mm_hashes, hashes_of(object, 1));
  return request;
}

std::string encode(const RenewRequest& request) {
  return dump({{"lease", request.lease.to_string()}, {"ttl", to_seconds(request.ttl)}});
}

Result<RenewRequest> decode_renew(std::string_view body) {
  SL_ASSIGN(const json object, parse_object(body));
  RenewRequest request;
  SL_ASSIGN(request.lease, lease_of(object));
  SL_ASSIGN(request.ttl, duration_of(object, "ttl"));
  if (request.ttl == Duration::zero()) return bad_message("ttl", "a number of seconds above 0");
  return request;
}

std::string encode_count(uint64_t count) { return fmt::format("{{\"count\":{}}}", count); }

Result<uint64_t> decode_count(std::string_view body) {
  SL_ASSIGN(const json object, parse_object(body));
  return unsigned_of(object, "count");
}

std::string encode_detail(std::string_view text) { return dump({{"detail", text}}); }

std::string decode_detail(std::string_view body) {
  auto object = parse_object(body);
  if (!object.ok()) return {};
  auto text = text_of(*object, "detail");
  return text.ok() ? to_plain_text(*text, 512) : std::string();
}

}  // namespace stagelink::encoder_cache
