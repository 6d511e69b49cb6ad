#include "connector/moriio/wrapper/wrapper.h"

#include <utility>

#include <fmt/format.h>

#include "base/fork_guard.h"
#include "base/random.h"

namespace stagelink::moriio {
namespace {

Status closed() { return {Reason::kClosed, "the wrapper is closed"}; }
Status forked_wrapper() { return forked_status("the wrapper"); }

Reject reject_of(const Status& failure) {
  switch (failure.reason()) {
    case Reason::kUnsupported: return Reject::kUnknownType;
    case Reason::kTooLarge: return Reject::kTooLarge;
    default: break;
  }
  // The decoder names the type of the message once it knows it.
  return failure.message().starts_with("notification:") ? Reject::kMalformed : Reject::kBadField;
}

void append_rejects(std::string& text, const RejectCounter& rejects, std::string_view port) {
  for (size_t i = 0; i < kRejectCount; ++i) {
    const auto reason = static_cast<Reject>(i);
    text +=
        fmt::format("stagelink_moriio_messages_rejected_total{{port=\"{}\",reason=\"{}\"}} {}\n",
                    port, reject_name(reason), rejects.of(reason));
  }
}

}  // namespace

Wrapper::Wrapper(const WrapperOptions& options)
    : options_(options),
      incarnation_(random_instance_id().to_string()),
      fork_token_(ForkGuard::arm()),
      table_(options.table) {}

Wrapper::~Wrapper() { close(); }

Result<std::shared_ptr<zmq::Context>> Wrapper::context() {
  if (closed_) return closed();
  if (context_ == nullptr) {
    std::shared_ptr<const zmq::CurveKeys> keys;
    if (!options_.secret_file.empty()) {
      SL_ASSIGN(keys, zmq::CurveKeys::from_file(options_.secret_file));
    }
    SL_ASSIGN(auto library, zmq::Library::load(options_.zmq_library));
    SL_ASSIGN(context_, zmq::Context::create(std::move(library), std::move(keys)));
  }
  return context_;
}

Result<Endpoint> Wrapper::listen(const zmq::BindOptions& options) {
  if (forked()) return forked_wrapper();
  MutexLock lock(mutex_);
  if (listener_ != nullptr) return listener_->endpoint();
  SL_ASSIGN(auto zmq_context, context());
  SL_ASSIGN(zmq::Router router,
            zmq::Router::bind(zmq_context, options, {.max_frame_bytes = kMaxNotifyBytes}));
  SL_ASSIGN(listener_, zmq::Listener::start(std::move(router), "sl-notify", *this));
  return listener_->endpoint();
}

Result<Endpoint> Wrapper::serve_metadata(const zmq::BindOptions& options,
                                         const PeerMetadata& metadata) {
  if (forked()) return forked_wrapper();
  MutexLock lock(mutex_);
  if (server_ != nullptr) {
    return Status(Reason::kAlreadyExists, "the metadata is being served already");
  }
  SL_ASSIGN(auto zmq_context, context());
  PeerMetadata told = metadata;
  told.agent.extras.version = kMessageVersion;
  if (!told.agent.extras.incarnation) told.agent.extras.incarnation = incarnation_;
  SL_ASSIGN(server_, HandshakeServer::start(zmq_context, options, told));
  return server_->endpoint();
}

Result<std::vector<Result<PeerMetadata>>> Wrapper::fetch_metadata(std::span<const Endpoint> peers,
                                                                  Duration timeout) {
  if (forked()) return forked_wrapper();
  std::shared_ptr<zmq::Context> zmq_context;
  {
    MutexLock lock(mutex_);
    SL_ASSIGN(zmq_context, context());
  }
  return moriio::fetch_metadata(zmq_context, peers, timeout);
}

Result<std::shared_ptr<zmq::Senders>> Wrapper::senders() {
  if (forked()) return forked_wrapper();
  MutexLock lock(mutex_);
  if (closed_) return closed();
  if (senders_ == nullptr) {
    SL_ASSIGN(auto zmq_context, context());
    SL_ASSIGN(senders_, zmq::Senders::create(zmq_context, options_.senders));
  }
  return senders_;
}

Status Wrapper::notify(const Endpoint& peer, const NotifyMessage& message,
                       zmq::Senders::Done done) {
  SL_ASSIGN(Bytes frame, encode(message));
  SL_ASSIGN(const auto all, senders());
  return all->send(peer, std::move(frame), options_.notify_timeout, std::move(done));
}

Status Wrapper::notify_and_wait(const Endpoint& peer, const NotifyMessage& message,
                                Duration timeout) {
  SL_ASSIGN(Bytes frame, encode(message));
  SL_ASSIGN(const auto all, senders());
  return all->send_and_wait(peer, std::move(frame), timeout);
}

std::vector<zmq::Frames> Wrapper::on_message(zmq::Frames frames) {
  if (frames.size() == 2 && frames.front().empty()) frames.erase(frames.begin());
  if (frames.size() == 1) {
    handle_frame(frames.front());
  } else {
    table_.rejects().count(Reject::kFrames, fmt::format("{} frames", frames.size()));
  }
  return {};
}

void Wrapper::handle_frame(std::span<const std::byte> frame) {
  const auto message = decode_notify_message(frame);
  if (message.ok()) {
    table_.accept(*message);
  } else {
    table_.rejects().count(reject_of(message.status()), message.status().message());
  }
}

std::string Wrapper::metrics_text() const {
  std::string text = "# TYPE stagelink_moriio_messages_rejected_total counter\n";
  append_rejects(text, table_.rejects(), "notify");
  text += "# TYPE stagelink_moriio_transfers_ended_total counter\n";
  for (const auto& row : table_.end_counts()) {
    text += fmt::format("stagelink_moriio_transfers_ended_total{{kind=\"{}\",reason=\"{}\"}} {}\n",
                        event_name(row.kind), reason_name(row.reason), row.count);
  }
  text += fmt::format(
      "# TYPE stagelink_moriio_transfers_open gauge\n"
      "stagelink_moriio_transfers_open {}\n",
      table_.size());
  MutexLock lock(mutex_);
  if (server_ != nullptr) append_rejects(text, server_->rejects(), "handshake");
  if (context_ != nullptr && context_->door() != nullptr) {
    text += fmt::format(
        "# TYPE stagelink_moriio_peers_refused_total counter\n"
        "stagelink_moriio_peers_refused_total{{reason=\"authentication\"}} {}\n",
        context_->door()->refused());
  }
  if (senders_ != nullptr) {
    text += fmt::format(
        "# TYPE stagelink_moriio_notifications_total counter\n"
        "stagelink_moriio_notifications_total{{outcome=\"sent\"}} {}\n"
        "stagelink_moriio_notifications_total{{outcome=\"failed\"}} {}\n",
        senders_->sent(), senders_->failed());
  }
  return text;
}

bool Wrapper::forked() const noexcept { return ForkGuard::forked(fork_token_); }

void Wrapper::abandon() {
  (void)listener_.release();
  (void)server_.release();
  (void)new std::shared_ptr<zmq::Senders>(std::move(senders_));
  (void)new std::shared_ptr<zmq::Context>(std::move(context_));
}

void Wrapper::close() {
  if (forked()) return abandon();
  std::unique_ptr<zmq::Listener> listener;
  std::unique_ptr<HandshakeServer> server;
  std::shared_ptr<zmq::Senders> all;
  std::shared_ptr<zmq::Context> zmq_context;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    listener = std::move(listener_);
    server = std::move(server_);
    all = std::move(senders_);
    zmq_context = std::move(context_);
  }
  if (all != nullptr) all->close();
}

}  // namespace stagelink::moriio
