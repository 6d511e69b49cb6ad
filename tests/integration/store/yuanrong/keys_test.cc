// Keys for a worker: what is wrong with them is said at once, and one client's are not another's.
#include <fstream>

#include <sys/stat.h>

#include "integration/store/yuanrong/fake_worker.h"
#include "integration/support/eventually.h"

namespace stagelink::test {
namespace {

class YuanrongKeysTest : public ::testing::Test {
 protected:
  // In the worker's folder, for this user alone.
  std::string file(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = worker_.options().yuanrong.tenant_id + "/key-" + name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }

  FakeWorker worker_;
};

TEST_F(YuanrongKeysTest, WhatIsMissingOrNoKeyIsNamedAtOnce) {
  const std::string z85(40, 'a');
  struct Case {
    const char* words;
    Code code;
    std::string YuanrongOptions::*field;
    std::string value;
    std::string YuanrongOptions::*other = nullptr;
    std::string other_value = "";
  };
  using Y = YuanrongOptions;
  const std::vector<Case> cases = {
      {"access_key_file is given and secret_key_file is not", Code::kInvalidArgument,
       &Y::access_key_file, file("ak", "x")},
      {"secret_key_file is given and access_key_file is not", Code::kInvalidArgument,
       &Y::secret_key_file, file("sk", "x")},
      {"client_public_key_file is given and client_private_key_file is not", Code::kInvalidArgument,
       &Y::client_public_key_file, file("c", z85)},
      {"server_public_key_file is given and client_public_key_file is not", Code::kInvalidArgument,
       &Y::server_public_key_file, file("s", z85)},
      {"client_public_key_file is given and server_public_key_file is not", Code::kInvalidArgument,
       &Y::client_public_key_file, file("c", z85), &Y::client_private_key_file, file("p", z85)},
      {"one line", Code::kInvalidArgument, &Y::token_file, file("lines", "a\nb\n")},
      {"no-such-file", Code::kNotFound, &Y::token_file, "/no-such-file"},
      {"0644", Code::kPermission, &Y::token_file, file("open", "x", 0644)},
  };
  for (const Case& one : cases) {
    StoreOptions options = worker_.options();
    options.yuanrong.*one.field = one.value;
    if (one.other != nullptr) options.yuanrong.*one.other = one.other_value;
    const Status status = ObjectStore::open(options).status();
    EXPECT_EQ(status.code(), one.code) << status.to_string();
    EXPECT_NE(status.message().find(one.words), status.message().npos) << status.to_string();
  }
}

TEST_F(YuanrongKeysTest, ACurveKeyIsFortyCharactersOfZ85) {
  for (const std::string& key :
       {std::string(39, 'a'), std::string(41, 'a'), std::string(39, 'a') + "~"}) {
    StoreOptions options = worker_.options();
    options.yuanrong.client_public_key_file = file("c", std::string(40, '#'));
    options.yuanrong.server_public_key_file = file("s", std::string(40, 'Z'));
    options.yuanrong.client_private_key_file = file("p", key);
    const Status status = ObjectStore::open(options).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find("client_private_key_file: a Curve key"), status.message().npos);
    EXPECT_EQ(status.message().find(key), status.message().npos);  // No secret is shown.
    options.yuanrong.client_private_key_file = file("p", std::string(40, '/') + "\n");
    EXPECT_TRUE(ObjectStore::open(options).ok());
  }
}

TEST_F(YuanrongKeysTest, AClientThatIsRefusedSpoilsNothingForTheNext) {
  worker_.tell("wants", "right");
  StoreOptions options = worker_.options();
  options.yuanrong.access_key_file = file("ak", "access");
  options.yuanrong.secret_key_file = file("wrong", "wrong");
  const Status refused = ObjectStore::open(options).status();
  EXPECT_EQ(refused.reason(), Reason::kAuthentication) << refused.to_string();
  EXPECT_NE(refused.message().find("see access_key_file"), refused.message().npos);
  options.yuanrong.secret_key_file = file("right", "right");
  const auto store = ObjectStore::open(options);  // Very likely with the same broker.
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  const auto up = [&] { return sample(**store, "part=\"worker\"") == 1; };
  EXPECT_TRUE(eventually(up)) << (*store)->health().to_string();
  EXPECT_EQ(sample(**store, "losses_total{store=\"default\",backend=\"yuanrong\",part=\"worker\""),
            0);
}

}  // namespace
}  // namespace stagelink::test
