#include "engine/link/dial.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/endpoint.h"
#include "base/log.h"
#include "engine/core.h"
#include "engine/link/handshake.h"
#include "engine/link/stream_link.h"
#include "transport/blocking_frames.h"
#include "transport/shm/notify_ring.h"
#include "wire/engine_desc.h"

namespace stagelink::engine {
namespace {

using transport::TransportKind;

// Where a peer can be met.
struct Meeting {
  std::string name;     // For messages.
  InstanceId instance;  // Zero: whoever answers.
  InstanceId host;
  std::string socket_path;
  std::vector<Endpoint> addresses;
};

struct Connected {
  UniqueFd fd;
  Greeted greeted;
};

bool may_meet_on_this_host(const EngineCore& core) {
  return core.enabled(TransportKind::kShm) || core.enabled(TransportKind::kCma) ||
         core.enabled(TransportKind::kStream);
}

PeerLink link_of(Connected connected, const Meeting& meeting) {
  const wire::Welcome& welcome = connected.greeted.welcome;
  PeerLink link;
  link.instance = welcome.instance;
  link.name = welcome.name;
  link.checked = welcome.checks;
  link.pid = welcome.pid;
  link.max_notification_bytes = static_cast<uint32_t>(
      std::min<uint64_t>(welcome.max_notification_bytes, transport::kMaxNotifyBytes));
  link.notify_window = std::min(welcome.ring_bytes, wire::kRingBytes);
  link.control = std::move(connected.fd);
  link.addresses = meeting.addresses;
  return link;
}

Result<std::shared_ptr<PeerState>> attach(const std::shared_ptr<EngineCore>& core, PeerLink link,
                                          const Deadline& deadline) {
  auto peer = std::make_shared<PeerState>(core, std::move(link));
  if (const Status attached = peer->attach(deadline); !attached.ok()) {
    peer->release_handle();
    return attached;
  }
  core->metrics().add(metrics::Counter::kPeersConnected);
  return peer;
}

Result<Connected> meet_at_socket(const EngineCore& core, const std::string& path, wire::Role role,
                                 InstanceId instance, const Deadline& deadline) {
  SL_ASSIGN(UniqueFd fd, transport::connect_unix(path, deadline));
  SL_ASSIGN(Greeted greeted, greet(core, fd.get(), role, instance, deadline));
  return Connected{std::move(fd), std::move(greeted)};
}

// The addresses in turn. A silent one takes its share of the time that is left, no more.
Result<Connected> meet_over_tcp(const EngineCore& core, std::span<const Endpoint> addresses,
                                wire::Role role, InstanceId instance, const Deadline& deadline) {
  Status last(Reason::kUnreachable, "the peer's descriptor names no address");
  for (size_t i = 0; i < addresses.size(); ++i) {
    const Deadline share =
        Deadline::in(deadline.left() / static_cast<int64_t>(addresses.size() - i));
    auto fd = transport::connect_tcp(addresses[i].host, addresses[i].port, share);
    if (!fd.ok()) {
      last = fd.status();
      continue;
    }
    auto greeted = greet(core, fd->get(), role, instance, share);
    if (greeted.ok()) return Connected{*std::move(fd), *std::move(greeted)};
    last = Status(greeted.status().reason(),
                  addresses[i].to_string() + ": " + std::string(greeted.status().message()));
  }
  return last;
}

// Whether we may copy the peer's private memory ourselves. If not, that is no failure of the
// connect.
void probe_cma(PeerLink& link) {
  auto owner = transport::CmaOwner::probe(link.control.get(), link.shared->table());
  link.why_no_cma = owner.status();
  if (owner.ok()) link.cma = *std::move(owner);
}

Result<std::shared_ptr<PeerState>> dial_socket(const std::shared_ptr<EngineCore>& core,
                                               const Meeting& meeting, const Deadline& deadline) {
  SL_ASSIGN(Connected connected, meet_at_socket(*core, meeting.socket_path, wire::Role::kControl,
                                                meeting.instance, deadline));
  SL_ASSIGN(auto shared,
            SharedView::open(connected.greeted.welcome, std::exchange(connected.greeted.fds, {})));
  PeerLink link = link_of(std::move(connected), meeting);
  link.shared = std::move(shared);
  link.socket_path = meeting.socket_path;
  if (core->may_use_cma()) probe_cma(link);
  return attach(core, std::move(link), deadline);
}

Result<std::shared_ptr<PeerState>> dial_tcp(const std::shared_ptr<EngineCore>& core,
                                            const Meeting& meeting, const Deadline& deadline) {
  SL_ASSIGN(Connected connected, meet_over_tcp(*core, meeting.addresses, wire::Role::kControl,
                                               meeting.instance, deadline));
  return attach(core, link_of(std::move(connected), meeting), deadline);
}

Result<std::shared_ptr<PeerState>> dial(const std::shared_ptr<EngineCore>& core,
                                        const Meeting& meeting, const Deadline& deadline) {
  const bool tcp = core->enabled(TransportKind::kTcp);
  if (meeting.host == core->host() && may_meet_on_this_host(*core)) {
    auto peer = dial_socket(core, meeting, deadline);
    // A socket that is not there may belong to another mount namespace; an answer is an answer.
    if (peer.ok() || !tcp || peer.status().code() != Code::kUnreachable) return peer;
    auto over_tcp = dial_tcp(core, meeting, deadline);
    if (over_tcp.ok()) {
      log(LogLevel::kWarning, "connect",
          fmt::format("peer {} is reached over TCP, because {}", meeting.name,
                      peer.status().to_string()));
    }
    return over_tcp;
  }
  if (tcp) return dial_tcp(core, meeting, deadline);
  return Status(Reason::kOtherHost,
                fmt::format("peer {} is on another host, or in another mount or IPC namespace, and "
                            "tcp is not among the engine's transports ({})",
                            meeting.name, fmt::join(core->options().transports, ", ")));
}

}  // namespace

Result<std::shared_ptr<PeerState>> dial_descriptor(const std::shared_ptr<EngineCore>& core,
                                                   std::span<const std::byte> descriptor,
                                                   const Deadline& deadline) {
  SL_ASSIGN(wire::EngineDesc desc, wire::decode_engine_desc(descriptor));
  Meeting meeting;
  meeting.name = std::move(desc.name);
  meeting.instance = desc.instance;
  meeting.host = desc.host;
  meeting.socket_path = std::move(desc.socket_path);
  for (const std::string& address : desc.addresses) {
    SL_ASSIGN(Endpoint endpoint, parse_endpoint(address));
    meeting.addresses.push_back(std::move(endpoint));
  }
  return dial(core, meeting, deadline);
}

// A probe tells who answers there, and with it the better way.
Result<std::shared_ptr<PeerState>> dial_address(const std::shared_ptr<EngineCore>& core,
                                                std::string_view host_port,
                                                const Deadline& deadline) {
  SL_ASSIGN(const Endpoint endpoint, parse_endpoint(host_port));
  if (endpoint.wildcard()) {
    return Status(Reason::kInvalidArgument,
                  "address \"" + std::string(host_port) + "\" is a wildcard: name one host");
  }
  SL_ASSIGN(const Connected probe, meet_over_tcp(*core, std::span(&endpoint, 1), wire::Role::kProbe,
                                                 InstanceId{}, deadline));
  const wire::Welcome& welcome = probe.greeted.welcome;
  return dial(core, {welcome.name, welcome.instance, welcome.host, welcome.socket_path, {endpoint}},
              deadline);
}

Result<std::shared_ptr<transport::PostedTransport>> dial_stream(
    const std::shared_ptr<PeerState>& peer, const Deadline& deadline) {
  const PeerLink& link = peer->link();
  const auto kind = peer->stream_kind();
  if (!kind) {
    return Status(Reason::kUnreachable, "neither unix nor tcp reaches peer " + link.name +
                                            " with the engine's transports");
  }
  auto connected =
      *kind == TransportKind::kStream
          ? meet_at_socket(peer->core(), link.socket_path, wire::Role::kData, link.instance,
                           deadline)
          : meet_over_tcp(peer->core(), link.addresses, wire::Role::kData, link.instance, deadline);
  if (!connected.ok()) return connected.status();
  return open_stream_link(peer, std::move(connected->fd), std::move(connected->greeted), deadline);
}

}  // namespace stagelink::engine
