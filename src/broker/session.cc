#include "broker/session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/endpoint.h"
#include "base/futex.h"
#include "base/log.h"
#include "broker/packet.h"
#include "broker/reach.h"
#include "broker/request.h"
#include "memory/memfd.h"

namespace stagelink::broker {
namespace {

using namespace std::chrono_literals;
namespace proto = store::yuanrong;
using proto::LaneState;
using proto::Seen;

constexpr uint32_t kUnavailable = 1002;  // The library's own word for it.
constexpr uint32_t kNoneLeft = 13;       // Too many exclusive connections, among other things.
constexpr uint64_t kProbeBytes = uint64_t{1} << 20;  // Enough to lie in the worker's memory.

std::atomic<uint32_t>& state_of(proto::Page& page, uint32_t lane) noexcept {
  return page.lane[lane].state;
}

uint32_t word(LaneState state) noexcept { return static_cast<uint32_t>(state); }

}  // namespace

Result<std::shared_ptr<Session>> Session::create(UniqueFd socket, UniqueFd page,
                                                 proto::WorkerOptions options,
                                                 SharedClients& clients, Mappings& mappings) {
  SL_TRY(memory::check_foreign_memfd(page.get(), sizeof(Page), memory::Holes::kAllowed));
  SL_ASSIGN(const std::span<std::byte> mapping, memory::map_shared(page.get(), sizeof(Page), true));
  const Page* const head = reinterpret_cast<const Page*>(mapping.data());
  if (head->magic != proto::kPageMagic || head->version != proto::kProtocolVersion ||
      head->lanes != proto::kLanes) {
    memory::unmap(mapping);
    return Status(Reason::kFrame, "the client's page is not one of this version");
  }
  return std::shared_ptr<Session>(
      new Session(std::move(socket), mapping, std::move(options), clients, mappings));
}

Session::Session(UniqueFd socket, std::span<std::byte> mapping, proto::WorkerOptions options,
                 SharedClients& clients, Mappings& mappings)
    : socket_(std::move(socket)),
      mapping_(mapping),
      page_(reinterpret_cast<Page*>(mapping.data())),
      options_(std::move(options)),
      clients_(clients),
      held_(mappings) {
  clients_.users().fetch_add(1);
  watch().broker_pid = static_cast<uint32_t>(::getpid());
}

Session::~Session() {
  held_.release_all();
  if (exclusive_ != nullptr) {
    exclusive_ = nullptr;
    clients_.give_back_exclusive();
  }
  shared_ = nullptr;
  memory::unmap(mapping_);
  clients_.users().fetch_sub(1);
}

void Session::start(std::function<void(Session&)> connected) {
  open_lanes_ = 1;
  std::thread([self = shared_from_this(), connected = std::move(connected)] {
    self->set_up(connected);
  }).detach();
}

void Session::set_up(const std::function<void(Session&)>& connected) {
  const SdkStatus status = connect();
  if (status.ok()) connected(*this);
  if (!send(welcome_packet(status), -1) || !status.ok()) {
    stop();
    return;
  }
  serve(proto::kFastLane);
}

SdkStatus Session::connect() {
  const auto at = [this](proto::Step step) { watch().step = static_cast<uint32_t>(step); };
  at(proto::Step::kReach);  // The library would try for its whole time to connect.
  Reach reach(Endpoint{options_.host, options_.port}.to_string());
  const Deadline deadline = Deadline::in(std::chrono::milliseconds(options_.connect_timeout_ms));
  if (const Status reached = reach.check(deadline); !reached.ok()) {
    return {kUnavailable, std::string(reached.message())};
  }
  at(proto::Step::kConnect);
  SharedClients::Connected shared = clients_.shared(options_);
  if (!shared.status.ok()) return shared.status;
  shared_ = std::move(shared.client);
  at(proto::Step::kKeys);  // Also a connection that others use already must let this client in.
  if (SdkStatus health = shared_->check_health(); !health.ok()) return health;
  at(proto::Step::kExclusive);
  if (options_.exclusive) {
    auto [client, status] = clients_.exclusive(options_);
    if (!status.ok()) return status;
    // This is the thread of lane 0, whose connection it will be: others may have taken the last.
    const bool granted = client != nullptr && client->check_health().ok();
    if (client != nullptr && !granted) clients_.give_back_exclusive();
    if (granted) exclusive_ = std::move(client);
    watch().exclusive = static_cast<uint32_t>(granted ? Seen::kUp : Seen::kDown);
  }
  at(proto::Step::kMemory);
  look_at_memory(*shared_);
  at(proto::Step::kDone);
  return {};
}

// A worker of another user or host gives ordinary memory without a word; only the address tells.
void Session::look_at_memory(SdkClient& client) {
  SdkMemory probe;
  const std::string key =
      fmt::format("!p!{:x}!{:x}", ::getpid(), reinterpret_cast<uintptr_t>(this));
  if (!client.create(key, kProbeBytes, {}, probe).ok()) return;
  auto place = held_.add(std::move(probe), HeldObjects::Use::kFill);
  if (!place.ok()) return;
  const bool copied = held_.copies() > 0;
  watch().memory = static_cast<uint32_t>(copied ? Seen::kDown : Seen::kUp);
  held_.release(std::span(&place->handle, 1));
}

bool Session::handle(std::span<const std::byte> packet) {
  ByteReader reader(packet);
  switch (static_cast<proto::Message>(reader.get<uint32_t>())) {
    case proto::Message::kOpenLane: {
      const auto lane = reader.get<uint64_t>();
      return reader.done() && open_lane(lane);
    }
    case proto::Message::kRelease: {
      std::vector<uint64_t> handles;
      while (reader.ok() && reader.left() > 0 && handles.size() < proto::kMaxHandlesPerMessage) {
        handles.push_back(reader.get<uint64_t>());
      }
      if (!reader.done()) return false;
      held_.release(handles);
      tell_gone();
      return true;
    }
    default: return false;
  }
}

bool Session::open_lane(uint64_t lane) {
  if (lane >= proto::kLanes) return false;
  const uint64_t bit = uint64_t{1} << lane;
  if ((open_lanes_.fetch_or(bit) & bit) != 0) return true;
  std::thread([self = shared_from_this(), lane] {
    self->serve(static_cast<uint32_t>(lane));
  }).detach();
  return true;
}

void Session::stop() noexcept {
  if (stopping_.exchange(true)) return;
  ::shutdown(socket_.get(), SHUT_RDWR);
  for (uint32_t lane = 0; lane < proto::kLanes; ++lane) {
    futex_wake_all(state_of(*page_, lane), FutexScope::kShared);
  }
}

void Session::give_back() noexcept { held_.release_all(); }

void Session::wake_client() noexcept {
  for (uint32_t lane = 0; lane < proto::kLanes; ++lane) {
    if (state_of(*page_, lane).load() == word(LaneState::kWorking)) {
      futex_wake_all(state_of(*page_, lane), FutexScope::kShared);
    }
  }
}

void Session::serve(uint32_t lane) {
  std::atomic<uint32_t>& state = state_of(*page_, lane);
  while (!stopping_) {
    uint32_t seen = state.load();
    if (seen == word(LaneState::kRequested)) {
      if (state.compare_exchange_strong(seen, word(LaneState::kWorking))) answer(lane);
      continue;
    }
    if (seen == word(LaneState::kAbandoned)) {  // Before it was looked at.
      (void)state.compare_exchange_strong(seen, word(LaneState::kFree));
      continue;
    }
    futex_wait(state, seen, 5s, FutexScope::kShared);
  }
}

SdkClient& Session::client_of(uint32_t lane) noexcept {
  return lane == proto::kFastLane && exclusive_ != nullptr ? *exclusive_ : *shared_;
}

void Session::answer(uint32_t lane_index) {
  proto::Lane& lane = page_->lane[lane_index];
  Answer answer = carry_out(lane, client_of(lane_index), held_);
  if (answer.status.code == kNoneLeft && lane_index == proto::kFastLane && exclusive_ != nullptr) {
    // Lost with the worker that it was of, and taken by others since.
    watch().exclusive = static_cast<uint32_t>(Seen::kDown);
    exclusive_ = nullptr;
    clients_.give_back_exclusive();
    answer = carry_out(lane, *shared_, held_);
  }
  for (const proto::Place& place : answer.places) {
    if (place.handle != 0 && !announce(place)) {
      stop();
      break;
    }
  }
  write_reply(answer, lane);
  uint32_t working = word(LaneState::kWorking);
  if (!stopping_ && lane.state.compare_exchange_strong(working, word(LaneState::kDone))) {
    futex_wake_all(lane.state, FutexScope::kShared);
    tell_gone();
    return;
  }
  std::vector<uint64_t> unwanted;
  for (const proto::Place& place : answer.places) {
    if (place.handle != 0) unwanted.push_back(place.handle);
  }
  held_.release(unwanted);
  tell_gone();
  lane.state = word(LaneState::kFree);
  futex_wake_all(lane.state, FutexScope::kShared);  // A client that waits for a lane.
}

bool Session::announce(const proto::Place& place) {
  const ArenaNotice notice = held_.notice_for(place);
  return !notice.fd || send(arena_packet(notice.id, notice.bytes), notice.fd.get());
}

void Session::tell_gone() {
  for (const uint64_t id : held_.gone()) {
    if (!send(arena_gone_packet(id), -1)) return;
  }
}

bool Session::send(std::span<const std::byte> packet, int fd) {
  const MutexLock lock(send_mutex_);
  return send_packet(socket_.get(), packet, fd);
}

}  // namespace stagelink::broker
