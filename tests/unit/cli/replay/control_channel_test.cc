#include "cli/replay/control_channel.h"

#include <string>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace stagelink::cli::replay {
namespace {

class ControlChannelTest : public ::testing::Test {
 protected:
  ControlChannelTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    other_ = UniqueFd(ends[1]);
    channel_.emplace(UniqueFd(ends[0]));
  }
  void write(const std::string& text) {
    ASSERT_EQ(::write(other_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  UniqueFd other_;
  std::optional<ControlChannel> channel_;
};

TEST_F(ControlChannelTest, MessagesComeOutWholeAndInOrder) {
  write("{\"event\":\"a\"}\n{\"event\":\"b\"}\n{\"ev");
  EXPECT_TRUE(channel_->fill());
  EXPECT_EQ((**channel_->next()).at("event"), "a");
  EXPECT_EQ((**channel_->next()).at("event"), "b");
  EXPECT_FALSE((*channel_->next()).has_value());
  write("ent\":\"c\"}\n");
  EXPECT_TRUE(channel_->fill());
  EXPECT_EQ((**channel_->next()).at("event"), "c");
}

TEST_F(ControlChannelTest, WhatWasSentBeforeTheEndIsStillRead) {
  write("{\"event\":\"last\"}\n");
  other_.reset();
  EXPECT_FALSE(channel_->fill());
  EXPECT_EQ((**channel_->next()).at("event"), "last");
  EXPECT_FALSE((*channel_->next()).has_value());
  EXPECT_TRUE(channel_->ended());
}

TEST_F(ControlChannelTest, WhatIsNoMessageIsRefused) {
  for (const char* line : {"nonsense\n", "[1]\n", "{}\n", "{\"event\":5}\n"}) {
    write(line);
    channel_->fill();
    EXPECT_EQ(channel_->next().status().reason(), Reason::kFrame) << line;
  }
}

TEST_F(ControlChannelTest, SendingToAnEndThatIsGoneFails) {
  other_.reset();
  EXPECT_FALSE(channel_->send({{"event", "a"}}));
}

TEST_F(ControlChannelTest, WhatDoesNotFitTheSocketWaits) {
  const std::string large(1 << 20, 'x');
  EXPECT_TRUE(channel_->send({{"event", "a"}, {"text", large}}));
  EXPECT_TRUE(channel_->wants_write());
  std::string got(64 << 10, '\0');
  size_t total = 0;
  while (channel_->wants_write()) {
    total += static_cast<size_t>(::read(other_.get(), got.data(), got.size()));
    ASSERT_TRUE(channel_->flush());
  }
  EXPECT_GT(total, size_t{512} << 10);
}

}  // namespace
}  // namespace stagelink::cli::replay
