#include "tutti/train/precision_lab.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/comm/threads/thread_world.h"
#include "tutti/engine/step.h"
#include "tutti/kernels/backends.h"
#include "tutti/nn/quantized.h"
#include "tutti/ops/ops.h"
#include "tutti/ops/quantize.h"
#include "tutti/rehearsal/rehearse.h"
#include "tutti/spec/recipe.h"
#include "tutti/train/checkpointing.h"
#include "tutti/train/shared_data.h"
#include "tutti/train/start_checks.h"
#include "tutti/train/stored_types.h"
#include "tutti/train/trainer.h"

namespace tutti::train {

namespace {

using autograd::Parameter;
using nn::ProductRule;
using nn::Use;
using ops::GemmRole;
using ops::Operand;
using report::PrecisionReading;
using report::TensorNumbers;
using Rule = std::shared_ptr<const ProductRule>;

// A rule that stands before another one, which does the work unless this one says otherwise.
class Before : public ProductRule {
  public:
    explicit Before(Rule rule) : rule_(std::move(rule)) {}
    Operand input(ops::Context& ctx, const Tensor& x, const Use& use) const override {
        return rule_->input(ctx, x, use);
    }
    Operand weight(ops::Context& ctx, Parameter& w, const Use& use) const override {
        return rule_->weight(ctx, w, use);
    }
    Operand gradient(ops::Context& ctx, const Tensor& dy, const Use& use) const override {
        return rule_->gradient(ctx, dy, use);
    }
    std::function<Operand()> save(nn::Tape& tape, const nn::Var& x, const Operand& forward,
                                  const Use& use) const override {
        return rule_->save(tape, x, forward, use);
    }
    nn::Var after(nn::Tape& tape, const nn::Var& x, nn::Var y, const nn::Affine& layer) const override {
        return rule_->after(tape, x, std::move(y), layer);
    }
    bool converts() const override { return true; }  // it reads its tensors at once
    bool adds() const override { return rule_->adds(); }
    std::shared_ptr<nn::DelayedScales> scales() const override { return rule_->scales(); }

  protected:
    Rule rule_;
};

// Puts a rule before that of each matrix; layers with one rule keep one.
template <class Make>
void put_before(models::Model& model, const Make& make) {
    const Rule plain = std::make_shared<ProductRule>();
    std::map<const ProductRule*, Rule> made;
    for (Parameter* p : model.parameters()) {
        if (p->shape.rank() < 2) continue;
        const Rule rule = p->rule ? p->rule : plain;
        Rule& before = made[rule.get()];
        if (!before) before = make(rule);
        p->rule = before;
    }
}

// The factory of rules of a run, and then `more`.
engine::Factories with_rules(engine::Factories factories, std::function<void(models::Model&)> more) {
    factories.products = [products = factories.products, more = std::move(more)](
                             models::Model& model, const spec::RunSpec& run, parallel::Groups& groups) {
        products(model, run, groups);
        more(model);
    };
    return factories;
}

// The last of `steps` steps of a run on one rank. `ready` is called before it.
struct LastStep {
    int64_t step = 0;
    engine::StepResult result;
};
LastStep run_steps(const LabOptions& options, const engine::Factories& factories, const data::DataSet* data,
                   Console& console, const std::function<void()>& ready = {}) {
    const engine::MakeBatches batches = engine::training_batches(options.run, data);
    LastStep last;
    comm::run_ranks(1, engine::world_options(options.run, ""), [&](comm::World& world) {
        auto machine = engine::machine_of(options.run, {}, std::filesystem::temp_directory_path().string());
        const rehearsal::Target target = rehearsal::target_of(machine);
        const rehearsal::MemoryPlan plan = rehearsal::rehearse(options.run, target, 1, 0, options.factories).memory;
        check_memory(*world.everyone("memory"), needs_of(plan, *machine.device), options.force,
                     [&](const std::string& message) { console.warn(message); });
        machine.device->memory().open_arena(plan.arena);
        engine::Engine engine(options.run, world, std::move(machine), batches, factories);
        if (!options.checkpoints.empty()) {
            checkpoint::PosixFileSystem files;
            checkpoint::Store store(files, options.checkpoints, checkpoint::Access::read,
                                    [&](const std::string& message) { console.warn(message); });
            RunState state;
            std::optional<checkpoint::Loaded> loaded;
            engine.data_parallel->load_masters([&] {
                loaded = store.load_newest(
                    [&](const checkpoint::CheckpointReader& reader) {
                        state = state_of(reader);
                        load_converted(reader, state_slices(engine));
                    },
                    checkpoint::OnDamage::fall_back);
            });
            check<DataError>(loaded.has_value(), options.checkpoints, ": there is no checkpoint");
            engine.optimizer.set_updates(state.updates);
            if (state.loss_scale && !spec::fixed_loss_scale(options.run)) engine.loss_scale = *state.loss_scale;
            last.step = state.step;
        } else if (!options.run.model.hf.empty()) {
            load_stored_weights(engine);
        }
        for (int64_t i = 1; i <= options.steps; ++i) {
            if (i == options.steps && ready) ready();
            last.result = engine::train_step(engine, ++last.step);
        }
        engine.data_parallel->wait_for_weights();
    });
    return last;
}

// --- measuring ------------------------------------------------------------------------------------------------------

// Sums over the values of a tensor.
struct Sums {
    double squares = 0, errors = 0;
    int64_t saturated = 0, flushed = 0;
};

// A format to which a tensor may be rounded.
struct Format {
    std::string name;
    DType type = DType::f32;  // of 16 bits; f32: `rule` decides
    Rule rule = {};
};

class Meter {
  public:
    Meter(std::vector<Format> formats, PrecisionReading& reading) : formats_(std::move(formats)), reading_(reading) {
        reading_.formats.emplace_back("as run");
        for (const Format& f : formats_) reading_.formats.push_back(f.name);
    }
    void begin() { on_ = true; }
    bool on() const { return on_; }

    // `as_run`: what the run multiplies in place of the values; `rounded` makes that of a rule.
    void measure(ops::Context& ctx, const std::string& layer, const char* factor, const Tensor& values,
                 const Operand& as_run, const std::function<Operand(const ProductRule&)>& rounded) {
        const std::vector<float> x = values.to_floats();
        Entry& entry = entry_of(layer, factor);
        count(x, entry.numbers);
        add(ctx, x, as_run, entry.sums[0]);
        for (size_t i = 0; i < formats_.size(); ++i) {
            const Format& f = formats_[i];
            add(ctx, x, f.rule ? rounded(*f.rule) : Operand(ops::cast(ctx, values, f.type, Purpose::workspace)),
                entry.sums[i + 1]);
        }
    }
    bool has(const std::string& layer, const char* factor) const { return places_.contains({layer, factor}); }

    void finish() {
        for (Entry& e : entries_) {
            e.numbers.rms = std::sqrt(e.numbers.rms / static_cast<double>(std::max<int64_t>(e.numbers.values, 1)));
            const auto counted =
                static_cast<double>(std::max<int64_t>(e.numbers.values - e.numbers.zeros - e.numbers.not_finite, 1));
            for (size_t i = 0; i < e.sums.size(); ++i) {
                const Sums& s = e.sums[i];
                report::FormatLoss loss{.format = reading_.formats[i],
                                        .saturated = static_cast<double>(s.saturated) / counted,
                                        .flushed = static_cast<double>(s.flushed) / counted};
                if (s.errors > 0) loss.snr_db = 10 * std::log10(s.squares / s.errors);
                e.numbers.formats.push_back(loss);
            }
            reading_.tensors.push_back(std::move(e.numbers));
        }
    }

  private:
    struct Entry {
        TensorNumbers numbers;
        std::vector<Sums> sums;  // as run, and by format
    };

    Entry& entry_of(const std::string& layer, const char* factor) {
        const auto [place, is_new] = places_.try_emplace({layer, factor}, entries_.size());
        if (is_new) entries_.push_back({{.layer = layer, .factor = factor}, std::vector<Sums>(formats_.size() + 1)});
        return entries_[place->second];
    }

    static void count(const std::vector<float>& x, TensorNumbers& t) {
        t.values += static_cast<int64_t>(x.size());
        for (const float value : x) {
            const double v = std::abs(static_cast<double>(value));
            if (!std::isfinite(v)) {
                ++t.not_finite;
            } else if (v == 0) {
                ++t.zeros;
            } else {
                t.largest = std::max(t.largest, v);
                t.rms += v * v;  // the sum; finish() divides
                ++t.exponents[std::ilogb(v)];
            }
        }
    }

    // A value is beyond the largest number where rounding makes it infinite, or where it has the largest code and is
    // farther from it than half of a unit in the last place.
    static void add(ops::Context& ctx, const std::vector<float>& x, const Operand& operand, Sums& sums) {
        const std::vector<float> y = ops::decoded(ctx, operand, DType::f32).to_floats();
        std::vector<uint8_t> codes;
        if (operand.coded()) {
            codes.resize(to_size(operand.values.numel()));
            ctx.device.copy_out(codes.data(), operand.values.view().data, operand.values.bytes());
        }
        const Float8& format = float8_of(operand.values.dtype());
        const double farthest = 1 + std::ldexp(1.0, -format.fraction_bits - 1);
        for (size_t i = 0; i < x.size(); ++i) {
            const double a = static_cast<double>(x[i]), b = static_cast<double>(y[i]);
            if (!std::isfinite(a) || a == 0) continue;
            const bool largest = !codes.empty() && (codes[i] & 0x7fu) == format.largest_code;
            if (!std::isfinite(b) || (largest && std::abs(a) > std::abs(b) * farthest)) ++sums.saturated;
            if (b == 0) ++sums.flushed;
            if (!std::isfinite(b)) continue;
            sums.squares += a * a;
            sums.errors += (a - b) * (a - b);
        }
    }

    std::vector<Format> formats_;
    PrecisionReading& reading_;
    std::vector<Entry> entries_;
    std::map<std::pair<std::string, std::string>, size_t> places_;
    bool on_ = false;
};

class Measured final : public Before {
  public:
    Measured(Rule rule, Meter& meter) : Before(std::move(rule)), meter_(meter) {}

    Operand input(ops::Context& ctx, const Tensor& x, const Use& use) const override {
        Operand made = rule_->input(ctx, x, use);
        if (meter_.on() && use.layer != nullptr && use.role == GemmRole::forward)
            meter_.measure(ctx, use.layer->name, "x", x, made,
                           [&](const ProductRule& rule) { return rule.input(ctx, x, use); });
        return made;
    }
    Operand weight(ops::Context& ctx, Parameter& w, const Use& use) const override {
        Operand made = rule_->weight(ctx, w, use);
        if (meter_.on() && use.role == GemmRole::forward && !meter_.has(w.name, "w"))
            meter_.measure(ctx, w.name, "w", w.value, made, [&](const ProductRule& rule) {
                Parameter other;  // its forms are not kept
                other.name = w.name;
                other.value = w.value;
                return rule.weight(ctx, other, use);
            });
        return made;
    }
    // Where both products read dy, codes of the input gradient are counted.
    Operand gradient(ops::Context& ctx, const Tensor& dy, const Use& use) const override {
        Operand made = rule_->gradient(ctx, dy, use);
        if (meter_.on() && use.layer != nullptr && use.role == GemmRole::input_gradient)
            meter_.measure(ctx, use.layer->name, "dy", dy, made,
                           [&](const ProductRule& rule) { return rule.gradient(ctx, dy, use); });
        return made;
    }

  private:
    Meter& meter_;
};

// The types of 16 bits, and the recipes whose scales follow from the tensor itself.
std::vector<Format> formats_of(const spec::RunSpec& run) {
    std::vector<Format> formats = {{"bf16", DType::bf16}, {"f16", DType::f16}};
    for (const std::string& name : spec::recipe_names()) {
        spec::PrecisionSpec precision = run.precision;
        precision.recipe = name;
        const std::optional<spec::Recipe> recipe = spec::recipe_of(precision);
        if (recipe && !recipe->delayed)
            formats.push_back(
                {name, DType::f32, std::make_shared<nn::QuantizedProducts>(*recipe, nn::ScaleRanks{}, true, false)});
    }
    return formats;
}

// --- blame ----------------------------------------------------------------------------------------------------------

// The tensors in the order of their first use, of which the first `count` are rounded.
struct Prefix {
    int64_t count = 0;
    std::vector<std::string> seen = {};

    bool has(const std::string& layer, const char* factor) {
        const std::string name = layer + ", " + factor;
        const auto found = std::find(seen.begin(), seen.end(), name);
        const auto place = found - seen.begin();
        if (found == seen.end()) seen.push_back(name);
        return place < count;
    }
};

class Rounded final : public Before {
  public:
    // `type` f32: by the rule; else to a type of 16 bits.
    Rounded(Rule rule, DType type, Prefix& prefix) : Before(std::move(rule)), type_(type), prefix_(prefix) {}

    Operand input(ops::Context& ctx, const Tensor& x, const Use& use) const override {
        if (!prefix_.has(use.layer->name, "x")) return x;
        return type_ == DType::f32 ? rule_->input(ctx, x, use) : round(ctx, x);
    }
    // Forms of a rounded weight are kept as its rule does.
    Operand weight(ops::Context& ctx, Parameter& w, const Use& use) const override {
        if (!prefix_.has(w.name, "w")) return {w.value, &w.forms};
        return type_ == DType::f32 ? rule_->weight(ctx, w, use) : round(ctx, w.value);
    }
    Operand gradient(ops::Context& ctx, const Tensor& dy, const Use& use) const override {
        if (!prefix_.has(use.layer->name, "dy")) return dy;
        return type_ == DType::f32 ? rule_->gradient(ctx, dy, use) : round(ctx, dy);
    }
    std::function<Operand()> save(nn::Tape& tape, const nn::Var& x, const Operand& forward,
                                  const Use& use) const override {
        if (forward.coded()) return rule_->save(tape, x, forward, use);
        return [forward] { return forward; };
    }

  private:
    Operand round(ops::Context& ctx, const Tensor& x) const {
        return ops::cast(ctx, ops::cast(ctx, x, type_, Purpose::workspace), x.dtype());
    }

    DType type_;
    Prefix& prefix_;
};

}  // namespace

PrecisionReading measure_precision(const LabOptions& options) {
    check_device(options.run.train.device);
    Console console(options.console, options.terminal, 0);
    const auto data = open_data(options.run, console, false);
    PrecisionReading reading{.compute = options.run.precision.compute, .recipe = options.run.precision.recipe};
    Meter meter(formats_of(options.run), reading);
    const engine::Factories factories = with_rules(options.factories, [&](models::Model& model) {
        put_before(model, [&](const Rule& rule) { return std::make_shared<Measured>(rule, meter); });
    });
    const LastStep last = run_steps(options, factories, data ? &*data : nullptr, console, [&] { meter.begin(); });
    meter.finish();
    reading.step = last.step;
    reading.loss = last.result.loss;
    reading.loss_scale = last.result.loss_scale;
    return reading;
}

Blame blame(const LabOptions& options) {
    const spec::RunSpec& run = options.run;
    const bool has_recipe = spec::recipe_of(run.precision).has_value();
    const DType type = has_recipe ? DType::f32 : spec::compute_dtype(run);
    check<UsageError>(has_recipe || type != DType::f32, "precision.compute = \"", run.precision.compute,
                      "\" without a recipe rounds no tensor before a product; set precision.compute=bf16 or a "
                      "precision.recipe");
    LabOptions wide = options;
    wide.run.precision.compute = "f32";
    wide.run.precision.loss_scale = "1";
    wide.run.precision.master = "f32";
    check_device(run.train.device);
    Console console(options.console, options.terminal, 0);
    const auto data = open_data(run, console, false);
    Prefix prefix;
    const auto loss_of = [&](int64_t count) {
        prefix.count = count;
        const engine::Factories factories = with_rules(options.factories, [&](models::Model& model) {
            put_before(model, [&](const Rule& rule) { return std::make_shared<Rounded>(rule, type, prefix); });
        });
        RoundedPrefix tried{.tensors = count, .last = "", .loss = 0};
        tried.loss = run_steps(wide, factories, data ? &*data : nullptr, console).result.loss;
        if (count > 0) tried.last = prefix.seen[to_size(count - 1)];
        return tried;
    };
    Blame blame;
    const RoundedPrefix none = loss_of(0);
    const auto tensors = static_cast<int64_t>(prefix.seen.size());
    const auto measure = [&](int64_t count) {
        RoundedPrefix tried = loss_of(count);
        tried.moved = std::abs(tried.loss - none.loss);
        const auto place = std::lower_bound(blame.tried.begin(), blame.tried.end(), count,
                                            [](const RoundedPrefix& a, int64_t b) { return a.tensors < b; });
        blame.tried.insert(place, tried);
        console.text(fmt::format("{:4} of {} tensors rounded, to {}: loss {:.8g}, moved by {:.2g}", count, tensors,
                                 tried.last, tried.loss, tried.moved));
        return tried.moved;
    };
    blame.tried.push_back(none);
    const double all = measure(tensors);
    if (!(all > 0)) return blame;
    int64_t low = 0, high = tensors;  // `low` moves less than half, `high` at least half
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (measure(middle) >= all / 2 ? high : low) = middle;
    }
    for (size_t i = 0; i < blame.tried.size(); ++i)
        if (blame.tried[i].tensors == high) blame.first = static_cast<int64_t>(i);
    // Its neighbour below is in `tried`: the bisection measured it, or it rounds nothing.
    return blame;
}

}  // namespace tutti::train
