#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace stagelink::test {

// Files with secrets, in a folder of their own that goes with the object.
class SecretFiles {
 public:
  SecretFiles() : dir_(::testing::TempDir() + "sl-secret-XXXXXX") {
    if (::mkdtemp(dir_.data()) == nullptr) throw std::runtime_error("mkdtemp: " + dir_);
  }
  SecretFiles(const SecretFiles&) = delete;
  SecretFiles& operator=(const SecretFiles&) = delete;
  ~SecretFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }
  // The path of a file with mode 0600 that holds `text`.
  std::string write(const std::string& name, std::string_view text) const {
    const std::string path = dir_ + "/" + name;
    std::ofstream(path) << text;
    if (::chmod(path.c_str(), 0600) != 0) throw std::runtime_error("chmod: " + path);
    return path;
  }

 private:
  std::string dir_;
};

}  // namespace stagelink::test
