#include "engine/link/inbound_peer.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>

#include "base/log.h"
#include "base/random.h"
#include "engine/core.h"
#include "wire/batch_header.h"
#include "wire/notify_record.h"

namespace stagelink::engine {
namespace {

Result<UniqueFd> duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return Status(Reason::kNofile, std::string("dup: ") + std::strerror(errno));
  return copy;
}

Result<memory::SharedPages> create_page(Carrier carrier, uint64_t nonce) {
  // A ring that nobody else maps takes memory as it fills.
  auto pages = carrier == Carrier::kTcp
                   ? memory::SharedPages::create_unshared(wire::kPeerPageBytes)
                   : memory::SharedPages::create("stagelink-peer", wire::kPeerPageBytes,
                                                 memory::SharedPages::Peers::kMayWrite);
  if (!pages.ok()) return pages.status();
  auto* page = pages->at<wire::PeerPage>();
  const wire::Version version = wire::own_version();
  page->nonce = nonce;
  page->version_major = version.major;
  page->version_minor = version.minor;
  page->lane_count = wire::kLaneCount;
  page->ring_bytes = wire::kRingBytes;
  page->magic = wire::kPeerPageMagic;
  return pages;
}

}  // namespace

InboundPeer::InboundPeer(EngineCore& core, Carrier carrier,
                         std::shared_ptr<InboundRing> ring) noexcept
    : core_(core),
      carrier_(carrier),
      ring_(std::move(ring)),
      producer_(ring_->page()),
      self_(std::make_shared<InboundPeer*>(this)) {
  core_.metrics().add(metrics::Gauge::kInboundPeers, 1);
}

InboundPeer::~InboundPeer() {
  *self_ = nullptr;
  ring_->departed.store(true);  // Its lanes no longer hold anything.
  core_.metrics().add(metrics::Gauge::kInboundPeers, -1);
}

Result<std::unique_ptr<InboundPeer>> InboundPeer::create(EngineCore& core, UniqueFd fd,
                                                         Carrier carrier,
                                                         const wire::Hello& hello) {
  const uint64_t nonce = random_u64();
  auto page = create_page(carrier, nonce);
  if (!page.ok()) return page.status();
  auto ring = std::make_shared<InboundRing>(hello.instance, hello.name, *std::move(page));
  std::unique_ptr<InboundPeer> peer(new InboundPeer(core, carrier, std::move(ring)));
  auto connection = transport::FrameConnection::create(core.loop().poller(), std::move(fd), *peer);
  if (!connection.ok()) return connection.status();
  peer->connection_ = *std::move(connection);
  if (carrier == Carrier::kTcp) peer->acknowledge_when_taken();
  // The ring is scanned before the peer can possibly use it.
  core.inbox().add(peer->ring_);
  SL_TRY(peer->send_welcome(hello, nonce));
  return peer;
}

// Whoever takes notifications does so on a thread of its own; the acknowledgement leaves from the
// loop, and not while an earlier one is due.
void InboundPeer::acknowledge_when_taken() {
  const auto due = std::make_shared<std::atomic<bool>>(false);
  ring_->on_taken = [core = &core_, due, self = self_](uint64_t) {
    if (due->exchange(true)) return;
    core->loop().run([due, self] {
      due->store(false);
      if (*self != nullptr) (*self)->acknowledge();
    });
  };
}

Status InboundPeer::send_welcome(const wire::Hello& hello, uint64_t page_nonce) {
  wire::Welcome welcome = core_.welcome(hello);
  welcome.page_nonce = page_nonce;
  std::vector<UniqueFd> fds;
  if (carrier_ == Carrier::kUnix) {
    SL_ASSIGN(fds, fds_for_welcome());
  }
  SL_TRY(connection_->send(wire::FrameType::kWelcome, 0, wire::encode(welcome), std::move(fds)));
  if (welcome.checks) connection_->check_frames();
  ring_->close_page_fd();  // One fd for each peer less.
  return Status();
}

Result<std::vector<UniqueFd>> InboundPeer::fds_for_welcome() const {
  std::vector<UniqueFd> fds;
  for (const int fd : {core_.registry().table_fd(), ring_->page_fd(), core_.inbox().doorbell_fd(),
                       core_.inbox().event_fd()}) {
    auto copy = duplicate(fd);
    if (!copy.ok()) return copy.status();
    fds.push_back(*std::move(copy));
  }
  return fds;
}

Status InboundPeer::on_frame(transport::FrameConnection& from, const wire::FrameHeader& header,
                             std::span<const std::byte> payload, std::vector<UniqueFd>&) {
  switch (header.type) {
    case wire::FrameType::kPing: return from.send(wire::FrameType::kPong, header.request_id, {});
    case wire::FrameType::kPong: return Status();
    case wire::FrameType::kBye: return Status(Reason::kPeerLost, "the peer has closed its engine");
    case wire::FrameType::kGetRegion: return answer_get_region(header.request_id, payload);
    case wire::FrameType::kNotify:
      if (carrier_ == Carrier::kTcp) return take_notify(payload);
      break;
    default: break;
  }
  return Status(Reason::kFrame, "unexpected frame type " +
                                    std::to_string(static_cast<unsigned>(header.type)) +
                                    " from a reader");
}

Status InboundPeer::take_notify(std::span<const std::byte> payload) {
  SL_ASSIGN(const wire::NotifyRecord record, wire::decode_notify(payload));
  if (wire::kNotifyHeaderBytes + record.payload.size() != payload.size() ||
      record.payload.size() > transport::kMaxNotifyBytes) {
    return Status(Reason::kFrame, "a notify frame of " + std::to_string(payload.size()) +
                                      " bytes holds a notification of " +
                                      std::to_string(record.payload.size()));
  }
  if (!producer_.push(record.outcome, record.payload)) {
    return Status(Reason::kFrame, "more notifications came than there is room for");
  }
  core_.inbox().arrived();
  return Status();
}

void InboundPeer::acknowledge() {
  const uint64_t taken = ring_->page().head.load(std::memory_order_acquire);
  if (taken == acknowledged_) return;
  // A peer that does not take it has its whole socket full of them, and gets none until it does.
  const wire::NotifyAck ack{taken};
  if (connection_->send(wire::FrameType::kNotifyAck, 0, wire::encode(ack)).ok()) {
    acknowledged_ = taken;
  }
}

Status InboundPeer::answer_get_region(uint64_t request_id, std::span<const std::byte> payload) {
  auto ref = wire::decode_region_ref(payload);
  if (!ref.ok()) return ref.status();
  wire::Outcome outcome;
  std::vector<UniqueFd> fds;
  auto record = core_.registry().find(ref->index, ref->generation);
  if (!record.ok()) {
    outcome = {record.status().reason(), std::string(record.status().message())};
  } else if (carrier_ == Carrier::kTcp) {
    outcome = {Reason::kUnsupported, "memory cannot be handed over TCP"};
  } else if (!(*record)->segment.has_value()) {
    outcome = {Reason::kUnsupported, "the region's memory is private"};
  } else if (!(*record)->gate.try_pin()) {
    outcome = {Reason::kSuperseded, "the region is being deregistered"};
  } else {
    auto copy = duplicate((*record)->segment->fd());
    (*record)->gate.unpin();
    if (copy.ok()) {
      fds.push_back(*std::move(copy));
    } else {
      outcome = {copy.status().reason(), std::string(copy.status().message())};
    }
  }
  return connection_->send(wire::FrameType::kRegion, request_id, wire::encode(outcome),
                           std::move(fds));
}

void InboundPeer::on_closed(transport::FrameConnection&, const Status& why) {
  if (!why.ok() && why.code() != Code::kPeerLost) {
    core_.report("connection from " + ring_->source_name(), why);
  }
  core_.remove_inbound(*this);  // Destroys this.
}

void InboundPeer::say_bye() { (void)connection_->send(wire::FrameType::kBye, 0, {}); }

}  // namespace stagelink::engine
