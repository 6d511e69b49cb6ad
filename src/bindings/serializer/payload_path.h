#pragma once

#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace stagelink::bindings {

// str(object).
inline std::string text_of(nanobind::handle object) {
  return nanobind::cast<std::string>(nanobind::str(object));
}

// Where a walk through an object is: $['prompt'][3].shape. Written down only when it is asked for.
//
// Thread-safety: used with the interpreter lock. What it names must be alive.
class PayloadPath {
 public:
  // One step down, for as long as it lives.
  class Step {
   public:
    Step(PayloadPath& path, Py_ssize_t index) : path_(path) {
      path.steps_.push_back({index, {}, false});
    }
    Step(PayloadPath& path, nanobind::handle key, bool field = false) : path_(path) {
      path.steps_.push_back({0, key, field});
    }
    ~Step() { path_.steps_.pop_back(); }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    PayloadPath& path_;
  };

  size_t depth() const noexcept { return steps_.size(); }
  std::string text() const;

 private:
  struct Node {
    Py_ssize_t index;
    nanobind::handle key;  // Of a map; a field's name. None: the index counts.
    bool field;
  };
  std::vector<Node> steps_;
};

}  // namespace stagelink::bindings
