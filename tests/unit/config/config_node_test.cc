#include "config/config_node.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stagelink::config {
namespace {

namespace fs = std::filesystem;

Result<ConfigNode> yaml(std::string_view text) {
  return parse_config(text, ConfigSyntax::kYaml, "f.yaml");
}
Result<ConfigNode> json(std::string_view text) {
  return parse_config(text, ConfigSyntax::kJson, "f.json");
}
std::string failure_of(const Result<ConfigNode>& result) {
  return std::string(result.status().message());
}

TEST(ConfigNodeTest, YamlKeepsScalarsAsTextWithTheirPlace) {
  auto root = yaml("engine:\n  copy_threads: 0x10\n  name: \"5\"\n  transports: [shm, unix]\n");
  ASSERT_TRUE(root.ok()) << root.status().to_string();
  ASSERT_EQ(root->entries.size(), 1U);
  const ConfigNode& engine = root->entries[0].value;
  ASSERT_EQ(engine.entries.size(), 3U);
  EXPECT_EQ(engine.entries[0].value.text, "0x10");
  EXPECT_EQ(engine.entries[0].value.line, 2U);
  EXPECT_EQ(engine.entries[0].value.column, 17U);
  EXPECT_FALSE(engine.entries[0].value.quoted);
  EXPECT_TRUE(engine.entries[1].value.quoted);
  ASSERT_EQ(engine.entries[2].value.items.size(), 2U);
  EXPECT_EQ(engine.entries[2].value.items[1].text, "unix");
}

TEST(ConfigNodeTest, JsonGivesTheSameTree) {
  auto root = json("{\"engine\":\t{\"a\": 5,\n\t\"b\": [\"x\", true], \"c\": null}}");
  ASSERT_TRUE(root.ok()) << root.status().to_string();
  const ConfigNode& engine = root->entries[0].value;
  EXPECT_EQ(engine.entries[0].value.text, "5");
  EXPECT_TRUE(engine.entries[0].value.typed);
  EXPECT_EQ(engine.entries[1].key.line, 2U);
  EXPECT_TRUE(engine.entries[1].value.items[0].quoted);
  EXPECT_TRUE(engine.entries[2].value.is_null());
}

TEST(ConfigNodeTest, AnEmptyDocumentIsAnEmptyMap) {
  for (const char* text : {"", "\n\n", "# only a comment\n"}) {
    auto root = yaml(text);
    ASSERT_TRUE(root.ok()) << root.status().to_string();
    EXPECT_EQ(root->kind, ConfigNode::Kind::kMap);
    EXPECT_TRUE(root->entries.empty());
  }
  EXPECT_TRUE(json(" \n").ok());
  EXPECT_TRUE(json("{}").ok());
}

TEST(ConfigNodeTest, DuplicateKeysAreRefusedWithBothPlaces) {
  EXPECT_EQ(failure_of(yaml("a: 1\nb: 2\n\"a\": 3\n")),
            "f.yaml:3:1: duplicate key `a`; the first stands in line 1");
  EXPECT_EQ(failure_of(json("{\"a\": 1,\n \"a\": 1}")),
            "f.json:2:2: duplicate key `a`; the first stands in line 1");
  EXPECT_TRUE(yaml("a: {x: 1}\nb: {x: 1}\n").ok());
}

TEST(ConfigNodeTest, TagsAnchorsAndAliasesAreRefused) {
  EXPECT_NE(failure_of(yaml("a: !!python/object:os.system x")).find("tags"), std::string::npos);
  EXPECT_NE(failure_of(yaml("a: !!str x")).find("tags"), std::string::npos);
  EXPECT_NE(failure_of(yaml("a: !!map {}")).find("tags"), std::string::npos);
  EXPECT_NE(failure_of(yaml("a: !!seq []")).find("tags"), std::string::npos);
  EXPECT_NE(failure_of(yaml("a: &x 1\nb: *x")).find("f.yaml:1:4: anchors"), std::string::npos);
  EXPECT_NE(failure_of(yaml("b: *x")).find("aliases"), std::string::npos);
  EXPECT_NE(failure_of(yaml("a: &x [1]")).find("anchors"), std::string::npos);
  EXPECT_NE(failure_of(yaml("a: &x {b: 1}")).find("anchors"), std::string::npos);
}

TEST(ConfigNodeTest, ASecondDocumentIsRefused) {
  EXPECT_TRUE(yaml("---\na: 1\n...\n").ok());
  EXPECT_NE(failure_of(yaml("a: 1\n---\nb: 2\n")).find("f.yaml:2:1: a second document"),
            std::string::npos);
}

TEST(ConfigNodeTest, SyntaxErrorsNameTheirPlace) {
  EXPECT_EQ(failure_of(yaml("a: 1\n  b: [2\n")).substr(0, 9), "f.yaml:2:");
  EXPECT_NE(failure_of(json("{\"a\": 1,}")).find("f.json:1:9: not JSON"), std::string::npos)
      << failure_of(json("{\"a\": 1,}"));
  EXPECT_NE(failure_of(json("{\n\"a\": yes}")).find("f.json:2:"), std::string::npos);
  EXPECT_FALSE(json("a: 1").ok());  // YAML is not JSON.
  EXPECT_FALSE(json("{\"a\": 1} x").ok());
  EXPECT_FALSE(yaml("a: \xff\xfe").ok());   // Not UTF-8.
  EXPECT_FALSE(yaml("? [a]\n: 1\n").ok());  // A key that is no word.
}

TEST(ConfigNodeTest, DepthIsBoundedOnBothSides) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + "1" + std::string(depth, ']');
  };
  EXPECT_TRUE(yaml(nested(kMaxConfigDepth)).ok());
  EXPECT_EQ(yaml(nested(kMaxConfigDepth + 1)).status().reason(), Reason::kTooLarge);
  EXPECT_TRUE(json(nested(kMaxConfigDepth)).ok());
  EXPECT_EQ(json(nested(kMaxConfigDepth + 1)).status().reason(), Reason::kTooLarge);
  EXPECT_EQ(json(nested(100000)).status().reason(), Reason::kTooLarge);
}

TEST(ConfigNodeTest, TheNumberOfValuesIsBoundedOnBothSides) {
  const auto list = [](size_t values) {
    std::string text = "[1";
    for (size_t i = 1; i < values; ++i) text += ",1";
    return text + "]";
  };
  EXPECT_TRUE(yaml(list(kMaxConfigNodes - 1)).ok());  // The list is a value too.
  EXPECT_EQ(yaml(list(kMaxConfigNodes)).status().reason(), Reason::kTooLarge);
}

TEST(ConfigNodeTest, TheLengthIsBoundedOnBothSides) {
  EXPECT_TRUE(yaml("#" + std::string(kMaxConfigBytes - 1, 'x')).ok());
  EXPECT_EQ(yaml("#" + std::string(kMaxConfigBytes, 'x')).status().reason(), Reason::kTooLarge);
}

TEST(ConfigNodeTest, FilesAreReadByTheirSuffix) {
  char name[] = "/tmp/sl-config-XXXXXX";
  ASSERT_NE(::mkdtemp(name), nullptr);
  const std::string dir = name;
  std::ofstream(dir + "/a.yaml") << "a: yes\n";
  std::ofstream(dir + "/a.json") << "a: yes\n";
  std::ofstream(dir + "/long.yaml") << "#" << std::string(kMaxConfigBytes, 'x');
  EXPECT_TRUE(read_config_file(dir + "/a.yaml").ok());
  EXPECT_FALSE(read_config_file(dir + "/a.json").ok());
  EXPECT_EQ(read_config_file(dir + "/long.yaml").status().reason(), Reason::kTooLarge);
  EXPECT_EQ(read_config_file(dir + "/none.yaml").status().reason(), Reason::kNotFound);
  EXPECT_NE(failure_of(read_config_file(dir + "/none.yaml")).find(dir), std::string::npos);
  EXPECT_EQ(read_config_file(dir).status().reason(), Reason::kInvalidArgument);
  ASSERT_EQ(::mkfifo((dir + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(read_config_file(dir + "/fifo").status().reason(), Reason::kInvalidArgument);
  fs::remove_all(dir);
}

}  // namespace
}  // namespace stagelink::config
