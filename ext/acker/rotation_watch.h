// The watch for an acker that is never rotated, so that unfinished trees stay in it for ever. The
// thresholds and the warning are in acker._engine.rotation, which has the same class in Python.
#pragma once

#include <cstdint>

namespace acker {

class RotationWatch {
  public:
    // Warn of entries older than `long_ms`, if there are `few` of them or more batches than that; or of `many` open
    // trees of any age, if none has ended.
    RotationWatch(int64_t long_ms, int64_t few, int64_t many) noexcept : long_ms_(long_ms), few_(few), many_(many) {}

    bool has_time() const noexcept { return batches_ > 0 || was_rotated_; }
    int64_t now_ms() const noexcept { return now_ms_; }

    // Call it before each batch. True: look at the oldest entry.
    bool look(int64_t now_ms, int64_t held, int64_t open, int64_t ended) noexcept {
        if (batches_++ == 0) {
            first_ms_ = now_ms;
            look_ms_ = now_ms > INT64_MAX - long_ms_ ? INT64_MAX : now_ms + long_ms_;
        }
        now_ms_ = now_ms;
        if (over_) return false;
        return (now_ms >= look_ms_ && held > 0 && (held >= few_ || batches_ > few_)) ||
               (open >= many_ && ended == 0 && now_ms > first_ms_);
    }

    // The oldest entry is `age_ms` old: the next look is when it can be old enough.
    void look_again(int64_t age_ms) noexcept {
        int64_t left = long_ms_ - age_ms;
        look_ms_ = now_ms_ > INT64_MAX - left ? INT64_MAX : now_ms_ + left;
    }

    void rotated(int64_t now_ms) noexcept {
        now_ms_ = now_ms;
        was_rotated_ = over_ = true;
    }

    void end() noexcept { over_ = true; }

  private:
    int64_t long_ms_, few_, many_;
    int64_t batches_ = 0;
    int64_t first_ms_ = 0;
    int64_t look_ms_ = 0;
    int64_t now_ms_ = 0;
    bool was_rotated_ = false;
    bool over_ = false;  // it was rotated, or a warning was given
};

}  // namespace acker
