#include "cli/doctor/packages.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "base/text.h"
#include "cli/doctor/child.h"
#include "connector/zmq/library.h"
#include "stagelink/version.h"

namespace stagelink::cli::doctor {
namespace {

struct PackageRow {
  std::string_view name;
  std::string_view tested;  // The beginning of its version; empty: any.
  std::string_view serves;
  std::string_view install;
};
constexpr std::array<PackageRow, 6> kPackages = {{
    {"stagelink", kVersion, "the Python package", "pip install ."},
    {"vllm", "0.32", "MoRIIOConnector, ECMooncakeConnector", "pip install vllm"},
    {"vllm-omni", "0.30", "YuanrongConnector, YuanrongTransferEngineConnector",
     "pip install vllm-omni"},
    {"openyuanrong-datasystem", "0.8.1", "stores of the Yuanrong Datasystem, protocol ascend",
     "pip install openyuanrong-datasystem"},
    {"pyzmq", "", "ZeroMQ where Debian's libzmq5 is missing", "pip install pyzmq"},
    {"torch", "", "tensors", "pip install torch"},
}};

// As PEP 503 compares names.
std::string normal_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool mark = c == '-' || c == '_' || c == '.';
    if (mark && !out.empty() && out.back() == '-') continue;
    out += mark ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

void check_python(const HostView& host, std::vector<Finding>& out) {
  std::vector<std::string> missing;
  for (const PackageRow& row : kPackages) {
    const std::string version = python_package(host.python_paths, row.name);
    if (version.empty()) {
      missing.push_back(std::string(row.name));
    } else if (row.name == "stagelink" && version != row.tested) {
      out.push_back(
          {Level::kWarning, "package_version",
           fmt::format("The Python package stagelink is {}, this command is {}", version, kVersion),
           "Engines of both speak with each other only if their protocols are near.",
           "Install both from one version."});
    } else if (!version.starts_with(row.tested)) {
      out.push_back(note("package_version", fmt::format("{} {} (for {}): tested with {}", row.name,
                                                        version, row.serves, row.tested)));
    } else {
      out.push_back(fine(fmt::format("{} {} (for {})", row.name, version, row.serves)));
    }
  }
  if (missing.empty()) return;
  out.push_back(note("package_missing",
                     fmt::format("Python packages not found: {}.", fmt::join(missing, ", ")),
                     "Nothing, unless they are used. Looked for beside the python3 in PATH and in "
                     "PYTHONPATH: activate the environment that runs the model first."));
}

Finding check_zmq() {
  const auto library = zmq::Library::load();
  if (library.ok()) {
    const bool curve = (*library)->functions().has("curve") == 1;
    return fine(fmt::format("ZeroMQ {}{}", (*library)->version(),
                            curve ? ", with CURVE for secrets" : ", without CURVE: no secrets"));
  }
  return {Level::kWarning, "zmq_missing", std::string(library.status().message()),
          "Connectors speak with each other over ZeroMQ; engines and the shared memory store do "
          "without.",
          "apt-get install libzmq5, or pip install pyzmq"};
}

Finding check_etcd(const HostView& host, const Deadline& deadline) {
  const std::string program = find_program(host.path, "etcd");
  if (program.empty()) {
    return note("etcd_missing", "There is no etcd in PATH.",
                "Nothing, unless workers of the Yuanrong Datasystem run here (Debian: "
                "etcd-server).");
  }
  auto output = run_program({program, "--version"}, deadline);
  if (!output.ok()) return note("etcd_silent", std::string(output.status().message()));
  const std::string_view line = std::string_view(output->text).substr(0, output->text.find('\n'));
  return fine(fmt::format("{} ({})", to_plain_text(trimmed(line), 80), program));
}

}  // namespace

std::string python_package(const std::vector<std::string>& folders, std::string_view name) {
  const std::string wanted = normal_name(name);
  for (const std::string& folder : folders) {
    for (const std::string& entry : names_in(folder)) {
      // name-1.2.3.dist-info, name-1.2.3-py3.11.egg-info
      std::string_view stem = entry;
      const size_t suffix = std::min(stem.rfind(".dist-info"), stem.rfind(".egg-info"));
      if (suffix == std::string_view::npos) continue;
      stem = stem.substr(0, suffix);
      const size_t dash = stem.find('-');
      if (dash == std::string_view::npos || normal_name(stem.substr(0, dash)) != wanted) continue;
      stem.remove_prefix(dash + 1);
      return to_plain_text(stem.substr(0, stem.find("-py")), 60);
    }
  }
  return {};
}

std::vector<Finding> check_packages(const HostView& host, const Deadline& deadline) {
  std::vector<Finding> out;
  out.push_back(check_zmq());
  out.push_back(check_etcd(host, deadline));
  check_python(host, out);
  return out;
}

}  // namespace stagelink::cli::doctor
