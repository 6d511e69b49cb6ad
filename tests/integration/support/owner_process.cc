#include "integration/support/owner_process.h"

#include <stdexcept>

#include "integration/support/options_blob.h"

namespace stagelink::test {
namespace {

ByteWriter command(OwnerCommand what) {
  ByteWriter out;
  out.put(what);
  return out;
}

void put_blob(ByteWriter& out, std::span<const std::byte> blob) {
  out.put(static_cast<uint32_t>(blob.size()));
  out.put_bytes(blob);
}

ByteWriter span_command(OwnerCommand what, const OwnedRegion& region, uint64_t offset,
                        uint64_t bytes) {
  ByteWriter out = command(what);
  out.put(region.id);
  out.put(offset);
  out.put(bytes != 0 ? bytes : region.desc.bytes - offset);
  return out;
}

}  // namespace

OwnerProcess::OwnerProcess(const EngineOptions& options) : child_("owner") {
  ByteWriter setup;
  visit_options(options, OptionsWriter(setup));
  const Answer answer = must(setup);
  ByteReader in(answer.rest);
  const auto blob = in.get_bytes(in.get<uint32_t>());
  descriptor_.assign(blob.begin(), blob.end());
  address_ = in.get_string();
}

OwnerProcess::Answer OwnerProcess::ask(ByteWriter& command) {
  if (!child_.channel().send(command.take())) throw std::runtime_error("the owner has gone");
  const auto message = child_.channel().receive();
  if (!message) throw std::runtime_error("the owner gave no answer");
  ByteReader in(*message);
  const auto reason = in.get<Reason>();
  const std::string text(in.get_string());
  const auto rest = in.get_bytes(in.left());
  return {reason == Reason::kOk ? Status() : Status(reason, text), {rest.begin(), rest.end()}};
}

OwnerProcess::Answer OwnerProcess::must(ByteWriter& command) {
  Answer answer = ask(command);
  if (!answer.status.ok()) throw std::runtime_error("owner: " + answer.status.to_string());
  return answer;
}

OwnedRegion OwnerProcess::region_from(const Answer& answer) {
  ByteReader in(answer.rest);
  OwnedRegion region;
  region.id = in.get<uint32_t>();
  auto desc = RegionDesc::unpack(in.get_bytes(in.left()));
  if (!desc.ok()) throw std::runtime_error(desc.status().to_string());
  region.desc = *desc;
  return region;
}

OwnedRegion OwnerProcess::allocate(uint64_t bytes, Access access) {
  ByteWriter out = command(OwnerCommand::kAllocate);
  out.put(bytes);
  out.put(access);
  return region_from(must(out));
}

OwnedRegion OwnerProcess::register_memory(uint64_t bytes, Access access) {
  ByteWriter out = command(OwnerCommand::kRegister);
  out.put(bytes);
  out.put(access);
  return region_from(must(out));
}

OwnedRegion OwnerProcess::register_aliased(uint64_t body, uint64_t tail) {
  ByteWriter out = command(OwnerCommand::kRegisterAliased);
  out.put(body);
  out.put(tail);
  return region_from(must(out));
}

void OwnerProcess::fill(const OwnedRegion& region, uint64_t seed, uint64_t offset, uint64_t bytes) {
  ByteWriter out = span_command(OwnerCommand::kFill, region, offset, bytes);
  out.put(seed);
  must(out);
}

void OwnerProcess::set(const OwnedRegion& region, std::byte value, uint64_t offset,
                       uint64_t bytes) {
  ByteWriter out = span_command(OwnerCommand::kSet, region, offset, bytes);
  out.put(value);
  must(out);
}

uint64_t OwnerProcess::first_wrong(const OwnedRegion& region, uint64_t seed, uint64_t offset,
                                   uint64_t bytes, uint64_t place) {
  ByteWriter out = span_command(OwnerCommand::kFirstWrong, region, offset, bytes);
  out.put(seed);
  out.put(place);
  const Answer answer = must(out);
  return ByteReader(answer.rest).get<uint64_t>();
}

uint64_t OwnerProcess::first_not(const OwnedRegion& region, std::byte value, uint64_t offset,
                                 uint64_t bytes) {
  ByteWriter out = span_command(OwnerCommand::kFirstNot, region, offset, bytes);
  out.put(value);
  const Answer answer = must(out);
  return ByteReader(answer.rest).get<uint64_t>();
}

Status OwnerProcess::deregister(const OwnedRegion& region, Duration timeout) {
  ByteWriter out = command(OwnerCommand::kDeregister);
  out.put(region.id);
  out.put(static_cast<int64_t>(timeout.count()));
  return ask(out).status;
}

void OwnerProcess::drop(const OwnedRegion& region) {
  ByteWriter out = command(OwnerCommand::kDrop);
  out.put(region.id);
  must(out);
}

Status OwnerProcess::connect(std::span<const std::byte> descriptor) {
  ByteWriter out = command(OwnerCommand::kConnect);
  put_blob(out, descriptor);
  return ask(out).status;
}

void OwnerProcess::drop_peer() {
  ByteWriter out = command(OwnerCommand::kDropPeer);
  must(out);
}

Status OwnerProcess::notify(std::string_view payload) {
  ByteWriter out = command(OwnerCommand::kNotify);
  put_blob(out, std::as_bytes(std::span(payload.data(), payload.size())));
  return ask(out).status;
}

std::vector<Notification> OwnerProcess::take(Duration timeout, size_t max) {
  ByteWriter out = command(OwnerCommand::kTake);
  out.put(static_cast<int64_t>(timeout.count()));
  out.put(static_cast<uint64_t>(max));
  const Answer answer = must(out);
  ByteReader in(answer.rest);
  std::vector<Notification> taken(in.get<uint32_t>());
  for (Notification& note : taken) {
    note.source.high = in.get<uint64_t>();
    note.source.low = in.get<uint64_t>();
    note.source_name = in.get_string();
    note.outcome = in.get<Reason>();
    const auto payload = in.get_bytes(in.get<uint32_t>());
    note.payload.assign(payload.begin(), payload.end());
  }
  return taken;
}

Status OwnerProcess::move(OwnerCommand what, const OwnedRegion& own, const RegionDesc& remote,
                          uint64_t bytes) {
  ByteWriter out = command(what);
  out.put(own.id);
  out.put(bytes);
  out.put_bytes(remote.pack());
  return ask(out).status;
}

Status OwnerProcess::read(const OwnedRegion& own, const RegionDesc& remote, uint64_t bytes) {
  return move(OwnerCommand::kRead, own, remote, bytes);
}

Status OwnerProcess::write(const OwnedRegion& own, const RegionDesc& remote, uint64_t bytes) {
  return move(OwnerCommand::kWrite, own, remote, bytes);
}

std::string OwnerProcess::metrics_text() {
  ByteWriter out = command(OwnerCommand::kMetrics);
  const Answer answer = must(out);
  return {reinterpret_cast<const char*>(answer.rest.data()), answer.rest.size()};
}

Status OwnerProcess::close(Duration timeout) {
  ByteWriter out = command(OwnerCommand::kClose);
  out.put(static_cast<int64_t>(timeout.count()));
  return ask(out).status;
}

}  // namespace stagelink::test
