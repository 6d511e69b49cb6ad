#include "engine/link/inbound_peer.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>

#include "base/log.h"
#include "base/random.h"
#include "engine/core.h"
#include "wire/batch_header.h"

namespace stagelink::engine {
namespace {

Result<UniqueFd> duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) return Status(Reason::kNofile, std::string("dup: ") + std::strerror(errno));
  return copy;
}

Result<memory::SharedPages> create_page(uint64_t nonce) {
  auto pages = memory::SharedPages::create("stagelink-peer", wire::kPeerPageBytes,
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

InboundPeer::InboundPeer(EngineCore& core, std::shared_ptr<InboundRing> ring) noexcept
    : core_(core), ring_(std::move(ring)) {
  core_.metrics().add(metrics::Gauge::kInboundPeers, 1);
}

InboundPeer::~InboundPeer() {
  ring_->departed.store(true);  // Its lanes no longer hold anything.
  core_.metrics().add(metrics::Gauge::kInboundPeers, -1);
}

Result<std::unique_ptr<InboundPeer>> InboundPeer::create(EngineCore& core, UniqueFd fd,
                                                         const wire::Hello& hello) {
  const uint64_t nonce = random_u64();
  auto page = create_page(nonce);
  if (!page.ok()) return page.status();
  auto ring = std::make_shared<InboundRing>(hello.instance, hello.name, *std::move(page));
  std::unique_ptr<InboundPeer> peer(new InboundPeer(core, std::move(ring)));
  auto connection = transport::FrameConnection::create(core.loop().poller(), std::move(fd), *peer);
  if (!connection.ok()) return connection.status();
  peer->connection_ = *std::move(connection);
  // The ring is scanned before the peer can possibly use it.
  core.inbox().add(peer->ring_);
  SL_TRY(peer->send_welcome(nonce));
  return peer;
}

Status InboundPeer::send_welcome(uint64_t page_nonce) {
  wire::Welcome welcome = core_.welcome();
  welcome.page_nonce = page_nonce;
  std::vector<UniqueFd> fds;
  for (const int fd : {core_.registry().table_fd(), ring_->page_fd(), core_.inbox().doorbell_fd(),
                       core_.inbox().event_fd()}) {
    auto copy = duplicate(fd);
    if (!copy.ok()) return copy.status();
    fds.push_back(*std::move(copy));
  }
  SL_TRY(connection_->send(wire::FrameType::kWelcome, 0, wire::encode(welcome), std::move(fds)));
  ring_->close_page_fd();  // One fd for each peer less.
  return Status();
}

Status InboundPeer::on_frame(transport::FrameConnection& from, const wire::FrameHeader& header,
                             std::span<const std::byte> payload, std::vector<UniqueFd>&) {
  switch (header.type) {
    case wire::FrameType::kPing: return from.send(wire::FrameType::kPong, header.request_id, {});
    case wire::FrameType::kPong: return Status();
    case wire::FrameType::kBye: return Status(Reason::kPeerLost, "the peer has closed its engine");
    case wire::FrameType::kGetRegion: return answer_get_region(header.request_id, payload);
    default:
      return Status(Reason::kFrame, "unexpected frame type " +
                                        std::to_string(static_cast<unsigned>(header.type)) +
                                        " from a reader");
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
