// jinja/tree.h: a parsed template.
#pragma once

#include <string>
#include <vector>

#include "tutti/jinja/lexer.h"

namespace tutti::jinja {

struct Expression {
    enum class Kind {
        constant,   // value
        name,       // name
        list,       // children are the elements
        tuple,      // the same
        dict,       // key, value, key, value
        attribute,  // children[0].name
        subscript,  // children[0][children[1]]
        slice,      // children[0][a:b:c]; an absent one is None
        call,       // children[0](positional..., named...); `words` are the names of the last children, or * or **
        filter,     // children[0]|name(...), the same
        test,       // children[0] is name(...), the same
        unary,      // name is the sign, or not
        binary,     // name is the sign
        both,       // a and b
        either,     // a or b
        condition,  // children[0] if children[1] else children[2]; without the third undefined
        compare,    // a < b in c: `words` are the signs
        body        // the rendered body of a filter tag or of a set tag with filters
    };
    Kind kind = Kind::constant;
    Place at;
    std::string name;
    Value value;
    std::vector<Expression> children;
    std::vector<std::string> words;
    int depth = 1;
};

// A name, or the attribute of a namespace, that a tag sets.
struct Target {
    std::string name, attribute;
};

struct Statement {
    enum class Kind {
        text,        // value
        output,      // {{ expressions[0] }}
        branches,    // if, elif: bodies[i] where expressions[i] is true; one more body is else
        loop,        // for targets in expressions[0] if expressions[1]: bodies[0], else bodies[1]
        set,         // targets = expressions[0]
        set_body,    // targets[0] = the rendered bodies[0], through the filters of expressions[0]
        macro,       // names: of the macro and its parameters; expressions: defaults of the last parameters; bodies[0]
        filter,      // expressions[0] of the rendered bodies[0]
        generation,  // bodies[0], whose text a model is to learn
        stop,        // break
        next         // continue
    };
    Kind kind = Kind::text;
    Place at;
    Value value;
    std::vector<Target> targets;
    std::vector<std::string> names;
    std::vector<Expression> expressions;
    std::vector<std::vector<Statement>> bodies;
};

// TemplateError for what is not Jinja, a tag, filter or test that does not exist, and nesting beyond a bound.
std::vector<Statement> parse(const std::string& name, std::string_view source);

}  // namespace tutti::jinja
