// jinja/parser.cpp: the grammar of Jinja's expressions and tags, in the order of Jinja's own parser
// (github.com/pallets/jinja, src/jinja2/parser.py), so that precedence is the same.
#include <algorithm>

#include "tutti/jinja/functions.h"
#include "tutti/jinja/tree.h"

namespace tutti::jinja {

namespace {

using Kind = Expression::Kind;
using Body = std::vector<Statement>;

constexpr int kDeepestTree = 150;  // of an expression, and of tags in tags

class Parser {
  public:
    Parser(const std::string& name, std::string_view source) : name_(name), tokens_(tokens_of(name, source)) {}

    Body run() {
        Body body = statements({});
        if (now().kind != Token::Kind::end) fail("a tag ends what no tag began");
        return body;
    }

  private:
    const Token& now(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
    bool sees_sign(std::string_view sign, size_t ahead = 0) const { return now(ahead).is(Token::Kind::sign, sign); }
    bool sees_name(std::string_view name, size_t ahead = 0) const { return now(ahead).is(Token::Kind::name, name); }
    bool take_sign(std::string_view sign) { return sees_sign(sign) && ++at_; }
    bool take_name(std::string_view name) { return sees_name(name) && ++at_; }
    const Token& take() { return tokens_[std::min(at_++, tokens_.size() - 1)]; }
    [[noreturn]] void fail(const std::string& why) const { throw TemplateError(name_, now().at, why); }
    [[noreturn]] void fail_required(std::string_view what) const {
        fail(concat("required ", what, ", got ", now().described()));
    }
    void expect_sign(std::string_view sign) {
        if (!take_sign(sign)) fail_required(sign);
    }
    std::string expect_name() {
        if (now().kind != Token::Kind::name) fail_required("a name");
        return take().word;
    }
    void end_tag() {
        take_sign(":");  // as in Python
        if (now().kind != Token::Kind::tag_end) fail_required("%}");
        take();
    }

    Expression node(Kind kind, Place at, std::vector<Expression> children = {}, std::string name = "") const {
        Expression made{kind, at, std::move(name), {}, std::move(children), {}, 1};
        for (const Expression& child : made.children) made.depth = std::max(made.depth, child.depth + 1);
        if (made.depth > kDeepestTree)
            throw TemplateError(name_, at, concat("the expression is deeper than ", kDeepestTree));
        return made;
    }
    Expression constant(Place at, Value value) const {
        Expression made = node(Kind::constant, at);
        made.value = std::move(value);
        return made;
    }
    template <class... Children>
    static std::vector<Expression> both(Children&&... children) {
        std::vector<Expression> all;
        (all.push_back(std::forward<Children>(children)), ...);
        return all;
    }

    // Counts nested calls while it lives: brackets in brackets, tags in tags.
    class Nested {
      public:
        explicit Nested(Parser& parser) : parser_(parser) {
            if (++parser_.nested_ > kDeepestTree) parser_.fail(concat("nested deeper than ", kDeepestTree));
        }
        ~Nested() { --parser_.nested_; }
        Nested(const Nested&) = delete;
        Nested& operator=(const Nested&) = delete;

      private:
        Parser& parser_;
    };

    Expression expression() {
        const Nested nested(*this);
        Expression value = any_of();
        while (sees_name("if")) {
            const Place at = take().at;
            auto children = both(std::move(value), any_of());
            if (take_name("else")) children.push_back(expression());
            value = node(Kind::condition, at, std::move(children));
        }
        return value;
    }

    Expression any_of() {
        Expression left = all_of();
        while (sees_name("or")) {
            const Place at = take().at;
            left = node(Kind::either, at, both(std::move(left), all_of()));
        }
        return left;
    }

    Expression all_of() {
        Expression left = negation();
        while (sees_name("and")) {
            const Place at = take().at;
            left = node(Kind::both, at, both(std::move(left), negation()));
        }
        return left;
    }

    Expression negation() {
        if (!sees_name("not")) return comparison();
        const Nested nested(*this);
        const Place at = take().at;
        return node(Kind::unary, at, both(negation()), "not");
    }

    Expression comparison() {
        Expression first = sum();
        std::vector<std::string> signs;
        const Place at = now().at;
        std::vector<Expression> children;
        for (;;) {
            constexpr const char* kSigns[] = {"==", "!=", "<", "<=", ">", ">="};
            const bool sign = now().kind == Token::Kind::sign &&
                              std::find(std::begin(kSigns), std::end(kSigns), now().word) != std::end(kSigns);
            const bool negated = sees_name("not") && sees_name("in", 1);
            if (!sign && !negated && !sees_name("in")) break;
            signs.push_back(negated ? "not in" : now().word);
            at_ += negated ? 2 : 1;
            if (children.empty()) children.push_back(std::move(first));
            children.push_back(sum());
        }
        if (signs.empty()) return first;
        Expression made = node(Kind::compare, at, std::move(children));
        made.words = std::move(signs);
        return made;
    }

    // left SIGN right SIGN right..., where `next` reads one operand.
    Expression operations(std::initializer_list<const char*> signs, Expression (Parser::*next)()) {
        Expression left = (this->*next)();
        for (;;) {
            const auto* found = std::find_if(signs.begin(), signs.end(), [&](const char* s) { return sees_sign(s); });
            if (found == signs.end()) return left;
            const Place at = take().at;
            left = node(Kind::binary, at, both(std::move(left), (this->*next)()), *found);
        }
    }
    Expression sum() { return operations({"+", "-"}, &Parser::concatenation); }
    Expression concatenation() { return operations({"~"}, &Parser::product); }
    Expression product() { return operations({"*", "//", "/", "%"}, &Parser::power); }
    Expression power() { return operations({"**"}, &Parser::filtered); }

    Expression filtered() { return filters(signed_one()); }

    Expression signed_one() {
        if (!sees_sign("-") && !sees_sign("+")) return postfix(primary());
        const Nested nested(*this);
        const Token& sign = take();
        return postfix(node(Kind::unary, sign.at, both(signed_one()), sign.word));
    }

    Expression primary() {
        const Token& token = now();
        if (token.kind == Token::Kind::name) {
            take();
            if (token.word == "true" || token.word == "True") return constant(token.at, true);
            if (token.word == "false" || token.word == "False") return constant(token.at, false);
            if (token.word == "none" || token.word == "None") return constant(token.at, nullptr);
            return node(Kind::name, token.at, {}, token.word);
        }
        if (token.kind == Token::Kind::number) return constant(take().at, token.value);
        if (token.kind == Token::Kind::text) {
            Text text;
            while (now().kind == Token::Kind::text) append(text, *take().value.text());
            return constant(token.at, std::move(text));
        }
        if (take_sign("(")) {
            Expression inside = tuple(true);
            expect_sign(")");
            return inside;
        }
        if (take_sign("[")) return node(Kind::list, token.at, elements("]", false));
        if (take_sign("{")) return node(Kind::dict, token.at, elements("}", true));
        fail_required("a value");
    }

    std::vector<Expression> elements(std::string_view end, bool pairs) {
        std::vector<Expression> all;
        while (!take_sign(end)) {
            if (!all.empty()) expect_sign(",");
            if (take_sign(end)) break;
            all.push_back(expression());
            if (!pairs) continue;
            expect_sign(":");
            all.push_back(expression());
        }
        return all;
    }

    // One expression, or several with commas between them.
    Expression tuple(bool in_brackets) {
        const Place at = now().at;
        std::vector<Expression> all;
        const auto ends = [&] {
            return sees_sign(")") || now().kind == Token::Kind::tag_end || now().kind == Token::Kind::output_end;
        };
        bool several = in_brackets && ends();
        while (!ends()) {
            all.push_back(expression());
            if (!take_sign(",")) break;
            several = true;
        }
        if (all.empty() && !several) fail_required("a value");
        return several ? node(Kind::tuple, at, std::move(all)) : std::move(all[0]);
    }

    Expression postfix(Expression of) {
        for (;;) {
            const Place at = now().at;
            if (take_sign(".")) {
                if (now().kind == Token::Kind::name)
                    of = node(Kind::attribute, at, both(std::move(of)), take().word);
                else if (now().kind == Token::Kind::number && now().value.integer())
                    of = node(Kind::subscript, at, both(std::move(of), constant(at, take().value)));
                else
                    fail_required("a name");
            } else if (take_sign("[")) {
                of = subscript(std::move(of), at);
            } else if (sees_sign("(")) {
                of = call(Kind::call, at, std::move(of), "");
            } else {
                return of;
            }
        }
    }

    Expression subscript(Expression of, Place at) {
        std::vector<Expression> children = both(std::move(of));
        const auto bound = [&] {
            const bool absent = sees_sign(":") || sees_sign("]");
            children.push_back(absent ? constant(now().at, nullptr) : expression());
        };
        if (sees_sign("]")) fail_required("an index");
        bound();
        const bool slice = sees_sign(":");
        for (int i = 0; slice && i < 2; ++i) {
            take_sign(":");
            bound();
        }
        expect_sign("]");
        return node(slice ? Kind::slice : Kind::subscript, at, std::move(children));
    }

    // NAME(positional, ..., name=value, ...); without brackets no arguments.
    Expression call(Kind kind, Place at, Expression of, std::string name) {
        std::vector<Expression> children = both(std::move(of));
        std::vector<std::string> words;
        if (take_sign("(")) {
            for (bool first = true; !take_sign(")"); first = false) {
                if (!first) expect_sign(",");
                if (take_sign(")")) break;
                const bool spread = sees_sign("*") || sees_sign("**");
                const bool named = spread || (now().kind == Token::Kind::name && sees_sign("=", 1));
                if (!named && !words.empty()) fail("an argument without a name follows one with a name");
                if (named) {
                    words.push_back(take().word);
                    if (!spread) take();
                }
                children.push_back(expression());
            }
        }
        Expression made = node(kind, at, std::move(children), std::move(name));
        made.words = std::move(words);
        return made;
    }

    std::string dotted_name() {
        std::string name = expect_name();
        while (take_sign(".")) name += "." + expect_name();
        return name;
    }

    Expression filter(Expression of) {
        const Place at = now().at;
        const std::string name = dotted_name();
        if (!find_filter(name)) throw TemplateError(name_, at, concat("no filter is named ", name));
        return call(Kind::filter, at, std::move(of), name);
    }

    Expression filters(Expression of) {
        for (;;) {
            const Place at = now().at;
            if (take_sign("|"))
                of = filter(std::move(of));
            else if (take_name("is"))
                of = test(std::move(of), at);
            else if (sees_sign("("))
                of = call(Kind::call, at, std::move(of), "");
            else
                return of;
        }
    }

    Expression test(Expression of, Place at) {
        const bool negated = take_name("not");
        const Place place = now().at;
        const std::string name = dotted_name();
        if (!find_test(name)) throw TemplateError(name_, place, concat("no test is named ", name));
        const auto argument_follows = [&] {
            if (now().kind == Token::Kind::name) return !sees_name("else") && !sees_name("or") && !sees_name("and");
            return now().kind == Token::Kind::text || now().kind == Token::Kind::number || sees_sign("[") ||
                   sees_sign("{");
        };
        Expression made;
        if (!sees_sign("(") && argument_follows()) {
            if (sees_name("is")) fail("a test cannot follow a test");
            made = node(Kind::test, place, both(std::move(of), postfix(primary())), name);
        } else {
            made = call(Kind::test, place, std::move(of), name);
        }
        return negated ? node(Kind::unary, at, both(std::move(made)), "not") : made;
    }

    // Until a tag whose name is one of `ends`, which is taken with its name; without `ends` the end of the template.
    Body statements(std::initializer_list<const char*> ends) {
        const Nested nested(*this);
        const Place begin = now().at;
        Body body;
        for (;;) {
            const Token& token = take();
            if (token.kind == Token::Kind::data) {
                body.push_back({.kind = Statement::Kind::text, .at = token.at, .value = token.value});
            } else if (token.kind == Token::Kind::output_begin) {
                Statement output{.kind = Statement::Kind::output, .at = token.at};
                output.expressions.push_back(tuple(false));
                if (now().kind != Token::Kind::output_end) fail_required("}}");
                take();
                body.push_back(std::move(output));
            } else if (token.kind == Token::Kind::tag_begin) {
                const bool ended = std::any_of(ends.begin(), ends.end(), [&](const char* e) { return take_name(e); });
                if (ended) return body;
                body.push_back(tag());
            } else {
                if (ends.size() == 0) return body;
                throw TemplateError(name_, begin, concat("the tag has no ", *(ends.end() - 1)));
            }
        }
    }

    // The name of the tag that ended statements().
    const std::string& ended_by() const { return tokens_[at_ - 1].word; }

    Statement tag() {
        const Place at = now().at;
        const std::string name = expect_name();
        struct Row {
            const char* name;
            Statement (Parser::*parse)(Place at);
        };
        static constexpr Row kTags[] = {{"if", &Parser::branches},
                                        {"for", &Parser::loop},
                                        {"set", &Parser::set},
                                        {"macro", &Parser::macro},
                                        {"filter", &Parser::filter_tag},
                                        {"generation", &Parser::generation},
                                        {"break", &Parser::leave<Statement::Kind::stop>},
                                        {"continue", &Parser::leave<Statement::Kind::next>}};
        const auto* row =
            std::find_if(std::begin(kTags), std::end(kTags), [&](const Row& r) { return name == r.name; });
        if (row == std::end(kTags)) throw TemplateError(name_, at, concat("no tag is named ", name, " here"));
        return (this->*row->parse)(at);
    }

    Statement branches(Place at) {
        Statement made{.kind = Statement::Kind::branches, .at = at};
        for (bool more = true; more;) {
            made.expressions.push_back(tuple(false));
            end_tag();
            made.bodies.push_back(statements({"elif", "else", "endif"}));
            more = ended_by() == "elif";
        }
        if (ended_by() == "else") {
            end_tag();
            made.bodies.push_back(statements({"endif"}));
        }
        end_tag();
        return made;
    }

    Target target(bool with_attribute) {
        Target made{expect_name(), ""};
        if (with_attribute && take_sign(".")) made.attribute = expect_name();
        return made;
    }

    std::vector<Target> targets(bool with_attribute) {
        std::vector<Target> all;
        const bool brackets = take_sign("(");
        do all.push_back(target(with_attribute));
        while (take_sign(",") && now().kind == Token::Kind::name && !sees_name("in"));
        if (brackets) expect_sign(")");
        return all;
    }

    Statement loop(Place at) {
        Statement made{.kind = Statement::Kind::loop, .at = at, .targets = targets(false)};
        if (!take_name("in")) fail_required("in");
        made.expressions.push_back(without_condition());
        if (take_name("if")) made.expressions.push_back(expression());
        if (sees_name("recursive")) fail("a recursive loop is not supported");
        end_tag();
        ++loops_;
        made.bodies.push_back(statements({"else", "endfor"}));
        --loops_;
        if (ended_by() == "else") {
            end_tag();
            made.bodies.push_back(statements({"endfor"}));
        }
        end_tag();
        return made;
    }

    // What a loop runs over: a condition would be taken for the loop's own.
    Expression without_condition() {
        const Place at = now().at;
        std::vector<Expression> all = both(any_of());
        while (take_sign(",")) all.push_back(any_of());
        return all.size() == 1 ? std::move(all[0]) : node(Kind::tuple, at, std::move(all));
    }

    Statement set(Place at) {
        Statement made{.kind = Statement::Kind::set, .at = at, .targets = targets(true)};
        if (take_sign("=")) {
            made.expressions.push_back(tuple(false));
            end_tag();
            return made;
        }
        if (made.targets.size() > 1) fail_required("=");
        made.kind = Statement::Kind::set_body;
        Expression through = node(Kind::body, at);
        while (take_sign("|")) through = filter(std::move(through));
        made.expressions.push_back(std::move(through));
        end_tag();
        made.bodies.push_back(statements({"endset"}));
        end_tag();
        return made;
    }

    Statement macro(Place at) {
        Statement made{.kind = Statement::Kind::macro, .at = at, .names = {expect_name()}};
        expect_sign("(");
        for (bool first = true; !take_sign(")"); first = false) {
            if (!first) expect_sign(",");
            made.names.push_back(expect_name());
            if (take_sign("="))
                made.expressions.push_back(expression());
            else if (!made.expressions.empty())
                fail("a parameter without a default follows one with a default");
        }
        end_tag();
        const int loops = std::exchange(loops_, 0);
        made.bodies.push_back(statements({"endmacro"}));
        loops_ = loops;
        take_name(made.names[0]);
        end_tag();
        return made;
    }

    Statement filter_tag(Place at) {
        Statement made{.kind = Statement::Kind::filter, .at = at};
        Expression through = filter(node(Kind::body, at));
        while (take_sign("|")) through = filter(std::move(through));
        made.expressions.push_back(std::move(through));
        end_tag();
        made.bodies.push_back(statements({"endfilter"}));
        end_tag();
        return made;
    }

    Statement generation(Place at) {
        end_tag();
        Statement made{.kind = Statement::Kind::generation, .at = at};
        made.bodies.push_back(statements({"endgeneration"}));
        end_tag();
        return made;
    }

    template <Statement::Kind kind>
    Statement leave(Place at) {
        if (loops_ == 0) throw TemplateError(name_, at, "the tag stands in no loop");
        end_tag();
        return {.kind = kind, .at = at};
    }

    std::string name_;
    std::vector<Token> tokens_;
    size_t at_ = 0;
    int nested_ = 0, loops_ = 0;
};

}  // namespace

Body parse(const std::string& name, std::string_view source) { return Parser(name, source).run(); }

}  // namespace tutti::jinja
