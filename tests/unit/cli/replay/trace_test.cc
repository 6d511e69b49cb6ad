#include "cli/replay/workload/trace.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "unit/cli/replay/temp_file.h"

namespace stagelink::cli::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kGood =
    R"({"timestamp": 27, "input_length": 513, "output_length": 5, "hash_ids": [7, 9]})";

std::string message_of(const std::string& line) {
  const auto parsed = parse_trace_line(line, "t.jsonl:3");
  EXPECT_FALSE(parsed.ok()) << line;
  return std::string(parsed.status().message());
}

TEST(TraceTest, ALineGivesItsFields) {
  auto parsed = parse_trace_line(kGood, "t.jsonl:1");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->timestamp_ms, 27U);
  EXPECT_EQ(parsed->input_tokens, 513U);
  EXPECT_EQ(parsed->output_tokens, 5U);
  EXPECT_THAT(parsed->hash_ids, ElementsAre(7, 9));
}

TEST(TraceTest, UnknownFieldsAreIgnored) {
  EXPECT_TRUE(parse_trace_line(R"({"user": "x", "timestamp": 0, "input_length": 1,
                                   "output_length": 0, "hash_ids": [0]})",
                               "t:1")
                  .ok());
}

TEST(TraceTest, AMissingFieldIsNamedWithItsPlace) {
  EXPECT_EQ(message_of(R"({"timestamp": 0, "input_length": 1, "hash_ids": [0]})"),
            "t.jsonl:3: field output_length: missing");
}

TEST(TraceTest, AValueOfTheWrongKindIsShown) {
  EXPECT_THAT(message_of(R"({"timestamp": -4, "input_length": 1, "output_length": 1,
                             "hash_ids": [0]})"),
              HasSubstr("field timestamp: -4 is not a whole number"));
  EXPECT_THAT(message_of(R"({"timestamp": 0, "input_length": "8", "output_length": 1,
                             "hash_ids": [0]})"),
              HasSubstr("field input_length: \"8\" is not a whole number"));
  EXPECT_THAT(message_of(R"({"timestamp": 0, "input_length": 1, "output_length": 1.5,
                             "hash_ids": [0]})"),
              HasSubstr("field output_length: 1.5"));
  EXPECT_THAT(message_of(R"({"timestamp": 0, "input_length": 1, "output_length": 1,
                             "hash_ids": [null]})"),
              HasSubstr("field hash_ids: null"));
  EXPECT_THAT(message_of(R"({"timestamp": 0, "input_length": 1, "output_length": 1,
                             "hash_ids": 4})"),
              HasSubstr("field hash_ids: 4 is not a list"));
}

TEST(TraceTest, IdsMustCoverTheInput) {
  EXPECT_TRUE(parse_trace_line(R"({"timestamp": 0, "input_length": 512, "output_length": 1,
                                   "hash_ids": [0]})",
                               "t:1")
                  .ok());
  EXPECT_THAT(message_of(R"({"timestamp": 0, "input_length": 513, "output_length": 1,
                             "hash_ids": [0]})"),
              HasSubstr("1 ids, but input_length 513 needs 2"));
  EXPECT_THAT(message_of(R"({"timestamp": 0, "input_length": 0, "output_length": 1,
                             "hash_ids": []})"),
              HasSubstr("field input_length: 0 is below 1"));
}

TEST(TraceTest, TextThatIsNotJsonIsRefusedWithItsPlace) {
  EXPECT_THAT(message_of("{\"timestamp\": 0,"), HasSubstr("t.jsonl:3: not JSON"));
  EXPECT_THAT(message_of("[1, 2]"), HasSubstr("t.jsonl:3: [1,2] is not a JSON object"));
  EXPECT_THAT(message_of(std::string(100'000, '[')), HasSubstr("not JSON"));
}

TEST(TraceTest, InputLengthIsBoundedOnBothSides) {
  const auto line = [](uint32_t tokens) {
    std::string ids = "0";
    for (uint32_t i = 1; i < (tokens + kTokensPerId - 1) / kTokensPerId; ++i) ids += ",0";
    return "{\"timestamp\":0,\"input_length\":" + std::to_string(tokens) +
           ",\"output_length\":0,\"hash_ids\":[" + ids + "]}";
  };
  EXPECT_TRUE(parse_trace_line(line(TraceReader::kMaxTokens), "t:1").ok());
  EXPECT_FALSE(parse_trace_line(line(TraceReader::kMaxTokens + 1), "t:1").ok());
}

TEST(TraceReaderTest, ReadsToTheEndWithBlankLinesAndNoLastNewline) {
  const TempDir dir;
  auto reader =
      TraceReader::open(dir.write("t.jsonl", std::string(kGood) + "\n\n" + kGood + "\r\n" + kGood));
  ASSERT_TRUE(reader.ok());
  for (int i = 0; i < 3; ++i) {
    auto request = reader->next();
    ASSERT_TRUE(request.ok()) << request.status().to_string();
    EXPECT_TRUE((*request).has_value());
  }
  auto end = reader->next();
  ASSERT_TRUE(end.ok());
  EXPECT_FALSE((*end).has_value());
}

TEST(TraceReaderTest, AnErrorNamesTheLineOfTheFile) {
  const TempDir dir;
  const std::string path = dir.write("t.jsonl", std::string(kGood) + "\n\n{}\n");
  auto reader = TraceReader::open(path);
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(reader->next().ok());
  const auto bad = reader->next();
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr(path + ":3: field timestamp"));
}

TEST(TraceReaderTest, ALineOfTheLargestSizeIsReadAndALongerOneRefused) {
  const TempDir dir;
  const auto padded = [](size_t bytes) {
    std::string line = kGood;
    return line + std::string(bytes - line.size(), ' ') + "\n";
  };
  auto fits = TraceReader::open(dir.write("a", padded(TraceReader::kMaxLineBytes)));
  ASSERT_TRUE(fits.ok());
  EXPECT_TRUE(fits->next().ok());
  auto longer = TraceReader::open(dir.write("b", padded(TraceReader::kMaxLineBytes + 1)));
  ASSERT_TRUE(longer.ok());
  EXPECT_EQ(longer->next().status().reason(), Reason::kTooLarge);
}

TEST(TraceReaderTest, WhatCannotBeReadIsRefused) {
  const TempDir dir;
  EXPECT_EQ(TraceReader::open(dir.path() + "/none").status().reason(), Reason::kNotFound);
  EXPECT_EQ(TraceReader::open(dir.path()).status().reason(), Reason::kInvalidArgument);
  const std::string fifo = dir.path() + "/fifo";  // Nobody will ever write to it.
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const auto refused = TraceReader::open(fifo);
  EXPECT_EQ(refused.status().reason(), Reason::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(fifo + " is a device"));
  EXPECT_EQ(TraceReader::open("/dev/null").status().reason(), Reason::kInvalidArgument);
}

}  // namespace
}  // namespace stagelink::cli::replay
