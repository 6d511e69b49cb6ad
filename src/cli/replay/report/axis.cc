#include "cli/replay/report/axis.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace stagelink::cli::replay {
namespace {

constexpr double kWantedTicks = 5;
constexpr double kFewDecades = 3;

double round_step(double span) {
  const double raw = span / kWantedTicks;
  const double magnitude = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * magnitude >= raw) return factor * magnitude;
  }
  return 10 * magnitude;
}

}  // namespace

Axis Axis::linear(double max, double first_pixel, double last_pixel) {
  Axis axis;
  axis.first_pixel_ = first_pixel;
  axis.last_pixel_ = last_pixel;
  const double step = round_step(std::max(max, 1e-9));
  const double steps = std::max(1.0, std::ceil(max / step));
  axis.high_ = steps * step;
  for (double i = 0; i <= steps; ++i) axis.add_tick(i * step);
  return axis;
}

Axis Axis::logarithmic(double min, double max, double first_pixel, double last_pixel) {
  Axis axis;
  axis.logarithmic_ = true;
  axis.first_pixel_ = first_pixel;
  axis.last_pixel_ = last_pixel;
  constexpr double kMargin = 0.08;  // Decades.
  axis.low_ = std::log10(min) - kMargin;
  axis.high_ = std::log10(max) + kMargin;
  const bool few = axis.high_ - axis.low_ < kFewDecades;
  for (double decade = std::floor(axis.low_); decade <= axis.high_; ++decade) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10.0, decade);
      const double at = std::log10(value);
      if (at >= axis.low_ && at <= axis.high_ && (few || factor == 1.0)) axis.add_tick(value);
    }
  }
  return axis;
}

double Axis::position(double value) const {
  return logarithmic_ ? std::log10(std::max(value, 1e-12)) : value;
}

double Axis::pixel(double value) const {
  const double share = (position(value) - low_) / (high_ - low_);
  return first_pixel_ + share * (last_pixel_ - first_pixel_);
}

void Axis::add_tick(double value) {
  ticks_.push_back({pixel(value), fmt::format("{:.4g}", value)});
}

}  // namespace stagelink::cli::replay
