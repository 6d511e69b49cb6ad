#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"

namespace stagelink::cli::doctor {

// A folder with files of a test's own, in place of /proc, /sys, /dev and PATH.
class Tree {
 public:
  Tree() {
    char name[] = "/tmp/sl-doctor-XXXXXX";
    if (::mkdtemp(name) == nullptr) std::abort();
    root_ = name;
  }
  ~Tree() { std::filesystem::remove_all(root_); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  std::string path(const std::string& name) const { return root_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name)) << text;
    return path(name);
  }
  std::string program(const std::string& name, const std::string& script) const {
    std::string file = write(name, "#!/bin/sh\n" + script);
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file;
  }
  // Nothing of the real machine is seen through it.
  HostView view() const {
    HostView host;
    host.proc = path("proc");
    host.sys = path("sys");
    host.dev = path("dev");
    host.ascend = path("Ascend");
    host.shm = root_;
    host.path = path("bin") + ":/usr/bin:/bin";
    host.python = path("bin/python3");
    return host;
  }

 private:
  std::string root_;
};

// The first finding of that cause; a failed test if there is none.
inline Finding with_cause(const std::vector<Finding>& findings, std::string_view cause) {
  for (const Finding& finding : findings) {
    if (finding.cause == cause) return finding;
  }
  std::string all;
  for (const Finding& finding : findings) all += "\n  " + finding.cause + ": " + finding.what;
  ADD_FAILURE() << "no finding `" << cause << "` among" << all;
  return {};
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace stagelink::cli::doctor
