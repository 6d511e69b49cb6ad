// What client and broker of the Yuanrong backend read of each other and of the datasystem: headers
// of values, the hello, and requests in a shared page. The first byte chooses.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "broker/request.h"
#include "store/yuanrong/channel/worker_options.h"
#include "store/yuanrong/object_header.h"

namespace {

using namespace stagelink;
namespace yr = store::yuanrong;

constexpr const char* kKey = "request:0_1";

void require(bool condition) {
  if (!condition) std::abort();
}

// Whatever is accepted must fit what is there.
void check_header(std::span<const std::byte> value) {
  const auto header = yr::read_header(value, kKey);
  if (!header.ok()) return;
  Result<yr::ObjectHeader> copy = header;
  require(copy->key == kKey);
  const size_t behind = value.size() - yr::header_bytes(copy->key.size());
  if (copy->kind == yr::ObjectKind::kWhole) require(copy->size == behind);
  if (copy->kind == yr::ObjectKind::kChunk) require(copy->chunk_bytes == behind);
  if (copy->kind == yr::ObjectKind::kManifest) require(copy->chunk_bytes > 0);
}

// A header whose sum is right, so that its fields are reached.
void check_mended_header(std::span<const std::byte> input) {
  yr::ObjectHeader header;
  header.key = kKey;
  const auto take = [&](auto& field) {
    const size_t bytes = std::min(sizeof(field), input.size());
    std::memcpy(&field, input.data(), bytes);
    input = input.subspan(bytes);
  };
  uint32_t kind = 0;
  take(kind);
  header.kind = static_cast<yr::ObjectKind>(kind % 4);
  take(header.size);
  take(header.generation);
  take(header.chunks);
  take(header.chunk_bytes);
  std::vector<std::byte> value(yr::header_bytes(header.key.size()) + input.size());
  yr::write_header(header, value);
  check_header(value);
}

// Is handed only what a request may ask for.
class CheckingClient final : public broker::SdkClient {
 public:
  broker::SdkStatus init() override { return {}; }
  broker::SdkStatus set(const std::string& key, std::span<const std::byte> value,
                        const broker::SdkPutTerms& terms) override {
    check_keys({key});
    require(!value.empty() && value.size() <= yr::kInlineBytes && terms.write_mode <= 4);
    require(value.front() == value.front() && value.back() == value.back());
    return {};
  }
  broker::SdkStatus create(const std::string& key, uint64_t size, const broker::SdkPutTerms&,
                           broker::SdkMemory&) override {
    check_keys({key});
    require(size > 0 && size <= yr::kMaxObjectBytes);
    return {6, "full"};
  }
  broker::SdkStatus publish(const broker::SdkMemory&) override { std::abort(); }
  broker::SdkStatus get(const std::vector<std::string>& keys, int32_t wait_ms,
                        std::vector<broker::SdkMemory>& out) override {
    check_keys(keys);
    require(wait_ms >= 0 && wait_ms <= 60'000);
    out.resize(keys.size());
    return {};
  }
  broker::SdkStatus exists(const std::vector<std::string>& keys, std::vector<bool>& out) override {
    check_keys(keys);
    out.resize(keys.size());
    return {};
  }
  broker::SdkStatus erase(const std::vector<std::string>& keys) override {
    check_keys(keys);
    return {};
  }
  broker::SdkStatus expire(const std::vector<std::string>& keys, uint32_t) override {
    check_keys(keys);
    return {};
  }
  broker::SdkStatus check_health() override { return {}; }

 private:
  static void check_keys(const std::vector<std::string>& keys) {
    require(!keys.empty() && keys.size() <= yr::kMaxKeysPerRequest);
    for (const std::string& key : keys) {
      require(!key.empty() && key.size() <= yr::kMaxStoreKeyBytes);
    }
  }
};

void check_request(std::span<const std::byte> input) {
  static const auto lane = std::make_unique<yr::Lane>();
  static broker::Mappings mappings;
  static CheckingClient client;
  broker::HeldObjects held(mappings);
  const size_t head = std::min(sizeof(lane->request), input.size());
  std::memcpy(&lane->request, input.data(), head);
  input = input.subspan(head);
  std::memcpy(lane->keys.data(), input.data(), std::min(input.size(), lane->keys.size()));
  broker::write_reply(broker::carry_out(*lane, client, held), *lane);
  require(lane->reply.places <= yr::kMaxKeysPerRequest);
  require(lane->reply.message_bytes <= yr::kMaxMessageBytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 4) {
    case 0: check_header(input); break;
    case 1: check_mended_header(input); break;
    case 2: (void)yr::decode_worker_options(input); break;
    default: check_request(input); break;
  }
  return 0;
}
