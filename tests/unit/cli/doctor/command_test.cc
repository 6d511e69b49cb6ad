#include "unit/cli/doctor/command.h"

#include <cstddef>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "cli/doctor/child.h"
#include "cli/doctor/subject.h"
#include "connector/pull/pull_connector.h"
#include "engine/link/listen_socket.h"
#include "integration/support/tsan_suppressions.h"
#include "stagelink/engine.h"

namespace stagelink::cli::doctor {
namespace {

using namespace std::chrono_literals;

TEST(DoctorCommandTest, AGoodSetUpIsFine) {
  const Tree tree;
  const std::string file = tree.write(
      "engine.yaml", "engine:\n  runtime_dir: " + tree.path("run") + "\n  bind: 127.0.0.1:0\n");
  auto engine = Engine::create(engine_options(tree, "decode-0"));
  ASSERT_TRUE(engine.ok());
  const DoctorOutcome outcome = doctor({file, "--peer", (*engine)->address()});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.out << outcome.err;
  for (const char* part : {"engine decode-0, process ", "round trip ", "Memory and limits\n",
                           "Clock\n", "Run `stagelink doctor --serve` on that host"}) {
    EXPECT_TRUE(contains(outcome.out, part)) << part << " in " << outcome.out;
  }
  EXPECT_FALSE(contains(outcome.out, "\x1b"));
}

TEST(DoctorCommandTest, AWrongAddressIsNamed) {
  const auto outcome =
      doctor({"--json", "--only", "addresses", "--option", "bind=203.0.113.7:5000"});
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_EQ(outcome.finding("address_not_local")["level"], "error");
  const auto peer = doctor({"--json", "--only", "peers", "--peer", "127.0.0.1:1"});
  EXPECT_EQ(peer.exit_code, kExitFailed);
  EXPECT_TRUE(contains(peer.finding("peer_refused")["what"].get<std::string>(), "127.0.0.1:1"));
}

// A host of its own with no way to any other.
TEST(DoctorCommandTest, AnAddressThatNoWayLeadsToIsNamed) {
  const auto run = [](const std::string& script) {
    return run_program(
        {"/usr/bin/unshare", "-Urn", "/bin/sh", "-c", script, STAGELINK_COMMAND, "10.9.8.7"},
        Deadline::in(100s));
  };
  const auto possible = run("exit 7");
  if (!possible.ok() || Result(possible)->exit_code != 7) {
    GTEST_SKIP() << "no private network namespace here";
  }
  auto output = run("exec \"$0\" doctor --json --only peers --peer $1:5000");
  ASSERT_TRUE(output.ok()) << output.status().to_string();
  const DoctorOutcome peer{output->exit_code, output->text, {}};
  EXPECT_EQ(peer.exit_code, kExitFailed);
  const std::string what = peer.finding("peer_unreachable")["what"];
  EXPECT_TRUE(contains(what, "10.9.8.7:5000: ")) << what;
}

TEST(DoctorCommandTest, AHeldPortIsNamedWithItsHolder) {
  Endpoint bound;
  const auto socket = engine::listen_tcp_socket({"127.0.0.1", 0}, bound);
  ASSERT_TRUE(socket.ok());
  const auto outcome =
      doctor({"--json", "--only", "ports", "--option", "bind=" + bound.to_string()});
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  const std::string what = outcome.finding("port_held")["what"];
  EXPECT_TRUE(contains(what, "process " + std::to_string(::getpid()))) << what;
}

TEST(DoctorCommandTest, ATinySharedMemoryIsNamed) {
  constexpr const char* kMount = "mount -t tmpfs -o size=1m tmpfs /dev/shm";
  const auto possible =
      run_program({"/usr/bin/unshare", "-Urm", "/bin/sh", "-c", kMount}, Deadline::in(20s));
  if (!possible.ok()) GTEST_SKIP() << possible.status().to_string();
  auto tried =
      run_program({"/usr/bin/unshare", "-Urm", "/bin/sh", "-c", kMount}, Deadline::in(20s));
  if (!tried.ok() || tried->exit_code != 0) {
    GTEST_SKIP() << "no private mount namespace here: " << (tried.ok() ? tried->text : "");
  }
  auto output = run_program(
      {"/usr/bin/unshare", "-Urm", "/bin/sh", "-c",
       std::string(kMount) + " && exec \"$0\" doctor --json --only memory", STAGELINK_COMMAND},
      Deadline::in(60s));
  ASSERT_TRUE(output.ok()) << output.status().to_string();
  const DoctorOutcome outcome{output->exit_code, output->text, {}};
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_TRUE(contains(outcome.finding("shm_small")["what"].get<std::string>(), "of 1 MiB"));
  EXPECT_TRUE(contains(outcome.finding("shm_small")["do"].get<std::string>(), "--shm-size"));
}

// In a forked child: only system calls.
[[noreturn]] void become_filtered_doctor(int output) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {std::size(program), program};
  ::dup2(output, STDOUT_FILENO);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    ::_exit(90);
  }
  ::execl(STAGELINK_COMMAND, STAGELINK_COMMAND, "doctor", "--json", "--only", "permissions",
          nullptr);
  ::_exit(91);
}

TEST(DoctorCommandTest, AForbiddenPtraceIsNamed) {
  const Tree tree;
  const UniqueFd output(::open(tree.path("out").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  const pid_t child = ::fork();
  if (child == 0) become_filtered_doctor(output.get());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 90) GTEST_SKIP() << "seccomp filters are not allowed here";
  const DoctorOutcome outcome{WEXITSTATUS(status), *read_text(tree.path("out")), {}};
  const Json finding = outcome.finding("ptrace_forbidden");
  EXPECT_EQ(finding["level"], "warning");  // A socket serves in its place.
  EXPECT_EQ(outcome.exit_code, kExitOk);
  EXPECT_TRUE(contains(finding["what"].get<std::string>(), "seccomp filter forbids")) << finding;
}

constexpr const char* kPipeline = R"(
connectors:
  te:
    name: YuanrongTransferEngineConnector
    extra: {host: 127.0.0.1, zmq_port: 21051, protocol: PROTOCOL, sender_host: 127.0.0.1}
edges:
  - {from: 0, to: 1}
stage_args:
  - stage_id: 0
    engine_args:
      tensor_parallel_size: 2
      omni_kv_config: {need_send_cache: true}
    output_connectors: {to_stage_1: te}
  - stage_id: 1
    input_connectors: {from_stage_0: te}
)";

std::string pipeline_of(std::string_view protocol) {
  std::string text = kPipeline;
  return text.replace(text.find("PROTOCOL"), 8, protocol);
}

TEST(DoctorPipelineTest, PortsPeersAndDevicesOfAStageAreLookedAt) {
  const Tree tree;
  const std::string file = tree.write("p.yaml", pipeline_of("ascend"));
  const auto sender = doctor({file, "--stage", "0", "--rank", "1", "--only", "ports"});
  EXPECT_EQ(sender.exit_code, kExitOk) << sender.out << sender.err;
  EXPECT_TRUE(contains(sender.out, "Free: 21067, 21167.")) << sender.out;
  const auto receiver = doctor({file, "--stage", "1", "--only", "peers", "--only", "ports"});
  EXPECT_EQ(receiver.exit_code, kExitFailed);
  EXPECT_TRUE(contains(receiver.out, "rank 0, 127.0.0.1:21151: nobody listens")) << receiver.out;
  EXPECT_TRUE(contains(receiver.out, "rank 1, 127.0.0.1:21167: nobody listens")) << receiver.out;
  EXPECT_TRUE(contains(receiver.out, "No fixed port")) << receiver.out;
  if (std::filesystem::exists("/dev/davinci0")) GTEST_SKIP() << "there are NPUs here";
  EXPECT_EQ(doctor({file, "--json", "--only", "npu"}).finding("npu_missing")["level"], "error");
}

TEST(DoctorPipelineTest, PoolsOfAllWorkersOfAStageAreAddedUp) {
  const Tree tree;
  const std::string file = tree.write("p.yaml", pipeline_of("auto"));
  const auto needed = [&file](std::string stage, std::optional<int64_t> rank) {
    auto subject = load_subject({.file = file, .stage = std::move(stage), .rank = rank});
    EXPECT_TRUE(subject.ok()) << subject.status().to_string();
    return subject->memory.front().bytes >> 30;
  };
  EXPECT_EQ(needed("", std::nullopt), 3U);  // Two ranks send, one receives.
  EXPECT_EQ(needed("0", std::nullopt), 2U);
  EXPECT_EQ(needed("0", 1), 1U);
}

TEST(DoctorPipelineTest, ARankThatNoStageHasIsAFindingWhateverIsLookedAt) {
  const Tree tree;
  const std::string file = tree.write("p.yaml", pipeline_of("auto"));
  for (const std::vector<std::string>& asked : {std::vector<std::string>{"--rank", "2"},
                                                {"--rank", "1", "--stage", "1"},
                                                {"--rank", "-1", "--stage", "0"}}) {
    std::vector<std::string> arguments = {file, "--json", "--only", "clock"};
    arguments.insert(arguments.end(), asked.begin(), asked.end());
    const auto outcome = doctor(arguments);
    EXPECT_EQ(outcome.exit_code, kExitFailed) << asked[1];
    const Json finding = outcome.finding("rank_unknown");
    EXPECT_EQ(finding["level"], "error");
    EXPECT_TRUE(contains(finding["what"].get<std::string>(), "--rank " + asked[1])) << finding;
  }
  const auto both = doctor({file, "--json", "--only", "clock", "--rank", "2"});
  EXPECT_TRUE(contains(both.finding("rank_unknown")["what"].get<std::string>(),
                       "stage 0 has ranks 0 to 1, stage 1 has rank 0 alone"));
  EXPECT_EQ(doctor({file, "--only", "clock", "--rank", "1"}).exit_code, kExitOk);
}

TEST(DoctorPipelineTest, OfSeveralSendersARankIsToldThoseThatItReads) {
  const Tree tree;
  std::string text = pipeline_of("auto");
  text.replace(text.find("  - stage_id: 1\n"), 16,
               "  - stage_id: 1\n    engine_args: {tensor_parallel_size: 2}\n");
  text.replace(text.find("tensor_parallel_size: 2\n"), 23, "tensor_parallel_size: 4");
  auto subject =
      load_subject({.file = tree.write("p.yaml", text), .stage = "1", .rank = int64_t{1}});
  ASSERT_TRUE(subject.ok()) << subject.status().to_string();
  ASSERT_EQ(subject->peers.size(), 2U);  // Four ranks send to two.
  EXPECT_EQ(subject->peers[0].endpoint.port, 21051 + 100 + 2 * 16);
  EXPECT_EQ(subject->peers[1].endpoint.port, 21051 + 100 + 3 * 16);
}

// Control and data of a sender that works, and of one that a receiver cannot get from.
TEST(DoctorPipelineTest, SendersAreAskedAsTheirReceiversWould) {
  const Tree tree;
  pull::PullOptions options;
  options.host = "127.0.0.1";
  options.memory_pool_size = 1 << 20;
  options.runtime_dir = tree.path("run");
  auto sender = pull::PullConnector::create(options);
  ASSERT_TRUE(sender.ok()) << sender.status().to_string();
  // A map as in a file, whose place of a sender is the one above.
  std::string text = pipeline_of("tcp");
  text.replace(text.find("sender_host: 127.0.0.1"), 22,
               fmt::format("sender_host: 127.0.0.1, sender_zmq_port: {}, runtime_dir: {}",
                           (*sender)->connection_info().zmq_port, tree.path("run")));
  const std::string file = tree.write("p.yaml", text);
  const auto looked = [](const std::string& pipeline) {
    return doctor({pipeline, "--json", "--only", "peers", "--stage", "1", "--timeout", "60s"});
  };
  const auto good = looked(file);
  EXPECT_EQ(good.exit_code, kExitOk) << good.out << good.err;
  EXPECT_TRUE(contains(good.out, "which answers; its pool can be reached")) << good.out;
  EXPECT_EQ((*sender)->health().errors, 0U);

  // Its engine listens to processes of this host alone, as the port of a firewalled one.
  options.protocol = "shm";
  auto closed = pull::PullConnector::create(options);
  ASSERT_TRUE(closed.ok()) << closed.status().to_string();
  std::string other = text;
  const std::string port = std::to_string((*sender)->connection_info().zmq_port);
  other.replace(other.find(port), port.size(),
                std::to_string((*closed)->connection_info().zmq_port));
  const auto bad = looked(tree.write("q.yaml", other));
  EXPECT_EQ(bad.exit_code, kExitFailed) << bad.out;
  EXPECT_EQ(bad.finding("peer_pull")["level"], "error");
}

TEST(DoctorPipelineTest, APortThatIsAnyFreeOneStillHasAnAddress) {
  const Tree tree;
  std::string text = pipeline_of("auto");
  text.replace(text.find("21051"), 5, "auto");
  text.replace(text.find("127.0.0.1"), 9, "203.0.113.7");
  const std::string file = tree.write("p.yaml", text);
  const auto outcome = doctor({file, "--json", "--only", "addresses", "--only", "peers"});
  EXPECT_EQ(outcome.exit_code, kExitFailed) << outcome.err;
  EXPECT_EQ(outcome.finding("address_not_local")["level"], "error");
  EXPECT_EQ(Json::parse(outcome.out)["errors"], 1);  // The senders' ports are not known here.
}

TEST(DoctorCommandTest, WrongUsageIsExitTwo) {
  const Tree tree;
  const std::string file = tree.write("p.yaml", pipeline_of("auto"));
  const std::vector<std::string> wrong[] = {
      {"--only", "everything"},
      {"--peer", "10.0.0.5"},
      {"--peer", "0.0.0.0:5000"},
      {"--stage", "1"},
      {file, "--stage", "9"},
      {"--timeout", "5"},
      {"--timeout", "9ms"},
      {"--npu", "x"},
      {"--option", "no_such=1"},
      {tree.path("none.yaml")},
      {"--log", tree.path("none.log")},
      {"--log", file, "--serve"},
  };
  for (const auto& arguments : wrong) {
    const auto outcome = doctor(arguments);
    EXPECT_EQ(outcome.exit_code, kExitUsage) << fmt::format("{}", fmt::join(arguments, " "));
  }
}

TEST(DoctorCommandTest, ALogIsExplainedFromStandardInputToo) {
  const Tree tree;
  const std::string log = tree.write("a.log", "x\nra init failed\n");
  auto output =
      run_program({"/bin/sh", "-c", "\"$0\" doctor --log - --json < " + log, STAGELINK_COMMAND},
                  Deadline::in(60s));
  ASSERT_TRUE(output.ok()) << output.status().to_string();
  const DoctorOutcome outcome{output->exit_code, output->text, {}};
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_TRUE(contains(outcome.finding("ascend_setup")["what"].get<std::string>(), "line 2"));
}

// Where the package lies beside no list of installed ones, as in a build folder.
TEST(DoctorCommandTest, ThePackagesAreThoseThatTheUsersPythonWouldImport) {
  const Tree tree;
  HostView machine = HostView::of_this_machine();
  if (machine.python.empty()) GTEST_SKIP() << "there is no python3 here";
  tree.write("good/stagelink/__init__.py", "__version__ = '0.0.7'\n");
  tree.write("bad/stagelink/__init__.py", "raise ImportError('libnone.so.1: no such file')\n");
  const auto looked = [&](const std::string& folder) {
    auto output = run_program(
        {"/usr/bin/env", "PYTHONPATH=" + tree.path(folder), STAGELINK_COMMAND, "doctor", "--json",
         "--only", "packages", "--timeout", "60s", "--python", machine.python},
        Deadline::in(100s));
    EXPECT_TRUE(output.ok()) << output.status().to_string();
    return DoctorOutcome{output->exit_code, output->text, {}};
  };
  const DoctorOutcome good = looked("good");
  EXPECT_EQ(good.exit_code, kExitOk);
  EXPECT_TRUE(contains(good.finding("package_version")["what"].get<std::string>(),
                       "stagelink is 0.0.7, this command is"));
  const DoctorOutcome bad = looked("bad");
  EXPECT_EQ(bad.exit_code, kExitFailed);
  const std::string what = bad.finding("package_broken")["what"];
  EXPECT_TRUE(contains(what, tree.path("bad/stagelink"))) << what;
  EXPECT_TRUE(contains(what, "ImportError: libnone.so.1: no such file")) << what;
}

TEST(DoctorCommandTest, ServingEndsByItself) {
  const Tree tree;
  const auto outcome =
      doctor({"--serve", "--serve-for", "1ms", "--option", "runtime_dir=" + tree.path("run")});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "stagelink doctor --peer 127.0.0.1:")) << outcome.out;
}

}  // namespace
}  // namespace stagelink::cli::doctor
