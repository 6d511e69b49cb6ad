#include "connector/encoder_cache/registry/messages.h"

#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "connector/encoder_cache/json_fields.h"
#include "connector/encoder_cache/registry/http/request_target.h"

namespace stagelink::encoder_cache {
namespace {

using fields::append_text;
using fields::array_of;
using fields::bad_message;
using fields::duration_of;
using fields::find;
using fields::info_of;
using fields::parse_object;
using fields::reason_of;
using fields::text_of;
using fields::unsigned_of;
using fields::unsigned_value;
using nlohmann::json;

Result<LeaseId> lease_of(const json& object) { return fields::id_of(object, "lease"); }

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

void append_texts(std::string& out, std::span<const std::string> texts) {
  out += '[';
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out += ',';
    append_text(out, texts[i]);
  }
  out += ']';
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
  std::string out = "{\"mm_hashes\":";
  append_texts(out, request.mm_hashes);
  return out + fmt::format(",\"wait\":{}}}", to_seconds(request.wait));
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
  std::string out = fmt::format(
      "{{\"lease\":\"{}\",\"ttl\":{},\"item_ttl\":{},\"producer_zmq\":", terms.lease.to_string(),
      to_seconds(terms.lease_ttl), to_seconds(terms.item_ttl));
  append_text(out, terms.producer_zmq);
  out += ",\"items\":[";
  for (const PublishedItem& item : items) {
    out += &item == items.data() ? "{\"mm_hash\":" : ",{\"mm_hash\":";
    append_text(out, item.mm_hash);
    fmt::format_to(std::back_inserter(out),
                   ",\"nbytes\":{},\"shape\":[{}],\"dtype\":", item.info.nbytes,
                   fmt::join(item.info.shape, ","));
    append_text(out, item.info.dtype);
    fmt::format_to(std::back_inserter(out), ",\"generation\":{}}}", item.generation);
  }
  out += "]}";
  return out;
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
  std::string out = fmt::format("{{\"fresh\":{},\"items\":[", outcome.fresh);
  for (const Status& status : outcome.items) {
    if (&status != outcome.items.data()) out += ',';
    if (status.ok()) {
      out += "{\"ok\":true}";
      continue;
    }
    fmt::format_to(std::back_inserter(out),
                   "{{\"ok\":false,\"reason\":\"{}\",\"detail\":", reason_name(status.reason()));
    append_text(out, status.message());
    out += '}';
  }
  out += "]}";
  return out;
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
  std::string out = fmt::format("{{\"lease\":\"{}\",", request.lease.to_string());
  if (request.all) return out + "\"all\":true}";
  out += "\"mm_hashes\":";
  append_texts(out, request.mm_hashes);
  out += '}';
  return out;
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
  return fmt::format("{{\"lease\":\"{}\",\"ttl\":{}}}", request.lease.to_string(),
                     to_seconds(request.ttl));
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

std::string encode_detail(std::string_view text) {
  std::string out = "{\"detail\":";
  append_text(out, text);
  out += '}';
  return out;
}

std::string decode_detail(std::string_view body) {
  auto object = parse_object(body);
  if (!object.ok()) return {};
  auto text = text_of(*object, "detail");
  return text.ok() ? to_plain_text(*text, 512) : std::string();
}

}  // namespace stagelink::encoder_cache
