#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "cli/commands.h"
#include "cli/doctor/child.h"
#include "cli/doctor/peer/probe.h"
#include "cli/doctor/peer/throughput.h"
#include "cli/doctor/subject.h"
#include "connector/zmq/socket.h"
#include "engine/link/listen_socket.h"
#include "stagelink/engine.h"
#include "stagelink/version.h"
#include "transport/blocking_frames.h"
#include "unit/cli/doctor/tree.h"

namespace stagelink::cli::doctor {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

struct DoctorOutcome {
  int exit_code = -1;
  std::string out;
  std::string err;

  Json finding(std::string_view cause) const {
    const Json report = Json::parse(out, nullptr, false);
    for (const Json& finding : report.value("findings", Json::array())) {
      if (finding["cause"] == cause) return finding;
    }
    ADD_FAILURE() << "no finding `" << cause << "` in " << out << err;
    return {{"what", ""}, {"level", ""}, {"do", ""}};
  }
};

DoctorOutcome doctor(std::vector<std::string> arguments) {
  CLI::App app("test", "stagelink");
  DoctorOutcome outcome;
  add_doctor_command(app, outcome.exit_code);
  arguments.insert(arguments.begin(), "doctor");
  std::reverse(arguments.begin(), arguments.end());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    outcome.exit_code = app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  std::fflush(stdout);
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

EngineOptions engine_options(const Tree& tree, std::string name) {
  EngineOptions options;
  options.name = std::move(name);
  options.runtime_dir = tree.path("run");
  return options;
}

// Accepts one connection after the other and leaves each to `talk`, until it goes.
class FakePeer {
 public:
  explicit FakePeer(std::function<void(int fd)> talk) {
    Endpoint bound;
    auto socket = engine::listen_tcp_socket({"127.0.0.1", 0}, bound);
    if (!socket.ok()) std::abort();
    listener_ = *std::move(socket);
    address_ = bound;
    thread_ = std::thread([this, talk = std::move(talk)] {
      for (;;) {
        pollfd waiting{.fd = listener_.get(), .events = POLLIN, .revents = 0};
        ::poll(&waiting, 1, -1);
        const UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
        if (!fd && errno != EAGAIN) return;
        if (fd) talk(fd.get());
      }
    });
  }
  ~FakePeer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  Endpoint endpoint() const { return address_; }
  std::string address() const { return address_.to_string(); }

 private:
  UniqueFd listener_;
  Endpoint address_;
  std::thread thread_;
};

void write_text(int fd, std::string_view text) {
  (void)::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
}

// Until the other side has closed.
void drain(int fd) {
  char byte = 0;
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  while (::poll(&waiting, 1, 10'000) > 0 && ::recv(fd, &byte, 1, 0) > 0) {
  }
}

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

TEST(DoctorCommandTest, APeerOfAnotherVersionIsNamedWithBothVersions) {
  const std::string ours = std::to_string(kProtocolMajor) + "." + std::to_string(kProtocolMinor);
  // It refuses our hello with its own view of the two, or welcomes us and leaves it to us.
  const FakePeer refuses([&](int fd) {
    if (!transport::receive_frame(fd, Deadline::in(10s)).ok()) return;
    const wire::Outcome outcome{Reason::kVersion,
                                "hello speaks protocol " + ours + ", we speak 7.3"};
    (void)transport::send_frame(fd, wire::FrameType::kRefuse, 0, wire::encode(outcome),
                                Deadline::in(10s));
    drain(fd);
  });
  const FakePeer welcomes([](int fd) {
    if (!transport::receive_frame(fd, Deadline::in(10s)).ok()) return;
    wire::Welcome welcome;
    welcome.version = {7, 3};
    (void)transport::send_frame(fd, wire::FrameType::kWelcome, 0, wire::encode(welcome),
                                Deadline::in(10s));
    drain(fd);
  });
  for (const std::string& address : {refuses.address(), welcomes.address()}) {
    const auto outcome = doctor({"--json", "--only", "peers", "--peer", address});
    EXPECT_EQ(outcome.exit_code, kExitFailed);
    const std::string what = outcome.finding("peer_version")["what"];
    EXPECT_TRUE(contains(what, "speaks protocol 7.3")) << what;
    EXPECT_TRUE(contains(what, "this one " + ours)) << what;
  }
  EXPECT_EQ(version_in_refusal("hello speaks protocol 1.2, we speak 70000.1"), std::nullopt);
  EXPECT_EQ(version_in_refusal("no version"), std::nullopt);
}

TEST(DoctorPeerTest, WhoeverElseAnswersIsToldApart) {
  const FakePeer http([](int fd) {
    char request[512];
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, 10'000);
    (void)::recv(fd, request, sizeof request, 0);
    write_text(fd, "HTTP/1.1 400 Bad Request\r\n\r\n");
    drain(fd);
  });
  const FakePeer ssh([](int fd) {
    write_text(fd, "SSH-2.0-OpenSSH_9.2\r\n");
    drain(fd);
  });
  const FakePeer silent([](int fd) { drain(fd); });
  const FakePeer rude([](int) {});
  const auto looked = [](const FakePeer& peer) {
    return doctor({"--json", "--only", "peers", "--timeout", "300ms", "--peer", peer.address()});
  };
  EXPECT_TRUE(contains(looked(http).finding("peer_other")["what"].get<std::string>(),
                       "`HTTP/1.1 400 Bad Request`"));
  EXPECT_TRUE(contains(looked(ssh).finding("peer_other")["what"].get<std::string>(),
                       "`SSH-2.0-OpenSSH_9.2`"));
  EXPECT_TRUE(
      contains(looked(silent).finding("peer_silent")["what"].get<std::string>(), "nothing"));
  EXPECT_TRUE(contains(looked(rude).finding("peer_other")["what"].get<std::string>(), "closes"));
}

TEST(DoctorPeerTest, ASecretOnOneSideAloneIsNamed) {
  const Tree tree;
  const std::string secret = tree.write("secret", std::string(32, 's'));
  const std::string other = tree.write("other", std::string(32, 'o'));
  for (const std::string& file : {secret, other}) {
    std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  }
  EngineOptions options = engine_options(tree, "with");
  options.secret_file = secret;
  auto with = Engine::create(options);
  ASSERT_TRUE(with.ok());
  auto without = Engine::create(engine_options(tree, "without"));
  ASSERT_TRUE(without.ok());
  const auto looked = [](const Engine& engine, const std::string& file) {
    return doctor({"--json", "--only", "peers", "--peer", engine.address(), "--option",
                   "secret_file=" + file});
  };
  EXPECT_EQ(looked(**with, secret).exit_code, kExitOk);
  EXPECT_EQ(looked(**with, "").finding("peer_secret")["level"], "error");
  EXPECT_EQ(looked(**with, other).finding("peer_secret")["level"], "error");
  EXPECT_EQ(looked(**without, secret).finding("peer_secret")["level"], "error");
  EXPECT_EQ(looked(**without, tree.path("none")).finding("secret_file")["level"], "error");
}

TEST(DoctorPeerTest, AnEngineThatTakesNoPeersFromAfarSaysWhy) {
  const Tree tree;
  EngineOptions options = engine_options(tree, "local");
  options.transports = {"shm", "unix"};
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok());
  const auto outcome = doctor({"--json", "--only", "peers", "--peer", (*engine)->address()});
  const std::string what = outcome.finding("peer_refuses")["what"];
  EXPECT_TRUE(contains(what, "tcp is not among")) << what;
}

TEST(DoctorPeerTest, ZeroMqIsKnownByItsGreeting) {
  auto library = zmq::Library::load();
  if (!library.ok()) GTEST_SKIP() << library.status().to_string();
  auto context = zmq::Context::create(*library);
  ASSERT_TRUE(context.ok());
  zmq::BindOptions options;
  options.host = "127.0.0.1";
  auto router = zmq::Router::bind(*context, options);
  ASSERT_TRUE(router.ok()) << router.status().to_string();
  const auto facts = probe_peer(router->endpoint(), {});
  EXPECT_EQ(facts.answer, Answer::kZmq);
  EXPECT_EQ(facts.zmq.major, 3);
  EXPECT_EQ(facts.zmq.mechanism, "NULL");
  EXPECT_GT(facts.path_mtu, 1280);
}

TEST(DoctorPeerTest, ThroughputIsMeasuredAgainstAnotherDoctor) {
  const Tree tree;
  EngineOptions options = engine_options(tree, "");
  auto partner = Partner::create(options);
  ASSERT_TRUE(partner.ok()) << partner.status().to_string();
  const auto address = parse_endpoint((*partner)->address());
  options.name = "guest";
  for (const char* transport : {"unix", "tcp"}) {
    options.transports = {transport};
    auto measured = measure_throughput(options, *address, 1s, 32 << 20);
    ASSERT_TRUE(measured.ok()) << measured.status().to_string();
    EXPECT_EQ(measured->route, transport);
    EXPECT_GE(measured->bytes, 32U << 20);
    EXPECT_LE(measured->bytes, 48U << 20);  // One read beyond it at most.
  }
  auto engine = Engine::create(engine_options(tree, "at work"));
  ASSERT_TRUE(engine.ok());
  options.transports = {"unix", "tcp"};
  const auto refused = measure_throughput(options, *parse_endpoint((*engine)->address()), 1s, 1);
  EXPECT_EQ(refused.status().reason(), Reason::kUnsupported);
}

TEST(DoctorPeerTest, WhatAPartnerTellsIsBounded) {
  const auto told = partner_memory(partner_name({0x7f0000001000, 4096}));
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->address, 0x7f0000001000U);
  EXPECT_EQ(told->bytes, 4096U);
  EXPECT_TRUE(partner_memory("stagelink-doctor 1 67108864").has_value());
  for (const char* wrong :
       {"decode-0", "stagelink-doctor ", "stagelink-doctor 1", "stagelink-doctor x 1",
        "stagelink-doctor 1 0", "stagelink-doctor 1 67108865", "stagelink-doctor 1 1 ",
        "stagelink-doctor 1 99999999999999999999"}) {
    EXPECT_FALSE(partner_memory(wrong).has_value()) << wrong;
  }
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

TEST(DoctorCommandTest, ServingEndsByItself) {
  const Tree tree;
  const auto outcome =
      doctor({"--serve", "--serve-for", "1ms", "--option", "runtime_dir=" + tree.path("run")});
  EXPECT_EQ(outcome.exit_code, kExitOk) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "stagelink doctor --peer 127.0.0.1:")) << outcome.out;
}

}  // namespace
}  // namespace stagelink::cli::doctor
