#include "engine/link/dial.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "base/endpoint.h"
#include "engine/core.h"
#include "engine/link/stream_link.h"
#include "transport/blocking_frames.h"
#include "wire/engine_desc.h"
#include "wire/hello.h"

namespace stagelink::engine {
namespace {

struct Greeted {
  wire::Welcome welcome;
  std::vector<UniqueFd> fds;
};

// Sends our hello and reads the welcome.
Result<Greeted> greet(const EngineCore& core, int fd, wire::Role role, InstanceId target,
                      const Deadline& deadline) {
  wire::Hello hello;
  hello.version = wire::own_version();
  hello.role = role;
  hello.instance = core.instance();
  hello.target = target;
  hello.host = core.host();
  hello.pid = static_cast<uint32_t>(::getpid());
  hello.name = core.options().name;
  const Status sent =
      transport::send_frame(fd, wire::FrameType::kHello, 0, wire::encode(hello), deadline);
  // A peer that refuses at once has closed before our hello, and its reason waits to be read.
  if (!sent.ok() && sent.reason() != Reason::kConnectionCut) return sent;
  auto frame = transport::receive_frame(fd, deadline);
  if (!frame.ok()) return sent.ok() ? frame.status() : sent;
  if (frame->header.type == wire::FrameType::kRefuse) {
    auto outcome = wire::decode_outcome(frame->payload);
    if (!outcome.ok()) return outcome.status();
    const Reason reason = outcome->reason == Reason::kOk ? Reason::kRefused : outcome->reason;
    return Status(reason, "refused by the peer: " + outcome->message);
  }
  if (frame->header.type != wire::FrameType::kWelcome) {
    return Status(Reason::kFrame, "the answer to our hello is no welcome");
  }
  auto welcome = wire::decode_welcome(frame->payload);
  if (!welcome.ok()) return welcome.status();
  if (target != InstanceId{} && welcome->instance != target) {
    return Status(Reason::kRestarted, "instance " + target.to_string() + " is gone; " +
                                          welcome->instance.to_string() +
                                          " answers in its place: take its new descriptor");
  }
  return Greeted{*std::move(welcome), std::move(frame->fds)};
}

Status check_page(const wire::PeerPage& page, const wire::Welcome& welcome) {
  if (page.magic != wire::kPeerPageMagic || page.nonce != welcome.page_nonce ||
      page.lane_count != wire::kLaneCount || page.ring_bytes != wire::kRingBytes) {
    return Status(Reason::kCorrupt, "the peer page does not match the welcome");
  }
  return Status();
}

Status check_table(const wire::TableHeader& table, const wire::Welcome& welcome) {
  SL_TRY(wire::check_version({table.version_major, table.version_minor}, "region table"));
  if (table.magic != wire::kTableMagic || table.capacity != welcome.table_capacity ||
      table.entry_bytes != sizeof(wire::TableEntry) ||
      InstanceId{table.instance_high, table.instance_low} != welcome.instance) {
    return Status(Reason::kCorrupt, "the region table does not match the welcome");
  }
  return Status();
}

// What we write to must neither block nor raise a signal, which a pipe or a socket would.
Status check_bell(int fd) {
  char kind[64];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), kind, sizeof kind);
  const int flags = ::fcntl(fd, F_GETFL);
  if (size < 0 || flags < 0) {
    return Status(Reason::kSystem, link + " cannot be looked at: " + std::strerror(errno));
  }
  if (std::string_view(kind, static_cast<size_t>(size)) != "anon_inode:[eventfd]" ||
      (flags & O_NONBLOCK) == 0) {
    return Status(Reason::kCorrupt, "the doorbell of the welcome is no eventfd that never blocks");
  }
  return Status();
}

Result<PeerLink> make_link(UniqueFd control, Greeted greeted) {
  const wire::Welcome& welcome = greeted.welcome;
  if (greeted.fds.size() != 4) {
    return Status(Reason::kFrame, "the welcome came without its four fds");
  }
  if (welcome.table_capacity == 0 || welcome.table_capacity > (1U << 24)) {
    return Status(Reason::kFrame, "welcome: table_capacity is out of range");
  }
  auto table = memory::SharedPages::open(
      std::move(greeted.fds[0]), wire::table_bytes(welcome.table_capacity), /*writable=*/false);
  if (!table.ok()) return table.status();
  auto page =
      memory::SharedPages::open(std::move(greeted.fds[1]), wire::kPeerPageBytes, /*writable=*/true);
  if (!page.ok()) return page.status();
  auto doorbell =
      memory::SharedPages::open(std::move(greeted.fds[2]), wire::kDoorbellBytes, /*writable=*/true);
  if (!doorbell.ok()) return doorbell.status();
  SL_TRY(check_table(*table->at<wire::TableHeader>(), welcome));
  SL_TRY(check_page(*page->at<wire::PeerPage>(), welcome));
  SL_TRY(check_bell(greeted.fds[3].get()));

  PeerLink link;
  link.instance = welcome.instance;
  link.name = welcome.name;
  link.socket_path = welcome.socket_path;
  link.pid = welcome.pid;
  link.table_capacity = welcome.table_capacity;
  link.max_notification_bytes = static_cast<uint32_t>(
      std::min<uint64_t>(welcome.max_notification_bytes, transport::kMaxNotifyBytes));
  link.control = std::move(control);
  link.table = *std::move(table);
  link.page = *std::move(page);
  link.doorbell = *std::move(doorbell);
  link.bell = std::move(greeted.fds[3]);
  return link;
}

Result<std::shared_ptr<PeerState>> dial_socket(const std::shared_ptr<EngineCore>& core,
                                               const std::string& path, InstanceId target,
                                               const Deadline& deadline) {
  auto fd = transport::connect_unix(path, deadline);
  if (!fd.ok()) return fd.status();
  auto greeted = greet(*core, fd->get(), wire::Role::kControl, target, deadline);
  if (!greeted.ok()) return greeted.status();
  auto link = make_link(*std::move(fd), *std::move(greeted));
  if (!link.ok()) return link.status();
  auto peer = std::make_shared<PeerState>(core, *std::move(link));
  if (const Status attached = peer->attach(deadline); !attached.ok()) {
    peer->release_handle();
    return attached;
  }
  core->metrics().add(metrics::Counter::kPeersConnected);
  return peer;
}

Status other_host(const std::string& name) {
  return Status(Reason::kOtherHost,
                "peer " + name +
                    " is on another host, or in another mount or IPC namespace; this version moves "
                    "bytes within one host only");
}

}  // namespace

Result<std::shared_ptr<PeerState>> dial_descriptor(const std::shared_ptr<EngineCore>& core,
                                                   std::span<const std::byte> descriptor,
                                                   const Deadline& deadline) {
  auto desc = wire::decode_engine_desc(descriptor);
  if (!desc.ok()) return desc.status();
  if (desc->host != core->host()) return other_host(desc->name);
  return dial_socket(core, desc->socket_path, desc->instance, deadline);
}

Result<std::shared_ptr<PeerState>> dial_address(const std::shared_ptr<EngineCore>& core,
                                                std::string_view host_port,
                                                const Deadline& deadline) {
  auto endpoint = parse_endpoint(host_port);
  if (!endpoint.ok()) return endpoint.status();
  if (endpoint->wildcard()) {
    return Status(Reason::kInvalidArgument,
                  "address \"" + std::string(host_port) + "\" is a wildcard: name one host");
  }
  auto fd = transport::connect_tcp(endpoint->host, endpoint->port, deadline);
  if (!fd.ok()) return fd.status();
  auto greeted = greet(*core, fd->get(), wire::Role::kProbe, InstanceId{}, deadline);
  if (!greeted.ok()) return greeted.status();
  const wire::Welcome& welcome = greeted->welcome;
  if (welcome.host != core->host()) return other_host(welcome.name);
  return dial_socket(core, welcome.socket_path, welcome.instance, deadline);
}

Result<std::shared_ptr<transport::PostedTransport>> dial_stream(
    const std::shared_ptr<PeerState>& peer, const std::string& socket_path,
    const Deadline& deadline) {
  auto fd = transport::connect_unix(socket_path, deadline);
  if (!fd.ok()) return fd.status();
  auto greeted = greet(peer->core(), fd->get(), wire::Role::kData, peer->instance(), deadline);
  if (!greeted.ok()) return greeted.status();
  return open_stream_link(peer, *std::move(fd), deadline);
}

}  // namespace stagelink::engine
