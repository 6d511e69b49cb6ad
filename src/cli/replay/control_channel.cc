#include "cli/replay/control_channel.h"

#include <array>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

namespace stagelink::cli::replay {

ControlChannel::ControlChannel(UniqueFd socket) : socket_(std::move(socket)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK);
}

bool ControlChannel::send(const Json& message) {
  out_ += message.dump(-1, ' ', false, Json::error_handler_t::replace);
  out_ += '\n';
  return flush();
}

bool ControlChannel::flush() {
  while (!out_.empty()) {
    const ssize_t sent = ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      out_.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      out_.clear();
      return false;
    }
  }
  return true;
}

bool ControlChannel::fill() {
  std::array<char, 64 << 10> buffer;
  while (!ended_) {
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got > 0) {
      in_.append(buffer.data(), static_cast<size_t>(got));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    ended_ = true;
  }
  return !ended_;
}

Result<std::optional<ControlChannel::Json>> ControlChannel::next() {
  const size_t newline = in_.find('\n', in_at_);
  if (newline == std::string::npos) {
    in_.erase(0, std::exchange(in_at_, 0));
    if (in_.size() > kMaxLineBytes) {
      return Status(Reason::kFrame,
                    fmt::format("a control message is longer than {} bytes", kMaxLineBytes));
    }
    return std::optional<Json>();
  }
  const auto begin = in_.cbegin() + static_cast<std::ptrdiff_t>(in_at_);
  const auto end = in_.cbegin() + static_cast<std::ptrdiff_t>(newline);
  in_at_ = newline + 1;
  Json message = Json::parse(begin, end, nullptr, false);
  if (!message.is_object() || !message.contains("event") || !message["event"].is_string()) {
    return Status(Reason::kFrame,
                  fmt::format("not a control message: {}", std::string(begin, end).substr(0, 80)));
  }
  return std::optional<Json>(std::move(message));
}

}  // namespace stagelink::cli::replay
