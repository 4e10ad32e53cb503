#include "tutti/train/console.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <ostream>

#include "tutti/base/units.h"
#include "tutti/report/run_history.h"

namespace tutti::train {

void Console::text(const std::string& lines) {
    if (!out_) return;
    clear_bar();
    *out_ << lines << std::endl;
}

void Console::warn(const std::string& message) {
    if (!warnings_) return;
    clear_bar();
    *warnings_ << "warning: " + message << std::endl;
}

void Console::step(const StepMetrics& m) {
    const int digits = static_cast<int>(fmt::formatted_size("{}", steps_));
    std::string line =
        fmt::format("step {:>{}}/{} | loss {:7.4f} | norm {:7.3f} | lr {:.2e} | {:>8} | {:>16} | mfu {:>6}", m.step,
                    digits, steps_, m.result.loss, m.result.grad_norm, m.result.lr, format_duration(m.step_ms / 1000),
                    format_rate(m.tokens_per_s, "tok"), format_percent(m.mfu));
    if (!terminal_) {  // a log: the bar of a terminal shows the time that is left
        const double left = static_cast<double>(steps_ - m.step) * m.step_ms / 1000;
        const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
        line = fmt::format("{:%F %T} | {} | {}, {} left | {}", fmt::localtime(std::time(nullptr)), line,
                           format_duration(elapsed), format_duration(left), format_bytes(m.mem_peak_bytes));
    }
    for (size_t k = 0; k < m.result.later_losses.size(); ++k)
        line += fmt::format(" | {} {:.4f}", report::name_of_mtp_loss(k), m.result.later_losses[k]);
    if (m.eval_loss) line += fmt::format(" | eval {:.4f}", *m.eval_loss);
    if (std::isnan(m.result.loss) && !m.result.skipped) line += " | no targets, no update";
    if (m.scaled) line += fmt::format(" | scale {:g}", m.result.loss_scale);
    if (m.result.saturated.value_or(0) > 0) line += fmt::format(" | saturated {:.1e}", *m.result.saturated);
    if (m.result.skipped) line += " | skipped: " + m.result.culprit + " is not finite";
    text(line);
}

void Console::progress(int64_t step, double seconds_per_step) {
    if (!out_ || !terminal_) return;
    constexpr int64_t kWidth = 30;
    const int64_t filled = steps_ > 0 ? kWidth * step / steps_ : kWidth;
    std::string bar;
    for (int64_t i = 0; i < kWidth; ++i) bar += i < filled ? "━" : "╌";
    *out_ << "\r\033[K" << bar
          << fmt::format(" {:3} %  step {} of {}  {} left", steps_ > 0 ? 100 * step / steps_ : 100, step, steps_,
                         format_duration(static_cast<double>(steps_ - step) * seconds_per_step))
          << std::flush;
    bar_drawn_ = true;
}

void Console::status(const std::string& line) {
    if (!out_ || !terminal_) return;
    *out_ << "\r\033[K" << line << std::flush;
    bar_drawn_ = true;
}

void Console::clear_bar() {
    if (bar_drawn_) *out_ << "\r\033[K" << std::flush;
    bar_drawn_ = false;
}

}  // namespace tutti::train
