#include "transport/stream/request_queue.h"

namespace stagelink::transport {

void RequestQueue::push(PostedRequest& request) noexcept {
  request.next = nullptr;
  *end_ = &request;
  end_ = &request.next;
}

PostedRequest* RequestQueue::pop() noexcept {
  PostedRequest* const request = first_;
  if (request == nullptr) return nullptr;
  first_ = request->next;
  if (first_ == nullptr) end_ = &first_;
  request->next = nullptr;
  return request;
}

bool RequestQueue::remove(const PostedRequest& request) noexcept {
  for (PostedRequest** at = &first_; *at != nullptr; at = &(*at)->next) {
    if (*at != &request) continue;
    *at = request.next;
    if (*at == nullptr) end_ = at;
    return true;
  }
  return false;
}

}  // namespace stagelink::transport
