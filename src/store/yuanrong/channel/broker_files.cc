#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>

#include "store/yuanrong/channel/broker_process.h"

namespace stagelink::store::yuanrong {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKnownVersion = "0.8.1";
constexpr const char* kInstall = "pip install openyuanrong-datasystem==0.8.1";
constexpr const char* kBrokerName = "stagelink-yuanrong-broker";
constexpr const char* kPluginName = "stagelink-yuanrong-sdk.so";

std::string variable_text(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Of the library or command that this code is in.
fs::path own_folder() {
  Dl_info info{};
  std::error_code error;
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) != 0 &&
      info.dli_fname != nullptr && info.dli_fname[0] == '/') {
    const fs::path path = fs::canonical(info.dli_fname, error);
    if (!error) return path.parent_path();
  }
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

// base/lib/python3.*/site-packages, and Debian's names for it.
void add_packages(const fs::path& base, std::vector<fs::path>& out) {
  std::error_code error;
  for (const char* lib : {"lib", "lib64"}) {
    for (const auto& entry : fs::directory_iterator(base / lib, error)) {
      if (entry.path().filename().string().rfind("python3", 0) != 0) continue;
      out.push_back(entry.path() / "site-packages");
      out.push_back(entry.path() / "dist-packages");
    }
  }
}

// Where Python packages may lie, likeliest first.
std::vector<fs::path> package_folders() {
  std::vector<fs::path> out;
  const fs::path own = own_folder();
  out.push_back(own.parent_path());      // The extension module: site-packages/stagelink.
  add_packages(own.parent_path(), out);  // The command: bin.
  // A Python of an environment, by the name that it was started under: bin/python.
  std::string program;
  std::getline(std::ifstream("/proc/self/cmdline"), program, '\0');
  if (program.find('/') != program.npos) {
    add_packages(fs::path(program).parent_path().parent_path(), out);
  }
  std::string paths = variable_text("PYTHONPATH");
  for (size_t at = 0; at < paths.size();) {
    const size_t end = std::min(paths.find(':', at), paths.size());
    if (end > at) out.emplace_back(paths.substr(at, end - at));
    at = end + 1;
  }
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string base = variable_text(name); !base.empty()) add_packages(base, out);
  }
  if (const std::string home = variable_text("HOME"); !home.empty()) {
    add_packages(fs::path(home) / ".local", out);
  }
  add_packages("/usr/local", out);
  add_packages("/usr", out);
  return out;
}

bool is_file(const fs::path& path) noexcept {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool is_sdk(const fs::path& folder) noexcept { return is_file(folder / "lib/libdatasystem.so"); }

Result<fs::path> find_sdk(const YuanrongOptions& options) {
  std::string named = options.sdk_path;
  if (named.empty()) named = variable_text("STAGELINK_YUANRONG_SDK");
  if (!named.empty()) {
    if (is_sdk(named)) return fs::path(named);
    return Status(Reason::kNotFound,
                  fmt::format("sdk_path: {} has no lib/libdatasystem.so; it is the folder "
                              "yr/datasystem of what this installs: {}",
                              named, kInstall));
  }
  for (const fs::path& folder : package_folders()) {
    if (is_sdk(folder / "yr/datasystem")) return folder / "yr/datasystem";
  }
  return Status(
      Reason::kNotFound,
      fmt::format("the client library of the Yuanrong Datasystem is not installed; {} (or "
                  "name its folder yr/datasystem with sdk_path)",
                  kInstall));
}

// The library's interface is known to us for one version, byte by byte.
Status check_sdk_version(const fs::path& sdk) {
  std::string version;
  std::ifstream(sdk / "VERSION") >> version;
  if (version == kKnownVersion) return {};
  return Status(
      Reason::kVersion,
      fmt::format("{}: the Yuanrong Datasystem's library is of version \"{}\", and {} is the "
                  "one that works: {}",
                  sdk.string(), version, kKnownVersion, kInstall));
}

// In a build folder the extension module lies two folders below the broker.
Result<fs::path> find_broker() {
  if (const std::string named = variable_text("STAGELINK_YUANRONG_BROKER"); !named.empty()) {
    return fs::path(named);
  }
  const fs::path own = own_folder();
  std::vector<fs::path> folders = {own, own.parent_path(), own.parent_path().parent_path()};
  std::vector<fs::path> packages;
  add_packages(own.parent_path(), packages);
  for (const fs::path& folder : packages) folders.push_back(folder / "stagelink");
  for (const fs::path& folder : folders) {
    if (is_file(folder / kBrokerName)) return folder / kBrokerName;
  }
  return Status(Reason::kNotFound,
                fmt::format("{} was not found beside {}; name it with STAGELINK_YUANRONG_BROKER",
                            kBrokerName, own.string()));
}

}  // namespace

Result<BrokerFiles> find_broker_files(const YuanrongOptions& options) {
  BrokerFiles files;
  files.plugin = variable_text("STAGELINK_YUANRONG_PLUGIN");
  if (files.plugin.empty()) {
    SL_ASSIGN(const fs::path sdk, find_sdk(options));
    SL_TRY(check_sdk_version(sdk));
    files.sdk = sdk.string();
  } else {
    files.sdk = "/";  // A plug-in of one's own brings what it needs.
  }
  SL_ASSIGN(const fs::path broker, find_broker());
  files.broker = broker.string();
  if (files.plugin.empty()) files.plugin = (broker.parent_path() / kPluginName).string();
  return files;
}

}  // namespace stagelink::store::yuanrong
