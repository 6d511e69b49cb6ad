#include "cli/bench/rig/rig.h"

#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "cli/bench/rig/process_load.h"
#include "config/engine_config.h"

namespace stagelink::cli::bench {

namespace {

constexpr uint64_t kRemoteSalt = 0x5151;
constexpr uint64_t kLocalSalt = 0xa7a7'0000'0001;
constexpr uint64_t kVerifySeed = 77;

}  // namespace

Result<std::unique_ptr<Rig>> Rig::create(const RigOptions& options) {
  std::unique_ptr<Rig> rig(new Rig());
  TargetOptions target{
      .transports = options.transports, .core = std::nullopt, .huge_pages = options.huge_pages};
  if (options.pin) {
    SL_TRY(pin_to_core(kInitiatorCore));
    target.core = kTargetCore;
  }
  SL_ASSIGN(rig->target_, TargetProcess::start(target));
  SL_ASSIGN(rig->remote_, options.remote == MemoryKind::kShareable
                              ? rig->target_->allocate(kRegionBytes)
                              : rig->target_->register_private(kRegionBytes));
  SL_ASSIGN(PrivateMemory memory, PrivateMemory::create(kRegionBytes));
  rig->private_memory_.emplace(std::move(memory));

  EngineOptions engine_options;
  SL_TRY(config::set_option(engine_options, "huge_pages", options.huge_pages));
  engine_options.name = "bench-initiator";
  engine_options.transports = options.transports;
  SL_ASSIGN(rig->engine_, Engine::create(engine_options));
  const std::span<std::byte> bytes = rig->private_memory_->bytes();
  SL_ASSIGN(Region region, rig->engine_->register_memory(bytes.data(), bytes.size()));
  rig->private_region_.emplace(std::move(region));
  SL_ASSIGN(Peer peer, rig->engine_->connect(std::span(rig->target_->descriptor())));
  rig->peer_.emplace(std::move(peer));
  return rig;
}

Result<Session*> Rig::session(MemoryKind kind) {
  std::optional<Session>& slot =
      kind == MemoryKind::kPrivate ? private_session_ : shareable_session_;
  if (slot) return &*slot;
  if (kind == MemoryKind::kShareable && !shareable_region_) {
    SL_ASSIGN(Region region, engine_->allocate(kRegionBytes));
    shareable_region_.emplace(std::move(region));
  }
  const std::array<const Region*, 1> regions = {&local(kind)};
  SL_ASSIGN(Session session, peer_->session(regions, std::span(&remote_.descriptor, 1)));
  slot.emplace(std::move(session));
  return &*slot;
}

Status Rig::prepare(Op op, MemoryKind kind) {
  if (op == Op::kRead) return target_->fill(remote_.number, kRemoteSalt);
  SL_TRY(session(kind).status());
  fill_content(local(kind).bytes(), kLocalSalt);
  return Status();
}

Contender Rig::contender(Session& session, Op op) {
  return [&session, op](const Picks& picks, Sample& sample) -> Status {
    const RangeList ranges = picks.ranges();
    const double start_us = now_us();
    Result<Transfer> transfer = op == Op::kRead ? session.read(ranges) : session.write(ranges);
    const double submitted_us = now_us();
    if (!transfer.ok()) return transfer.status();
    SL_TRY(transfer->wait());
    sample.wall_us = now_us() - start_us;
    sample.submit_us = submitted_us - start_us;
    return Status();
  };
}

Status Rig::verify(Op op, MemoryKind kind, const Shape& shape) {
  SL_ASSIGN(Session * opened, session(kind));
  return verify(op, kind, shape, contender(*opened, op));
}

Status Rig::verify(Op op, MemoryKind kind, const Shape& shape, const Contender& contender) {
  const Picks picks = make_picks(shape, kVerifySeed);
  if (op == Op::kRead) {
    for (const uint64_t offset : picks.local) {
      std::memset(local(kind).bytes().data() + offset, 0xee, shape.block_bytes);
    }
  } else {
    SL_TRY(target_->poison(remote_.number, shape, kVerifySeed));
  }
  Sample sample;
  SL_TRY(contender(picks, sample));
  SL_ASSIGN(const uint64_t right, count_right(op, kind, shape, picks));
  if (right == shape.blocks) return Status();
  return Status(Reason::kCorrupt,
                fmt::format("{} of {} blocks of {} bytes are wrong", shape.blocks - right,
                            shape.blocks, shape.block_bytes));
}

Result<uint64_t> Rig::count_right(Op op, MemoryKind kind, const Shape& shape, const Picks& picks) {
  if (op == Op::kWrite) {
    return target_->count_right(remote_.number, shape, kVerifySeed, kLocalSalt);
  }
  uint64_t right = 0;
  for (size_t i = 0; i < picks.local.size(); ++i) {
    const auto piece = local(kind).bytes().subspan(picks.local[i], shape.block_bytes);
    if (holds_content(piece, picks.remote[i], kRemoteSalt)) ++right;
  }
  return right;
}

}  // namespace stagelink::cli::bench
