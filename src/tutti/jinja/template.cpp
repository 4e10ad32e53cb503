// jinja/template.cpp: walks the tree of a template.
#include "tutti/jinja/template.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "tutti/base/to_size.h"
#include "tutti/jinja/functions.h"

namespace tutti::jinja {

namespace {

using Kind = Expression::Kind;
using Body = std::vector<Statement>;

constexpr int kDeepestCall = 800;           // calls of execute() and evaluate() inside each other
constexpr int64_t kLongestRange = 100'000;  // as in Jinja's sandbox

// The variables of the template, of a loop's pass, or of a call; those outside are visible too.
struct Scope {
    const Scope* outside = nullptr;
    Named variables = {};

    const Value* find(const std::string& name) const {
        for (const Scope* scope = this; scope; scope = scope->outside)
            for (const auto& [key, value] : scope->variables)
                if (key == name) return &value;
        return nullptr;
    }
    void set(const std::string& name, Value value) {
        for (auto& [key, old] : variables)
            if (key == name) {
                old = std::move(value);
                return;
            }
        variables.emplace_back(name, std::move(value));
    }
};

enum class Flow { on, stop, next };

class Raised : public Problem {
  public:
    using Problem::Problem;
};

Value floor_divide(int64_t a, int64_t b) {
    const int64_t quotient = a / b;
    return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value integers(const std::string& sign, int64_t a, int64_t b) {
    int64_t result = 0;
    bool overflow = false;
    if (sign == "+") overflow = __builtin_add_overflow(a, b, &result);
    if (sign == "-") overflow = __builtin_sub_overflow(a, b, &result);
    if (sign == "*") overflow = __builtin_mul_overflow(a, b, &result);
    check<Problem>(sign.find_first_of("/%") == std::string::npos || b != 0, "division by zero");
    if (sign == "/") return static_cast<double>(a) / static_cast<double>(b);
    if (b == -1 && (sign == "//" || sign == "%"))
        overflow = sign == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
    else if (sign == "//")
        return floor_divide(a, b);
    else if (sign == "%")
        return ((a % b) + b) % b;
    if (sign == "**") {
        if (b < 0) return std::pow(static_cast<double>(a), static_cast<double>(b));
        result = 1;
        for (int64_t i = 0; i < b && !overflow && (a != 1 && a != 0 && a != -1); ++i)
            overflow = __builtin_mul_overflow(result, a, &result);
        if (a == 0) result = b == 0;
        if (a == -1) result = b % 2 == 0 ? 1 : -1;
    }
    check<Problem>(!overflow, a, ' ', sign, ' ', b, " is beyond 64 bits");
    return result;
}

Value reals(const std::string& sign, double a, double b) {
    if (sign == "+") return a + b;
    if (sign == "-") return a - b;
    if (sign == "*") return a * b;
    if (sign == "**") return std::pow(a, b);
    check<Problem>(b != 0, "division by zero");
    if (sign == "/") return a / b;
    if (sign == "//") return std::floor(a / b);
    const double rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value repeated(const Value& value, int64_t times) {
    if (value.text()) {
        Text text;
        if (!value.text()->empty())
            for (int64_t i = 0; i < times; ++i) append(text, *value.text());
        return text;
    }
    std::vector<Value> elements;
    const auto& once = value.list()->elements;
    check<Problem>(once.empty() || times <= kLongestRange / static_cast<int64_t>(once.size()), "a list grows beyond ",
                   kLongestRange, " elements");
    for (int64_t i = 0; i < times && !once.empty(); ++i) elements.insert(elements.end(), once.begin(), once.end());
    return Value::list(std::move(elements), value.list()->tuple);
}

Value operate(const std::string& sign, const Value& a, const Value& b) {
    if (sign == "~") {
        Text text = to_text(a);
        append(text, to_text(b));
        return text;
    }
    for (const Value* one : {&a, &b})
        if (const Undefined* undefined = one->get<Undefined>()) throw Problem(undefined->reason);
    if (a.integer() && b.integer()) return integers(sign, *a.integer(), *b.integer());
    if (a.is_number() && b.is_number()) return reals(sign, a.number(), b.number());
    if (sign == "+" && a.text() && b.text()) {
        Text text = *a.text();
        append(text, *b.text());
        return text;
    }
    if (sign == "+" && a.list() && b.list() && a.list()->tuple == b.list()->tuple) {
        std::vector<Value> elements = a.list()->elements;
        elements.insert(elements.end(), b.list()->elements.begin(), b.list()->elements.end());
        return Value::list(std::move(elements), a.list()->tuple);
    }
    if (sign == "*" && (a.text() || a.list()) && b.integer()) return repeated(a, *b.integer());
    if (sign == "*" && (b.text() || b.list()) && a.integer()) return repeated(b, *a.integer());
    check<Problem>(sign != "%" || !a.text(), "% of a text: formatting is not supported; use ~");
    throw Problem(concat("no operation ", sign, " between ", shown(a), " and ", shown(b)));
}

bool compares(const std::string& sign, const Value& a, const Value& b) {
    if (sign == "in") return contains(b, a);
    if (sign == "not in") return !contains(b, a);
    if (sign == "==") return equal(a, b);
    if (sign == "!=") return !equal(a, b);
    for (const Value* one : {&a, &b})
        if (const Undefined* undefined = one->get<Undefined>()) throw Problem(undefined->reason);
    if (sign == "<") return less(a, b);
    if (sign == ">") return less(b, a);
    return equal(a, b) || (sign == "<=" ? less(a, b) : less(b, a));
}

// The indices of a Python slice.
std::vector<size_t> sliced(size_t length, const Value& from, const Value& to, const Value& by) {
    const auto bound = [](const Value& value, int64_t otherwise) {
        check<Problem>(value.is_none() || value.integer(), "slice: required integers, got ", shown(value));
        return value.is_none() ? otherwise : *value.integer();
    };
    const auto size = static_cast<int64_t>(length);
    const int64_t step = bound(by, 1);
    check<Problem>(step != 0, "slice: the step is 0");
    const auto inside = [&](int64_t at) {
        if (at < 0) at = at < -size ? -1 : at + size;
        return std::clamp(at, step > 0 ? int64_t{0} : int64_t{-1}, step > 0 ? size : size - 1);
    };
    int64_t at = from.is_none() ? (step > 0 ? 0 : size - 1) : inside(bound(from, 0));
    const int64_t end = to.is_none() ? (step > 0 ? size : -1) : inside(bound(to, 0));
    std::vector<size_t> indices;
    while (step > 0 ? at < end : at > end) {
        indices.push_back(to_size(at));
        if (std::abs(step) > size) break;
        at += step;
    }
    return indices;
}

Value slice(const Value& of, const Value& from, const Value& to, const Value& by) {
    if (const Undefined* undefined = of.get<Undefined>()) throw Problem(undefined->reason);
    check<Problem>(of.text() || of.list(), "slice: required a text or a list, got ", shown(of));
    if (of.text()) {
        Text text;
        for (const size_t i : sliced(of.text()->size(), from, to, by)) text.push_back((*of.text())[i]);
        return text;
    }
    std::vector<Value> elements;
    for (const size_t i : sliced(of.list()->elements.size(), from, to, by)) elements.push_back(of.list()->elements[i]);
    return Value::list(std::move(elements), of.list()->tuple);
}

Value range(const Arguments& a) {
    check<Problem>(a.named.empty() && !a.values.empty() && a.values.size() <= 3,
                   "range: required one to three integers");
    for (const Value& v : a.values) check<Problem>(v.integer().has_value(), "range: required integers, got ", shown(v));
    const int64_t begin = a.values.size() > 1 ? *a.values[0].integer() : 0;
    const int64_t end = *a.values[a.values.size() > 1 ? 1 : 0].integer();
    const int64_t step = a.values.size() > 2 ? *a.values[2].integer() : 1;
    check<Problem>(step != 0, "range: the step is 0");
    std::vector<Value> values;
    for (int64_t i = begin; step > 0 ? i < end : i > end;) {
        check<Problem>(std::ssize(values) < kLongestRange, "range: longer than ", kLongestRange);
        values.emplace_back(i);
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return Value::list(std::move(values));
}

Value make_dict(const Arguments& a) {
    std::vector<std::pair<Value, Value>> items;
    check<Problem>(a.values.empty() || (a.values.size() == 1 && a.values[0].dict()),
                   "dict: required names with values, or one dict");
    if (!a.values.empty()) items = a.values[0].dict()->items;
    for (const auto& [name, value] : a.named) items.emplace_back(std::string_view(name), value);
    return Value::dict(std::move(items));
}

Value raise_exception(const Arguments& a) {
    throw Raised(to_utf8(to_text(*bound_to("raise_exception", "message", a).values[0])));
}

// The work of one rendering.
class Interpreter {
  public:
    Interpreter(const Json& input, const RenderOptions& options) : options_(options) {
        const auto function = [&](const char* name, std::function<Value(const Arguments&)> call) {
            top_.set(name, Function{name, std::move(call)});
        };
        function("range", range);
        function("dict", make_dict);
        function("raise_exception", raise_exception);
        function("namespace", [this](const Arguments& a) {
            spaces_.emplace_back();
            const Value given = make_dict(a);
            for (const auto& [key, value] : given.dict()->items)
                spaces_.back().items.emplace_back(to_utf8(to_text(key)), value);
            return Value(&spaces_.back());
        });
        function("strftime_now", [this](const Arguments& a) {
            const std::string format = to_utf8(bound_to("strftime_now", "format", a).text(0)) + '.';
            check<Problem>(format.size() <= 200, "strftime_now: the format is longer than 200 bytes");
            char buffer[4096];  // with a point behind: an empty result would look like an error
            const size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &options_.now);
            check<Problem>(size > 0, "strftime_now: the date is too long");
            return Value(std::string_view(buffer, size - 1));
        });
        for (const auto& [name, value] : input.items()) top_.set(name, from_json(value, "/" + name, sources_));
    }

    void run(const Body& body) { execute(body, top_, out_); }

    Rendered rendered() const {
        Rendered result;
        for (size_t i = 0; i < out_.size(); ++i) {
            const Char& c = out_[i];
            const size_t begin = result.text.size();
            append_utf8(result.text, c.code);
            const size_t end = result.text.size();
            if (i == 0 || c.source != out_[i - 1].source)
                result.spans.push_back({begin, end, c.source > 0 ? sources_[c.source - 1] : ""});
            result.spans.back().end = end;
            if (!c.generated) continue;
            if (i == 0 || !out_[i - 1].generated) result.generation.emplace_back(begin, end);
            result.generation.back().second = end;
        }
        return result;
    }

    Place at() const { return at_; }

  private:
    // Counts what a template does, and how deep it is, while it lives.
    class Deeper {
      public:
        Deeper(Interpreter& of, Place at) : of_(of) {
            of_.at_ = at;
            of_.charge(1);
            check<Problem>(++of_.depth_ <= kDeepestCall, "the template calls itself without an end, or is too deep");
        }
        ~Deeper() { --of_.depth_; }
        Deeper(const Deeper&) = delete;
        Deeper& operator=(const Deeper&) = delete;

      private:
        Interpreter& of_;
    };

    void charge(int64_t steps) {
        steps_ += steps;
        check<Problem>(steps_ <= options_.steps, "the template needs more than ", options_.steps, " steps");
    }
    Value charged(Value value) {
        if (value.text()) charge(static_cast<int64_t>(value.text()->size()));
        if (value.list()) charge(static_cast<int64_t>(value.list()->elements.size()));
        if (value.dict()) charge(static_cast<int64_t>(value.dict()->items.size()));
        return value;
    }

    Text captured(const Body& body, Scope& scope) {
        Text text;
        execute(body, scope, text);
        return text;
    }

    Flow execute(const Body& body, Scope& scope, Text& out) {
        for (const Statement& one : body) {
            const Flow flow = execute(one, scope, out);
            if (flow != Flow::on) return flow;
        }
        return Flow::on;
    }

    void write(Text& out, const Text& text) {
        charge(static_cast<int64_t>(text.size()));
        append(out, text);
    }

    Flow execute(const Statement& s, Scope& scope, Text& out) {
        const Deeper deeper(*this, s.at);
        switch (s.kind) {
            case Statement::Kind::text: write(out, *s.value.text()); break;
            case Statement::Kind::output: output(s, scope, out); break;
            case Statement::Kind::branches:
                for (size_t i = 0; i < s.bodies.size(); ++i)
                    if (i == s.expressions.size() || truth(evaluate(s.expressions[i], scope)))
                        return execute(s.bodies[i], scope, out);
                break;
            case Statement::Kind::loop: return loop(s, scope, out);
            case Statement::Kind::set: assign(s.targets, evaluate(s.expressions[0], scope), scope); break;
            case Statement::Kind::set_body:
            case Statement::Kind::filter: filter_body(s, scope, out); break;
            case Statement::Kind::macro: scope.set(s.names[0], macro(s, scope)); break;
            case Statement::Kind::generation: generation(s, scope, out); break;
            case Statement::Kind::stop: return Flow::stop;
            case Statement::Kind::next: return Flow::next;
        }
        return Flow::on;
    }

    void output(const Statement& s, Scope& scope, Text& out) {
        const Value value = evaluate(s.expressions[0], scope);
        at_ = s.at;
        check<Problem>(!value.function() && !value.space() && !value.loop(), "required a value to print, got ",
                       shown(value));
        write(out, value.text() ? *value.text() : to_text(value));
    }

    void generation(const Statement& s, Scope& scope, Text& out) {
        const size_t begin = out.size();
        Scope& inside = scopes_.emplace_back(Scope{&scope});
        execute(s.bodies[0], inside, out);
        for (size_t i = begin; i < out.size(); ++i) out[i].generated = true;
    }

    void filter_body(const Statement& s, Scope& scope, Text& out) {
        Scope& inside = scopes_.emplace_back(Scope{&scope});
        body_ = captured(s.bodies[0], inside);
        Value value = evaluate(s.expressions[0], scope);
        if (s.kind == Statement::Kind::filter)
            write(out, to_text(value));
        else
            assign(s.targets, std::move(value), scope);
    }

    void assign(const std::vector<Target>& targets, Value value, Scope& scope) {
        if (targets.size() > 1) {
            const std::vector<Value> values = elements_of(value);
            check<Problem>(values.size() == targets.size(), "required ", targets.size(),
                           " values for as many names, got ", values.size());
            for (size_t i = 0; i < values.size(); ++i) assign({targets[i]}, values[i], scope);
            return;
        }
        const Target& target = targets[0];
        if (target.attribute.empty()) return scope.set(target.name, std::move(value));
        const Value* found = scope.find(target.name);
        Namespace* space = found ? found->space() : nullptr;
        check<Problem>(space != nullptr, target.name, ".", target.attribute, ": required a namespace(), ", target.name,
                       " is none");
        for (auto& [key, old] : space->items)
            if (key == target.attribute) {
                old = std::move(value);
                return;
            }
        space->items.emplace_back(target.attribute, std::move(value));
    }

    Flow loop(const Statement& s, Scope& scope, Text& out) {
        std::vector<Value> elements = elements_of(evaluate(s.expressions[0], scope));
        charge(std::ssize(elements));
        if (s.expressions.size() > 1) {
            const auto fails = [&](const Value& element) {
                Scope& inside = scopes_.emplace_back(Scope{&scope});
                assign(s.targets, element, inside);
                return !truth(evaluate(s.expressions[1], inside));
            };
            elements.erase(std::remove_if(elements.begin(), elements.end(), fails), elements.end());
        }
        loops_.push_back(std::move(elements));
        const std::vector<Value>& values = loops_.back();
        Loop& state = states_.emplace_back(Loop{&values, 0});
        for (; state.index < values.size(); ++state.index) {
            Scope& inside = scopes_.emplace_back(Scope{&scope});
            inside.set("loop", &state);
            assign(s.targets, values[state.index], inside);
            const Flow flow = execute(s.bodies[0], inside, out);
            if (flow == Flow::stop) break;
        }
        if (values.empty() && s.bodies.size() > 1) return execute(s.bodies[1], scope, out);
        return Flow::on;
    }

    Value macro(const Statement& s, Scope& scope) {
        return Function{
            s.names[0], [this, &s, &scope](const Arguments& a) {
                std::string parameters;
                for (size_t i = 1; i < s.names.size(); ++i) parameters += (i > 1 ? " " : "") + s.names[i] + "?";
                const Bound bound = bound_to(s.names[0], parameters, a);
                Scope& inside = scopes_.emplace_back(Scope{&scope});
                const size_t without = bound.values.size() - s.expressions.size();
                for (size_t i = 0; i < bound.values.size(); ++i)
                    inside.set(s.names[i + 1],
                               bound.has(i) ? bound[i]
                               : i >= without
                                   ? evaluate(s.expressions[i - without], inside)
                                   : Value(Undefined{concat("parameter '", s.names[i + 1], "' was not provided")}));
                return Value(captured(s.bodies[0], inside));
            }};
    }

    Value evaluate(const Expression& e, Scope& scope) {
        const Deeper deeper(*this, e.at);
        switch (e.kind) {
            case Kind::constant: return e.value;
            case Kind::body: return std::move(body_);
            case Kind::name: {
                const Value* found = scope.find(e.name);
                return found ? *found : Value(Undefined{concat("'", e.name, "' is undefined")});
            }
            case Kind::both:
            case Kind::either: {
                Value left = evaluate(e.children[0], scope);
                return truth(left) == (e.kind == Kind::either) ? left : evaluate(e.children[1], scope);
            }
            case Kind::condition:
                if (truth(evaluate(e.children[1], scope))) return evaluate(e.children[0], scope);
                if (e.children.size() > 2) return evaluate(e.children[2], scope);
                return Undefined{"the expression with `if` has no else, and its condition is false"};
            case Kind::compare: return comparison(e, scope);
            case Kind::call:
            case Kind::filter:
            case Kind::test: return call(e, scope);
            default: return charged(operation(e, scope));
        }
    }

    // An expression that needs the values of all its children.
    Value operation(const Expression& e, Scope& scope) {
        std::vector<Value> v;
        for (const Expression& child : e.children) v.push_back(evaluate(child, scope));
        at_ = e.at;
        switch (e.kind) {
            case Kind::list:
            case Kind::tuple: return Value::list(std::move(v), e.kind == Kind::tuple);
            case Kind::dict: {
                std::vector<std::pair<Value, Value>> items;
                for (size_t i = 0; i < v.size(); i += 2) items.emplace_back(std::move(v[i]), std::move(v[i + 1]));
                return Value::dict(std::move(items));
            }
            case Kind::attribute: return attribute(v[0], e.name);
            case Kind::subscript: return subscript(v[0], v[1]);
            case Kind::slice: return slice(v[0], v[1], v.size() > 2 ? v[2] : nullptr, v.size() > 3 ? v[3] : nullptr);
            case Kind::binary: return operate(e.name, v[0], v[1]);
            default: return unary(e.name, v[0]);
        }
    }

    static Value unary(const std::string& sign, const Value& value) {
        if (sign == "not") return !truth(value);
        check<Problem>(value.is_number(), sign, ": required a number, got ", shown(value));
        return sign == "+" ? operate("+", int64_t{0}, value) : operate("*", int64_t{-1}, value);
    }

    Value comparison(const Expression& e, Scope& scope) {
        Value left = evaluate(e.children[0], scope);
        for (size_t i = 0; i < e.words.size(); ++i) {
            Value right = evaluate(e.children[i + 1], scope);
            at_ = e.at;
            if (!compares(e.words[i], left, right)) return false;
            left = std::move(right);
        }
        return true;
    }

    static void add_named(Arguments& arguments, const Value& value) {
        check<Problem>(value.dict() != nullptr, "**: required a dict, got ", shown(value));
        for (const auto& [key, one] : value.dict()->items) {
            check<Problem>(key.text() != nullptr, "**: required texts as keys, got ", shown(key));
            arguments.named.emplace_back(to_utf8(*key.text()), one);
        }
    }

    Value call(const Expression& e, Scope& scope) {
        const Value of = evaluate(e.children[0], scope);
        Arguments arguments;
        const size_t positional = e.children.size() - e.words.size();
        for (size_t i = 1; i < e.children.size(); ++i) {
            Value value = evaluate(e.children[i], scope);
            const std::string& word = i < positional ? "" : e.words[i - positional];
            if (i < positional)
                arguments.values.push_back(std::move(value));
            else if (word == "*")
                for (Value& one : elements_of(value)) arguments.values.push_back(std::move(one));
            else if (word == "**")
                add_named(arguments, value);
            else
                arguments.named.emplace_back(word, std::move(value));
        }
        at_ = e.at;
        charge(of.text() ? std::ssize(*of.text()) / 8 : 0);
        if (e.kind == Kind::filter) return charged(call_builtin(*find_filter(e.name), of, arguments));
        if (e.kind == Kind::test) return call_builtin(*find_test(e.name), of, arguments);
        check<Problem>(of.function() != nullptr,
                       of.is_undefined() ? "required a function: " : "required a function, got ", shown(of));
        return charged(of.function()->call(arguments));
    }

    const RenderOptions& options_;
    std::vector<std::string> sources_;
    // What macros, loops and namespaces refer to lives as long as the rendering.
    std::deque<Namespace> spaces_;
    std::deque<Scope> scopes_;
    std::deque<std::vector<Value>> loops_;
    std::deque<Loop> states_;
    Scope top_;
    Text out_, body_;
    Place at_;
    int64_t steps_ = 0;
    int depth_ = 0;
};

}  // namespace

std::tm local_time() {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    return local;
}

Template::Template(std::string name, std::string_view source) : name_(std::move(name)), body_(parse(name_, source)) {}

Rendered Template::render(const Json& input, const RenderOptions& options) const {
    Interpreter interpreter(input, options);
    try {
        interpreter.run(body_);
    } catch (const Raised& raised) {
        throw Refused(name_, interpreter.at(), raised.what());
    } catch (const DataError& problem) {
        throw TemplateError(name_, interpreter.at(), problem.what());
    }
    return interpreter.rendered();
}

}  // namespace tutti::jinja
