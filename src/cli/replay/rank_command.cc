#include <csignal>
#include <string>

#include <unistd.h>

#include "cli/commands.h"
#include "cli/replay/rank/rank_loop.h"
#include "cli/replay/rank_process.h"

namespace stagelink::cli {
namespace {

// How long a rank may take to remove its files after its parent is gone.
constexpr unsigned kGraceSeconds = 3;

// Sent by the kernel when the parent dies. The loop sees the end of its channel and closes the
// engine; should it be stuck, SIGALRM ends the process.
void on_terminate(int) { ::alarm(kGraceSeconds); }

int run() {
  std::signal(SIGINT, SIG_IGN);  // The terminal sends it to the whole group; the parent decides.
  std::signal(SIGTERM, on_terminate);
  replay::ControlChannel parent{UniqueFd(replay::kControlFd)};
  return replay::run_rank(parent).ok() ? kExitOk : kExitFailed;
}

}  // namespace

void add_replay_rank_command(CLI::App& app, int& exit_code) {
  CLI::App* const command = app.add_subcommand("replay-rank", "A process of replay.");
  command->group("");  // Hidden.
  command->add_option("name")->required();
  command->callback([&exit_code] { exit_code = run(); });
}

}  // namespace stagelink::cli
