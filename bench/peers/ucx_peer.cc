// UCX on the work unit: one ucp_get_nbx a block out of private memory of another process, with the
// transports posix and cma (UCX_TLS overrides them). The target polls while it is read.

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include "cli/bench/rig/measure.h"
#include "cli/bench/rig/private_memory.h"
#include "cli/bench/rig/process_load.h"
#include "cli/bench/rig/work_unit.h"

namespace stagelink::cli::bench {
namespace {

constexpr uint64_t kSalt = 0x77;
constexpr uint64_t kVerifySeed = 77;
constexpr int kPollsBetweenLooks = 2000;

[[noreturn]] void give_up(const char* what, const char* why) {
  fmt::print(stderr, "ucx_peer: {}: {}\n", what, why);
  _exit(1);
}

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) give_up(what, ucs_status_string(status));
}

// What UCX needs in either process. Lives until the process ends.
struct Endpoint {
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  ucp_mem_h memory = nullptr;

  explicit Endpoint(std::span<std::byte> bytes) {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA;
    check(ucp_init(&params, config, &context), "ucp_init");
    ucp_config_release(config);
    ucp_worker_params_t worker_params{};
    worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
    ucp_mem_map_params_t map{};
    map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    map.address = bytes.data();
    map.length = bytes.size();
    check(ucp_mem_map(context, &map, &memory), "ucp_mem_map");
  }
};

// Both ends are this program, on one host: packets keep their bounds.
void send_blob(int socket, const void* data, size_t bytes) {
  if (::send(socket, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) {
    give_up("send", std::strerror(errno));
  }
}

std::vector<std::byte> receive_blob(int socket) {
  pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, 60'000) <= 0) give_up("the target", "does not answer");
  std::vector<std::byte> blob(64 << 10);
  const ssize_t received = ::recv(socket, blob.data(), blob.size(), 0);
  if (received <= 0) give_up("the target", "has ended");
  blob.resize(static_cast<size_t>(received));
  return blob;
}

[[noreturn]] void serve(int socket, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) _exit(1);
  if (const Status status = pin_to_core(1); !status.ok()) give_up("pin", "no core 1");
  auto memory = PrivateMemory::create(kRegionBytes);
  if (!memory.ok()) give_up("memory", "no space");
  const std::span<std::byte> bytes = (*memory).bytes();
  fill_content(bytes, kSalt);
  const Endpoint endpoint(bytes);
  ucp_address_t* address = nullptr;
  size_t address_bytes = 0;
  check(ucp_worker_get_address(endpoint.worker, &address, &address_bytes), "worker address");
  void* key = nullptr;
  size_t key_bytes = 0;
  check(ucp_rkey_pack(endpoint.context, endpoint.memory, &key, &key_bytes), "ucp_rkey_pack");
  const auto base = reinterpret_cast<uint64_t>(bytes.data());
  send_blob(socket, &base, sizeof base);
  send_blob(socket, address, address_bytes);
  send_blob(socket, key, key_bytes);
  for (;;) {
    for (int i = 0; i < kPollsBetweenLooks; ++i) ucp_worker_progress(endpoint.worker);
    pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, 0) > 0) _exit(0);  // The initiator has closed its end.
  }
}

class Initiator {
 public:
  Initiator(std::span<std::byte> bytes, int socket) : bytes_(bytes), own_(bytes) {
    const auto base = receive_blob(socket);
    std::memcpy(&remote_, base.data(), sizeof remote_);
    const auto address = receive_blob(socket);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    check(ucp_ep_create(own_.worker, &params, &peer_), "ucp_ep_create");
    const auto key = receive_blob(socket);
    check(ucp_ep_rkey_unpack(peer_, key.data(), &key_), "ucp_ep_rkey_unpack");
  }

  Status read(const Picks& picks, Sample& sample) {
    ucp_request_param_t param{};
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH;
    param.user_data = this;
    param.memh = own_.memory;
    param.cb.send = [](void* request, ucs_status_t status, void* self) {
      check(status, "ucp_get_nbx");
      --static_cast<Initiator*>(self)->pending_;
      ucp_request_free(request);
    };
    const double start_us = now_us();
    for (size_t i = 0; i < picks.sizes.size(); ++i) {
      void* const request = ucp_get_nbx(peer_, bytes_.data() + picks.local[i], picks.sizes[i],
                                        remote_ + picks.remote[i], key_, &param);
      if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "ucp_get_nbx");
      if (request != nullptr) ++pending_;
    }
    sample.submit_us = now_us() - start_us;
    while (pending_ > 0) ucp_worker_progress(own_.worker);
    sample.wall_us = now_us() - start_us;
    return Status();
  }

  bool verify(const Shape& shape) {
    const Picks picks = make_picks(shape, kVerifySeed);
    for (const uint64_t at : picks.local) std::memset(&bytes_[at], 0xee, shape.block_bytes);
    Sample sample;
    if (!read(picks, sample).ok()) return false;
    for (size_t i = 0; i < picks.local.size(); ++i) {
      const auto piece = bytes_.subspan(picks.local[i], shape.block_bytes);
      if (!holds_content(piece, picks.remote[i], kSalt)) return false;
    }
    return true;
  }

 private:
  std::span<std::byte> bytes_;
  Endpoint own_;
  ucp_ep_h peer_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  uint64_t remote_ = 0;
  size_t pending_ = 0;
};

int run(const Shape& shape, uint32_t repetitions) {
  ::setenv("UCX_TLS", "posix,cma", 0);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return 1;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return 1;
  if (child == 0) {
    ::close(ends[0]);
    serve(ends[1], parent);
  }
  ::close(ends[1]);
  if (!pin_to_core(0).ok()) return 1;
  auto memory = PrivateMemory::create(kRegionBytes);
  if (!memory.ok()) return 1;
  Initiator initiator((*memory).bytes(), ends[0]);
  MeasureOptions options;
  options.repetitions = repetitions;
  options.target = child;
  const Contender contender = [&initiator](const Picks& picks, Sample& sample) {
    return initiator.read(picks, sample);
  };
  const auto measured = measure(shape, {contender}, options);
  if (!measured.ok()) return 1;
  const Measurement& measurement = *measured;
  const double p50_us = measurement.median_us(0);
  const bool verified = initiator.verify(shape);
  fmt::print("{}\n", nlohmann::ordered_json{{"peer", "ucx"},
                                            {"version", ucp_get_version_string()},
                                            {"block_bytes", shape.block_bytes},
                                            {"blocks", shape.blocks},
                                            {"repetitions", measurement.samples[0].size()},
                                            {"quiet", measurement.quiet},
                                            {"p50_us", p50_us},
                                            {"p99_us", measurement.p(0, &Sample::wall_us, 0.99)},
                                            {"gb_per_s",
                                             static_cast<double>(shape.bytes()) / p50_us * 1e-3},
                                            {"verified", verified}}
                         .dump());
  std::fflush(stdout);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return verified ? 0 : 1;
}

}  // namespace
}  // namespace stagelink::cli::bench

int main(int argc, char** argv) {
  using stagelink::cli::bench::Shape;
  CLI::App app("UCX on the work unit of `stagelink bench engine`.");
  Shape shape{.block_bytes = 4096, .blocks = 4096};
  uint32_t repetitions = 20;
  bool json = true;  // Its only form; taken so that all peers have the same options.
  app.add_option("--block", shape.block_bytes);
  app.add_option("--blocks", shape.blocks);
  app.add_option("--repetitions", repetitions);
  app.add_flag("--json", json);
  CLI11_PARSE(app, argc, argv);
  if (!check_shape(shape).ok()) return 2;
  // UCX's own threads and endpoints end with the process.
  _exit(stagelink::cli::bench::run(shape, repetitions));
}
