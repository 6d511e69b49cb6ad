#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "stagelink/result.h"

// Types of zmq.h that its users here need not see.
struct zmq_msg_t;
struct zmq_pollitem_t;

namespace stagelink::zmq {

// The functions of libzmq that are called, found by name in the library once it is loaded.
struct Functions {
  void* (*ctx_new)();
  int (*ctx_set)(void*, int, int);
  int (*ctx_term)(void*);
  void* (*socket)(void*, int);
  int (*close)(void*);
  int (*setsockopt)(void*, int, const void*, size_t);
  int (*getsockopt)(void*, int, void*, size_t*);
  int (*bind)(void*, const char*);
  int (*connect)(void*, const char*);
  int (*msg_init)(zmq_msg_t*);
  int (*msg_recv)(zmq_msg_t*, void*, int);
  void* (*msg_data)(zmq_msg_t*);
  size_t (*msg_size)(const zmq_msg_t*);
  int (*msg_more)(const zmq_msg_t*);
  int (*msg_close)(zmq_msg_t*);
  int (*send)(void*, const void*, size_t, int);
  int (*poll)(zmq_pollitem_t*, int, long);
  int (*error_number)();
  const char* (*error_text)(int);
  void (*version)(int*, int*, int*);
  int (*has)(const char*);
  int (*socket_monitor)(void*, const char*, int);
};

// libzmq, loaded when a program first needs it and kept until the process ends (its threads and
// exit handlers may outlive our last socket).
//
// Thread-safety: const methods may run at the same time.
class Library {
 public:
  // From `path`, or by the name libzmq.so.5 when it is empty. Errors: not_found names the package
  // that holds the library; incompatible (version) below 4.2.
  static Result<std::shared_ptr<const Library>> load(const std::string& path = {});

  const Functions& functions() const noexcept { return functions_; }
  std::string version() const;

  // The failure that the last call of this thread left in errno: `what` says what was tried.
  Status last_error(std::string_view what) const;

 private:
  explicit Library(const Functions& functions) noexcept : functions_(functions) {}
  const Functions functions_;
};

}  // namespace stagelink::zmq
