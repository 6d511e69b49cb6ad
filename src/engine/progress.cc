#include "engine/progress.h"

#include <system_error>
#include <utility>

#include <pthread.h>
#include <signal.h>

namespace stagelink::engine {
namespace {

class WorkItem final : public transport::PollTask {
 public:
  explicit WorkItem(std::function<void()> work) : work_(std::move(work)) {}
  void run() override {
    const std::unique_ptr<WorkItem> self(this);
    work_();
  }

 private:
  std::function<void()> work_;
};

}  // namespace

ProgressLoop::ProgressLoop(std::unique_ptr<transport::Poller> poller) noexcept
    : poller_(std::move(poller)) {}

ProgressLoop::~ProgressLoop() { stop(); }

Result<std::unique_ptr<ProgressLoop>> ProgressLoop::create() {
  auto poller = transport::Poller::create();
  if (!poller.ok()) return poller.status();
  return std::unique_ptr<ProgressLoop>(new ProgressLoop(*std::move(poller)));
}

Status ProgressLoop::start(Tick tick) {
  tick_ = std::move(tick);
  // The host's signal handlers stay on the host's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    thread_ = std::thread([this] { loop(); });
    pthread_setname_np(thread_.native_handle(), "sl-progress");
  } catch (const std::system_error& error) {
    status =
        Status(Reason::kLimit, std::string("cannot start the progress thread: ") + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void ProgressLoop::stop() {
  if (thread_.joinable()) {
    stop_.store(true);
    poller_->wake();
    thread_.join();
  }
  {
    MutexLock lock(mutex_);
    if (std::exchange(ended_, true)) return;
  }
  // Work that comes late, on its caller's thread, touches the same poller.
  const std::lock_guard late(late_mutex_);
  poller_->run_once(Duration::zero());
  poller_->close();
}

void ProgressLoop::run(std::function<void()> work) {
  {
    MutexLock lock(mutex_);
    if (!ended_) {
      poller_->post(*new WorkItem(std::move(work)));  // It frees itself when it runs.
      return;
    }
  }
  const std::lock_guard late(late_mutex_);
  work();
}

void ProgressLoop::hurry() noexcept { poller_->wake(); }

void ProgressLoop::loop() {
  while (!stop_.load()) {
    const Duration pause = tick_();
    poller_->run_once(pause);
  }
}

}  // namespace stagelink::engine
