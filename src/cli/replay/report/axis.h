#pragma once

#include <string>
#include <vector>

namespace stagelink::cli::replay {

// One axis of a chart: maps values to pixels and knows where to put its ticks.
//
// Thread-safety: a value.
class Axis {
 public:
  struct Tick {
    double pixel;
    std::string label;
  };
  // From 0 to a round number at or above `max`; ticks at 1, 2 or 5 times a power of ten.
  static Axis linear(double max, double first_pixel, double last_pixel);
  // From below `min` to above `max`, both greater than 0; ticks at powers of ten, and at 2 and 5
  // times them if there are few.
  static Axis logarithmic(double min, double max, double first_pixel, double last_pixel);

  double pixel(double value) const;
  const std::vector<Tick>& ticks() const noexcept { return ticks_; }

 private:
  double position(double value) const;  // In the axis' own scale.
  void add_tick(double value);

  bool logarithmic_ = false;
  double low_ = 0;
  double high_ = 1;
  double first_pixel_ = 0;
  double last_pixel_ = 1;
  std::vector<Tick> ticks_;
};

}  // namespace stagelink::cli::replay
