#include "cli/doctor/log/symptoms.h"

#include <algorithm>
#include <array>

namespace stagelink::cli::doctor {
namespace {

using Texts = std::string_view;

constexpr Texts kNoAddress[] = {"IPv4 device IP not found", "no ip was preset there"};
constexpr Texts kLink[] = {"link status: DOWN"};
constexpr Texts kHealth[] = {"net health status:"};
constexpr Texts kHealthy[] = {"net health status: Success"};
constexpr Texts kPing[] = {"% packet loss"};
constexpr Texts kNoLoss[] = {" 0.00% packet loss", " 0% packet loss"};
constexpr Texts kSetUp[] = {"P2PCommInitRootInfo failed", "ra init failed", "RA_QP_STATUS_TIMEOUT"};
constexpr Texts kRuntime[] = {"fftsplus sdma error", "context is abort"};
constexpr Texts kCpuPool[] = {"requires an NPU memory pool"};
constexpr Texts kNoPackage[] = {"No module named 'yr", "Yuanrong is not available"};
constexpr Texts kPull[] = {"transfer_engine get failed"};
constexpr Texts kPut[] = {"transfer_engine put failed"};
constexpr Texts kPool[] = {"MemoryError",
                           "OutOfMemory",
                           "out of memory",
                           "Out of memory",
                           "ool exhausted",  // Of a pool or a Pool.
                           "ool is exhausted",
                           "bytes in receive pool",
                           "Failed to allocate/register transfer_engine pool"};
constexpr Texts kPort[] = {"Address already in use", "ZMQ bind failed on", "failed to bind ZMQ on"};
constexpr Texts kDisk[] = {"No space left on device", "Bus error"};
constexpr Texts kFiles[] = {"Too many open files"};

constexpr std::array<Symptom, 14> kSymptoms = {{
    {"npu_no_ipv4",
     kNoAddress,
     {},
     "An NPU has no IPv4 address on the device network (HCCN).",
     "hccn_tool -i ID -ip -g on every NPU that takes part, and give each an address; `stagelink "
     "doctor` does the looking."},
    {"npu_link_down",
     kLink,
     {},
     "An NPU has no link to the device network.",
     "Look at the cable and at the switch's port: no transfer can pass before."},
    {"npu_unhealthy", kHealth, kHealthy, "An NPU does not reach what its health check asks.",
     "The gateway, the address of the check (hccn_tool -netdetect) and the switch."},
    {"npu_ping_lost", kPing, kNoLoss, "Pings lose packets.",
     "Mend the device network first (one network or a gateway, VLAN, switch); transfers fail "
     "until no ping is lost."},
    {"ascend_setup",
     kSetUp,
     {},
     "Ascend P2P, RDMA or the queue pair could not be set up.",
     "Look first at device IPv4, link and pings between the devices (`stagelink doctor`), then try "
     "a minimal pair of the transfer engine outside vLLM."},
    {"ascend_runtime",
     kRuntime,
     {},
     "SDMA or FFTS failed in the NPU's runtime, often behind a P2P transfer that was not right.",
     "memory_pool_device: npu with protocol ascend; a smaller memory_pool_size if memory ran out; "
     "find the failing pair of NPUs with a demo of the transfer engine."},
    {"npu_pool",
     kCpuPool,
     {},
     "Protocol ascend reads registered memory of NPUs alone.",
     "memory_pool_device: npu; a pool of cpu memory goes with every other protocol."},
    {"package_missing",
     kNoPackage,
     {},
     "The transfer engine of Ascend is not installed for this interpreter.",
     "pip install openyuanrong-datasystem, in the environment that runs the model."},
    {"pull_failed",
     kPull,
     {},
     "A receiver found the payload and could not read it.",
     "The rest of the line says why. Look at the network of the pair (`stagelink doctor --peer`), "
     "and whether the sender still lives."},
    {"put_failed",
     kPut,
     {},
     "A sender could not offer a payload: its receiver waits in vain.",
     "The rest of the line says why; often the pool is too small."},
    {"pool_full",
     kPool,
     {},
     "A transfer pool, or the memory it lies in, has no room.",
     "Start with memory_pool_size: 1073741824 (1 GiB); 536870912 if the device runs out of memory; "
     "more for large KV payloads."},
    {"port_in_use",
     kPort,
     {},
     "Somebody holds a port that a process wanted.",
     "`stagelink doctor CONFIG` names the holder of each port of the configuration."},
    {"shm_small",
     kDisk,
     {},
     "A file system is full; in a container mostly /dev/shm.",
     "df -h /dev/shm; docker run --shm-size 8g or --ipc=host."},
    {"nofile",
     kFiles,
     {},
     "The limit of open files was reached.",
     "ulimit -n 65536, LimitNOFILE= in the unit."},
}};

struct AdviceRow {
  Reason reason;
  Advice advice;
};
constexpr std::array kAdvice = {
    AdviceRow{
        Reason::kPortInUse,
        {"Somebody holds the port.", "`stagelink doctor CONFIG` names the holder; or use port 0."}},
    AdviceRow{Reason::kNoPorts,
              {"No local port is left for another connection.",
               "net.ipv4.ip_local_port_range; `ss -tan` shows who holds them."}},
    AdviceRow{Reason::kOtherHost,
              {"The peer is on another host, and tcp is not among its or our transports.",
               "Add tcp to transports, on both sides."}},
    AdviceRow{Reason::kRefused,
              {"Nobody listens at the peer's address.",
               "Is it up, and is that the address it advertises? stagelink doctor --peer ADDRESS"}},
    AdviceRow{Reason::kConnectTimeout,
              {"The peer's address does not answer.",
               "Address, route and firewall: stagelink doctor --peer ADDRESS"}},
    AdviceRow{Reason::kVersion,
              {"The peer speaks another protocol.",
               "Both versions are in the message: update the older side."}},
    AdviceRow{Reason::kIncompatible,
              {"Both sides do not fit together.",
               "The message has both sides' values: configure or update one of them."}},
    AdviceRow{Reason::kAuthentication,
              {"One side has no secret, or another one.", "One secret_file for both sides."}},
    AdviceRow{Reason::kOtherUser,
              {"The peer is a process of another user.", "Run both as one user."}},
    AdviceRow{Reason::kPermission,
              {"The system does not allow it.",
               "The message names what; stagelink doctor looks at ptrace and /dev/shm."}},
    AdviceRow{Reason::kShmFull,
              {"Shared memory has no room.", "A larger /dev/shm, or a smaller pool or capacity."}},
    AdviceRow{Reason::kNoSpace,
              {"A pool or a store is full.",
               "A larger pool or capacity; or eviction, or fewer payloads at a time."}},
    AdviceRow{Reason::kMemlock, {"Memory may not be locked.", "ulimit -l unlimited, or pin: try."}},
    AdviceRow{Reason::kNofile, {"The limit of open files was reached.", "ulimit -n 65536"}},
    AdviceRow{Reason::kPeerLost,
              {"The peer's process has ended.", "Look at its log for why it ended."}},
    AdviceRow{Reason::kConnectionCut,
              {"The peer's process, or the network between, has ended the connection.",
               "Look at the peer's log; a firewall that forgets connections?"}},
    AdviceRow{Reason::kRestarted,
              {"The peer was restarted: old descriptors mean nothing to it.",
               "Take its new descriptor."}},
    AdviceRow{Reason::kStopped,
              {"The peer's process is stopped or starved.",
               "Its state in ps (T, D), and the load of its host."}},
    AdviceRow{Reason::kTimedOut,
              {"A deadline passed.",
               "One: try again. Many: look at the peer and the network, or raise the timeout."}},
    AdviceRow{Reason::kSuperseded,
              {"What was read had been taken back or replaced.",
               "Normal where payloads are replaced; else look who puts the same key twice."}},
    AdviceRow{Reason::kExpired,
              {"A payload's time to live had passed.",
               "Readers are too slow, or ttl (buffer_ttl_seconds) too short."}},
    AdviceRow{Reason::kEvicted,
              {"The store gave the object up to make room.", "A larger capacity."}},
    AdviceRow{Reason::kChecksum,
              {"Bytes were damaged on their way, or changed while they were sent.",
               "If it comes back, look at the network (cables, offload of the card)."}},
    AdviceRow{Reason::kFrame,
              {"Somebody sends what no engine sends.",
               "Which program has the address in the message? A port scanner?"}},
    AdviceRow{Reason::kUnknownKey,
              {"An option has a wrong name.", "The message has the nearest one."}},
    AdviceRow{Reason::kForked,
              {"An engine was used in a forked child.",
               "Make the engine after the fork, or use the start method spawn."}},
    AdviceRow{Reason::kHugePages,
              {"The kernel gives no huge pages.", "huge_pages: try, or shmem_enabled = advise."}},
};

constexpr std::string_view kWordChars = "abcdefghijklmnopqrstuvwxyz_";

// "refused (unreachable): ..." or "timed_out: ...".
std::optional<Reason> reason_at(std::string_view text) noexcept {
  const size_t end = std::min(text.find_first_not_of(kWordChars), text.size());
  const std::string_view word = text.substr(0, end);
  if (word.empty()) return std::nullopt;
  text.remove_prefix(end);
  for (int at = 1; at < kReasonCount; ++at) {
    const auto reason = static_cast<Reason>(at);
    if (reason_name(reason) != word) continue;
    const std::string_view code = code_name(code_of(reason));
    if (word == code) return text.starts_with(": ") ? std::optional(reason) : std::nullopt;
    if (text.size() < code.size() + 4 || !text.starts_with(" (")) return std::nullopt;
    const bool named =
        text.substr(2, code.size()) == code && text.substr(2 + code.size()).starts_with("): ");
    return named ? std::optional(reason) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::span<const Symptom> symptoms() noexcept { return kSymptoms; }

Advice advice_for(Reason reason) noexcept {
  const auto* const row = std::ranges::find(kAdvice, reason, &AdviceRow::reason);
  if (row != kAdvice.end()) return row->advice;
  return {"A failure of this kind was logged.", "docs/operations.md has a line for each reason."};
}

std::optional<Reason> reason_in(std::string_view line) noexcept {
  // A level stands before the name in brackets, which may hold brackets of its own.
  if (line.find("Z error [") == std::string_view::npos &&
      line.find("Z warning [") == std::string_view::npos) {
    return std::nullopt;
  }
  for (size_t at = line.find("] "); at != std::string_view::npos; at = line.find("] ", at + 1)) {
    if (const auto reason = reason_at(line.substr(at + 2)); reason.has_value()) return reason;
  }
  return std::nullopt;
}

}  // namespace stagelink::cli::doctor
