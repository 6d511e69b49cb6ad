// A worker that wants keys: AK/SK of a tenant, and Curve keys on its socket.
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>

#include "yuanrong/cluster.h"

namespace stagelink::test {
namespace {

using namespace std::chrono_literals;

std::string z85(std::span<const unsigned char> bytes) {
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
  std::string out;
  for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
    uint32_t word = 0;
    for (size_t i = 0; i < 4; ++i) word = word << 8 | bytes[at + i];
    std::string five(5, '0');
    for (size_t i = 5; i-- > 0; word /= 85) five[i] = kDigits[word % 85];
    out += five;
  }
  return out;
}

class KeyFiles {
 public:
  KeyFiles() {
    char name[] = "/tmp/stagelink-test-keys-XXXXXX";
    folder_ = ::mkdtemp(name);
    std::filesystem::create_directory(folder_ + "/worker_authorized_clients");
  }
  ~KeyFiles() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0600);
    return path;
  }
  // NAME.key and NAME.key_secret.
  void make_pair(const std::string& name) const {
    std::array<unsigned char, crypto_box_PUBLICKEYBYTES> open{};
    std::array<unsigned char, crypto_box_SECRETKEYBYTES> secret{};
    crypto_box_keypair(open.data(), secret.data());
    write(name + ".key", z85(open));
    write(name + ".key_secret", z85(secret));
  }
  void authorize(const std::string& name) const {
    std::filesystem::copy_file(path(name + ".key"),
                               path("worker_authorized_clients/" + name + ".key"));
  }
  const std::string& folder() const { return folder_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

TEST(YuanrongAuthTest, OnlyAClientWithTheRightKeysIsLetInAndOthersAreToldWhy) {
  if (const std::string why = servers_missing(false); !why.empty()) GTEST_SKIP() << why;
  const KeyFiles keys;
  for (const char* name : {"worker", "client", "stranger"}) keys.make_pair(name);
  for (const char* name : {"worker", "client"}) keys.authorize(name);
  Cluster::Options servers;
  servers.etcd = false;
  servers.memory_mb = 256;
  servers.flags = {"--system_access_key=system", "--system_secret_key=system-secret",
                   "--tenant_access_key=tenant", "--tenant_secret_key=tenant-secret",
                   "--enable_curve_zmq=true",    "--curve_key_dir=" + keys.folder()};
  const auto cluster = Cluster::start(servers);
  ASSERT_NE(cluster, nullptr);
  StoreOptions right = cluster->store_options();
  right.yuanrong.connect_timeout = 4s;
  right.yuanrong.access_key_file = keys.write("ak", "tenant");
  right.yuanrong.secret_key_file = keys.write("sk", "tenant-secret");
  right.yuanrong.client_public_key_file = keys.path("client.key");
  right.yuanrong.client_private_key_file = keys.path("client.key_secret");
  right.yuanrong.server_public_key_file = keys.path("worker.key");

  StoreOptions unknown = right;
  unknown.yuanrong.client_public_key_file = keys.path("stranger.key");
  unknown.yuanrong.client_private_key_file = keys.path("stranger.key_secret");
  const Status shut_out = ObjectStore::open(unknown).status();
  EXPECT_FALSE(shut_out.ok());
  EXPECT_NE(shut_out.message().find("client_public_key_file"), shut_out.message().npos)
      << shut_out.to_string();

  const auto store = ObjectStore::open(right);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  const std::string large = pattern(20 << 20, 9);
  EXPECT_TRUE(put_text(**store, "small", "1"));
  EXPECT_TRUE(put_text(**store, "large", large));
  auto view = (*store)->get("large");
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(0, std::memcmp(view->bytes().data(), large.data(), large.size()));
  EXPECT_TRUE((*store)->health().ok()) << (*store)->health().to_string();

  for (const char* name : {"", "tenant-secrex"}) {
    StoreOptions wrong = right;
    wrong.yuanrong.secret_key_file = *name == 0 ? "" : keys.write("wrong", name);
    if (*name == 0) wrong.yuanrong.access_key_file = "";
    const Status refused = ObjectStore::open(wrong).status();
    EXPECT_EQ(refused.reason(), Reason::kAuthentication) << refused.to_string();
  }
}

}  // namespace
}  // namespace stagelink::test
