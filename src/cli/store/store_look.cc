#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/store/store_commands.h"
#include "memory/memory_room.h"
#include "stagelink/object_store.h"
#include "store/shm/arena_listing.h"

namespace stagelink::cli {
namespace {

using store::shm::Arena;
using store::shm::ArenaListing;
using store::shm::ListedObject;
using store::shm::SlotState;

Result<std::shared_ptr<Arena>> open_arena(const StoreArguments& arguments, const char* command) {
  SL_ASSIGN(const StoreOptions options, store_options_of(arguments, /*only_existing=*/true));
  if (options.backend == StoreBackend::kShm) return Arena::open(options.arena);
  return Status(
      Reason::kUnsupported,
      fmt::format("store {} looks into an arena; the datasystem cannot list what it holds",
                  command));
}

const char* state_name(SlotState state) noexcept {
  switch (state) {
    case SlotState::kWriting: return "writing";
    case SlotState::kSealed: return "sealed";
    case SlotState::kRetired: return "held";
    case SlotState::kFree: break;
  }
  return "free";
}

std::string seconds_text(uint64_t ns) {
  return fmt::format("{:.1f}s", static_cast<double>(ns) / 1e9);
}

nlohmann::ordered_json object_json(const ListedObject& object) {
  nlohmann::ordered_json row;
  if (is_plain_text(object.key)) row["key"] = object.key;
  row["key_hex"] = to_hex(object.key);
  row["state"] = state_name(object.state);
  row["bytes"] = object.size;
  row["generation"] = object.generation;
  row["viewers"] = object.viewers;
  if (object.state == SlotState::kWriting) {
    row["writer_pid"] = object.writer_pid;
  } else {
    row["age_seconds"] = static_cast<double>(object.age_ns) / 1e9;
  }
  if (object.expires_ns) row["expires_seconds"] = static_cast<double>(*object.expires_ns) / 1e9;
  return row;
}

int run_ls(const StoreArguments& arguments, const std::string& prefix) {
  auto arena = open_arena(arguments, "ls");
  if (!arena.ok()) return store_failure(arena.status());
  auto listing = store::shm::list_arena(**arena);
  if (!listing.ok()) return store_failure(listing.status());
  std::erase_if(listing->objects,
                [&](const ListedObject& object) { return !object.key.starts_with(prefix); });
  if (arguments.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const ListedObject& object : listing->objects) rows.push_back(object_json(object));
    fmt::print("{}\n", rows.dump(2));
    return kExitOk;
  }
  fmt::print("{:>14} {:>8} {:>7} {:>9} {:>10} {:>9}  key\n", "bytes", "state", "viewers", "age",
             "expires", "put");
  for (const ListedObject& object : listing->objects) {
    fmt::print("{:>14} {:>8} {:>7} {:>9} {:>10} {:>9}  {}\n", object.size, state_name(object.state),
               object.viewers,
               object.state == SlotState::kWriting ? "-" : seconds_text(object.age_ns),
               object.expires_ns ? seconds_text(*object.expires_ns) : "never", object.generation,
               escape_control(object.key));
  }
  return kExitOk;
}

StoreUsage usage_of(Arena& arena, const ArenaListing& listing) {
  const auto& header = arena.map().header();
  StoreUsage usage;
  usage.capacity_bytes = arena.map().geometry().capacity;
  usage.used_bytes = header.used_bytes.get();
  usage.objects = header.objects.get();
  usage.evictions = header.evictions.get();
  usage.expirations = header.expirations.get();
  for (const ListedObject& object : listing.objects) usage.leased += object.viewers > 0 ? 1 : 0;
  return usage;
}

int run_store_stat(const StoreArguments& arguments) {
  auto arena = open_arena(arguments, "stat");
  if (!arena.ok()) return store_failure(arena.status());
  auto listing = store::shm::list_arena(**arena);
  if (!listing.ok()) return store_failure(listing.status());
  const StoreUsage usage = usage_of(**arena, *listing);
  std::vector<int32_t> pids;
  for (const auto& member : listing->members) pids.push_back(member.pid);
  if (arguments.json) {
    const nlohmann::ordered_json out = {{"path", (*arena)->path()},
                                        {"capacity_bytes", usage.capacity_bytes},
                                        {"used_bytes", usage.used_bytes},
                                        {"objects", usage.objects},
                                        {"max_objects", (*arena)->map().max_objects()},
                                        {"leased", usage.leased},
                                        {"evictions", usage.evictions},
                                        {"expirations", usage.expirations},
                                        {"lock_recoveries", listing->recoveries},
                                        {"keep", listing->keep},
                                        {"pids", pids}};
    fmt::print("{}\n", out.dump(2));
    return kExitOk;
  }
  fmt::print("{}\n", (*arena)->path());
  fmt::print("  used         {} of {}\n", memory::readable_bytes(usage.used_bytes),
             memory::readable_bytes(usage.capacity_bytes));
  fmt::print("  objects      {} of {}, {} under a view\n", usage.objects,
             (*arena)->map().max_objects(), usage.leased);
  fmt::print("  evictions    {}\n  expirations  {}\n  recoveries   {}\n", usage.evictions,
             usage.expirations, listing->recoveries);
  fmt::print("  processes    {}{}\n",
             pids.empty() ? "none" : fmt::format("{}", fmt::join(pids, " ")),
             listing->keep ? "; kept when the last one leaves" : "");
  return kExitOk;
}

int run_clear(const StoreArguments& arguments, bool remove) {
  auto arena = open_arena(arguments, "clear");
  if (!arena.ok()) return store_failure(arena.status());
  auto erased = store::shm::clear_arena(**arena, remove);
  if (!erased.ok()) return store_failure(erased.status());
  if (arguments.json) {
    fmt::print("{}\n", nlohmann::json{{"erased", *erased}}.dump());
  } else {
    fmt::print("{} objects erased\n", *erased);
  }
  return kExitOk;
}

}  // namespace

void add_store_stat(CLI::App& store, int& exit_code) {
  CLI::App* const command = store.add_subcommand("stat", "What an arena holds and who uses it");
  const auto arguments = add_store_arguments(*command);
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments, &exit_code] { exit_code = run_store_stat(*arguments); });
}

void add_store_ls(CLI::App& store, int& exit_code) {
  CLI::App* const command = store.add_subcommand("ls", "The objects of an arena, the oldest first");
  const auto arguments = add_store_arguments(*command);
  const auto prefix = std::make_shared<std::string>();
  command->add_option("prefix", *prefix, "Only keys that begin so");
  command->add_flag("--json", arguments->json, "Print a JSON list");
  command->callback([arguments, prefix, &exit_code] { exit_code = run_ls(*arguments, *prefix); });
}

void add_store_clear(CLI::App& store, int& exit_code) {
  CLI::App* const command = store.add_subcommand("clear", "Erase all objects of an arena");
  const auto arguments = add_store_arguments(*command);
  const auto remove = std::make_shared<bool>(false);
  command->add_flag("--remove", *remove, "The arena goes with its last user, `keep` or not");
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback(
      [arguments, remove, &exit_code] { exit_code = run_clear(*arguments, *remove); });
}

}  // namespace stagelink::cli
