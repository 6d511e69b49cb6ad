#include "config/option_table.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "config/option_loader.h"

namespace stagelink::config {
namespace {

// A table of the test's own, with a boolean, a secret and two deprecated names.
struct Sample {
  bool verify = false;
  std::string password = "hidden";
  uint32_t depth = 2;
};

constexpr OptionRow kRows[] = {
    {"verify", OptionType::kBool, "All", "Whether.", field_of<&Sample::verify>, 0, 1},
    {"password",
     OptionType::kString,
     "All",
     "Which.",
     field_of<&Sample::password>,
     3,
     8,
     {},
     nullptr,
     true},
    {"depth", OptionType::kInteger, "All", "How | far.", field_of<&Sample::depth>, 1, 9},
};
constexpr OptionAlias kAliases[] = {{"check", "verify"}, {"levels", "depth"}};
constexpr OptionTable kTable = {"sample", "SL_SAMPLE_", kRows, kAliases};

Status load(std::string_view text, Sample& sample) {
  auto root = parse_config(text, ConfigSyntax::kYaml, "s.yaml");
  if (!root.ok()) return root.status();
  return apply_config(kTable, *root, "s.yaml", &sample);
}

TEST(OptionTableTest, BooleansAreReadFromTextAndFromValues) {
  Sample sample;
  for (const char* yes : {"true", "yes", "on"}) {
    sample.verify = false;
    EXPECT_TRUE(set_named(kTable, &sample, "verify", std::string(yes)).ok());
    EXPECT_TRUE(sample.verify) << yes;
  }
  EXPECT_TRUE(set_named(kTable, &sample, "verify", false).ok());
  EXPECT_FALSE(sample.verify);
  EXPECT_FALSE(set_named(kTable, &sample, "verify", std::string("1")).ok());
  EXPECT_FALSE(set_named(kTable, &sample, "verify", int64_t{1}).ok());
}

TEST(OptionTableTest, ADeprecatedNameWorksAndWarnsOnceWithItsSuccessor) {
  Sample sample;
  testing::internal::CaptureStderr();
  const Status status = load("sample:\n  levels: 5\n", sample);
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(sample.depth, 5U);
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
  EXPECT_NE(warning.find("`levels` is deprecated; write `depth`"), std::string::npos) << warning;
}

TEST(OptionTableTest, SeveralSourcesWithOneDeprecatedNameWarnOnce) {
  Sample sample;
  ::setenv("SL_SAMPLE_LEVELS", "6", 1);
  testing::internal::CaptureStderr();
  const Status status = load_options(kTable, {"", true, {"levels=7"}}, &sample);
  const std::string warning = testing::internal::GetCapturedStderr();
  ::unsetenv("SL_SAMPLE_LEVELS");
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(sample.depth, 7U);
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
}

TEST(OptionTableTest, AnOldAndANewNameTogetherAreRefused) {
  Sample sample;
  testing::internal::CaptureStderr();
  const Status status = load("sample:\n  levels: 5\n  depth: 5\n", sample);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(status.message(), "s.yaml:3:3: depth: given twice, as `levels` too");
}

TEST(OptionTableTest, ADeprecatedNameAtTheTopLevelIsRecognised) {
  Sample sample;
  EXPECT_NE(load("levels: 5\n", sample).message().find("belongs under `sample:`"),
            std::string_view::npos);
}

TEST(OptionTableTest, ASecretIsNeverPrinted) {
  Sample sample;
  EXPECT_EQ(options_text(kTable, &sample).find("hidden"), std::string::npos);
  EXPECT_EQ(options_page(kTable, &sample).find("hidden"), std::string::npos);
  const Status status = set_named(kTable, &sample, "password", std::string("much too long"));
  EXPECT_EQ(status.message(), "password: (secret) is not a text of 3 to 8 bytes");
  EXPECT_EQ(set_named(kTable, &sample, "password", int64_t{12345}).message().find("12345"),
            std::string_view::npos);
  sample.password = "much too long";
  EXPECT_EQ(check_value(kRows[1], &sample).message().find("much"), std::string_view::npos);
}

TEST(OptionTableTest, ThePageListsDeprecatedNamesAndEscapesBars) {
  const Sample sample;
  const std::string page = options_page(kTable, &sample);
  EXPECT_NE(page.find("| `levels` | `depth` |"), std::string::npos);
  EXPECT_NE(page.find("How \\| far."), std::string::npos);
  EXPECT_NE(page.find("| `depth` | integer | `2` | 1 to 9 |"), std::string::npos) << page;
}

}  // namespace
}  // namespace stagelink::config
