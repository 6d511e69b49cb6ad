#include <cstdio>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/store/store_commands.h"
#include "stagelink/object_store.h"

namespace stagelink::cli {
namespace {

struct GetArguments {
  std::string key;
  std::string output;
  std::string timeout = "0s";
  bool hex = false;
};

struct RmArguments {
  std::vector<std::string> keys;
  uint64_t generation = 0;
  bool hex = false;
};

Status write_out(const ObjectView& view, const std::string& path) {
  const auto bytes = view.bytes();
  if (path.empty() || path == "-") {
    const size_t written = bytes.empty() ? 0 : std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    if (written == bytes.size() && std::fflush(stdout) == 0) return {};
    return Status(Reason::kSystem, "writing to standard output failed");
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  file.close();
  return file ? Status() : Status(Reason::kSystem, "writing " + path + " failed");
}

int run_get(const StoreArguments& arguments, const GetArguments& get) {
  auto timeout = parse_duration(get.timeout);
  if (!timeout.ok()) return store_failure(timeout.status());
  auto key = store_key(get.key, get.hex);
  if (!key.ok()) return store_failure(key.status());
  auto options = store_options_of(arguments, /*only_existing=*/true);
  if (!options.ok()) return store_failure(options.status());
  auto store = ObjectStore::open(*options);
  if (!store.ok()) return store_failure(store.status());
  auto view = (*store)->get(*key, *timeout);
  if (!view.ok()) return store_failure(view.status());
  if (arguments.json) {
    const nlohmann::ordered_json out = {{"key_hex", to_hex(*key)},
                                        {"bytes", view->bytes().size()},
                                        {"generation", view->generation()}};
    fmt::print("{}\n", out.dump());
    if (get.output.empty()) return kExitOk;
  }
  const Status written = write_out(*view, get.output);
  return written.ok() ? kExitOk : store_failure(written);
}

int run_rm(const StoreArguments& arguments, const RmArguments& rm) {
  auto options = store_options_of(arguments, /*only_existing=*/true);
  if (!options.ok()) return store_failure(options.status());
  auto store = ObjectStore::open(*options);
  if (!store.ok()) return store_failure(store.status());
  uint64_t erased = 0;
  int exit_code = kExitOk;
  for (const std::string& text : rm.keys) {
    auto key = store_key(text, rm.hex);
    if (!key.ok()) return store_failure(key.status());
    auto there = (*store)->exists(*key);
    Status status = there.status();
    if (there.ok() && !*there) status = Status(Reason::kNotFound, "key " + escape_control(text));
    if (status.ok()) status = (*store)->erase(*key, rm.generation);
    if (status.ok()) {
      ++erased;
    } else {
      exit_code = store_failure(status);
    }
  }
  if (arguments.json) fmt::print("{}\n", nlohmann::json{{"erased", erased}}.dump());
  return exit_code;
}

}  // namespace

void add_store_get(CLI::App& store, int& exit_code) {
  CLI::App* const command = store.add_subcommand("get", "Write the bytes of an object");
  const auto arguments = add_store_arguments(*command);
  const auto get = std::make_shared<GetArguments>();
  command->add_option("key", get->key, "The object's key")->required();
  command->add_option("-o,--output", get->output, "A file; default: standard output");
  command->add_option("--timeout", get->timeout, "Wait so long for its put (default 0s)");
  command->add_flag("--hex", get->hex, "The key is given in hex digits");
  command->add_flag("--json", arguments->json,
                    "Print size and generation as one JSON object; the bytes only with -o");
  command->callback([arguments, get, &exit_code] { exit_code = run_get(*arguments, *get); });
}

void add_store_rm(CLI::App& store, int& exit_code) {
  CLI::App* const command = store.add_subcommand("rm", "Erase objects");
  const auto arguments = add_store_arguments(*command);
  const auto rm = std::make_shared<RmArguments>();
  command->add_option("keys", rm->keys, "Their keys")->required();
  command->add_option("--generation", rm->generation, "Only the put of this generation");
  command->add_flag("--hex", rm->hex, "The keys are given in hex digits");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments, rm, &exit_code] { exit_code = run_rm(*arguments, *rm); });
}

}  // namespace stagelink::cli
