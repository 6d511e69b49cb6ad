#include "base/secret_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stagelink {
namespace {

class SecretFileTest : public ::testing::Test {
 protected:
  SecretFileTest() {
    char name[] = "/tmp/stagelink-secret-XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~SecretFileTest() override { std::filesystem::remove_all(dir_); }

  std::string path(const std::string& name = "secret") const { return dir_ + "/" + name; }
  std::string make(size_t bytes, mode_t mode = 0600) const {
    std::ofstream(path()) << std::string(bytes, 's');
    EXPECT_EQ(::chmod(path().c_str(), mode), 0);
    return path();
  }
  // The refusal, which must name the path and `parts`.
  Status refusal(const std::string& path, std::initializer_list<std::string_view> parts) const {
    const Status status = read_secret_file(path).status();
    EXPECT_NE(status.message().find(path), std::string_view::npos) << status.to_string();
    for (const auto part : parts) {
      EXPECT_NE(status.message().find(part), std::string_view::npos) << status.to_string();
    }
    return status;
  }

 private:
  std::string dir_;
};

TEST_F(SecretFileTest, AllBytesOfTheFileAreTheSecret) {
  std::string bytes(40, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  bytes.back() = '\n';
  std::ofstream(path(), std::ios::binary) << bytes;
  ASSERT_EQ(::chmod(path().c_str(), 0600), 0);
  auto secret = read_secret_file(path());
  ASSERT_TRUE(secret.ok()) << secret.status().to_string();
  const auto got = secret->bytes();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(got.data()), got.size()), bytes);
}

TEST_F(SecretFileTest, SizeIsBoundedOnBothSides) {
  EXPECT_TRUE(read_secret_file(make(kMinSecretBytes)).ok());
  EXPECT_TRUE(read_secret_file(make(kMaxSecretBytes)).ok());
  const Status small = refusal(make(kMinSecretBytes - 1), {"mode 0600", "31 bytes", "32 to 4096"});
  EXPECT_EQ(small.reason(), Reason::kInvalidArgument);
  const Status large = refusal(make(kMaxSecretBytes + 1), {"mode 0600", "4097 bytes"});
  EXPECT_EQ(large.reason(), Reason::kInvalidArgument);
  EXPECT_FALSE(read_secret_file(make(0)).ok());
}

TEST_F(SecretFileTest, AnyBitOfTheModeBeyond0600IsRefused) {
  EXPECT_TRUE(read_secret_file(make(32, 0400)).ok());
  for (const mode_t mode : {0601U, 0602U, 0604U, 0610U, 0620U, 0640U, 0700U, 04600U, 02600U}) {
    const Status status = refusal(make(32, mode), {"32 bytes", "chmod 600"});
    EXPECT_EQ(status.reason(), Reason::kPermission) << std::oct << mode;
  }
  EXPECT_FALSE(refusal(make(32, 0644), {"mode 0644"}).ok());
}

TEST_F(SecretFileTest, AMissingFileIsNotFound) {
  EXPECT_EQ(refusal(path("absent"), {"No such file"}).reason(), Reason::kNotFound);
}

TEST_F(SecretFileTest, ASymbolicLinkIsRefused) {
  ASSERT_EQ(::symlink(make(32).c_str(), path("link").c_str()), 0);
  EXPECT_EQ(refusal(path("link"), {"symbolic link"}).reason(), Reason::kPermission);
}

TEST_F(SecretFileTest, WhatIsNoRegularFileIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(refusal(path("fifo"), {"no regular file"}).reason(), Reason::kPermission);
  ASSERT_EQ(::mkdir(path("dir").c_str(), 0700), 0);
  EXPECT_EQ(refusal(path("dir"), {"no regular file"}).reason(), Reason::kPermission);
}

TEST_F(SecretFileTest, AFileOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string file = make(32);
  ASSERT_EQ(::chown(file.c_str(), 12345, 12345), 0);
  EXPECT_EQ(refusal(file, {"uid 12345", "mode 0600"}).reason(), Reason::kOtherUser);
}

TEST_F(SecretFileTest, NoRefusalTellsTheBytes) {
  std::ofstream(path()) << "tellnobodyofthis";
  ASSERT_EQ(::chmod(path().c_str(), 0600), 0);
  const Status status = refusal(path(), {"16 bytes"});
  EXPECT_EQ(status.message().find("tellnobody"), std::string_view::npos);
}

}  // namespace
}  // namespace stagelink
