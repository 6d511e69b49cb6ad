#include "bindings/moriio/py_writer_host.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/convert/index_array.h"
#include "bindings/moriio/io_objects.h"
#include "connector/moriio/move/io_session_target.h"

namespace nb = nanobind;

namespace stagelink::bindings {
namespace {

using moriio::Allocation;
using moriio::LayerTicket;
using moriio::Move;
using moriio::MoveDirection;
using moriio::MoveTarget;
using moriio::PostedMove;
using moriio::Ranges;
using moriio::WriteTask;

// Runs f with the interpreter lock; what it raises becomes the answer.
template <typename T, typename F>
Result<T> with_gil(F&& f) {
  const nb::gil_scoped_acquire gil;
  try {
    return std::forward<F>(f)();
  } catch (const std::exception& error) {
    return Status(Reason::kSystem, error.what());
  }
}

// An object that any thread may let go of.
class Held {
 public:
  explicit Held(nb::object object) noexcept : object_(std::move(object)) {}
  ~Held() {
    const nb::gil_scoped_acquire gil;
    object_.reset();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  const nb::object& get() const noexcept { return object_; }

 private:
  nb::object object_;
};

class PyTicket final : public LayerTicket {
 public:
  explicit PyTicket(nb::object task) noexcept : task_(std::move(task)) {}

  Status synchronize() override {
    return with_gil<bool>([&]() -> Result<bool> {
             const nb::object event = task_.get().attr("event");
             if (!event.is_none()) event.attr("synchronize")();
             return true;
           })
        .status();
  }
  const nb::object& task() const noexcept { return task_.get(); }

 private:
  const Held task_;
};

nb::object task_of(const WriteTask& task) {
  return task.ticket != nullptr ? static_cast<const PyTicket&>(*task.ticket).task() : nb::none();
}

// A batch of a session that is not ours, by its status: Succeeded(), Failed(), Message().
class PyMove final : public PostedMove {
 public:
  explicit PyMove(nb::object status) noexcept : status_(std::move(status)) {}

  TransferPhase poll(Duration patience) override {
    const TransferPhase phase = look();
    if (phase != TransferPhase::kRunning || patience == Duration::zero()) return phase;
    std::this_thread::sleep_for(patience);  // Nobody wakes us.
    return look();
  }
  Status cancel() override {
    const auto done = with_gil<bool>([&]() -> Result<bool> {
      if (nb::hasattr(status_.get(), "Cancel")) status_.get().attr("Cancel")();
      return true;
    });
    if (!done.ok()) return done.status();
    if (look() != TransferPhase::kRunning) return {};
    return {Reason::kUnsupported, "the session cannot end a batch that runs"};
  }
  Status status() const override {
    auto text = with_gil<std::string>([&]() -> Result<std::string> {
      if (!nb::cast<bool>(status_.get().attr("Failed")())) return std::string();
      return "failed: " + nb::cast<std::string>(nb::str(status_.get().attr("Message")()));
    });
    if (!text.ok()) return text.status();
    return text->empty() ? Status() : failure(*text);
  }
  static Status failure(const std::string& text) {
    const bool full = text.find("SQ full") != std::string::npos;
    return {full ? Reason::kTooManyTransfers : Reason::kSystem, text};
  }

 private:
  TransferPhase look() const {
    auto phase = with_gil<TransferPhase>([&]() -> Result<TransferPhase> {
      if (nb::cast<bool>(status_.get().attr("Failed")())) return TransferPhase::kFailed;
      return nb::cast<bool>(status_.get().attr("Succeeded")()) ? TransferPhase::kSucceeded
                                                               : TransferPhase::kRunning;
    });
    return phase.ok() ? *phase : TransferPhase::kFailed;
  }
  const Held status_;
};

class PyTarget final : public MoveTarget {
 public:
  PyTarget(nb::object host, nb::object session) noexcept
      : host_(std::move(host)), session_(std::move(session)) {}

  Result<std::unique_ptr<PostedMove>> post(MoveDirection /*direction*/, const Ranges& ranges,
                                           Duration /*timeout*/) override {
    using Posted = std::unique_ptr<PostedMove>;
    auto posted = with_gil<Posted>([&]() -> Result<Posted> {
      nb::object status =
          host_.get().attr("post")(session_.get(), nb::cast(ranges.local_offsets),
                                   nb::cast(ranges.remote_offsets), nb::cast(ranges.sizes));
      return Posted(std::make_unique<PyMove>(std::move(status)));
    });
    if (!posted.ok()) return posted.status();
    Status at_once = (*posted)->status();
    if (at_once.code() == Code::kBusy) return at_once;
    return *std::move(posted);
  }
  uint64_t identity() const noexcept override {
    return reinterpret_cast<uint64_t>(session_.get().ptr());
  }

 private:
  const Held host_;
  const Held session_;
};

std::vector<uint64_t> values_of(nb::handle list, const char* name) {
  IndexArray<uint64_t> array(list, name);
  const auto values = array.values();
  return {values.begin(), values.end()};
}

Result<Move> move_of(const nb::object& host, nb::handle entry) {
  const nb::object session = entry[0];
  Move move;
  if (nb::isinstance<PyIoSession>(session)) {
    move.target = moriio::make_io_session_target(nb::cast<const PyIoSession&>(session).session);
  } else {
    move.target = std::make_shared<PyTarget>(host, session);
  }
  move.ranges = {values_of(nb::object(entry[1]), "local_offsets"),
                 values_of(nb::object(entry[2]), "remote_offsets"),
                 values_of(nb::object(entry[3]), "sizes")};
  const size_t count = move.ranges.sizes.size();
  if (move.ranges.local_offsets.size() != count || move.ranges.remote_offsets.size() != count) {
    return Status(Reason::kInvalidArgument, "a plan's lists differ in length");
  }
  return move;
}

}  // namespace

PyWriterHost::PyWriterHost(nb::object host) noexcept : host_(std::move(host)) {}

PyWriterHost::~PyWriterHost() {
  const nb::gil_scoped_acquire gil;
  host_.reset();
}

Result<std::optional<Endpoint>> PyWriterHost::consumer_of(const Allocation& allocation,
                                                          const WriteTask& task) {
  using Answer = std::optional<Endpoint>;
  return with_gil<Answer>([&]() -> Result<Answer> {
    const nb::object place = host_.attr("consumer_of")(nb::cast(allocation.block_ids),
                                                       allocation.decode_rank, task_of(task));
    if (place.is_none()) return Answer();
    auto [host, port] = nb::cast<std::pair<std::string, uint16_t>>(place);
    return Answer(Endpoint{std::move(host), port});
  });
}

Result<std::vector<Move>> PyWriterHost::plan(const Allocation& allocation,
                                             std::span<const WriteTask> tasks) {
  return with_gil<std::vector<Move>>([&]() -> Result<std::vector<Move>> {
    nb::list objects;
    for (const WriteTask& task : tasks) objects.append(task_of(task));
    const nb::object plan =
        host_.attr("plan")(nb::cast(allocation.block_ids), allocation.decode_rank, objects);
    std::vector<Move> moves;
    for (const nb::handle entry : plan) {
      SL_ASSIGN(Move move, move_of(host_, entry));
      moves.push_back(std::move(move));
    }
    return moves;
  });
}

std::unique_ptr<LayerTicket> make_ticket(nb::object task) {
  return std::make_unique<PyTicket>(std::move(task));
}

}  // namespace stagelink::bindings
