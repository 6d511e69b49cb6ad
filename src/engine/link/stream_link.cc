#include "engine/link/stream_link.h"

#include <utility>
#include <vector>

#include <sys/socket.h>

#include "base/log.h"
#include "engine/core.h"
#include "engine/link/peer_state.h"
#include "transport/blocking_frames.h"

namespace stagelink::engine {
namespace {

constexpr Duration kAnswerTimeout = std::chrono::milliseconds(50);

// Told when a channel is lost. Lives until the channel is closed, which may be later than its link.
class ChannelOwner final : public transport::StreamChannel::Owner {
 public:
  explicit ChannelOwner(const std::shared_ptr<PeerState>& peer)
      : core_(peer->core_ptr()), peer_(peer) {}
  EngineCore& core() const noexcept { return *core_; }

  void on_lost(transport::StreamChannel& channel, const Status& why) override {
    const auto peer = peer_.lock();
    if (peer == nullptr) return;
    const std::string what = "stream to peer " + peer->name();
    if (channel.damage_told()) {
      log_failure(what, why);
    } else if (peer->phase() != PeerPhase::kLost) {
      core_->report(what, why);
    }
    if (const auto outer = outer_.lock()) peer->drop_channel(*outer);
  }
  void on_busy(const std::shared_ptr<transport::StreamChannel>& channel) override {
    core_->stream_host().on_busy(channel);
  }
  // What the peer knows the channel by.
  void set_outer(std::weak_ptr<transport::PostedTransport> outer) { outer_ = std::move(outer); }

 private:
  const std::shared_ptr<EngineCore> core_;
  const std::weak_ptr<PeerState> peer_;
  std::weak_ptr<transport::PostedTransport> outer_;  // Progress loop only.
};

// Ties a channel to its peer. Held by transfers and by the peer; the channel itself lives on the
// progress loop.
class StreamLink final : public transport::PostedTransport {
 public:
  explicit StreamLink(const std::shared_ptr<PeerState>& peer)
      : owner_(std::make_shared<ChannelOwner>(peer)) {}
  StreamLink(const StreamLink&) = delete;
  StreamLink& operator=(const StreamLink&) = delete;

  ~StreamLink() override {
    if (channel_ == nullptr) return;
    // The channel refers to its owner until it is closed, on the loop.
    EngineCore& core = owner_->core();
    core.loop().run([channel = std::move(channel_), owner = std::move(owner_)] {
      channel->close(Status(Reason::kClosed, "the stream was let go"));
    });
  }

  void open(UniqueFd fd, transport::StreamTraits traits,
            std::weak_ptr<transport::PostedTransport> outer) {
    EngineCore& core = owner_->core();
    owner_->set_outer(std::move(outer));
    channel_ = transport::StreamChannel::create(core.loop().poller(), std::move(fd), *owner_,
                                                std::move(traits));
    core.stream_host().add(channel_);
  }
  void post(transport::PostedRequest& request) override { channel_->post(request); }
  void cancel(transport::PostedRequest& request, Status why) override {
    channel_->cancel(request, std::move(why));
  }

 private:
  std::shared_ptr<ChannelOwner> owner_;
  std::shared_ptr<transport::StreamChannel> channel_;
};

// A socket and what was agreed on for it.
struct Agreed {
  UniqueFd fd;
  transport::StreamTraits traits;
};

Result<transport::StreamTraits> traits_of(Greeted greeted) {
  const wire::Welcome& welcome = greeted.welcome;
  transport::StreamTraits traits{.checked = welcome.checks, .grouped = welcome.version.minor >= 2};
  if (greeted.fds.size() != (welcome.stages ? 1 : 0) || (welcome.stages && welcome.checks)) {
    return Status(Reason::kFrame, "the welcome of a data connection promises what it lacks");
  }
  if (!welcome.stages) return traits;
  SL_ASSIGN(transport::StagingArea area,
            transport::StagingArea::open(std::move(greeted.fds.front())));
  traits.staging.emplace(std::move(area));
  return traits;
}

// Whether descriptors can travel on it.
bool is_unix_socket(int fd) noexcept {
  int domain = 0;
  socklen_t size = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

}  // namespace

Result<std::shared_ptr<transport::PostedTransport>> open_stream_link(
    const std::shared_ptr<PeerState>& peer, UniqueFd fd, Greeted greeted,
    const Deadline& deadline) {
  SL_ASSIGN(transport::StreamTraits traits, traits_of(std::move(greeted)));
  auto link = std::make_shared<StreamLink>(peer);
  auto handed = std::make_shared<Agreed>(Agreed{std::move(fd), std::move(traits)});
  std::shared_ptr<transport::FaultPostedTransport> faulty;
  if (peer->core().faults() != nullptr) {
    faulty = std::make_shared<transport::FaultPostedTransport>(peer->core().loop().poller(), link,
                                                               peer->core().faults(), cutter(peer));
  }
  std::shared_ptr<transport::PostedTransport> outer = link;
  if (faulty != nullptr) outer = faulty;
  const Status opened = peer->core().call_on_loop(
      [link, handed, faulty, outer, peer]() -> Status {
        // Once closed, nobody would end the channel.
        SL_TRY(peer->core().usable());
        link->open(std::move(handed->fd), std::move(handed->traits), outer);
        if (faulty != nullptr) peer->core().stream_host().add(faulty);
        return Status();
      },
      deadline);
  if (!opened.ok()) return opened;
  return outer;
}

std::function<void(const Status&)> cutter(const std::shared_ptr<PeerState>& peer) {
  return [weak = std::weak_ptr(peer)](const Status& why) {
    if (const auto cut = weak.lock()) cut->lose(why);
  };
}

StreamHost::StreamHost(EngineCore& core)
    : core_(core),
      server_(std::make_unique<transport::StreamServer>(core.loop().poller(), core.registry(),
                                                        core.metrics())) {}

void StreamHost::serve(UniqueFd fd, const wire::Hello& hello) {
  wire::Welcome welcome = core_.welcome(hello);
  transport::StreamTraits traits{.checked = welcome.checks};
  std::vector<UniqueFd> fds;
  if (hello.may_stage && !welcome.checks && is_unix_socket(fd.get())) {
    // Without an area (too many files, say) the socket carries everything.
    if (auto area = transport::StagingArea::create(); area.ok()) {
      traits.staging.emplace(*std::move(area));
      fds.push_back(traits.staging->take_fd());
    }
  }
  welcome.stages = traits.staging.has_value();
  const Status answered =
      transport::send_frame(fd.get(), wire::FrameType::kWelcome, 0, wire::encode(welcome),
                            Deadline::in(kAnswerTimeout), fds);
  const Status served =
      answered.ok() ? server_->serve(std::move(fd), hello.instance, std::move(traits)) : answered;
  if (!served.ok()) core_.report("data connection of " + hello.name, served);
}

Status StreamHost::check_room(InstanceId peer) const { return server_->check_room(peer); }

void StreamHost::drop(InstanceId peer) {
  if (server_ != nullptr) server_->drop(peer);
}

void StreamHost::add(std::weak_ptr<transport::StreamChannel> channel) {
  std::erase_if(channels_, [](const auto& known) { return known.expired(); });
  channels_.push_back(std::move(channel));
}

void StreamHost::on_busy(const std::shared_ptr<transport::StreamChannel>& channel) {
  busy_.push_back(channel);
}

void StreamHost::add(std::weak_ptr<transport::FaultPostedTransport> faulty) {
  faulty_.push_back(std::move(faulty));
}

Duration StreamHost::tick() {
  if (server_ == nullptr) return Deadline::kLongest;
  server_->tick();
  Duration next = Deadline::kLongest;
  // Requests end in here, and those who hear of it may post others.
  ticked_.swap(busy_);
  for (auto& channel : ticked_) {
    next = std::min(next, channel->tick());
    if (!channel->idle()) busy_.push_back(std::move(channel));
  }
  ticked_.clear();
  for (size_t i = 0; i < faulty_.size(); ++i) {
    if (const auto faulty = faulty_[i].lock()) next = std::min(next, faulty->tick());
  }
  std::erase_if(faulty_, [](const auto& weak) { return weak.expired(); });
  return next;
}

void StreamHost::close() {
  const Status why(Reason::kClosed, "the engine was closed");
  for (const auto& weak : faulty_) {
    if (const auto faulty = weak.lock()) faulty->close(why);
  }
  faulty_.clear();
  for (const auto& weak : channels_) {
    if (const auto channel = weak.lock()) channel->close(why);
  }
  channels_.clear();
  busy_.clear();
  server_.reset();
}

}  // namespace stagelink::engine
