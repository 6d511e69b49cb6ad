#include "broker/shared_clients.h"

#include <utility>

namespace stagelink::broker {
namespace {

using store::yuanrong::WorkerOptions;

SdkOptions sdk_options(const WorkerOptions& options, bool exclusive) {
  SdkOptions out;
  out.host = options.host;
  out.port = options.port;
  // Less than the client's, which is to hear the library's words and not only that time is over.
  out.connect_timeout_ms =
      static_cast<int32_t>(options.connect_timeout_ms - options.connect_timeout_ms / 4);
  out.request_timeout_ms = static_cast<int32_t>(options.request_timeout_ms);
  out.exclusive = exclusive;
  out.cross_node = options.cross_node;
  out.tenant_id = options.tenant_id;
  out.access_key = options.access_key;
  out.secret_key = options.secret_key;
  out.client_public_key = options.client_public_key;
  out.client_private_key = options.client_private_key;
  out.server_public_key = options.server_public_key;
  out.token = options.token;
  return out;
}

}  // namespace

SharedClients::Connected SharedClients::shared(const WorkerOptions& options) {
  const std::string digest = options.digest();
  {
    const MutexLock lock(mutex_);
    if (auto there = shared_[digest].lock()) return {std::move(there), {}};
  }
  Connected out;
  out.client = sdk_.connect(sdk_options(options, false));
  out.status = out.client->init();
  if (!out.status.ok()) {
    out.client = nullptr;
    return out;
  }
  const MutexLock lock(mutex_);
  std::erase_if(shared_, [](const auto& entry) { return entry.second.expired(); });
  shared_[digest] = out.client;
  return out;
}

std::pair<std::unique_ptr<SdkClient>, SdkStatus> SharedClients::exclusive(
    const WorkerOptions& options) {
  {
    const MutexLock lock(mutex_);
    if (exclusive_ >= kMostExclusive) return {};
    ++exclusive_;
  }
  auto client = sdk_.connect(sdk_options(options, true));
  SdkStatus status = client->init();
  if (status.ok()) return {std::move(client), std::move(status)};
  give_back_exclusive();
  return {nullptr, std::move(status)};
}

void SharedClients::give_back_exclusive() noexcept {
  const MutexLock lock(mutex_);
  --exclusive_;
}

}  // namespace stagelink::broker
