#include "store/yuanrong/channel/link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fork_guard.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/text.h"
#include "memory/memfd.h"
#include "store/yuanrong/channel/codes.h"
#include "store/yuanrong/channel/packet.h"

namespace stagelink::store::yuanrong {
namespace {

using namespace std::chrono_literals;

// Whatever ends a wait also wakes it; this is for the case that the broker is stopped in between.
constexpr auto kLookAgain = 1s;
// A segment is announced before the first place in it, but another lane may overtake the message.
constexpr auto kArenaPatience = 5s;

uint32_t state_word(LaneState state) noexcept { return static_cast<uint32_t>(state); }

template <size_t Size>
std::string text_of(const std::array<char, Size>& text) {
  const auto end = std::find(text.begin(), text.end(), '\0');
  return to_plain_text(std::string(text.begin(), end), Size);
}

Status broker_gone() {
  return Status(Reason::kPeerLost, "the broker of the Yuanrong worker has ended");
}

// Why no welcome has come.
std::string unwelcome(const Watch& watch) {
  const uint32_t pid = watch.broker_pid.load();
  const char* what = "has not read the hello: it is stopped, or hangs";
  switch (static_cast<Step>(watch.step.load())) {
    case Step::kHello: break;
    case Step::kReach: what = "still tries to reach the worker's port"; break;
    case Step::kConnect:
      what =
          "still opens a connection: the worker is busy, or wants Curve keys other than those "
          "given "
          "(client_public_key_file, client_private_key_file, server_public_key_file)";
      break;
    case Step::kKeys: what = "still waits for the worker's first answer"; break;
    case Step::kExclusive: what = "still opens the exclusive connection"; break;
    case Step::kMemory: what = "still asks for the worker's memory"; break;
    case Step::kDone: what = "has not sent its welcome"; break;
  }
  return pid == 0 ? fmt::format("the broker {}", what)
                  : fmt::format("the broker, pid {}, {}", pid, what);
}

// The worker's memory cannot be sealed by us; its size is checked at least.
Status check_arena(int fd, uint64_t bytes) {
  struct stat file {};
  if (::fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_size >= 0 && bytes > 0 &&
      bytes <= static_cast<uint64_t>(file.st_size)) {
    return {};
  }
  return Status(Reason::kCorrupt, fmt::format("a segment of {} bytes has {}", bytes, file.st_size));
}

}  // namespace

MappedArena::~MappedArena() { memory::unmap(bytes); }

HeldMemory::HeldMemory(HeldMemory&& other) noexcept
    : link_(std::move(other.link_)),
      arena_(std::move(other.arena_)),
      bytes_(std::exchange(other.bytes_, {})),
      handle_(std::exchange(other.handle_, 0)) {}

HeldMemory& HeldMemory::operator=(HeldMemory&& other) noexcept {
  HeldMemory old(std::move(other));
  std::swap(link_, old.link_);
  std::swap(arena_, old.arena_);
  std::swap(bytes_, old.bytes_);
  std::swap(handle_, old.handle_);
  return *this;
}

HeldMemory::~HeldMemory() {
  if (link_ != nullptr && handle_ != 0) link_->release(handle_);
}

void HeldMemory::forget() noexcept {
  if (link_ != nullptr && handle_ != 0) link_->held_.fetch_sub(1);
  handle_ = 0;
}

Result<std::shared_ptr<Link>> Link::open(UniqueFd socket, const WorkerOptions& options,
                                         const Deadline& deadline) {
  SL_ASSIGN(const UniqueFd memfd, memory::create_memfd("stagelink-yuanrong-page"));
  SL_TRY(memory::size_memfd(memfd.get(), sizeof(Page)));
  SL_TRY(memory::seal_memfd(memfd.get(), Access::kReadWrite));
  SL_ASSIGN(const std::span<std::byte> page, memory::map_shared(memfd.get(), sizeof(Page), true));
  // Zeros are what the other fields start with, and pages that nobody uses stay unmade.
  auto* const head = reinterpret_cast<Page*>(page.data());
  head->magic = kPageMagic;
  head->version = kProtocolVersion;
  head->lanes = kLanes;
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::shared_ptr<Link> link(new Link(std::move(socket), page, std::move(stop)));
  if (!link->stop_) return Status(Reason::kNofile, "eventfd: no descriptor is left");
  ByteWriter hello;
  hello.put(Message::kHello);
  std::vector<std::byte> bytes = encode_worker_options(options);
  hello.put_bytes(bytes);
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  std::vector<std::byte> packet = hello.take();
  const bool sent = send_packet(link->socket_.get(), packet, memfd.get());
  std::fill(packet.begin(), packet.end(), std::byte{0});
  if (!sent) return broker_gone();
  SL_TRY(link->welcome(deadline));
  link->thread_ = std::thread([raw = link.get()] { raw->listen(); });
  return link;
}

Link::Link(UniqueFd socket, std::span<std::byte> page, UniqueFd stop)
    : fork_token_(ForkGuard::arm()),
      socket_(std::move(socket)),
      stop_(std::move(stop)),
      mapping_(page),
      page_(reinterpret_cast<Page*>(page.data())),
      lanes_(*page_) {}

Link::~Link() {
  if (forked()) {
    // The parent's, and not here: nothing may be done to it.
    if (thread_.joinable()) (void)new std::thread(std::move(thread_));
  } else {
    const uint64_t one = 1;
    if (stop_) (void)!::write(stop_.get(), &one, sizeof(one));
    if (thread_.joinable()) thread_.join();
  }
  memory::unmap(mapping_);
}

Status Link::welcome(const Deadline& deadline) {
  for (;;) {
    pollfd wanted{socket_.get(), POLLIN, 0};
    const int got = ::poll(&wanted, 1, deadline.left_ms());
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) return Status(Reason::kConnectTimeout, unwelcome(page_->watch));
    const Packet packet = receive_packet(socket_.get());
    if (packet.kind == Packet::Kind::kNone) continue;
    if (packet.kind == Packet::Kind::kEnd) return broker_gone();
    ByteReader reader(packet.bytes);
    const auto type = reader.get<Message>();
    const auto code = reader.get<uint32_t>();
    const std::string words = to_plain_text(reader.get_string(), kMaxMessageBytes);
    if (!reader.done() || type != Message::kWelcome) {
      return Status(Reason::kFrame, "the broker's welcome cannot be read");
    }
    return code == 0 ? Status() : connect_failure(code, words);
  }
}

void Link::listen() {
  for (;;) {
    std::array<pollfd, 2> wanted = {pollfd{socket_.get(), POLLIN, 0},
                                    pollfd{stop_.get(), POLLIN, 0}};
    if (::poll(wanted.data(), wanted.size(), -1) < 0 && errno != EINTR) return fail(broker_gone());
    if (wanted[1].revents != 0) return;
    Packet packet = receive_packet(socket_.get());
    if (packet.kind == Packet::Kind::kNone) continue;
    if (packet.kind == Packet::Kind::kEnd) return fail(broker_gone());
    if (Status status = take_arena(packet.bytes, std::move(packet.fd)); !status.ok()) {
      return fail(status);
    }
  }
}

Status Link::take_arena(std::span<const std::byte> bytes, UniqueFd fd) {
  ByteReader reader(bytes);
  const auto type = reader.get<Message>();
  const auto id = reader.get<uint64_t>();
  if (type == Message::kArenaGone && reader.done()) {
    const MutexLock lock(mutex_);
    arenas_.erase(id);
    return {};
  }
  const auto size = reader.get<uint64_t>();
  if (type != Message::kArena || !reader.done()) {
    return Status(Reason::kFrame, "a message of the broker cannot be read");
  }
  SL_TRY(check_arena(fd.get(), size));
  auto arena = std::make_shared<MappedArena>();
  SL_ASSIGN(arena->bytes, memory::map_shared(fd.get(), size, true));
  const MutexLock lock(mutex_);
  arenas_[id] = std::move(arena);
  arena_came_.notify_all();
  return {};
}

// The broker's end.
void Link::fail(const Status& why) {
  {
    const MutexLock lock(mutex_);
    broken_ = why;
    arenas_.clear();  // Views hold what they show.
  }
  log_failure("yuanrong broker", why);
  close(why);
}

void Link::close(const Status& why) {
  {
    const MutexLock lock(mutex_);
    if (ended_.ok()) ended_ = why;
    has_ended_ = true;
    arena_came_.notify_all();
  }
  lanes_.end();
  wake_all();
}

void Link::wake_all() noexcept {
  for (Lane& lane : page_->lane) {
    if (lane.state.load() != state_word(LaneState::kFree)) {
      futex_wake_all(lane.state, FutexScope::kShared);
    }
  }
}

Status Link::ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

Status Link::alive() const {
  const MutexLock lock(mutex_);
  return broken_;
}

bool Link::forked() const noexcept { return ForkGuard::forked(fork_token_); }

Status Link::worker_state() const {
  if (page_->watch.worker.load() != static_cast<uint32_t>(Seen::kDown)) return {};
  return Status(Reason::kUnreachable,
                "the Yuanrong worker cannot be reached: " + text_of(page_->watch.worker_text));
}

Status Link::ring_state() const {
  if (page_->watch.ring.load() != static_cast<uint32_t>(Seen::kDown)) return {};
  return Status(Reason::kPartition,
                "a worker of the ring cannot be reached, and the key may lie there: " +
                    text_of(page_->watch.ring_text));
}

Result<LinkAnswer> Link::call(const LinkCall& call, const Deadline& deadline) {
  if (forked()) return forked_status("the store");
  SL_TRY(worker_state());
  const auto taken = lanes_.take(call.wait_ms > 0, deadline);
  if (!taken) {
    SL_TRY(ended());
    return Status(Reason::kTimedOut, "all lanes to the broker were in use");
  }
  Lane& lane = page_->lane[taken->lane];
  if (taken->first_use) {
    ByteWriter open;
    open.put(Message::kOpenLane);
    open.put(uint64_t{taken->lane});
    (void)send(open.take());  // A broker that has gone is noticed below.
  }
  if (Status status = write_request(lane, call); !status.ok()) {
    lanes_.give_back(taken->lane);
    return status;
  }
  lane.state = state_word(LaneState::kRequested);
  futex_wake_all(lane.state, FutexScope::kShared);
  if (Status status = await(lane, call, deadline); !status.ok()) {
    lanes_.abandon(taken->lane);
    return status;
  }
  Result<LinkAnswer> answer = read_reply(lane, call, deadline);
  lane.state = state_word(LaneState::kFree);
  lanes_.give_back(taken->lane);
  return answer;
}

Status Link::write_request(Lane& lane, const LinkCall& call) {
  ByteWriter keys;
  for (const std::string& key : call.keys) keys.put_string(key);
  const std::vector<std::byte> raw = keys.take();
  if (raw.size() > lane.keys.size() || call.keys.size() > kMaxKeysPerRequest ||
      call.value.size() > lane.value.size()) {
    return Status(Reason::kOutOfBounds, "a request does not fit into its lane");
  }
  Request request;
  request.op = call.op;
  request.keys = static_cast<uint32_t>(call.keys.size());
  request.key_bytes = static_cast<uint32_t>(raw.size());
  request.wait_ms = call.wait_ms;
  request.ttl_s = call.ttl_s;
  request.write_mode = call.write_mode;
  request.size = call.op == Op::kSet ? call.value.size() : call.size;
  request.handle = call.handle;
  lane.request = request;
  if (!raw.empty()) std::memcpy(lane.keys.data(), raw.data(), raw.size());
  if (!call.value.empty()) std::memcpy(lane.value.data(), call.value.data(), call.value.size());
  return {};
}

// Ok: the reply is there. Otherwise the lane is the broker's.
Status Link::await(Lane& lane, const LinkCall& call, const Deadline& deadline) {
  for (;;) {
    uint32_t seen = lane.state.load();
    if (seen == state_word(LaneState::kDone)) return {};
    Status why;
    if (has_ended_) {
      why = ended();
    } else if (Status worker = worker_state(); !worker.ok()) {
      why = std::move(worker);
    } else if (deadline.passed()) {
      why = Status(Reason::kTimedOut,
                   fmt::format("{}: the worker has not answered in time", op_name(call.op)));
    } else {
      futex_wait(lane.state, seen, std::min<Duration>(deadline.left(), kLookAgain),
                 FutexScope::kShared);
      continue;
    }
    // The reply may come in this moment; then it counts.
    if ((seen == state_word(LaneState::kRequested) || seen == state_word(LaneState::kWorking)) &&
        lane.state.compare_exchange_strong(seen, state_word(LaneState::kAbandoned))) {
      futex_wake_all(lane.state, FutexScope::kShared);
      return why;
    }
    if (seen != state_word(LaneState::kDone) && seen != state_word(LaneState::kWorking)) return why;
  }
}

Result<LinkAnswer> Link::read_reply(const Lane& lane, const LinkCall& call,
                                    const Deadline& deadline) {
  Reply reply;
  std::memcpy(&reply, &lane.reply, sizeof(reply));
  if (reply.places > call.keys.size() || reply.places > lane.places.size() ||
      reply.message_bytes > lane.message.size()) {
    return Status(Reason::kFrame, "a reply of the broker is out of bounds");
  }
  LinkAnswer answer;
  answer.code = reply.code;
  answer.message =
      to_plain_text(std::string_view(lane.message.data(), reply.message_bytes), kMaxMessageBytes);
  std::array<Place, kMaxKeysPerRequest> places;
  std::copy_n(lane.places.begin(), reply.places, places.begin());
  answer.memory.resize(call.keys.size());
  answer.found.resize(call.keys.size());
  Status bad;
  for (size_t i = 0; i < reply.places; ++i) {
    answer.found[i] = places[i].found != 0;
    if (places[i].handle == 0) continue;
    Result<HeldMemory> held = hold(places[i], deadline);
    if (held.ok()) {
      answer.memory[i] = *std::move(held);
    } else {
      bad = held.status();  // What the others hold is given back with them.
    }
  }
  if (!bad.ok()) return bad;
  return answer;
}

Result<HeldMemory> Link::hold(const Place& place, const Deadline& deadline) {
  HeldMemory held;
  held.link_ = shared_from_this();
  held.handle_ = place.handle;
  held_.fetch_add(1);
  const MutexLock lock(mutex_);
  const Deadline patience = Deadline::earlier(deadline, Deadline::in(kArenaPatience));
  auto at = arenas_.find(place.arena);
  while (at == arenas_.end()) {
    if (!ended_.ok()) return ended_;
    if (!arena_came_.wait_until(mutex_, patience)) {
      return Status(Reason::kTimedOut, "the broker has not sent the memory of an object");
    }
    at = arenas_.find(place.arena);
  }
  const std::span<std::byte> all = at->second->bytes;
  if (place.offset > all.size() || place.size > all.size() - place.offset) {
    return Status(Reason::kFrame, fmt::format("the broker named {} bytes at {} of a segment of {}",
                                              place.size, place.offset, all.size()));
  }
  held.arena_ = at->second;
  held.bytes_ = all.subspan(place.offset, place.size);
  return held;
}

void Link::release(uint64_t handle) noexcept {
  if (forked()) return;
  held_.fetch_sub(1);
  if (has_ended_ && !alive().ok()) return;
  std::array<std::byte, sizeof(uint32_t) + sizeof(uint64_t)> packet;
  const auto type = Message::kRelease;
  std::memcpy(packet.data(), &type, sizeof(type));
  std::memcpy(packet.data() + sizeof(type), &handle, sizeof(handle));
  (void)send(packet);
}

bool Link::send(std::span<const std::byte> packet) noexcept {
  return send_packet(socket_.get(), packet, -1);
}

}  // namespace stagelink::store::yuanrong
