#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "connector/pull/messages/omni_messages.h"
#include "connector/pull/pull_types.h"
#include "connector/zmq/listener.h"
#include "integration/support/engine_test.h"

namespace stagelink::test {

// Answers as a sender of 0.30 does, for a connector whose engine holds the bytes.
class OldSender final : public zmq::MessageHandler {
 public:
  explicit OldSender(pull::OmniInfo info)
      : info_(std::move(info)),
        context_(must(zmq::Context::create(must(zmq::Library::load())))),
        listener_(must(zmq::Listener::start(
            must(zmq::Router::bind(context_, {.host = "127.0.0.1"})), "old", *this))) {
    address_.source_host = "127.0.0.1";
    address_.source_port = listener_->endpoint().port;
  }

  // Of the sender, for receivers.
  const pull::PullMetadata& address() const noexcept { return address_; }
  int cleanups() const noexcept { return cleanups_.load(); }

  std::vector<zmq::Frames> on_message(zmq::Frames frames) override {
    const auto ask = pull::read_omni_request(frames.back());
    pull::Message answer = pull::omni_word(pull::kOmniAckError);
    if (ask.has_value() && ask->request == pull::OmniRequest::kCleanup) {
      cleanups_.fetch_add(1);
      answer = pull::omni_word(pull::kOmniAckOk);
    } else if (ask.has_value()) {
      answer =
          ask->key == info_.key ? pull::omni_info(info_) : pull::omni_word(pull::kOmniNotFound);
    }
    return {{zmq::Bytes(), answer}};
  }

 private:
  const pull::OmniInfo info_;
  std::atomic<int> cleanups_{0};
  const std::shared_ptr<zmq::Context> context_;
  const std::unique_ptr<zmq::Listener> listener_;  // Goes first.
  pull::PullMetadata address_;
};

}  // namespace stagelink::test
