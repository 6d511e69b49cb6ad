#include "wire/hello.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/text.h"
#include "stagelink/version.h"
#include "wire/field_reader.h"
#include "wire/reason_code.h"

namespace stagelink::wire {
namespace {

void put_instance(ByteWriter& out, const InstanceId& id) {
  out.put(id.high);
  out.put(id.low);
}

void put_version(ByteWriter& out, const Version& version) {
  out.put(version.major);
  out.put(version.minor);
}

Version get_version(FieldReader& reader) {
  const auto major = reader.get<uint16_t>("version");
  return {major, reader.get<uint16_t>("version")};
}

bool newer_than_ours(const Version& version) noexcept {
  return version.minor > own_version().minor;
}

constexpr uint32_t kAuthenticates = 1U << 0;
constexpr uint32_t kChecks = 1U << 1;
constexpr uint32_t kStages = 1U << 2;

// Those of `flags` that a sender of this minor may set.
uint32_t known_to(const Version& version, uint32_t flags) noexcept {
  return version.minor >= 2 ? flags : flags & ~kStages;
}

// A bit that our own minor does not know is a fault; one of a newer minor is not for us.
uint32_t get_flags(FieldReader& reader, const Version& version, uint32_t known) {
  const auto flags = reader.get<uint32_t>("flags");
  const uint32_t mine = known_to(version, known);
  if ((flags & ~mine) != 0 && !newer_than_ours(version)) {
    reader.reject("flags", "has an unknown bit", flags);
  }
  return flags & mine;
}

bool is_known(Role role) noexcept { return role >= Role::kControl && role <= Role::kProbe; }

}  // namespace

std::vector<std::byte> encode(const Hello& hello) {
  ByteWriter out;
  put_version(out, hello.version);
  out.put(hello.role);
  out.put(uint8_t{0});
  out.put(uint16_t{0});
  put_instance(out, hello.instance);
  put_instance(out, hello.target);
  put_instance(out, hello.host);
  out.put(hello.pid);
  out.put_string(to_plain_text(hello.name, kMaxNameBytes));
  out.put(known_to(hello.version, (hello.authenticates ? kAuthenticates : 0) |
                                      (hello.wants_checks ? kChecks : 0) |
                                      (hello.may_stage ? kStages : 0)));
  out.put_bytes(hello.nonce);
  return out.take();
}

std::vector<std::byte> encode(const Welcome& welcome) {
  ByteWriter out;
  put_version(out, welcome.version);
  out.put(welcome.pid);
  put_instance(out, welcome.instance);
  put_instance(out, welcome.host);
  out.put(welcome.table_capacity);
  out.put(welcome.ring_bytes);
  out.put(welcome.page_nonce);
  out.put(welcome.max_notification_bytes);
  out.put_string(to_plain_text(welcome.name, kMaxNameBytes));
  out.put_string(to_plain_text(welcome.socket_path, kMaxPathBytes));
  out.put(
      known_to(welcome.version, (welcome.checks ? kChecks : 0) | (welcome.stages ? kStages : 0)));
  return out.take();
}

std::vector<std::byte> encode(const Outcome& outcome) {
  ByteWriter out;
  out.put(pack_reason(outcome.reason));
  out.put_string(to_plain_text(outcome.message, kMaxMessageBytes));
  return out.take();
}

Result<Hello> decode_hello(std::span<const std::byte> in) {
  FieldReader reader("hello", in);
  Hello hello;
  hello.version = get_version(reader);
  if (reader.ok()) SL_TRY(check_version(hello.version, "hello"));
  hello.role = reader.get<Role>("role");
  if (!is_known(hello.role)) {
    reader.reject("role", "is unknown", static_cast<uint64_t>(hello.role));
  }
  reader.get_zero<uint8_t>("reserved");
  reader.get_zero<uint16_t>("reserved");
  hello.instance = reader.get_instance("instance");
  hello.target = reader.get_instance("target");
  hello.host = reader.get_instance("host");
  hello.pid = reader.get<uint32_t>("pid");
  hello.name = reader.get_text("name", kMaxNameBytes);
  const uint32_t flags = get_flags(reader, hello.version, kAuthenticates | kChecks | kStages);
  hello.authenticates = (flags & kAuthenticates) != 0;
  hello.wants_checks = (flags & kChecks) != 0;
  hello.may_stage = (flags & kStages) != 0;
  const auto nonce = reader.get_bytes("nonce", hello.nonce.size());
  std::copy(nonce.begin(), nonce.end(), hello.nonce.begin());
  SL_TRY(reader.finish(newer_than_ours(hello.version)));
  return hello;
}

Result<Welcome> decode_welcome(std::span<const std::byte> in) {
  FieldReader reader("welcome", in);
  Welcome welcome;
  welcome.version = get_version(reader);
  if (reader.ok()) SL_TRY(check_version(welcome.version, "welcome"));
  welcome.pid = reader.get<uint32_t>("pid");
  welcome.instance = reader.get_instance("instance");
  welcome.host = reader.get_instance("host");
  welcome.table_capacity = reader.get<uint32_t>("table_capacity");
  welcome.ring_bytes = reader.get<uint32_t>("ring_bytes");
  welcome.page_nonce = reader.get<uint64_t>("page_nonce");
  welcome.max_notification_bytes = reader.get<uint64_t>("max_notification_bytes");
  welcome.name = reader.get_text("name", kMaxNameBytes);
  welcome.socket_path = reader.get_text("socket_path", kMaxPathBytes);
  const uint32_t flags = get_flags(reader, welcome.version, kChecks | kStages);
  welcome.checks = (flags & kChecks) != 0;
  welcome.stages = (flags & kStages) != 0;
  SL_TRY(reader.finish(newer_than_ours(welcome.version)));
  return welcome;
}

Result<Outcome> decode_outcome(std::span<const std::byte> in) {
  FieldReader reader("outcome", in);
  Outcome outcome;
  const auto packed = reader.get<uint16_t>("reason");
  if (const auto reason = unpack_reason(packed); reason.has_value()) {
    outcome.reason = *reason;
  } else {
    reader.reject("reason", "has an unknown code", packed);
  }
  outcome.message = reader.get_text("message", kMaxMessageBytes);
  SL_TRY(reader.finish());
  return outcome;
}

Status to_status(const Outcome& outcome, const char* who) {
  if (outcome.reason == Reason::kOk) return {};
  return Status(outcome.reason, fmt::format("{}: {}", who, outcome.message));
}

Status check_version(Version theirs, const char* what) {
  const Version ours = own_version();
  const int apart = int{theirs.minor} - int{ours.minor};
  if (theirs.major == ours.major && apart >= -1 && apart <= 1) return {};
  return Status(Reason::kVersion, fmt::format("{} speaks protocol {}.{}, we speak {}.{}", what,
                                              theirs.major, theirs.minor, ours.major, ours.minor));
}

Version own_version() noexcept { return {kProtocolMajor, kProtocolMinor}; }

}  // namespace stagelink::wire
