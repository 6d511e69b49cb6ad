#include "cli/doctor/clock.h"

#include <cmath>
#include <ctime>

#include <fmt/format.h>
#include <sys/timex.h>

namespace stagelink::cli::doctor {
namespace {

using std::chrono::nanoseconds;

nanoseconds read_clock(clockid_t id) noexcept {
  timespec time{};
  ::clock_gettime(id, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

std::string date_of(nanoseconds since_1970) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_1970).count();
  const std::time_t time = seconds;
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace

ClockReading ClockReading::now() noexcept {
  return {read_clock(CLOCK_MONOTONIC), read_clock(CLOCK_REALTIME)};
}

std::vector<Finding> judge_clock(const ClockState& state) {
  constexpr nanoseconds kYear2025 = std::chrono::hours(24) * 20089;
  constexpr nanoseconds kStep = std::chrono::milliseconds(100);
  const std::string date = date_of(state.after.realtime);
  if (state.after.realtime < kYear2025) {
    return {
        {Level::kError, "clock_wrong", "The clock says " + date,
         "Certificates and expiry times fail, and lines of several logs cannot be put in order.",
         "Set it: timedatectl set-ntp true, or chronyd."}};
  }
  const nanoseconds drift = (state.after.realtime - state.before.realtime) -
                            (state.after.monotonic - state.before.monotonic);
  if (drift > kStep || drift < -kStep) {
    return {{Level::kWarning, "clock_steps",
             fmt::format("The clock jumped by {:.3f} s while this ran",
                         std::chrono::duration<double>(drift).count()),
             "Deadlines do not care, they follow the monotonic clock; times in logs do.",
             "One time service alone should set it, and slowly: chronyd."}};
  }
  if (!state.synchronised) {
    return {note("clock_alone", date + "; the kernel says that nothing keeps the clock in step",
                 "chronyd or systemd-timesyncd, if the logs of several hosts are compared.")};
  }
  return {fine(date + ", kept in step by a time service.")};
}

std::vector<Finding> check_clock(const ClockReading& before) {
  timex state{};
  const bool known = ::adjtimex(&state) >= 0;
  return judge_clock({before, ClockReading::now(), !known || (state.status & STA_UNSYNC) == 0});
}

}  // namespace stagelink::cli::doctor
