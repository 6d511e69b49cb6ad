// The process at the other end of an OwnerProcess.

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "integration/support/child_process.h"
#include "integration/support/options_blob.h"
#include "integration/support/owner_process.h"
#include "integration/support/private_memory.h"
#include "integration/support/unseen.h"

namespace stagelink::test {
namespace {

constexpr uint64_t kNowhere = ~uint64_t{0};

class OwnerRole {
 public:
  explicit OwnerRole(std::unique_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}

  // Fills `out` with what follows the status.
  Status obey(ByteReader& in, ByteWriter& out) {
    switch (in.get<OwnerCommand>()) {
      case OwnerCommand::kAllocate: return allocate(in, out);
      case OwnerCommand::kRegister: return register_memory(in, out);
      case OwnerCommand::kRegisterAliased: return register_aliased(in, out);
      case OwnerCommand::kFill: return fill(in);
      case OwnerCommand::kSet: return set(in);
      case OwnerCommand::kFirstWrong: return first_wrong(in, out);
      case OwnerCommand::kFirstNot: return first_not(in, out);
      case OwnerCommand::kDeregister: return deregister(in);
      case OwnerCommand::kDrop: regions_.erase(in.get<uint32_t>()); return Status();
      case OwnerCommand::kConnect: return connect(in);
      case OwnerCommand::kDropPeer: peer_.reset(); return Status();
      case OwnerCommand::kNotify: return notify(in);
      case OwnerCommand::kTake: return take(in, out);
      case OwnerCommand::kRead: return move(in, /*is_read=*/true);
      case OwnerCommand::kWrite: return move(in, /*is_read=*/false);
      case OwnerCommand::kMetrics: {
        const std::string text = engine_->metrics_text();
        out.put_bytes(std::as_bytes(std::span(text.data(), text.size())));
        return Status();
      }
      case OwnerCommand::kClose: return engine_->close(Duration(in.get<int64_t>()));
    }
    return Status(Reason::kUnsupported, "unknown command");
  }

 private:
  Status keep(Result<Region> region, std::span<std::byte> bytes, ByteWriter& out) {
    if (!region.ok()) return region.status();
    const uint32_t id = next_id_++;
    out.put(id);
    out.put_bytes(region->descriptor().pack());
    bytes_[id] = bytes.empty() ? region->bytes() : bytes;
    regions_.emplace(id, *std::move(region));
    return Status();
  }

  Status allocate(ByteReader& in, ByteWriter& out) {
    const auto bytes = in.get<uint64_t>();
    AllocateOptions options;
    options.access = in.get<Access>();
    auto region = engine_->allocate(bytes, options);
    // Deregistered memory is still written by tests: held until the process ends.
    if (region.ok()) held_.push_back(region->hold());
    return keep(std::move(region), {}, out);
  }

  Status register_memory(ByteReader& in, ByteWriter& out) {
    const UnseenByTsan unseen;
    auto memory = std::make_unique<PrivateMemory>(in.get<uint64_t>());
    const RegisterOptions options{in.get<Access>()};
    const auto bytes = memory->bytes();
    memories_.push_back(std::move(memory));
    return keep(engine_->register_memory(bytes.data(), bytes.size(), options), bytes, out);
  }

  Status register_aliased(ByteReader& in, ByteWriter& out) {
    const auto body = in.get<uint64_t>();
    aliased_ = std::make_unique<AliasedMemory>(body, in.get<uint64_t>());
    const auto bytes = aliased_->bytes();
    return keep(engine_->register_memory(bytes.data(), bytes.size()), bytes, out);
  }

  std::span<std::byte> span_of(ByteReader& in) {
    const auto whole = bytes_.at(in.get<uint32_t>());
    const auto offset = in.get<uint64_t>();
    return whole.subspan(offset, in.get<uint64_t>());
  }

  Status fill(ByteReader& in) {
    const auto bytes = span_of(in);
    const UnseenByTsan unseen;
    fill_pattern(bytes, in.get<uint64_t>());
    return Status();
  }

  Status set(ByteReader& in) {
    const auto bytes = span_of(in);
    const UnseenByTsan unseen;
    std::memset(bytes.data(), in.get<uint8_t>(), bytes.size());
    return Status();
  }

  Status first_wrong(ByteReader& in, ByteWriter& out) {
    const auto bytes = span_of(in);
    const auto seed = in.get<uint64_t>();
    const UnseenByTsan unseen;
    out.put(uint64_t{test::first_wrong(bytes, seed, in.get<uint64_t>()).value_or(kNowhere)});
    return Status();
  }

  Status first_not(ByteReader& in, ByteWriter& out) {
    const auto bytes = span_of(in);
    const UnseenByTsan unseen;
    out.put(uint64_t{test::first_not(bytes, in.get<std::byte>()).value_or(kNowhere)});
    return Status();
  }

  Status deregister(ByteReader& in) {
    Region& region = regions_.at(in.get<uint32_t>());
    return region.deregister(Duration(in.get<int64_t>()));
  }

  Status connect(ByteReader& in) {
    auto peer = engine_->connect(in.get_bytes(in.get<uint32_t>()));
    if (peer.ok()) peer_.emplace(*std::move(peer));
    return peer.status();
  }

  Status notify(ByteReader& in) { return peer_->notify(in.get_bytes(in.get<uint32_t>())); }

  Status take(ByteReader& in, ByteWriter& out) {
    const Duration timeout(in.get<int64_t>());
    SL_ASSIGN(const std::vector<Notification> taken,
              engine_->notifications(timeout, in.get<uint64_t>()));
    out.put(static_cast<uint32_t>(taken.size()));
    for (const Notification& note : taken) {
      out.put(note.source.high);
      out.put(note.source.low);
      out.put_string(note.source_name);
      out.put(note.outcome);
      out.put(static_cast<uint32_t>(note.payload.size()));
      out.put_bytes(note.payload);
    }
    return Status();
  }

  Status move(ByteReader& in, bool is_read) {
    const std::array<const Region*, 1> own = {&regions_.at(in.get<uint32_t>())};
    const auto bytes = in.get<uint64_t>();
    SL_ASSIGN(const RegionDesc remote, RegionDesc::unpack(in.get_bytes(in.left())));
    SL_ASSIGN(Session session, peer_->session(own, std::span(&remote, 1)));
    const StridedRange range{.bytes = bytes, .count = 1};
    SL_ASSIGN(Transfer transfer, is_read ? session.read(range) : session.write(range));
    return transfer.wait();
  }

  std::vector<std::unique_ptr<PrivateMemory>> memories_;
  std::unique_ptr<AliasedMemory> aliased_;
  std::vector<std::shared_ptr<const void>> held_;
  std::unique_ptr<Engine> engine_;
  std::map<uint32_t, Region> regions_;
  std::map<uint32_t, std::span<std::byte>> bytes_;
  std::optional<Peer> peer_;
  uint32_t next_id_ = 0;
};

bool answer(Channel& parent, const Status& status, ByteWriter& rest) {
  ByteWriter out;
  out.put(status.reason());
  out.put_string(status.message());
  out.put_bytes(rest.take());
  return parent.send(out.take());
}

int run_owner(Channel& parent) {
  const auto setup = parent.receive();
  if (!setup) return 1;
  EngineOptions options;
  ByteReader in(*setup);
  visit_options(options, OptionsReader(in));
  auto engine = Engine::create(options);
  ByteWriter rest;
  if (engine.ok()) {
    const auto descriptor = (*engine)->descriptor();
    rest.put(static_cast<uint32_t>(descriptor.size()));
    rest.put_bytes(descriptor);
    rest.put_string((*engine)->address());
  }
  if (!answer(parent, engine.status(), rest) || !engine.ok()) return 1;
  OwnerRole role(*std::move(engine));
  // The test decides how long; the child's own alarm is the bound.
  while (const auto message = parent.receive(std::chrono::minutes(2))) {
    ByteReader command(*message);
    ByteWriter out;
    const Status status = role.obey(command, out);
    if (!answer(parent, status, out)) return 1;
  }
  return 0;
}

const RoleRegistration kOwner("owner", &run_owner);

}  // namespace
}  // namespace stagelink::test
