#include "connector/moriio/io/engine_desc.h"

#include <array>
#include <cstdlib>
#include <fstream>
#include <limits>

#include <unistd.h>

#include "base/text.h"
#include "connector/moriio/io/desc_codec.h"

namespace stagelink::moriio {
namespace {

constexpr uint32_t kFields = 6;

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  return to_plain_text(name.data(), DescReader::kMaxTextBytes);
}

std::string node_id() {
  std::string id;
  if (const char* named = std::getenv("MORI_NODE_ID"); named != nullptr) id = named;
  if (id.empty()) std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? host_name() : to_plain_text(id, DescReader::kMaxTextBytes);
}

}  // namespace

EngineDesc describe_process() {
  EngineDesc desc;
  desc.node_id = node_id();
  desc.hostname = host_name();
  desc.pid = static_cast<int32_t>(::getpid());
  return desc;
}

std::vector<std::byte> EngineDesc::pack() const {
  DescWriter out(kFields);
  out.put_text(key);
  out.put_text(node_id);
  out.put_text(hostname);
  out.put_text(host);
  out.put_signed(port);
  out.put_signed(pid);
  return out.take();
}

Result<EngineDesc> EngineDesc::unpack(std::span<const std::byte> blob) {
  SL_ASSIGN(DescReader in, DescReader::open(blob, "engine descriptor"));
  EngineDesc desc;
  uint64_t port = 0;
  int64_t pid = 0;
  in.take_text("key", desc.key);
  in.take_text("node_id", desc.node_id);
  in.take_text("hostname", desc.hostname);
  in.take_text("host", desc.host);
  in.take_unsigned("port", std::numeric_limits<uint16_t>::max(), port);
  in.take_signed("pid", 0, std::numeric_limits<int32_t>::max(), pid);
  if (!in.status().ok()) return in.status();
  desc.port = static_cast<uint16_t>(port);
  desc.pid = static_cast<int32_t>(pid);
  return desc;
}

}  // namespace stagelink::moriio
