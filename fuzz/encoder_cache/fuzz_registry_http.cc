#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "connector/encoder_cache/registry/http/request_reader.h"
#include "connector/encoder_cache/registry/http/request_target.h"
#include "connector/encoder_cache/registry/messages.h"

namespace ec = stagelink::encoder_cache;

namespace {

constexpr size_t kMaxHead = 1024;
constexpr size_t kMaxBody = 4096;

using State = ec::RequestReader::State;

// Whatever of the body is a message can be said again; texts that are not plain come back changed,
// to be refused.
void read_body(std::string_view body) {
  if (const auto query = ec::decode_query(body); query.ok()) {
    if (!ec::decode_query(ec::encode(*query)).ok()) std::abort();
  }
  if (const auto publish = ec::decode_publish(body); publish.ok()) {
    const auto again = ec::decode_publish(ec::encode_publish((*publish).terms, (*publish).items));
    if (!again.ok() || (*again).items.size() != (*publish).items.size()) std::abort();
  }
  if (const auto unpublish = ec::decode_unpublish(body); unpublish.ok()) {
    const auto again = ec::decode_unpublish(ec::encode(*unpublish));
    if (!again.ok() || (*again).mm_hashes.size() != (*unpublish).mm_hashes.size()) std::abort();
  }
  if (const auto renew = ec::decode_renew(body); renew.ok()) {
    if (!ec::decode_renew(ec::encode(*renew)).ok()) std::abort();
  }
  if (const auto info = ec::decode_info(body); info.ok()) {
    const auto again = ec::decode_info(ec::encode_info(*info));
    if (!again.ok() || (*again).info != (*info).info) std::abort();
  }
  (void)ec::decode_producers(body, 2);
  (void)ec::decode_outcome(body, 2);
  (void)ec::decode_detail(body);
}

void read_request(const ec::HttpRequest& request) {
  if (request.target.size() > kMaxHead || request.body.size() > kMaxBody) std::abort();
  if (const auto target = ec::parse_target(request.target); target.ok()) {
    const auto again = ec::parse_target("/" + ec::percent_encode((*target).path));
    if (!again.ok() || (*again).path != "/" + (*target).path) std::abort();
  }
  read_body(request.body);
}

}  // namespace

// The bytes of a connection, in pieces as long as the first byte says.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = data[0] == 0 ? size : data[0];
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  read_body(bytes);
  ec::RequestReader reader(kMaxHead, kMaxBody);
  while (!bytes.empty()) {
    const std::span<char> room = reader.prepare();
    if (room.empty() || room.size() > 8 * kMaxHead) std::abort();
    const size_t take = std::min({piece, room.size(), bytes.size()});
    std::copy_n(bytes.begin(), take, room.begin());
    bytes.remove_prefix(take);
    State state = reader.commit(take);
    while (state == State::kReady) {
      read_request(reader.request());
      state = reader.next();
    }
    if (state == State::kRefused) return 0;
  }
  return 0;
}
