#include "cli/doctor/packages.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/text.h"
#include "cli/doctor/child.h"
#include "connector/zmq/library.h"
#include "stagelink/version.h"

namespace stagelink::cli::doctor {
namespace {

constexpr size_t kMaxWord = 300;  // Of what an interpreter says.

struct PackageRow {
  std::string_view name;
  std::string_view module;
  std::string_view tested;  // The beginning of its version; empty: any.
  std::string_view serves;
  std::string_view install;
};
constexpr std::string_view kAscendEngine = "openyuanrong-datasystem";
constexpr std::array<PackageRow, 6> kPackages = {{
    {"stagelink", "stagelink", kVersion, "the Python package", "pip install ."},
    {"vllm", "vllm", "0.32", "MoRIIOConnector, ECMooncakeConnector", "pip install vllm"},
    {"vllm-omni", "vllm_omni", "0.30", "YuanrongConnector, YuanrongTransferEngineConnector",
     "pip install vllm-omni"},
    {kAscendEngine, "yr.datasystem", "0.8.1", "stores of the Yuanrong Datasystem, protocol ascend",
     "pip install openyuanrong-datasystem"},
    {"pyzmq", "zmq", "", "ZeroMQ where Debian's libzmq5 is missing", "pip install pyzmq"},
    {"torch", "torch", "", "tensors", "pip install torch"},
}};

// Says of each name: name, version, where, what is wrong, between tabs. Packages are found and not
// imported, but ours, which does nothing when it is: so one that cannot be loaded shows here.
constexpr std::string_view kAskPython = R"(
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from importlib import import_module, metadata, util
def tell(*words):
    print(*(" ".join(str(word).split()) for word in words), sep="\t", flush=True)
tell("python", sys.version.split()[0], sys.executable, "")
for name, module in zip(sys.argv[1::2], sys.argv[2::2]):
    version, where, error = "", "", ""
    try:
        version = metadata.version(name)
    except Exception:
        pass
    try:
        try:
            spec = util.find_spec(module)
        except ModuleNotFoundError:  # The package around it is not there.
            spec = None
        if spec is not None:
            where = spec.origin or list(spec.submodule_search_locations or [""])[0]
        if spec is not None and name == "stagelink":
            version = import_module(module).__version__
    except BaseException as problem:
        error = f"{type(problem).__name__}: {problem}"
    tell(name, version, where, error)
)";

Finding python_trouble(const HostView& host, std::string what) {
  return {host.python_asked ? Level::kError : Level::kNote, "python_missing", std::move(what),
          host.python_asked ? "Nothing is known about its packages." : "",
          "Activate the environment that runs the model, or name its interpreter: --python "
          "PATH/bin/python3"};
}

std::string interpreter_trouble(Result<ChildOutput>& output) {
  if (output.ok()) {
    return fmt::format("it ended with {}: {}", output->exit_code,
                       to_plain_text(trimmed(output->text), 200));
  }
  // The message of a program that was killed has all of the script.
  if (output.status().code() == Code::kTimedOut) return "it did not end in time";
  return std::string(output.status().message());
}

Finding judge_package(const PackageRow& row, const PythonPackage& found) {
  const std::string_view version = found.version;
  if (!found.error.empty()) {
    return {Level::kError, "package_broken",
            fmt::format("The Python package {} in {} cannot be loaded: {}", row.name, found.where,
                        found.error),
            "Whoever imports it fails in the same way.",
            fmt::format("Install it for this interpreter: {}", row.install)};
  }
  if (row.name == "stagelink" && version != row.tested) {
    return {
        Level::kWarning, "package_version",
        fmt::format("The Python package stagelink is {}, this command is {}", version, kVersion),
        "Engines of both speak with each other only if their protocols are near.",
        "Install both from one version."};
  }
  const std::string what = fmt::format(
      "{} {} (for {})", row.name, version.empty() ? "of an unknown version" : version, row.serves);
  if (version.starts_with(row.tested)) return fine(what);
  return note("package_version", fmt::format("{}: tested with {}", what, row.tested));
}

void check_python(const HostView& host, const Subject& subject, const Deadline& deadline,
                  std::vector<Finding>& out) {
  if (host.python.empty()) {
    out.push_back(python_trouble(host, "There is no python3 in PATH."));
    return;
  }
  std::vector<std::string> command = {host.python, "-c", std::string(kAskPython)};
  for (const PackageRow& row : kPackages) {
    command.emplace_back(row.name);
    command.emplace_back(row.module);
  }
  auto output = run_program(command, deadline);
  if (!output.ok() || output->exit_code != 0) {
    const std::string why = interpreter_trouble(output);
    out.push_back(python_trouble(host, fmt::format("{}: {}", host.python, why)));
    return;
  }
  const PythonPackages packages = parse_packages(output->text);
  std::string_view interpreter = host.python;
  if (const auto own = packages.find("python"); own != packages.end()) {
    interpreter = own->second.where;
    out.push_back(fine(fmt::format("Python {} ({})", own->second.version, interpreter)));
  }
  std::vector<std::string_view> missing;
  for (const PackageRow& row : kPackages) {
    const auto found = packages.find(row.name);
    const bool there =
        found != packages.end() && !(found->second.version.empty() && found->second.where.empty() &&
                                     found->second.error.empty());
    if (there) {
      out.push_back(judge_package(row, found->second));
    } else if (row.name == kAscendEngine && !subject.ascend.empty()) {
      out.push_back({Level::kError, "package_missing",
                     fmt::format("{}: protocol ascend, and {} does not find the package {}",
                                 subject.ascend.front(), interpreter, row.name),
                     "Its transfer engine is part of that package: the connector ends at start.",
                     std::string(row.install) + ", or --python PATH/bin/python3 for the "
                                                "interpreter that runs the model"});
    } else {
      missing.push_back(row.name);
    }
  }
  if (missing.empty()) return;
  out.push_back(
      note("package_missing",
           fmt::format("{} does not find the packages {}.", interpreter, fmt::join(missing, ", ")),
           "Nothing, unless they are used. Is it another interpreter that runs the "
           "model? Name it: --python PATH/bin/python3"));
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

PythonPackages parse_packages(std::string_view text) {
  PythonPackages out;
  for (std::string_view line : split(text, '\n')) {
    std::vector<std::string> words;
    for (size_t tab = line.find('\t'); tab != std::string_view::npos; tab = line.find('\t')) {
      words.push_back(to_plain_text(line.substr(0, tab), kMaxWord));
      line.remove_prefix(tab + 1);
    }
    words.push_back(to_plain_text(line, kMaxWord));
    // What packages print while they are imported has another shape.
    if (words.size() == 4) out[words[0]] = {words[1], words[2], words[3]};
  }
  return out;
}

std::vector<Finding> check_packages(const HostView& host, const Subject& subject,
                                    const Deadline& deadline) {
  std::vector<Finding> out;
  out.push_back(check_zmq());
  out.push_back(check_etcd(host, deadline));
  check_python(host, subject, deadline, out);
  return out;
}

}  // namespace stagelink::cli::doctor
