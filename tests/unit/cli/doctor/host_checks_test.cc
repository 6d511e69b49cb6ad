#include <algorithm>

#include <unistd.h>

#include "base/endpoint.h"
#include "cli/doctor/addresses.h"
#include "cli/doctor/child.h"
#include "cli/doctor/clock.h"
#include "cli/doctor/devices.h"
#include "cli/doctor/memory.h"
#include "cli/doctor/npu.h"
#include "cli/doctor/packages.h"
#include "cli/doctor/permissions.h"
#include "cli/doctor/ports.h"
#include "engine/link/listen_socket.h"
#include "integration/support/eventually.h"
#include "unit/cli/doctor/tree.h"

namespace stagelink::cli::doctor {
namespace {

using namespace std::chrono_literals;

TEST(DoctorPortsTest, AHeldPortIsNamedWithItsProcessAndCommand) {
  Endpoint bound;
  const auto socket = engine::listen_tcp_socket({"127.0.0.1", 0}, bound);
  ASSERT_TRUE(socket.ok());
  const auto holder = holder_of("/proc", bound.port);
  ASSERT_TRUE(holder.has_value());
  EXPECT_TRUE(holder->listens);
  EXPECT_EQ(holder->pid, ::getpid());
  EXPECT_EQ(holder->uid, ::getuid());
  EXPECT_TRUE(contains(holder->command, "cli_tests")) << holder->command;

  Subject subject;
  subject.listens = {{"option bind", "127.0.0.1", "", "", bound.port}};
  const Finding held = with_cause(check_ports(HostView::of_this_machine(), subject), "port_held");
  EXPECT_EQ(held.level, Level::kError);
  EXPECT_TRUE(contains(held.what, std::to_string(::getpid()))) << held.what;
  EXPECT_TRUE(contains(held.action, "kill " + std::to_string(::getpid()))) << held.action;
}

TEST(DoctorPortsTest, OfSomebodyElsesSocketTheUserIsNamed) {
  const Tree tree;
  tree.write(
      "proc/net/tcp",
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
      "   0: 0100007F:1F90 0100007F:2222 01 00000000:00000000 00:00000000 00000000  5 0 77\n"
      "   1: 0100007F:1F91 0100007F:2222 06 00000000:00000000 00:00000000 00000000  5 0 0\n");
  tree.write("proc/net/tcp6",
             "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A "
             "00000000:00000000 00:00000000 00000000   1000        0 4242 1\n");
  tree.write("proc/12/cmdline", "x");
  const auto holder = holder_of(tree.path("proc"), 8080);
  ASSERT_TRUE(holder.has_value());
  EXPECT_TRUE(holder->listens);  // Before the connection from the same port.
  EXPECT_EQ(holder->uid, 1000U);
  EXPECT_EQ(holder->pid, 0);
  EXPECT_FALSE(holder_of(tree.path("proc"), 8081).has_value());  // TIME_WAIT holds nothing.
  EXPECT_FALSE(holder_of(tree.path("none"), 8080).has_value());
}

TEST(DoctorPortsTest, APortThatConnectionsMayTakeIsNoted) {
  const Tree tree;
  tree.write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
  Subject subject;
  subject.listens = {{"a", "127.0.0.1", "", "", 50051}, {"b", "127.0.0.1", "", "", 32767}};
  const Finding noted = with_cause(check_ports(tree.view(), subject), "port_may_be_taken");
  EXPECT_TRUE(contains(noted.what, "Port 50051 lies")) << noted.what;
  tree.write("proc/sys/net/ipv4/ip_local_reserved_ports", "8080,50050-50051\n");
  for (const Finding& finding : check_ports(tree.view(), subject)) {
    EXPECT_NE(finding.cause, "port_may_be_taken");
  }
}

Subject listening_at(std::string host, uint16_t port = 0, std::string advertise = {}) {
  Subject subject;
  subject.listens = {{"option bind", std::move(host), "", std::move(advertise), port}};
  return subject;
}

TEST(DoctorAddressesTest, EachWrongAddressIsNamedByItsCause) {
  HostView host = HostView::of_this_machine();
  struct Case {
    Subject subject;
    const char* cause;
    const char* named;
  };
  const Case cases[] = {
      {listening_at("203.0.113.7", 5000), "address_not_local", "203.0.113.7"},
      {listening_at("0.0.0.0", 5000), "wildcard_told", "0.0.0.0"},
      {listening_at("0.0.0.0", 5000, "0.0.0.0"), "advertise", "must not be a wildcard"},
      {listening_at("127.0.0.1"), "loopback", "127.0.0.1"},
      {listening_at("127.0.0.1", 5000, "203.0.113.7"), "translated", "203.0.113.7"},
      {listening_at("127.0.0.1", 0, "203.0.113.7"), "translated_any_port", "203.0.113.7"},
      {listening_at("127.0.0.1", 0, "no-such-host.invalid"), "advertise_unknown", "no-such-host"},
  };
  for (const Case& each : cases) {
    const Finding finding = with_cause(check_addresses(host, each.subject), each.cause);
    EXPECT_TRUE(contains(finding.what, each.named)) << finding.what;
    EXPECT_FALSE(finding.action.empty()) << each.cause;
  }
  Subject interface = listening_at("auto");
  interface.listens.front().interface = "nosuch0";
  EXPECT_TRUE(contains(with_cause(check_addresses(host, interface), "interface").what, "nosuch0"));
}

TEST(DoctorAddressesTest, AMachineIsDescribedByTheFamiliesItHas) {
  HostView host;
  host.addresses = {{"lo", "127.0.0.1", false, true, false},
                    {"eth0", "fe80::1%eth0", true, false, true}};
  EXPECT_EQ(check_addresses(host, {}).front().cause, "no_network");
  host.addresses.push_back({"eth0", "fd00::5", true, false, false});
  EXPECT_EQ(check_addresses(host, {}).front().cause, "ipv6_only");
  host.addresses.push_back({"eth1", "10.0.0.5", false, false, false});
  const Finding both = check_addresses(host, {}).front();
  EXPECT_EQ(both.level, Level::kOk);
  EXPECT_TRUE(contains(both.what, "eth0 fe80::1%eth0, fd00::5; eth1 10.0.0.5; lo 127.0.0.1"))
      << both.what;
}

TEST(DoctorMemoryTest, WhatDoesNotFitIsToldBeforeItFails) {
  const Tree tree;
  Subject subject;
  subject.memory = {{"arena of edge 0->1", uint64_t{1} << 60, tree.path("a.arena")}};
  const auto findings = check_memory(tree.view(), subject);
  EXPECT_EQ(with_cause(findings, "shm_small").level, Level::kError);
  EXPECT_TRUE(contains(with_cause(findings, "shm_small").what, tree.path("").substr(0, 15)));
  EXPECT_EQ(with_cause(findings, "memory_small").level, Level::kError);
  // An arena that is there has its space already.
  tree.write("a.arena", "");
  for (const Finding& finding : check_memory(tree.view(), subject)) {
    EXPECT_NE(finding.cause, "shm_small") << finding.what;
  }
}

TEST(DoctorMemoryTest, FoldersThatAreMissingOrForeignAreNamed) {
  const Tree tree;
  HostView host = tree.view();
  host.shm = tree.path("none");
  Subject subject;
  subject.engine.runtime_dir = tree.path("none/run");
  const auto findings = check_memory(host, subject);
  EXPECT_TRUE(contains(with_cause(findings, "shm_missing").what, host.shm));
  EXPECT_TRUE(contains(with_cause(findings, "runtime_dir").what, subject.engine.runtime_dir));
}

TEST(DoctorPermissionsTest, EachCauseOfARefusalIsToldApart) {
  const Tree tree;
  Subject subject;
  const auto judged = [&](const CopyProbe& probe) {
    return judge_copy(tree.view(), subject, probe).front();
  };
  EXPECT_EQ(judged({0, true}).level, Level::kOk);
  EXPECT_TRUE(contains(judged({EPERM, true}).what, "dumpable"));
  tree.write("proc/self/status", "Name:\tx\nSeccomp:\t2\n");
  EXPECT_TRUE(contains(judged({EPERM, false}).what, "seccomp"));
  tree.write("proc/1/cgroup", "0::/kubepods/pod1\n");
  EXPECT_TRUE(contains(judged({EPERM, false}).action, "SYS_PTRACE"));
  tree.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
  EXPECT_EQ(judged({EPERM, true}).cause, "ptrace_scope");
  EXPECT_TRUE(contains(judged({EPERM, true}).action, "allow_ptrace"));
  EXPECT_EQ(judged({0, true}).level, Level::kNote);  // A capability that others may lack.
  subject.engine.allow_ptrace = true;
  EXPECT_EQ(judged({0, true}).level, Level::kOk);
  tree.write("proc/sys/kernel/yama/ptrace_scope", "3\n");
  EXPECT_TRUE(contains(judged({EPERM, true}).what, "ptrace_scope is 3"));
  EXPECT_EQ(judged({EPERM, true}).level, Level::kWarning);
  subject.engine.transports = {"shm", "cma"};
  EXPECT_EQ(judged({EPERM, true}).level, Level::kError);  // Nothing serves in its place.
  subject.engine.transports = {"shm", "tcp"};
  EXPECT_EQ(judged({EPERM, true}).cause, "cma_off");
}

TEST(DoctorDevicesTest, RdmaPortsAreShownWithTheirState) {
  const Tree tree;
  EXPECT_EQ(check_devices(tree.view()).front().cause, "rdma_missing");
  const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
  tree.write(port + "state", "4: ACTIVE\n");
  tree.write(port + "rate", "100 Gb/sec (4X EDR)\n");
  tree.write(port + "link_layer", "Ethernet\n");
  auto findings = check_devices(tree.view());
  EXPECT_EQ(findings.front().level, Level::kOk);
  EXPECT_EQ(findings.front().what,
            "RDMA device mlx5_0, port 1: ACTIVE, Ethernet, 100 Gb/sec (4X "
            "EDR)");
  EXPECT_TRUE(contains(with_cause(findings, "rdma_forbidden").what, "uverbs"));
  tree.write(port + "state", "1: DOWN\n");
  tree.write("dev/infiniband/uverbs0", "");
  findings = check_devices(tree.view());
  EXPECT_TRUE(contains(with_cause(findings, "rdma_down").what, "DOWN"));
  for (const Finding& finding : findings) EXPECT_NE(finding.cause, "rdma_forbidden");
}

constexpr const char* kFakeHccnTool = R"(
case "$2 $3" in
"1 -ip") echo "Get ipconf failed, because no ip was preset there!" ;;
"2 -ip") echo "ipaddr:fd00:10:86::2" ;;
"6 -ip") exec sleep 600 ;;
*" -ip") echo "ipaddr:10.86.1.8$2"; echo "netmask:255.255.255.0" ;;
"3 -link") echo "link status: DOWN" ;;
*" -link") echo "link status: UP" ;;
"4 -net_health") echo "net health status: Receive timeout" ;;
*" -net_health") echo "net health status: Success" ;;
*" -ping")
  case "$6" in
  *.83) echo "3 packets transmitted, 0 received, 100.00% packet loss" ;;
  *.84) echo "3 packets transmitted, 2 received, 33.33% packet loss" ;;
  *) echo "3 packets transmitted, 3 received, 0.00% packet loss" ;;
  esac ;;
esac
)";

TEST(DoctorNpuTest, WhatHccnToolPrintsIsUnderstood) {
  const Tree tree;
  tree.program("bin/hccn_tool", kFakeHccnTool);
  NpuRequest request;
  request.ids = {0, 1, 2, 3, 4, 5};
  const auto findings = check_npu(tree.view(), {}, request);
  EXPECT_EQ(findings[0].what, "NPU 0: 10.86.1.80, link UP, network health Success");
  EXPECT_TRUE(contains(with_cause(findings, "npu_no_ipv4").what, "NPU 1"));
  EXPECT_TRUE(contains(with_cause(findings, "npu_no_ipv4").what, "no ip was preset"));
  EXPECT_TRUE(contains(with_cause(findings, "npu_ipv6_only").what, "NPU 2"));
  EXPECT_TRUE(contains(with_cause(findings, "npu_link_down").what, "NPU 3"));
  EXPECT_TRUE(contains(with_cause(findings, "npu_unhealthy").what, "NPU 4"));
  EXPECT_TRUE(contains(with_cause(findings, "npu_unhealthy").what, "Receive timeout"));
  EXPECT_EQ(with_cause(findings, "npu_ping_lost").what, "NPU 0 -> 10.86.1.83: 100.00% packet loss");
  // 0, 3, 4 and 5 ping each other: 12 pairs, of which 3 go to each of the two that lose packets.
  EXPECT_EQ(std::ranges::count(findings, "npu_ping_lost", &Finding::cause), 6);
  EXPECT_TRUE(contains(findings.back().what, "6 pings")) << findings.back().what;
}

TEST(DoctorNpuTest, PingsGoToTheAddressesThatAreNamed) {
  const Tree tree;
  tree.program("bin/hccn_tool", kFakeHccnTool);
  const auto findings =
      check_npu(tree.view(), {}, {.ids = {0, 5}, .targets = {"10.9.9.84", "10.9.9.1"}});
  EXPECT_TRUE(contains(with_cause(findings, "npu_ping_lost").what, "NPU 0 -> 10.9.9.84: 33.33%"));
  EXPECT_EQ(std::ranges::count(findings, "npu_ping_lost", &Finding::cause), 2);
}

TEST(DoctorNpuTest, AToolThatHangsIsKilledAndNamed) {
  const Tree tree;
  tree.program("bin/hccn_tool", kFakeHccnTool);
  const auto findings =
      check_npu(tree.view(), {}, {.ids = {6}, .targets = {}, .step_timeout = 50ms});
  EXPECT_TRUE(contains(with_cause(findings, "npu_tool").what, "was killed"));
  const auto none =
      check_npu(tree.view(), {}, {.ids = {0}, .targets = {}, .total_timeout = Duration::zero()});
  EXPECT_EQ(none.front().cause, "npu_not_all");
}

TEST(DoctorNpuTest, WhatIsMissingForAConfigurationIsNamed) {
  const Tree tree;
  HostView host = tree.view();
  host.path = tree.path("bin");
  Subject subject;
  EXPECT_EQ(check_npu(host, subject, {}).front().cause, "npu_none");
  subject.ascend = {"edge 0->1"};
  EXPECT_EQ(with_cause(check_npu(host, subject, {}), "npu_missing").level, Level::kError);
  tree.write("dev/davinci3", "");
  tree.write("dev/davinci_manager", "");
  EXPECT_TRUE(contains(with_cause(check_npu(host, subject, {}), "npu_no_tool").what, "1 NPU "));
  tree.program("Ascend/driver/tools/hccn_tool", kFakeHccnTool);
  EXPECT_TRUE(contains(with_cause(check_npu(host, subject, {}), "npu_link_down").what, "NPU 3"));
}

TEST(DoctorNpuTest, IdsAreListsAndRanges) {
  EXPECT_EQ(*parse_npu_ids("0-2,7"), (std::vector<int>{0, 1, 2, 7}));
  for (const char* wrong : {"", "a", "3-1", "-1", "0-1024", "1-"}) {
    EXPECT_FALSE(parse_npu_ids(wrong).ok()) << wrong;
  }
}

// What an interpreter says of packages, in place of one.
constexpr const char* kFakePython = R"(
printf 'python\t3.11.2\t/opt/env/bin/python3\t\n'
printf 'a line that a package prints\nwith\ttabs\n'
printf 'stagelink\t0.0.1\t/opt/s/__init__.py\t\n'
printf 'vllm\t0.19.1+cpu\t/opt/v/__init__.py\t\n'
printf 'vllm-omni\t\t\t\n'
printf 'pyzmq\t\t/opt/zmq/__init__.py\t\n'
)";

TEST(DoctorPackagesTest, VersionsAreThoseThatTheInterpreterFinds) {
  const Tree tree;
  tree.program("bin/python3", kFakePython);
  tree.program("bin/etcd", "echo 'etcd Version: 3.5.1'\n");
  const auto findings = check_packages(tree.view(), {}, Deadline::in(10s));
  const auto says = [&findings](std::string_view text) {
    return std::ranges::any_of(
        findings, [text](const Finding& finding) { return contains(finding.what, text); });
  };
  EXPECT_TRUE(says("Python 3.11.2 (/opt/env/bin/python3)"));
  EXPECT_EQ(with_cause(findings, "package_version").level, Level::kWarning);  // Ours differs.
  EXPECT_TRUE(says("The Python package stagelink is 0.0.1, this command is "));
  EXPECT_TRUE(says("vllm 0.19.1+cpu (for ")) << "tested with 0.32";
  EXPECT_TRUE(says("pyzmq of an unknown version"));
  EXPECT_TRUE(says("etcd Version: 3.5.1"));
  const Finding missing = with_cause(findings, "package_missing");
  EXPECT_EQ(missing.what,
            "/opt/env/bin/python3 does not find the packages vllm-omni, openyuanrong-datasystem, "
            "torch.");
  // A configuration that needs one of them says so.
  Subject subject;
  subject.ascend = {"edge 0->1 (Y)"};
  const auto needed = check_packages(tree.view(), subject, Deadline::in(10s));
  EXPECT_EQ(with_cause(needed, "package_missing").level, Level::kError);
  EXPECT_TRUE(contains(with_cause(needed, "package_missing").what, "edge 0->1 (Y)"));
}

TEST(DoctorPackagesTest, AnInterpreterThatDoesNotAnswerIsAnErrorOnlyIfItWasNamed) {
  const Tree tree;
  HostView host = tree.view();
  EXPECT_EQ(with_cause(check_packages(host, {}, Deadline::in(10s)), "python_missing").level,
            Level::kNote);
  host.python_asked = true;
  const Finding none = with_cause(check_packages(host, {}, Deadline::in(10s)), "python_missing");
  EXPECT_EQ(none.level, Level::kError);
  EXPECT_TRUE(contains(none.what, tree.path("bin/python3"))) << none.what;
  tree.program("bin/python3", "echo no module encodings >&2\nexit 1\n");
  EXPECT_TRUE(
      contains(with_cause(check_packages(host, {}, Deadline::in(10s)), "python_missing").what,
               "it ended with 1: no module encodings"));
}

TEST(DoctorClockTest, AClockThatIsWrongOrJumpsIsTold) {
  const ClockReading now = ClockReading::now();
  const auto later = [&now](Duration monotonic, Duration realtime) {
    return ClockReading{now.monotonic + monotonic, now.realtime + realtime};
  };
  EXPECT_EQ(judge_clock({now, later(10s, 10s), true}).front().level, Level::kOk);
  EXPECT_EQ(judge_clock({now, later(10s, 10s), false}).front().cause, "clock_alone");
  EXPECT_EQ(judge_clock({now, later(1s, 1s + 101ms), true}).front().cause, "clock_steps");
  EXPECT_EQ(judge_clock({now, later(1s, 899ms), true}).front().cause, "clock_steps");
  EXPECT_EQ(judge_clock({now, later(1s, 1s + 99ms), true}).front().level, Level::kOk);
  EXPECT_EQ(judge_clock({{0s, 0s}, {1s, 1s}, true}).front().cause, "clock_wrong");
}

TEST(DoctorChildTest, AProgramIsKilledWithWhatItHasStarted) {
  const Tree tree;
  const std::string program =
      tree.program("tool", "sleep 600 &\necho $! > " + tree.path("pid") + "\nwait\n");
  EXPECT_EQ(run_program({program}, Deadline::in(500ms)).status().code(), Code::kTimedOut);
  const auto pid = read_number(tree.path("pid"));
  if (!pid.has_value()) GTEST_SKIP() << "the machine was too busy to start it in time";
  // The signal is on its way; then it may be a zombie until init has reaped it.
  const auto state = [&pid] {
    return read_text("/proc/" + std::to_string(*pid) + "/stat").value_or(" Z ");
  };
  EXPECT_TRUE(test::eventually([&] { return contains(state(), " Z "); })) << state();
}

TEST(DoctorChildTest, OutputIsCutAndExitCodesAreTold) {
  const Tree tree;
  const std::string loud = tree.program("loud", "head -c 200000 /dev/zero\nexit 3\n");
  auto output = run_program({loud}, Deadline::in(30s));
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(output->text.size(), kMaxChildBytes);
  EXPECT_EQ(output->exit_code, 3);
  EXPECT_EQ(run_program({tree.path("none")}, Deadline::in(1s)).status().reason(),
            Reason::kNotFound);
  EXPECT_EQ(run_program({tree.write("plain", "x")}, Deadline::in(1s)).status().reason(),
            Reason::kPermission);
}

Report two_alike() {
  const Finding error{Level::kError, "held", "one", "reason", "remedy"};
  Finding other = error;
  other.what = "two \x1b[2J";
  return {"a test", {{"ports", "Ports", {fine("good"), error, other}}, {"npu", "NPUs", {}}}};
}

TEST(DoctorReportTest, WhatManyFindingsShareIsExplainedOnce) {
  EXPECT_EQ(report_text(two_alike(), {}).substr(report_text({"a test", {}}, {}).find('\n') + 1),
            "\nPorts\n"
            "  ok       good\n"
            "  error    one\n"
            "  error    two \\x1b[2J\n"
            "           why: reason\n"
            "           do:  remedy\n"
            "\n2 errors, 1 fine.\n");
}

TEST(DoctorReportTest, NothingToCheckIsNotCalledWell) {
  const std::string text = report_text({"a test", {{"peers", "Peers", {}}}}, {});
  EXPECT_TRUE(contains(text, "There was nothing to check."));
  EXPECT_FALSE(contains(text, "Nothing is wrong"));
}

TEST(DoctorReportTest, ColourAndWidthAreForTerminals) {
  EXPECT_FALSE(contains(report_text(two_alike(), {}), "\x1b"));
  EXPECT_TRUE(
      contains(report_text(two_alike(), {.colour = true, .columns = 0}), "\x1b[1;31merror"));
  EXPECT_EQ(indented("aaaa bbbb cccc dddd eeee ffff", 2, 24),
            "  aaaa bbbb cccc dddd\n  eeee ffff\n");
  EXPECT_EQ(indented("a-word-that-is-wider-than-the-page b", 2, 24),
            "  a-word-that-is-wider-than-the-page\n  b\n");
}

}  // namespace
}  // namespace stagelink::cli::doctor
