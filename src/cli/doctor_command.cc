#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/doctor/addresses.h"
#include "cli/doctor/clock.h"
#include "cli/doctor/devices.h"
#include "cli/doctor/finding.h"
#include "cli/doctor/host_view.h"
#include "cli/doctor/log/scan.h"
#include "cli/doctor/memory.h"
#include "cli/doctor/npu.h"
#include "cli/doctor/packages.h"
#include "cli/doctor/peer/peer_check.h"
#include "cli/doctor/peer/throughput.h"
#include "cli/doctor/permissions.h"
#include "cli/doctor/ports.h"
#include "cli/doctor/subject.h"
#include "cli/replay/interrupt.h"
#include "cli/replay/report/progress.h"

namespace stagelink::cli {
namespace {

using doctor::Finding;
using doctor::HostView;
using doctor::Section;
using doctor::Subject;

constexpr const char* kDoctorExamples =
    "Examples:\n"
    "  stagelink doctor                                this machine\n"
    "  stagelink doctor engine.yaml                    and what an engine's file asks of it\n"
    "  stagelink doctor pipeline.yaml --stage 1        a stage of a pipeline of vLLM-Omni\n"
    "  stagelink doctor --peer 10.0.0.5:5000           the way to a peer, and who answers there\n"
    "  stagelink doctor --serve --option bind=auto     there, to have throughput measured\n"
    "  stagelink doctor --log inference.log            what the lines of a log mean\n"
    "  journalctl -u vllm | stagelink doctor --log -   the same, as it comes\n"
    "  stagelink doctor --json | jq '.findings[] | select(.level==\"error\")'\n"
    "Exit codes: 0 no error was found, 1 errors were found, 2 wrong usage or configuration.\n";

struct DoctorArguments {
  doctor::SubjectRequest subject;
  std::vector<std::string> logs;
  std::vector<std::string> only;
  std::string npus;
  std::string python;
  std::vector<std::string> npu_peers;
  std::string timeout = "5s";
  std::string serve_for = "0s";
  bool serve = false;
  bool json = false;
};

// Engines log what they meet; here that is told as findings. Whoever asks for a level gets it.
class QuietLog {
 public:
  QuietLog() {
    if (std::getenv("STAGELINK_LOG_LEVEL") != nullptr) return;
    for (const LogLevel level : {LogLevel::kOff, LogLevel::kError, LogLevel::kWarning,
                                 LogLevel::kInfo, LogLevel::kDebug}) {
      if (log_enabled(level)) before_ = level;
    }
    set_log_level(LogLevel::kOff);
    changed_ = true;
  }
  ~QuietLog() {
    if (changed_) set_log_level(before_);
  }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;

 private:
  LogLevel before_ = LogLevel::kOff;
  bool changed_ = false;
};

int complain(const Status& status) {
  std::fprintf(stderr, "error: %s\n", status.to_string().c_str());
  return kExitUsage;
}

int show(const doctor::Report& report, bool json) {
  const std::string text =
      json ? report_json(report) : report_text(report, doctor::style_of_output());
  std::fwrite(text.data(), 1, text.size(), stdout);
  return report.totals().errors == 0 ? kExitOk : kExitFailed;
}

// Says on a terminal what is under way.
//
// Thread-safety: one thread.
class StepLine {
 public:
  explicit StepLine(bool wanted) : active_(wanted && ::isatty(STDERR_FILENO) == 1) {}
  ~StepLine() { clear(); }
  StepLine(const StepLine&) = delete;
  StepLine& operator=(const StepLine&) = delete;

  void show(std::string_view text) const {
    if (active_) std::fprintf(stderr, "\r%s ...\033[K", to_plain_text(text, 70).c_str());
  }
  void clear() const {
    if (active_) std::fputs("\r\033[K", stderr);
  }

 private:
  const bool active_;
};

// Runs the families of checks in order.
class Examination {
 public:
  Examination(const DoctorArguments& arguments, const Subject& subject, Duration timeout,
              const doctor::NpuRequest& npus)
      : arguments_(arguments),
        subject_(subject),
        timeout_(timeout),
        npus_(npus),
        host_(host_of(arguments)),
        progress_(!arguments.json) {}

  doctor::Report run() {
    report_.subject = subject_.name;
    // Whatever is looked at: it says what is not.
    report_.sections.push_back({"configuration", "Configuration", subject_.findings});
    add("addresses", "Addresses", [this] { return check_addresses(host_, subject_); });
    add("ports", "Ports", [this] { return check_ports(host_, subject_); });
    add("peers", "Peers", [this] { return check_peers(); });
    add("memory", "Memory and limits", [this] { return check_memory(host_, subject_); });
    add("permissions", "Reading each other's memory",
        [this] { return check_permissions(host_, subject_); });
    add("devices", "RDMA", [this] { return check_devices(host_); });
    add("npu", "Ascend NPUs", [this] { return check_npu(host_, subject_, npus_); });
    add("packages", "Libraries and packages",
        [this] { return check_packages(host_, subject_, Deadline::in(timeout_)); });
    add("clock", "Clock", [this] { return doctor::check_clock(started_); });
    progress_.clear();
    return std::move(report_);
  }

  static constexpr std::array<std::string_view, 9> kFamilies = {
      "addresses", "ports", "peers",    "memory", "permissions",
      "devices",   "npu",   "packages", "clock"};

 private:
  static HostView host_of(const DoctorArguments& arguments) {
    HostView host = HostView::of_this_machine();
    if (arguments.python.empty()) return host;
    host.python_asked = true;
    const bool is_path = arguments.python.find('/') != std::string::npos;
    if (!is_path) host.python = doctor::find_program(host.path, arguments.python);
    if (is_path || host.python.empty()) host.python = arguments.python;
    return host;
  }

  template <typename Check>
  void add(std::string_view name, std::string_view title, Check check) {
    const auto& only = arguments_.only;
    if (!only.empty() && std::ranges::find(only, name) == only.end()) return;
    progress_.show(title);
    report_.sections.push_back({std::string(name), std::string(title), check()});
  }

  std::vector<Finding> check_peers() {
    doctor::PeerLimits limits;
    limits.timeout = timeout_;
    auto findings = doctor::check_peers(host_, subject_, limits,
                                        [this](const std::string& text) { progress_.show(text); });
    if (findings.empty() && !arguments_.only.empty()) {
      findings.push_back(
          doctor::note("no_peers", "There are no peers to check.", "Name one: --peer host:port."));
    }
    return findings;
  }

  const DoctorArguments& arguments_;
  const Subject& subject_;
  const Duration timeout_;
  const doctor::NpuRequest& npus_;
  const HostView host_;
  const doctor::ClockReading started_ = doctor::ClockReading::now();
  const StepLine progress_;
  doctor::Report report_;
};

int read_logs(const DoctorArguments& arguments) {
  replay::Progress progress(!arguments.json);
  auto sections = doctor::scan_logs(arguments.logs, [&progress](uint64_t done, uint64_t total) {
    progress.show(done >> 20, std::max(total, done) >> 20, "MiB read");
  });
  progress.clear();
  if (!sections.ok()) return complain(sections.status());
  return show({arguments.logs.size() == 1 ? "a log" : "logs", *std::move(sections)},
              arguments.json);
}

// Offers memory to the doctor on another host until somebody ends it.
int serve(const Subject& subject, Duration time) {
  auto partner = doctor::Partner::create(subject.engine);
  if (!partner.ok()) {
    std::fprintf(stderr, "error: %s\n", partner.status().to_string().c_str());
    return kExitFailed;
  }
  std::printf("Waiting. On the other host: stagelink doctor --peer %s\nCtrl-C ends it.\n",
              (*partner)->address().c_str());
  std::fflush(stdout);
  const replay::InterruptGuard guard;
  const Deadline end =
      time == Duration::zero() ? Deadline::in(Deadline::kLongest) : Deadline::in(time);
  while (!replay::InterruptGuard::interrupted() && !end.passed()) {
    ::poll(nullptr, 0, std::min(end.left_ms(), 500));  // A signal may come just before it.
  }
  return kExitOk;
}

Result<Duration> duration_of(const char* option, const std::string& text, Duration least) {
  auto duration = parse_duration(text);
  if (duration.ok() && *duration >= least) return duration;
  const std::string why = duration.ok() ? "at least " + format_duration(least)
                                        : std::string(duration.status().message());
  return Status(Reason::kInvalidArgument, fmt::format("{}: {}", option, why));
}

int run_doctor(const DoctorArguments& arguments) {
  const QuietLog quiet;
  const auto timeout = duration_of("--timeout", arguments.timeout, std::chrono::milliseconds(10));
  if (!timeout.ok()) return complain(timeout.status());
  const auto serve_for = duration_of("--serve-for", arguments.serve_for, Duration::zero());
  if (!serve_for.ok()) return complain(serve_for.status());
  if (!arguments.logs.empty()) return read_logs(arguments);
  doctor::NpuRequest npus;
  if (!arguments.npus.empty()) {
    auto ids = doctor::parse_npu_ids(arguments.npus);
    if (!ids.ok()) return complain(ids.status());
    npus.ids = *std::move(ids);
  }
  npus.targets = arguments.npu_peers;
  const auto subject = doctor::load_subject(arguments.subject);
  if (!subject.ok()) return complain(subject.status());
  if (arguments.serve) return serve(*subject, *serve_for);
  return show(Examination(arguments, *subject, *timeout, npus).run(), arguments.json);
}

void add_options(CLI::App& command, DoctorArguments& arguments) {
  doctor::SubjectRequest& subject = arguments.subject;
  command.add_option("config", subject.file, "File of an engine, or of a pipeline; default: none");
  command.add_option("--peer", subject.peers, "host:port of a peer to talk to, repeated");
  command.add_option("--stage", subject.stage, "Of a pipeline: this stage alone");
  command.add_option("--rank", subject.rank, "Of a pipeline: this rank alone");
  command.add_option("--platform", subject.platform, "Of a pipeline: with this one's overrides");
  command.add_option("--option", subject.options, "name=value of the engine, repeated");
  command.add_option("--npu", arguments.npus, "NPUs to look at, 0-3,6; default: all");
  command.add_option("--npu-peer", arguments.npu_peers,
                     "Device address to ping from each NPU, repeated");
  command.add_option("--python", arguments.python,
                     "Interpreter whose packages are looked at; default: python3");
  command.add_option("--only", arguments.only, "Run these families of checks alone, repeated")
      ->check(CLI::IsMember(Examination::kFamilies));
  command.add_option("--timeout", arguments.timeout, "Of each step of a check (default 5s)");
  auto* log = command.add_option("--log", arguments.logs,
                                 "Explain the lines of a log instead; - for standard input");
  command.add_flag("--serve", arguments.serve, "Offer memory to a doctor on another host")
      ->excludes(log);
  command.add_option("--serve-for", arguments.serve_for, "End by itself (default 0s: never)");
  command.add_flag("--json", arguments.json, "For scripts");
}

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Find out why something does not work: this machine, a peer, a log");
  const auto arguments = std::make_shared<DoctorArguments>();
  add_options(*command, *arguments);
  command->footer(kDoctorExamples);
  command->callback([arguments, &exit_code] { exit_code = run_doctor(*arguments); });
}

}  // namespace stagelink::cli
