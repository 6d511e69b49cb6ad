#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

namespace stagelink::cli::replay {

// A directory of its own for one test, removed at its end.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "stagelink-test-XXXXXX").string();
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::string path() const { return path_.string(); }
  // Writes the file and returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    const auto path = path_ / name;
    std::ofstream(path) << text;
    return path.string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace stagelink::cli::replay
