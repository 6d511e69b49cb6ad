#include "integration/connector/io/io_target.h"

#include <sstream>

#include "integration/support/options_blob.h"
#include "integration/support/unseen.h"

namespace stagelink::test {
namespace {

using moriio::IoEngine;
using moriio::MemoryDesc;

constexpr const char* kNothing = "nothing";

// The other process: answers one question after the other.
class Target {
 public:
  Target(std::unique_ptr<IoEngine> engine, std::span<std::byte> bytes) noexcept
      : engine_(std::move(engine)), bytes_(bytes) {}

  std::string answer(const std::string& question) {
    std::istringstream in(question);
    std::string word;
    std::string key;
    uint64_t id = 0;
    in >> word;
    if (word == "pop" || word == "look") {
      in >> key >> id;
      std::optional<moriio::StatusRef> status;
      const auto found = [&] {
        status = engine_->pop_inbound_transfer_status(key, id);
        return status.has_value();
      };
      if (word == "look" ? !found() : !eventually(found)) return kNothing;
      return std::to_string(static_cast<uint32_t>((*status)->code()));
    }
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t seed = 0;
    in >> offset >> bytes >> seed;
    const UnseenByTsan unseen;  // The test says when its writes are over.
    const auto wrong = stagelink::test::first_wrong(bytes_.subspan(offset, bytes), seed, offset);
    return wrong.has_value() ? std::to_string(*wrong) : kNothing;
  }

 private:
  std::unique_ptr<IoEngine> engine_;
  std::span<std::byte> bytes_;
};

IoTargetSetup read_setup(std::span<const std::byte> blob) {
  ByteReader in(blob);
  IoTargetSetup setup;
  visit_options(setup.options, OptionsReader(in));
  setup.port = in.get<uint16_t>();
  setup.backend = in.get<moriio::BackendType>();
  setup.allocated = in.get<uint8_t>() != 0;
  setup.bytes = in.get<uint64_t>();
  setup.seed = in.get<uint64_t>();
  return setup;
}

std::vector<std::byte> write_setup(const IoTargetSetup& setup) {
  ByteWriter out;
  visit_options(setup.options, OptionsWriter(out));
  out.put(setup.port);
  out.put(setup.backend);
  out.put(static_cast<uint8_t>(setup.allocated));
  out.put(setup.bytes);
  out.put(setup.seed);
  return out.take();
}

int run_target(Channel& parent) {
  const auto blob = parent.receive();
  if (!blob.has_value()) return 1;
  const IoTargetSetup setup = read_setup(*blob);
  auto engine = must(IoEngine::create(
      setup.options.name, {.host = "127.0.0.1", .port = setup.port, .engine = setup.options}));
  if (!engine->create_backend(setup.backend).ok()) return 2;
  std::shared_ptr<Region> region;
  std::optional<PrivateMemory> memory;
  std::span<std::byte> bytes;
  if (setup.allocated) {
    region = must(engine->allocate(setup.bytes));
    bytes = region->bytes();
  } else {
    memory.emplace(setup.bytes);
    bytes = memory->bytes();
  }
  fill_pattern(bytes, setup.seed);
  const MemoryDesc desc =
      must(engine->register_memory(bytes.data(), bytes.size(), -1, moriio::MemoryLocation::kCpu));
  parent.send(engine->engine_desc().pack());
  parent.send(desc.pack());
  Target target(std::move(engine), bytes);
  while (const auto question = parent.receive_text(60s)) parent.send(target.answer(*question));
  return 0;
}

const RoleRegistration kRole("io_target", &run_target);

template <typename Desc>
Desc receive_desc(Channel& channel) {
  const auto blob = channel.receive();
  if (!blob.has_value()) throw std::runtime_error("the target did not start");
  return must(Desc::unpack(*blob));
}

}  // namespace

IoTarget::IoTarget(const IoTargetSetup& setup) : process_("io_target") {
  process_.channel().send(write_setup(setup));
  engine_ = receive_desc<moriio::EngineDesc>(process_.channel());
  memory_ = receive_desc<moriio::MemoryDesc>(process_.channel());
}

std::string IoTarget::ask(const std::string& question) {
  process_.channel().send(question);
  const auto answer = process_.channel().receive_text();
  if (!answer.has_value()) throw std::runtime_error("the target does not answer: " + question);
  return *answer;
}

std::optional<moriio::StatusCode> IoTarget::pop(const std::string& key, uint64_t id) {
  const std::string answer = ask("pop " + key + " " + std::to_string(id));
  if (answer == kNothing) return std::nullopt;
  return static_cast<moriio::StatusCode>(std::stoul(answer));
}

bool IoTarget::has_notice(const std::string& key, uint64_t id) {
  return ask("look " + key + " " + std::to_string(id)) != kNothing;
}

std::optional<size_t> IoTarget::first_wrong(uint64_t offset, uint64_t bytes, uint64_t seed) {
  const std::string answer = ask("wrong " + std::to_string(offset) + " " + std::to_string(bytes) +
                                 " " + std::to_string(seed));
  if (answer == kNothing) return std::nullopt;
  return std::stoull(answer);
}

}  // namespace stagelink::test
