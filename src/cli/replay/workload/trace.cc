#include "cli/replay/workload/trace.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "base/unique_fd.h"

namespace stagelink::cli::replay {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxShownBytes = 40;

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) text = text.substr(0, kMaxShownBytes) + "...";
  return text;
}

Status bad_field(const std::string& where, const char* field, const std::string& what) {
  return Status(Reason::kInvalidArgument, fmt::format("{}: field {}: {}", where, field, what));
}

struct Field {
  const char* name;
  uint64_t max;
};

Result<uint64_t> read_number(const Json& object, const Field& field, const std::string& where) {
  const auto found = object.find(field.name);
  if (found == object.end()) return bad_field(where, field.name, "missing");
  if (!found->is_number_unsigned()) {
    return bad_field(where, field.name,
                     fmt::format("{} is not a whole number of 0 or more", shown(*found)));
  }
  const auto value = found->get<uint64_t>();
  if (value > field.max) {
    return bad_field(where, field.name, fmt::format("{} is above {}", value, field.max));
  }
  return value;
}

Result<std::vector<uint64_t>> read_ids(const Json& object, uint64_t input_tokens,
                                       const std::string& where) {
  constexpr const char* kName = "hash_ids";
  const auto found = object.find(kName);
  if (found == object.end()) return bad_field(where, kName, "missing");
  if (!found->is_array()) return bad_field(where, kName, shown(*found) + " is not a list");
  const uint64_t expected = (input_tokens + kTokensPerId - 1) / kTokensPerId;
  if (found->size() != expected) {
    return bad_field(where, kName,
                     fmt::format("{} ids, but input_length {} needs {} of {} tokens each",
                                 found->size(), input_tokens, expected, kTokensPerId));
  }
  std::vector<uint64_t> ids;
  ids.reserve(found->size());
  for (const Json& id : *found) {
    if (!id.is_number_unsigned()) {
      return bad_field(where, kName,
                       fmt::format("{} is not a whole number of 0 or more", shown(id)));
    }
    ids.push_back(id.get<uint64_t>());
  }
  return ids;
}

}  // namespace

Result<TraceRequest> parse_trace_line(const std::string& line, const std::string& where) {
  Json object;
  try {
    object = Json::parse(line);
  } catch (const Json::exception& error) {
    return Status(Reason::kInvalidArgument, fmt::format("{}: not JSON: {}", where, error.what()));
  }
  if (!object.is_object()) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("{}: {} is not a JSON object", where, shown(object)));
  }
  SL_ASSIGN(const uint64_t timestamp, read_number(object, {"timestamp", uint64_t{1} << 53}, where));
  SL_ASSIGN(const uint64_t input,
            read_number(object, {"input_length", TraceReader::kMaxTokens}, where));
  if (input == 0) return bad_field(where, "input_length", "0 is below 1");
  SL_ASSIGN(const uint64_t output,
            read_number(object, {"output_length", TraceReader::kMaxTokens}, where));
  SL_ASSIGN(auto ids, read_ids(object, input, where));
  return TraceRequest{timestamp, static_cast<uint32_t>(input), static_cast<uint32_t>(output),
                      std::move(ids)};
}

TraceReader::TraceReader(std::string path, std::ifstream file)
    : path_(std::move(path)), file_(std::move(file)), line_(kMaxLineBytes + 1, '\0') {}

Result<TraceReader> TraceReader::open(const std::string& path) {
  const auto failure = [&path](int error) {
    const Reason reason = error == ENOENT   ? Reason::kNotFound
                          : error == EACCES ? Reason::kPermission
                                            : Reason::kSystem;
    return Status(reason, fmt::format("cannot open the trace {}: {}", path, std::strerror(error)));
  };
  // Not blocking: a FIFO would wait for a writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return failure(errno);
  if (!S_ISREG(info.st_mode)) {
    return Status(Reason::kInvalidArgument,
                  fmt::format("trace {} is {}, not a regular file", path,
                              S_ISDIR(info.st_mode) ? "a directory" : "a device, socket or pipe"));
  }
  errno = 0;
  // The same file, whatever its path means by now.
  std::ifstream file(fmt::format("/proc/self/fd/{}", fd.get()));
  if (!file) return failure(errno);
  return TraceReader(path, std::move(file));
}

Result<std::optional<TraceRequest>> TraceReader::next() {
  for (;;) {
    file_.getline(line_.data(), static_cast<std::streamsize>(line_.size()));
    const auto count = static_cast<size_t>(file_.gcount());
    if (file_.bad()) {
      return Status(Reason::kSystem, fmt::format("reading {}: {}", path_, std::strerror(errno)));
    }
    if (file_.fail() && count == 0) return std::optional<TraceRequest>();  // End of the file.
    ++line_number_;
    const std::string where = fmt::format("{}:{}", path_, line_number_);
    if (file_.fail()) {
      return Status(Reason::kTooLarge,
                    fmt::format("{}: the line is longer than {} bytes", where, kMaxLineBytes));
    }
    // gcount() includes the newline, unless the file ends without one.
    const std::string line(line_.data(), file_.eof() ? count : count - 1);
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      if (file_.eof()) return std::optional<TraceRequest>();
      continue;
    }
    SL_ASSIGN(auto request, parse_trace_line(line, where));
    return std::optional<TraceRequest>(std::move(request));
  }
}

}  // namespace stagelink::cli::replay
