#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "base/unique_fd.h"
#include "wire/batch_header.h"
#include "wire/frame.h"
#include "wire/hello.h"

namespace stagelink::transport {

// The other end of a data connection, played by the test byte by byte.
class RawPeer {
 public:
  // `step` lets the side under test work.
  RawPeer(UniqueFd fd, std::function<void()> step) : fd_(std::move(fd)), step_(std::move(step)) {}

  // False if the connection is gone.
  bool send_bytes(std::span<const std::byte> bytes) {
    size_t sent = 0;
    for (int tries = 0; sent < bytes.size() && tries < 100'000; ++tries) {
      const ssize_t n =
          ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) sent += static_cast<size_t>(n);
      if (n < 0 && errno != EAGAIN) return false;
      step_();
    }
    return sent == bytes.size();
  }
  bool send_frame(wire::FrameType type, uint64_t id, std::span<const std::byte> payload) {
    const auto header = wire::encode(wire::FrameHeader{
        .type = type, .payload_bytes = static_cast<uint32_t>(payload.size()), .request_id = id});
    std::vector<std::byte> frame(header.begin(), header.end());
    frame.insert(frame.end(), payload.begin(), payload.end());
    return send_bytes(frame);
  }
  bool send_batch(wire::FrameType type, uint64_t id, const wire::BatchHeader& batch) {
    return send_frame(type, id, wire::encode(batch));
  }

  struct Frame {
    wire::FrameHeader header;
    std::vector<std::byte> payload;
  };
  // The next frame, or nothing if the connection ended (or nothing came).
  std::optional<Frame> receive_frame() {
    std::vector<std::byte> raw(wire::kFrameHeaderBytes);
    if (!receive_bytes(raw)) return std::nullopt;
    Frame frame;
    frame.header = *wire::decode_frame_header(std::span(raw).first<wire::kFrameHeaderBytes>());
    frame.payload.resize(frame.header.payload_bytes);
    if (!receive_bytes(frame.payload)) return std::nullopt;
    return frame;
  }
  // Skips data; the outcome of the next request that ends.
  std::optional<std::pair<uint64_t, wire::Outcome>> receive_done() {
    while (auto frame = receive_frame()) {
      if (frame->header.type != wire::FrameType::kDone) continue;
      return std::pair(frame->header.request_id, *wire::decode_outcome(frame->payload));
    }
    return std::nullopt;
  }
  void close() { fd_.reset(); }

 private:
  bool receive_bytes(std::span<std::byte> into) {
    size_t got = 0;
    for (int tries = 0; got < into.size() && tries < 10'000; ++tries) {
      const ssize_t n = ::recv(fd_.get(), into.data() + got, into.size() - got, MSG_DONTWAIT);
      if (n > 0) got += static_cast<size_t>(n);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
      step_();
    }
    return got == into.size();
  }

  UniqueFd fd_;
  std::function<void()> step_;
};

// A batch of one region.
inline wire::BatchHeader batch_of(wire::RegionRef region, std::vector<wire::WireRange> ranges) {
  wire::BatchHeader batch;
  batch.timeout_ms = 60'000;
  batch.regions = {region};
  batch.ranges = std::move(ranges);
  for (const wire::WireRange& range : batch.ranges) batch.total_bytes += range.bytes;
  return batch;
}

inline wire::BatchHeader batch_by_address(std::vector<wire::WireRange> ranges) {
  wire::BatchHeader batch = batch_of({}, std::move(ranges));
  batch.by_address = true;
  batch.regions.clear();
  return batch;
}

}  // namespace stagelink::transport
