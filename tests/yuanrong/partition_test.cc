// Two workers in two network namespaces, and the wire between them cut.
#include <cstdlib>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "integration/support/child_process.h"
#include "integration/support/eventually.h"
#include "yuanrong/cluster.h"

namespace stagelink::test {
namespace {

using namespace std::chrono_literals;

int run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()); }

// "a" with 10.77.0.1 and "b" with 10.77.0.2, joined by a pair of virtual interfaces.
class TwoNetworks {
 public:
  TwoNetworks() : a_(fmt::format("slyr{}a", ::getpid())), b_(fmt::format("slyr{}b", ::getpid())) {
    made_ = run(fmt::format("ip netns add {0} && ip netns add {1} && "
                            "ip -n {0} link add va type veth peer name vb netns {1} && "
                            "ip -n {0} addr add 10.77.0.1/24 dev va && "
                            "ip -n {1} addr add 10.77.0.2/24 dev vb && "
                            "ip -n {0} link set lo up && ip -n {1} link set lo up && "
                            "ip -n {0} link set va up && ip -n {1} link set vb up",
                            a_, b_)) == 0;
  }
  ~TwoNetworks() {
    run("ip netns del " + a_);
    run("ip netns del " + b_);
  }
  bool made() const noexcept { return made_; }
  void cut() { run(fmt::format("ip -n {} link set va down", a_)); }
  void join() { run(fmt::format("ip -n {} link set va up", a_)); }
  std::string path(char which) const { return "/var/run/netns/" + (which == 'a' ? a_ : b_); }

  // Started in the namespace by a thread that has entered it.
  std::unique_ptr<Cluster> start(char which, const Cluster::Options& options) const {
    std::unique_ptr<Cluster> cluster;
    std::thread([&] {
      const UniqueFd fd(::open(path(which).c_str(), O_RDONLY | O_CLOEXEC));
      if (::setns(fd.get(), CLONE_NEWNET) == 0) cluster = Cluster::start(options);
    }).join();
    return cluster;
  }

 private:
  std::string a_;
  std::string b_;
  bool made_ = false;
};

std::string tell(ChildProcess& user, const std::string& line) {
  (void)user.channel().send(line);
  return user.channel().receive_text().value_or("gone");
}

TEST(YuanrongPartitionTest, AMissBehindACutIsToldApartFromAKeyThatNobodyPut) {
  if (const std::string why = servers_missing(false); !why.empty()) GTEST_SKIP() << why;
  TwoNetworks networks;
  if (!networks.made()) GTEST_SKIP() << "network namespaces cannot be made here (ip netns add)";
  Cluster::Options a;
  a.host = "10.77.0.1";
  a.etcd = false;
  a.memory_mb = 256;
  a.port = 31601;
  a.etcd_port = 31602;
  const auto first = networks.start('a', a);
  ASSERT_NE(first, nullptr);
  Cluster::Options b = a;
  b.host = "10.77.0.2";
  b.join = "10.77.0.1:31602";
  const auto second = networks.start('b', b);
  ASSERT_NE(second, nullptr);

  ChildProcess at_a("yuanrong-user");
  ChildProcess at_b("yuanrong-user");
  ASSERT_EQ(tell(at_a, "open 10.77.0.1 31601 10.77.0.1:31602 " + networks.path('a')), "ok");
  ASSERT_EQ(tell(at_b, "open 10.77.0.2 31601 10.77.0.1:31602 " + networks.path('b')), "ok");
  ASSERT_EQ(tell(at_a, "put shared 1000000 4"), "ok");
  EXPECT_EQ(tell(at_b, "get shared 5000 1000000 4"), "ok");
  EXPECT_EQ(tell(at_b, "get nobody 0 0 0"), "not_found");
  // The key is put where only `a` has it.
  ASSERT_EQ(tell(at_a, "put alone 1000000 5"), "ok");
  std::string last;
  // From then on the broker knows from etcd who belongs to the ring.
  ASSERT_TRUE(eventually([&] { return (last = tell(at_b, "up ring")) == "1"; }, 30s)) << last;
  networks.cut();
  EXPECT_TRUE(
      eventually([&] { return (last = tell(at_b, "get nobody 0 0 0")) == "partition"; }, 30s))
      << last;
  EXPECT_EQ(tell(at_b, "get alone 500 1000000 5"), "partition");
  EXPECT_NE(tell(at_b, "event \"partition\""), "0");
  networks.join();
  // The workers take their time to agree again; that they reach each other is seen at once.
  EXPECT_TRUE(eventually([&] { return (last = tell(at_b, "up ring")) != "0"; }, 30s));
  EXPECT_EQ(last, "1");
}

}  // namespace
}  // namespace stagelink::test
