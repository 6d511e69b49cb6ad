#include "config/engine_config.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/log.h"
#include "config/store_config.h"

namespace stagelink::config {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

class EngineConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/sl-config-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    dir_ = name;
  }
  void TearDown() override {
    for (const std::string& name : variables_) ::unsetenv(name.c_str());
    fs::remove_all(dir_);
  }

  void set_variable(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    variables_.insert(name);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ + "/" + name) << text;
    return dir_ + "/" + name;
  }
  Result<EngineOptions> load_file(const std::string& text, const char* name = "e.yaml") const {
    return load_engine_options({.file = write(name, text), .environment = false, .arguments = {}});
  }
  // The message without the path of the file.
  std::string failure_of(const std::string& text, const char* name = "e.yaml") const {
    const auto options = load_file(text, name);
    const std::string message(options.status().message());
    const std::string prefix = dir_ + "/" + name + ":";
    return message.starts_with(prefix) ? message.substr(prefix.size()) : message;
  }

  std::string dir_;
  std::set<std::string> variables_;
};

TEST_F(EngineConfigTest, AYamlFileSetsOptions) {
  auto options = load_file(
      "engine:\n  name: decode-0\n  transports: [unix]\n  inline_bytes: 1GB\n"
      "  transfer_timeout: 200ms\n  copy_threads: 3\n  pin: require\n  huge_pages: off\n"
      "  numa_node: -1\n");
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->name, "decode-0");
  EXPECT_EQ(options->transports, std::vector<std::string>{"unix"});
  EXPECT_EQ(options->inline_bytes, 1'000'000'000U);
  EXPECT_EQ(options->transfer_timeout, milliseconds(200));
  EXPECT_EQ(options->copy_threads, 3U);
  EXPECT_EQ(options->pin, Effort::kRequire);
  EXPECT_EQ(options->huge_pages, Effort::kOff);
  EXPECT_EQ(options->slice_bytes, EngineOptions().slice_bytes);
}

TEST_F(EngineConfigTest, AJsonFileSetsOptions) {
  auto options = load_file(
      R"({"engine": {"name": "d", "copy_threads": 3, "inline_bytes": 4096, "slice_bytes": "64KiB",
          "transports": ["unix", "shm"], "prefault": "off"}})",
      "e.json");
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->name, "d");
  EXPECT_EQ(options->copy_threads, 3U);
  EXPECT_EQ(options->inline_bytes, 4096U);
  EXPECT_EQ(options->slice_bytes, 65536U);
  EXPECT_EQ(options->transports, (std::vector<std::string>{"unix", "shm"}));
  EXPECT_EQ(options->prefault, Effort::kOff);
}

TEST_F(EngineConfigTest, AnEmptyFileGivesTheDefaults) {
  for (const char* text : {"", "# nothing\n", "engine:\n", "engine: {}\n", "{}"}) {
    auto options = load_file(text);
    ASSERT_TRUE(options.ok()) << text << options.status().to_string();
    EXPECT_EQ(to_text(*options), to_text(EngineOptions()));
  }
}

TEST_F(EngineConfigTest, AMisspeltKeyNamesItsPlaceAndTheNearestName) {
  EXPECT_EQ(failure_of("engine:\n  name: x\n  tranfer_timeout_ms: 5\n"),
            "3:3: unknown option `tranfer_timeout_ms`; did you mean `transfer_timeout`?");
  EXPECT_EQ(load_file("engine:\n  tranfer_timeout_ms: 5\n").status().reason(), Reason::kUnknownKey);
  EXPECT_EQ(failure_of("engine:\n  colour: red\n"), "2:3: unknown option `colour`");
  EXPECT_EQ(failure_of("{\"engine\": {\"nane\": \"x\"}}", "e.json"),
            "1:13: unknown option `nane`; did you mean `name`?");
}

TEST_F(EngineConfigTest, AKeyAtTheWrongLevelSaysWhereItBelongs) {
  EXPECT_EQ(failure_of("copy_threads: 2\n"),
            "1:1: `copy_threads` stands at the top level; it belongs under `engine:`");
  EXPECT_EQ(failure_of("engin:\n  name: x\n"),
            "1:1: unknown section `engin`; did you mean `engine`?");
  EXPECT_EQ(failure_of("other:\n  name: x\n"),
            "1:1: unknown section `other`; there are `engine`, `store`");
  EXPECT_EQ(failure_of("engine:\n  engine:\n    name: x\n"), "2:3: unknown option `engine`");
  EXPECT_NE(failure_of("engine:\n  bind:\n    host: x\n").find("3:5: bind: expected a text"),
            std::string::npos);
  EXPECT_NE(failure_of("engine: 5\n").find("1:9: engine: expected a map"), std::string::npos);
  EXPECT_NE(failure_of("[engine]\n").find("1:1: expected a map"), std::string::npos);
}

TEST_F(EngineConfigTest, DuplicateKeysAreRefused) {
  EXPECT_NE(failure_of("engine:\n  name: a\n  name: b\n").find("3:3: duplicate key `name`"),
            std::string::npos);
  EXPECT_NE(failure_of("engine: {}\nengine: {}\n").find("duplicate key `engine`"),
            std::string::npos);
}

TEST_F(EngineConfigTest, WrongValuesNamePlaceOptionValueAndWhatIsExpected) {
  EXPECT_EQ(failure_of("engine:\n  copy_threads: many\n"),
            "2:17: copy_threads: `many` is not an integer from 0 to 64");
  EXPECT_EQ(failure_of("engine:\n  transfer_timeout: 10\n"),
            "2:21: transfer_timeout: `10` is not a duration from 1ms to 8760h: `10` is not a "
            "duration such as 200ms, 5s or 2min (a duration needs a unit: ns us ms s min h)");
  EXPECT_NE(failure_of("engine:\n  inline_bytes: 1e9\n").find("write 1GB"), std::string::npos);
  EXPECT_NE(failure_of("engine:\n  pin: maybe\n").find("one of off, try, require"),
            std::string::npos);
  EXPECT_NE(failure_of("engine:\n  transports: [shm, rdma]\n").find("`rdma` is not a list"),
            std::string::npos);
  EXPECT_NE(failure_of("engine:\n  transports: [shm, shm]\n").find("twice"), std::string::npos);
  EXPECT_NE(failure_of("engine:\n  transports: []\n").find("0 entries"), std::string::npos);
  EXPECT_NE(failure_of("engine:\n  transports: [[shm]]\n").find("no text"), std::string::npos);
  EXPECT_NE(failure_of("engine:\n  copy_threads: [1]\n").find("found a list"), std::string::npos);
  EXPECT_NE(failure_of("engine:\n  name:\n").find("no value"), std::string::npos);
  EXPECT_NE(failure_of("engine:\n  bind: localhost\n").find("2:9: bind: `localhost`"),
            std::string::npos);
  EXPECT_NE(failure_of("engine:\n  name: \"a\\nb\"\n").find("control characters"),
            std::string::npos);
}

TEST_F(EngineConfigTest, JsonTypesAreNotBent) {
  const auto refused = [this](const std::string& pair) {
    return !load_file("{\"engine\": {" + pair + "}}", "e.json").ok();
  };
  EXPECT_TRUE(refused("\"name\": 5"));
  EXPECT_TRUE(refused("\"name\": true"));
  EXPECT_TRUE(refused("\"name\": null"));
  EXPECT_TRUE(refused("\"transports\": [1]"));
  EXPECT_TRUE(refused("\"copy_threads\": 2.0"));
  EXPECT_TRUE(refused("\"copy_threads\": 1e1"));
  EXPECT_TRUE(refused("\"copy_threads\": true"));
  EXPECT_TRUE(refused("\"transfer_timeout\": 5"));
}

TEST_F(EngineConfigTest, TextInQuotesIsReadByTheTypeOfTheOption) {
  EXPECT_EQ(load_file("engine:\n  copy_threads: \"5\"\n")->copy_threads, 5U);
  EXPECT_EQ(load_file("engine:\n  name: 5\n")->name, "5");
  EXPECT_EQ(load_file("engine:\n  name: \"\"\n")->name, "");
  EXPECT_EQ(load_file("engine:\n  transports: unix, shm\n")->transports,
            (std::vector<std::string>{"unix", "shm"}));
}

TEST_F(EngineConfigTest, LaterSourcesWin) {
  const std::string file = write("e.yaml",
                                 "engine:\n  copy_threads: 1\n  max_peers: 11\n"
                                 "  max_regions: 101\n");
  set_variable("STAGELINK_MAX_PEERS", "12");
  set_variable("STAGELINK_MAX_REGIONS", "102");
  set_variable("STAGELINK_NAME", "");  // Counts as unset.
  auto options = load_engine_options({file, true, {"max_regions=103", "name="}});
  ASSERT_TRUE(options.ok()) << options.status().to_string();
  EXPECT_EQ(options->copy_threads, 1U);
  EXPECT_EQ(options->max_peers, 12U);
  EXPECT_EQ(options->max_regions, 103U);
  EXPECT_EQ(load_engine_options({file, false, {}})->max_peers, 11U);
}

TEST_F(EngineConfigTest, TheFileMayBeNamedByTheEnvironment) {
  set_variable("STAGELINK_CONFIG", write("e.yaml", "engine:\n  copy_threads: 7\n"));
  EXPECT_EQ(load_engine_options({})->copy_threads, 7U);
  set_variable("STAGELINK_CONFIG", dir_ + "/none.yaml");
  EXPECT_EQ(load_engine_options({}).status().code(), Code::kNotFound);
}

TEST_F(EngineConfigTest, EveryOptionCanBeSetByItsVariable) {
  const EngineOptions defaults;
  for (const OptionRow& row : engine_option_table().rows) {
    std::string variable = "STAGELINK_";
    for (const char c : row.name) variable += static_cast<char>(std::toupper(c));
    EngineOptions changed;
    // A value of the row's type that differs from the default.
    std::string value;
    for (const char* candidate :
         {"localhost:7", "unix", "require", "true", "7s", "8192", "7", "/tmp/x"}) {
      if (set_option(changed, row.name, candidate).ok() &&
          value_text(row, &changed) != value_text(row, &defaults)) {
        value = candidate;
        break;
      }
    }
    ASSERT_NE(value, "") << row.name;
    set_variable(variable, value);
    auto options = load_engine_options({});
    ::unsetenv(variable.c_str());
    ASSERT_TRUE(options.ok()) << row.name << ": " << options.status().to_string();
    EXPECT_EQ(to_text(*options), to_text(changed)) << row.name;
  }
}

TEST_F(EngineConfigTest, ABadVariableIsNamed) {
  set_variable("STAGELINK_COPY_THREADS", "65");
  const auto options = load_engine_options({});
  EXPECT_EQ(options.status().message(),
            "STAGELINK_COPY_THREADS: copy_threads: `65` is not an integer from 0 to 64");
}

TEST_F(EngineConfigTest, AVariableThatIsNearlyAnOptionIsWarnedOf) {
  set_variable("STAGELINK_COPY_THREAD", "2");
  set_variable("STAGELINK_SERVICE_HOST", "10.0.0.1");  // Kubernetes.
  testing::internal::CaptureStderr();
  const auto options = load_engine_options({});
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(options.ok());
  EXPECT_NE(warning.find("did you mean STAGELINK_COPY_THREADS?"), std::string::npos) << warning;
  EXPECT_EQ(warning.find("SERVICE_HOST"), std::string::npos);
}

TEST_F(EngineConfigTest, ArgumentsAreCheckedLikeEverythingElse) {
  const auto failure = [](std::vector<std::string> arguments) {
    return std::string(load_engine_options({"", false, std::move(arguments)}).status().message());
  };
  EXPECT_EQ(failure({"copy_threads"}), "--option copy_threads: expected name=value");
  EXPECT_EQ(failure({"copy_thread=1"}),
            "--option copy_thread: unknown option `copy_thread`; did you mean `copy_threads`?");
  EXPECT_EQ(failure({"pin=try", "pin=off"}), "--option pin: pin: given twice");
  EXPECT_EQ(failure({"copy_threads=x"}),
            "--option copy_threads: copy_threads: `x` is not an integer from 0 to 64");
}

TEST_F(EngineConfigTest, BothSidesOfEveryRange) {
  for (const OptionRow& row : engine_option_table().rows) {
    if (row.type != OptionType::kInteger && row.type != OptionType::kBytes) continue;
    EngineOptions options;
    EXPECT_TRUE(set_option_value(options, row.name, row.min).ok()) << row.name;
    EXPECT_TRUE(check_engine_options(options).ok()) << row.name;
    EXPECT_FALSE(set_option_value(options, row.name, row.min - 1).ok()) << row.name;
    EXPECT_TRUE(set_option(options, row.name, std::to_string(row.max)).ok()) << row.name;
    EXPECT_TRUE(check_engine_options(options).ok()) << row.name;
    EXPECT_FALSE(
        set_option(options, row.name, std::to_string(static_cast<uint64_t>(row.max) + 1)).ok())
        << row.name;
  }
}

TEST_F(EngineConfigTest, BothSidesOfEveryDuration) {
  for (const OptionRow& row : engine_option_table().rows) {
    if (row.type != OptionType::kDuration) continue;
    const auto set = [&row](int64_t ns) {
      EngineOptions options;
      return set_option(options, row.name, std::to_string(ns) + "ns").ok();
    };
    EXPECT_TRUE(set(row.min) && set(row.max)) << row.name;
    EXPECT_FALSE(set(row.min - 1) || set(row.max + 1)) << row.name;
  }
}

TEST_F(EngineConfigTest, BothSidesOfEveryLength) {
  EngineOptions options;
  EXPECT_TRUE(set_option(options, "name", std::string(128, 'n')).ok());
  EXPECT_FALSE(set_option(options, "name", std::string(129, 'n')).ok());
  EXPECT_TRUE(set_option(options, "runtime_dir", std::string(85, 'd')).ok());
  EXPECT_FALSE(set_option(options, "runtime_dir", std::string(86, 'd')).ok());
  EXPECT_FALSE(set_option(options, "bind", "").ok());
}

TEST_F(EngineConfigTest, AFailedSetLeavesTheFieldAlone) {
  EngineOptions options;
  options.copy_threads = 5;
  EXPECT_FALSE(set_option(options, "copy_threads", "65").ok());
  EXPECT_FALSE(set_option(options, "transports", "shm,x").ok());
  EXPECT_EQ(options.copy_threads, 5U);
  EXPECT_EQ(options.transports, EngineOptions().transports);
}

TEST_F(EngineConfigTest, TypedValuesMustBeOfTheType) {
  EngineOptions options;
  EXPECT_TRUE(set_option_value(options, "copy_threads", int64_t{3}).ok());
  EXPECT_TRUE(set_option_value(options, "inline_bytes", int64_t{4096}).ok());
  EXPECT_TRUE(set_option_value(options, "inline_bytes", std::string("4KiB")).ok());
  EXPECT_TRUE(set_option_value(options, "transports", std::vector<std::string>{"unix"}).ok());
  EXPECT_TRUE(set_option_value(options, "pin", false).ok());
  EXPECT_FALSE(set_option_value(options, "pin", true).ok());
  EXPECT_FALSE(set_option_value(options, "copy_threads", true).ok());
  EXPECT_FALSE(set_option_value(options, "name", int64_t{5}).ok());
  EXPECT_FALSE(set_option_value(options, "name", std::vector<std::string>{"x"}).ok());
  EXPECT_FALSE(set_option_value(options, "transports", int64_t{1}).ok());
  const Status bare = set_option_value(options, "transfer_timeout", int64_t{5});
  EXPECT_NE(bare.message().find("needs a unit"), std::string_view::npos);
  EXPECT_EQ(set_option_value(options, "wait", true).reason(), Reason::kUnknownKey);
}

TEST_F(EngineConfigTest, OptionsFilledInByCodeAreChecked) {
  EXPECT_TRUE(check_engine_options(EngineOptions()).ok());
  EngineOptions options;
  options.slice_bytes = 4095;
  EXPECT_NE(check_engine_options(options).message().find("slice_bytes: `4095` is not a size"),
            std::string_view::npos);
  options = {};
  options.transports = {"carrier-pigeon"};
  EXPECT_FALSE(check_engine_options(options).ok());
  options = {};
  options.transfer_timeout = seconds(-1);
  EXPECT_FALSE(check_engine_options(options).ok());
  options = {};
  options.pin = static_cast<Effort>(3);
  EXPECT_FALSE(check_engine_options(options).ok());
  options = {};
  options.name = "a\nb";
  EXPECT_FALSE(check_engine_options(options).ok());
  options = {};
  options.numa_node = -2;
  EXPECT_FALSE(check_engine_options(options).ok());
}

TEST_F(EngineConfigTest, TheTextReadsBackToTheSameOptions) {
  EngineOptions options;
  options.name = "a \"quoted\" \\ name: # with everything";
  options.transports = {"unix"};
  options.transfer_timeout = std::chrono::nanoseconds(1'000'001);
  options.inline_bytes = 4097;
  options.pin = Effort::kRequire;
  options.numa_node = -1;
  auto again = load_file(to_text(options));
  ASSERT_TRUE(again.ok()) << again.status().to_string() << to_text(options);
  EXPECT_EQ(to_text(*again), to_text(options));
  EXPECT_EQ(again->name, options.name);
  EXPECT_EQ(again->transfer_timeout, options.transfer_timeout);
}

// A control character of the second block, both separators, a byte order mark, a non-character, and
// a byte that is not UTF-8.
constexpr std::string_view kNotPlain[] = {"\xc2\x99",     "\xc2\x85",     "\xe2\x80\xa8",
                                          "\xe2\x80\xa9", "\xef\xbb\xbf", "\xef\xbf\xbe"};

TEST_F(EngineConfigTest, TextThatIsNotPlainIsRefusedFromEverySource) {
  EXPECT_EQ(failure_of("engine:\n  runtime_dir: \"\\x99\"\n"),
            "2:16: runtime_dir: `\\xc2\\x99` is not a text of 0 to 85 bytes: it is not UTF-8, or "
            "holds control characters, line separators, byte order marks or non-characters");
  EXPECT_FALSE(load_file("engine:\n  name: a\xef\xbb\xbf\n").ok());
  EXPECT_FALSE(load_file("{\"engine\": {\"name\": \"a\\ufffe\"}}", "e.json").ok());
  for (const std::string_view text : kNotPlain) {
    const std::string value = "a" + std::string(text) + "b";
    set_variable("STAGELINK_NAME", value);
    EXPECT_FALSE(load_engine_options({}).ok());
    ::unsetenv("STAGELINK_NAME");
    EXPECT_FALSE(load_engine_options({"", false, {"name=" + value}}).ok());
    EngineOptions options;
    EXPECT_FALSE(set_option(options, "runtime_dir", value).ok());
    EXPECT_FALSE(set_option_value(options, "transports", std::vector<std::string>{value}).ok());
    options.name = value;  // As the library's users fill in the struct.
    EXPECT_EQ(check_engine_options(options).reason(), Reason::kInvalidArgument);
  }
  EngineOptions options;
  EXPECT_NE(set_option(options, "name", "a\xff").message().find("name: `a\\xff` is not a text"),
            std::string_view::npos);
}

TEST_F(EngineConfigTest, PlainTextOfEveryLengthReadsBack) {
  EngineOptions options;
  // Beside what is refused: U+00A0, U+2027, U+202A, U+FFFD, U+10FFFD, and letters of 1 to 4 bytes.
  options.name = "~\xc2\xa0\xe2\x80\xa7\xe2\x80\xaa\xef\xbf\xbd\xf4\x8f\xbf\xbd";
  options.runtime_dir = "/a \xc3\xa4/\xe6\xbc\xa2/\xf0\x9f\x98\x80";
  ASSERT_TRUE(check_engine_options(options).ok()) << check_engine_options(options).to_string();
  auto again = load_file(to_text(options));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->name, options.name);
  EXPECT_EQ(again->runtime_dir, options.runtime_dir);
}

TEST_F(EngineConfigTest, EveryAdvertiseFormIsChecked) {
  EngineOptions options;
  for (const char* good : {"", "host", "host:80", "10.0.0.1", "[::1]:80", "[::1]"}) {
    EXPECT_TRUE(set_option(options, "advertise", good).ok()) << good;
  }
  for (const char* bad : {"host:99999", "::1", "[::1", "a b", "host:"}) {
    EXPECT_FALSE(set_option(options, "advertise", bad).ok()) << bad;
  }
}

TEST(OptionsPageTest, TheCommittedPageIsTheGeneratedOne) {
  std::ifstream file(std::string(STAGELINK_SOURCE_DIR) + "/docs/options.md");
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(committed.str(), engine_options_page())
      << "run: stagelink config docs > docs/options.md";
}

TEST(OptionsPageTest, ItsExampleOfAFileLoads) {
  const std::string page = engine_options_page();
  const std::string fence = "```yaml\n";
  const size_t begin = page.find(fence);
  ASSERT_NE(begin, std::string::npos);
  const size_t end = page.find("```", begin + fence.size());
  auto root = parse_config(page.substr(begin + fence.size(), end - begin - fence.size()),
                           ConfigSyntax::kYaml, "example");
  ASSERT_TRUE(root.ok()) << root.status().to_string();
  EngineOptions options;
  const Status status = apply_config(engine_option_table(), *root, "example", &options);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(options.name, "decode-0");
}

struct FieldSize {
  template <typename T>
  size_t operator()(const T*) const {
    return sizeof(T);
  }
  size_t operator()(ChoiceField) const { return 1; }
};

struct FieldAddress {
  template <typename T>
  const char* operator()(const T* field) const {
    return reinterpret_cast<const char*>(field);
  }
  const char* operator()(ChoiceField field) const {
    return reinterpret_cast<const char*>(field.value);
  }
};

// Adding a field to the options without a row fails here: the rows cover the struct without holes
// larger than padding.
template <typename Options>
void expect_a_row_for_every_field(const OptionTable& table) {
  Options options;
  std::map<size_t, size_t> fields;  // Offset to size.
  std::set<std::string_view> names;
  for (const OptionRow& row : table.rows) {
    const OptionField field = row.field(&options);
    const char* address = std::visit(FieldAddress{}, field);
    const auto offset = static_cast<size_t>(address - reinterpret_cast<const char*>(&options));
    EXPECT_TRUE(fields.emplace(offset, std::visit(FieldSize{}, field)).second) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.text.empty()) << row.name;
  }
  size_t end = 0;
  for (const auto& [offset, size] : fields) {
    EXPECT_LT(offset - end, sizeof(uint64_t)) << "a field before offset " << offset;
    end = offset + size;
  }
  EXPECT_LT(sizeof(Options) - end, sizeof(uint64_t));
}

TEST(OptionTableTest, EveryFieldHasExactlyOneRow) {
  expect_a_row_for_every_field<EngineOptions>(engine_option_table());
  expect_a_row_for_every_field<StoreOptions>(store_option_table());
}

}  // namespace
}  // namespace stagelink::config
