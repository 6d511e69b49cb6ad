#include "cli/replay/control_channel.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

namespace stagelink::cli::replay {

namespace {

// Values within values. What is written about a value recurses as deep.
constexpr size_t kMaxNesting = 16;

size_t nesting(std::string_view line) noexcept {
  size_t depth = 0;
  size_t deepest = 0;
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '\\' && quoted) {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      deepest = std::max(deepest, ++depth);
    } else if (!quoted && (c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

ControlChannel::ControlChannel(UniqueFd socket, size_t max_line_bytes)
    : socket_(std::move(socket)), max_line_bytes_(max_line_bytes) {
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
  // What was not taken yet is bounded: the rest waits in the socket.
  while (!ended_ && in_.size() - in_at_ <= max_line_bytes_) {
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

Status ControlChannel::too_long() const {
  return Status(Reason::kFrame,
                fmt::format("a control message is longer than {} bytes", max_line_bytes_));
}

Result<std::optional<ControlChannel::Json>> ControlChannel::next() {
  const size_t newline = in_.find('\n', in_at_);
  if (newline == std::string::npos) {
    in_.erase(0, std::exchange(in_at_, 0));
    if (in_.size() > max_line_bytes_) return too_long();
    return std::optional<Json>();
  }
  if (newline - in_at_ > max_line_bytes_) return too_long();
  if (nesting(std::string_view(in_).substr(in_at_, newline - in_at_)) > kMaxNesting) {
    return Status(Reason::kFrame, "a control message is nested too deep");
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
