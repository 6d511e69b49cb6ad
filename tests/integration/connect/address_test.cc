// Addresses that just work (T21, T24), and limits of the process that do not kill the engine.

#include <cstdio>

#include <sys/resource.h>

#include "base/endpoint.h"
#include "integration/support/engine_test.h"

namespace stagelink::test {
namespace {

class AddressTest : public EngineTest {};

// T24.
TEST_F(AddressTest, CanonicalFormsRoundTrip) {
  for (const char* text : {"127.0.0.1:5000", "[::1]:5000", "[fe80::1%lo]:5000", "localhost:5000",
                           "[::]:5000", "a.b.example:1", "1.2.3.4:0", "1.2.3.4:65535"}) {
    const auto endpoint = parse_endpoint(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().to_string();
    EXPECT_EQ((*endpoint).to_string(), text);
  }
  EXPECT_TRUE(must(parse_endpoint("*:5000")).wildcard());
  EXPECT_TRUE(must(parse_endpoint("[::]:5000")).wildcard());
  EXPECT_FALSE(must(parse_endpoint("[::1]:5000")).wildcard());
  for (const char* const host :
       {"0", "0x0", "0.0", "000.0.0.0", "::0", "0:0:0:0:0:0:0:0", "::ffff:0.0.0.0", "::%lo"}) {
    EXPECT_TRUE((Endpoint{host, 1}.wildcard())) << host;
  }
  for (const char* const host : {"0.0.0.1", "1", "::ffff:127.0.0.1", "fe80::1%lo", "zero"}) {
    EXPECT_FALSE((Endpoint{host, 1}.wildcard())) << host;
  }
}

// T24.
TEST_F(AddressTest, BadFormsAreRefusedByName) {
  for (const char* text :
       {"::1", "2001:db8::1:5000", "host", "", ":", "[::1]", "[::1:5000", "::1]:5000",
        "1.2.3.4:", "1.2.3.4:65536", "1.2.3.4:-1", "1.2.3.4:abc", "1.2.3.4: 80", "1.2.3.4:+80",
        "[]:80", "[::1]x:80", "http://[::1]:80/metadata"}) {
    const Status status = parse_endpoint(text).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(text), std::string_view::npos) << status.message();
  }
}

TEST_F(AddressTest, BadAddressIsRefusedByConnectAndByCreate) {
  const auto engine = make_engine("reader");
  EXPECT_EQ(engine->connect("2001:db8::1:5000").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(engine->connect("*:5000").status().code(), Code::kInvalidArgument);
  EngineOptions bad = options("bad");
  bad.bind = "127.0.0.1";
  EXPECT_EQ(Engine::create(bad).status().code(), Code::kInvalidArgument);
  bad.bind = "192.0.2.1:0";  // Nobody's address here.
  EXPECT_EQ(Engine::create(bad).status().code(), Code::kInvalidArgument);
}

TEST_F(AddressTest, WildcardIsNeverAdvertised) {
  EngineOptions wild = options("wild");
  wild.bind = "0.0.0.0:0";
  EXPECT_EQ(Engine::create(wild).status().code(), Code::kInvalidArgument);
  wild.advertise = "127.0.0.1";
  const auto engine = must(Engine::create(wild));
  const Endpoint told = must(parse_endpoint(engine->address()));
  EXPECT_EQ(told.host, "127.0.0.1");
  EXPECT_NE(told.port, 0);
  const auto reader = make_engine("reader");
  EXPECT_OK(reader->connect(engine->address()).status());
  wild.advertise = "0.0.0.0:1";
  EXPECT_EQ(Engine::create(wild).status().code(), Code::kInvalidArgument);
}

// T21.
TEST_F(AddressTest, PortInUseFailsAtOnceAndHintsAtTheHolder) {
  OwnerProcess holder(options("holder"));
  EngineOptions same = options("same");
  same.bind = holder.address();
  const auto before = std::chrono::steady_clock::now();
  const Status status = Engine::create(same).status();
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
  EXPECT_REASON(Reason::kPortInUse, status);
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_NE(status.message().find("ss -ltnp"), std::string_view::npos) << status.message();
  EXPECT_NE(status.message().find(holder.address()), std::string_view::npos) << status.message();
}

// T21: nothing set at all, and two of them.
TEST_F(AddressTest, TwoDefaultEnginesCoexist) {
  const auto first = must(Engine::create(EngineOptions{}));
  const auto second = must(Engine::create(EngineOptions{}));
  EXPECT_NE(first->address(), second->address());
  EXPECT_NE(first->instance(), second->instance());
  EXPECT_OK(first->connect(second->descriptor()).status());
  EXPECT_OK(second->connect(first->address()).status());
}

// T24: live on ::1.
TEST_F(AddressTest, SixBindsAndConnects) {
  EngineOptions six = options("six");
  six.bind = "[::1]:0";
  auto engine = Engine::create(six);
  if (!engine.ok() && engine.status().message().find("assign") != std::string_view::npos) {
    GTEST_SKIP() << "this system has no ::1";
  }
  ASSERT_OK(engine.status());
  EXPECT_EQ((*engine)->address().rfind("[::1]:", 0), 0U) << (*engine)->address();
  const auto reader = make_engine("reader");
  const Peer peer = must(reader->connect((*engine)->address()));
  EXPECT_EQ(peer.instance(), (*engine)->instance());
}

TEST_F(AddressTest, AutoBindTakesAnAddressThatPeersCanBeTold) {
  EngineOptions chosen = options("chosen");
  for (const char* bind : {"auto", "auto:0"}) {
    chosen.bind = bind;
    const auto engine = must(Engine::create(chosen));
    const Endpoint told = must(parse_endpoint(engine->address()));
    EXPECT_FALSE(told.wildcard());
    EXPECT_NE(told.host, "auto");
    const auto reader = make_engine("reader");
    EXPECT_OK(reader->connect(engine->address()).status());
  }
}

TEST_F(AddressTest, InterfaceIsTheOneThatIsNamedAndGoesWithAuto) {
  EngineOptions chosen = options("chosen");
  chosen.bind = "auto";
  chosen.interface = "lo";
  const auto engine = must(Engine::create(chosen));
  EXPECT_EQ(must(parse_endpoint(engine->address())).host, "127.0.0.1");
  chosen.interface = "none0";
  const Status unknown = Engine::create(chosen).status();
  EXPECT_EQ(unknown.code(), Code::kInvalidArgument);
  EXPECT_NE(unknown.message().find("none0"), std::string_view::npos) << unknown.message();
  EXPECT_NE(unknown.message().find("lo"), std::string_view::npos) << unknown.message();
  chosen.bind = "127.0.0.1:0";
  chosen.interface = "lo";
  EXPECT_EQ(Engine::create(chosen).status().code(), Code::kInvalidArgument);
}

TEST_F(AddressTest, NameOfThisHostWorks) {
  EngineOptions named = options("named");
  named.bind = "localhost:0";
  const auto engine = must(Engine::create(named));
  const auto reader = make_engine("reader");
  EXPECT_OK(reader->connect(engine->address()).status());
}

// A child with few fds: what fails says so, and the engine goes on (T10, T46).
int run_out_of_fds(Channel& parent) {
  const auto dir = parent.receive_text();
  const auto descriptor = parent.receive();
  if (!dir || !descriptor) return 1;
  EngineOptions options;
  options.runtime_dir = *dir;
  options.heartbeat_interval = 100ms;
  auto engine = must(Engine::create(options));
  std::optional<Peer> kept(must(engine->connect(*descriptor)));
  const PrivateMemory memory(65536);
  const Region local = must(engine->register_memory(memory.data(), memory.size()));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 64;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<UniqueFd> hog;
  for (int fd = 0; (fd = ::dup(2)) >= 0;) hog.emplace_back(fd);

  const size_t threads = running_threads();
  const Status connecting = engine->connect(*descriptor, 2s).status();
  const Status allocating = engine->allocate(4096).status();
  const Status creating = Engine::create(options).status();
  const Status notifying = kept->notify(bytes_of("no fd needed"));
  for (const Status& status : {connecting, allocating, creating}) {
    if (status.reason() == Reason::kNofile) continue;
    std::fprintf(stderr, "not nofile: %s\n", status.to_string().c_str());
    return 2;
  }
  if (!notifying.ok()) return 5;
  if (running_threads() != threads) return 6;
  parent.send("exhausted");
  const auto go_on = parent.receive();
  hog.clear();
  if (!engine->connect(*descriptor, 2s).ok()) return 7;
  if (!engine->allocate(4096).ok()) return 8;
  // What came while there were no fds was taken in once there were again.
  parent.send(engine->descriptor());
  (void)parent.receive();
  return 0;
}
const RoleRegistration kRunOutOfFds("run_out_of_fds", &run_out_of_fds);

TEST_F(AddressTest, RunningOutOfFdsIsNamedAndSurvived) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs fds of its own";
  OwnerProcess owner(options("owner"));
  ChildProcess child("run_out_of_fds");
  child.channel().send(runtime_dir());
  child.channel().send(owner.descriptor());
  const auto told = child.channel().receive_text();
  ASSERT_EQ(told, "exhausted") << "exit code " << child.wait_exit();
  EXPECT_EQ(owner.take(5s).size(), 1U);
  child.channel().send("go on");
  const auto descriptor = child.channel().receive();
  ASSERT_TRUE(descriptor.has_value()) << "exit code " << child.wait_exit();
  const auto engine = make_engine("late");
  EXPECT_TRUE(eventually([&] { return engine->connect(*descriptor, 1s).ok(); }, 5s));
  child.channel().send("done");
  EXPECT_EQ(child.wait_exit(), 0);
}

// Somebody knocks at an engine that has no fd to open the door with.
int deaf_without_fds(Channel& parent) {
  const auto dir = parent.receive_text();
  if (!dir) return 1;
  EngineOptions options;
  options.runtime_dir = *dir;
  auto engine = must(Engine::create(options));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 64;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<UniqueFd> hog;
  for (int fd = 0; (fd = ::dup(2)) >= 0;) hog.emplace_back(fd);
  parent.send(engine->descriptor());
  (void)parent.receive();  // The test has seen its connect fail.
  parent.send(std::to_string(metric(*engine, "failures_total", "nofile")));
  hog.clear();
  (void)parent.receive();
  return 0;
}
const RoleRegistration kDeafWithoutFds("deaf_without_fds", &deaf_without_fds);

TEST_F(AddressTest, GuestsOfAnEngineWithoutFdsGetInLater) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs fds of its own";
  ChildProcess child("deaf_without_fds");
  child.channel().send(runtime_dir());
  const auto descriptor = child.channel().receive();
  ASSERT_TRUE(descriptor.has_value());
  const auto engine = make_engine("guest");
  EXPECT_FALSE(engine->connect(*descriptor, 300ms).ok());
  child.channel().send("seen");
  const auto failures = child.channel().receive_text();
  ASSERT_TRUE(failures.has_value());
  EXPECT_GE(std::stod(*failures), 1);
  EXPECT_LE(std::stod(*failures), 10) << "it pauses instead of spinning";
  EXPECT_TRUE(eventually([&] { return engine->connect(*descriptor, 1s).ok(); }, 5s));
  child.channel().send("done");
  EXPECT_EQ(child.wait_exit(), 0);
}

}  // namespace
}  // namespace stagelink::test
