#pragma once

#include "transport/transport.h"

namespace stagelink::transport {

// Requests in line, linked by their `next`. Does not own them.
//
// Thread-safety: none.
class RequestQueue {
 public:
  RequestQueue() = default;
  RequestQueue(const RequestQueue&) = delete;
  RequestQueue& operator=(const RequestQueue&) = delete;
  ~RequestQueue() = default;

  void push(PostedRequest& request) noexcept;
  PostedRequest* pop() noexcept;  // Null: there is none.
  bool remove(const PostedRequest& request) noexcept;
  PostedRequest* first() const noexcept { return first_; }

 private:
  PostedRequest* first_ = nullptr;
  PostedRequest** end_ = &first_;
};

}  // namespace stagelink::transport
