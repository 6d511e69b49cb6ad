#include "cli/doctor/devices.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

namespace stagelink::cli::doctor {
namespace {

// "4: ACTIVE"
std::string_view after_colon(std::string_view text) noexcept {
  const size_t colon = text.find(':');
  return trimmed(colon == std::string_view::npos ? text : text.substr(colon + 1));
}

void check_port(const std::string& name, const std::string& folder, std::vector<Finding>& out) {
  const std::string state = read_text(folder + "/state").value_or("");
  const std::string rate = read_text(folder + "/rate").value_or("unknown rate");
  const std::string layer = read_text(folder + "/link_layer").value_or("unknown link");
  const std::string what =
      fmt::format("{}: {}, {}, {}", name, after_colon(state), trimmed(layer), trimmed(rate));
  if (after_colon(state) == "ACTIVE") {
    out.push_back(fine(what));
    return;
  }
  out.push_back({Level::kWarning, "rdma_down", what,
                 "Nothing passes through a port that is not active.",
                 "Look at cable and switch (ibstat, `ip link`), and for InfiniBand at the subnet "
                 "manager."});
}

// The files through which programs use the devices.
void check_verbs(const HostView& host, std::vector<Finding>& out) {
  for (const std::string& name : names_in(host.dev + "/infiniband")) {
    if (!name.starts_with("uverbs")) continue;
    const std::string file = host.dev + "/infiniband/" + name;
    if (::access(file.c_str(), R_OK | W_OK) == 0) return;
    out.push_back({Level::kWarning, "rdma_forbidden", file + ": this user may not open it",
                   "Libraries find no RDMA device then, and mostly do not say why.",
                   "Mode 0666 or a group by udev; in a container, --device=/dev/infiniband."});
    return;
  }
  out.push_back({Level::kWarning, "rdma_forbidden",
                 fmt::format("There is no {}/infiniband/uverbs*", host.dev),
                 "The kernel has RDMA devices, and programs cannot reach them.",
                 "modprobe ib_uverbs; in a container, --device=/dev/infiniband."});
}

Finding find_ucx() {
  constexpr const char* kLibrary = "libucp.so.0";
  void* const handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return note("ucx_missing", fmt::format("UCX ({}) is not installed.", kLibrary),
                "Debian: apt-get install libucx0.");
  }
  using VersionText = const char* (*)();
  const auto version = reinterpret_cast<VersionText>(::dlsym(handle, "ucp_get_version_string"));
  // It stays loaded: its exit handlers expect it.
  return fine(fmt::format("UCX {} is installed.", version == nullptr ? "?" : version()));
}

}  // namespace

std::vector<Finding> check_devices(const HostView& host) {
  std::vector<Finding> out;
  const std::string root = host.sys + "/class/infiniband";
  const std::vector<std::string> devices = names_in(root);
  for (const std::string& device : devices) {
    for (const std::string& port : names_in(root + "/" + device + "/ports")) {
      check_port(fmt::format("RDMA device {}, port {}", device, port),
                 root + "/" + device + "/ports/" + port, out);
    }
  }
  if (devices.empty()) {
    out.push_back(note("rdma_missing", "There is no RDMA device (" + root +
                                           "): peers on other hosts are reached over TCP."));
  } else {
    check_verbs(host, out);
    out.push_back(note("rdma_unused",
                       "This version moves no bytes over RDMA: between hosts it "
                       "takes TCP, over the same network if that has addresses."));
  }
  out.push_back(find_ucx());
  return out;
}

}  // namespace stagelink::cli::doctor
