// What time an acker was told, and whether anybody rotates it: one that is never rotated lets nothing time out, and
// keeps for ever what does not finish. The thresholds and the text are in acker.rotation, which has the same in Python.
#pragma once

#include <cstdint>

namespace acker {

class RotationWatch {
  public:
    // After how long an entry is worth a warning, and how many of them or batches it takes; how many open trees are
    // worth one however old they are, if none has ended.
    RotationWatch(int64_t long_ms, int64_t few, int64_t many) noexcept : long_ms_(long_ms), few_(few), many_(many) {}

    bool has_time() const noexcept { return batches_ > 0 || told_; }
    int64_t now_ms() const noexcept { return now_ms_; }

    // To be called before each batch. True: somebody should look at the oldest entry.
    bool look(int64_t now_ms, int64_t held, int64_t open, int64_t ended) noexcept {
        if (batches_++ == 0) {
            first_ms_ = now_ms;
            ask_ms_ = now_ms > INT64_MAX - long_ms_ ? INT64_MAX : now_ms + long_ms_;
        }
        now_ms_ = now_ms;
        if (over_) return false;
        return (now_ms >= ask_ms_ && held > 0 && (held >= few_ || batches_ > few_)) ||
               (open >= many_ && ended == 0 && now_ms > first_ms_);
    }

    // The oldest entry is only so old: the next look is when it could be old enough.
    void look_again(int64_t age_ms) noexcept {
        int64_t left = long_ms_ - age_ms;
        ask_ms_ = now_ms_ > INT64_MAX - left ? INT64_MAX : now_ms_ + left;
    }

    void rotated(int64_t now_ms) noexcept {
        now_ms_ = now_ms;
        told_ = over_ = true;
    }

    void end() noexcept { over_ = true; }

  private:
    int64_t long_ms_, few_, many_;
    int64_t batches_ = 0;
    int64_t first_ms_ = 0;
    int64_t ask_ms_ = 0;
    int64_t now_ms_ = 0;
    bool told_ = false;
    bool over_ = false;  // it is rotated, or somebody was warned
};

}  // namespace acker
