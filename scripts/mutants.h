// scripts/mutants.h: mutants of a program that are compiled together and chosen when it runs. mutate.py writes uses of
// these templates into a copy of the sources, and none into the tree.
//
// TUTTI_MUTANT=N: mutant N acts. TUTTI_MUTANTS_REACHED=FILE: byte N of the file becomes 1 when a place of mutant N runs,
// in any process; the file is as long as there are mutants. What is computed at compile time never changes.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <type_traits>
#include <utility>

namespace mutants {

struct State {
    int chosen = -1;
    volatile char* reached = nullptr;
    State() {
        if (const char* number = std::getenv("TUTTI_MUTANT")) chosen = std::atoi(number);
        const char* name = std::getenv("TUTTI_MUTANTS_REACHED");
        if (!name) return;
        const int file = open(name, O_RDWR | O_CLOEXEC);
        struct stat status{};
        if (file < 0 || fstat(file, &status) != 0) std::abort();
        void* bytes = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (bytes == MAP_FAILED) std::abort();
        reached = static_cast<char*>(bytes);
    }
};

inline const State& state() {
    static const State state;
    return state;
}

template <int N>
constexpr bool acts() {
    if (std::is_constant_evaluated()) return false;
    const State& s = state();
    if (s.reached && !s.reached[N]) s.reached[N] = 1;
    return s.chosen == N;
}

template <int N>
constexpr bool negated(bool value) {
    return value != acts<N>();
}

template <int N, class Other>
constexpr bool both(bool first, const Other& other) {  // &&, mutated to ||
    return acts<N>() ? first || other() : first && other();
}

template <int N, class Other>
constexpr bool either(bool first, const Other& other) {  // ||, mutated to &&
    return acts<N>() ? first && other() : first || other();
}

// An operator is said twice, with a Switch between: `a < Switch<7, 'l'>{} < b` binds as `a < b` did.
template <int N, char New>
struct Switch {};
template <int N, char New, class A>
struct Half {
    A&& left;
};

template <char New, class A, class B>
constexpr auto apply(A&& a, B&& b) {
    if constexpr (New == '<') return a < b;
    if constexpr (New == 'l') return a <= b;
    if constexpr (New == '>') return a > b;
    if constexpr (New == 'g') return a >= b;
    if constexpr (New == '=') return a == b;
    if constexpr (New == '!') return a != b;
    if constexpr (New == '+') return a + b;
    if constexpr (New == '-') return a - b;
    if constexpr (New == '*') return a * b;
    if constexpr (New == '/') return a / b;
}

#define MUTANTS_BINARY(op)                                                                    \
    template <int N, char New, class A>                                                       \
    constexpr Half<N, New, A> operator op(A&& a, Switch<N, New>) {                            \
        return {std::forward<A>(a)};                                                          \
    }                                                                                         \
    template <int N, char New, class A, class B>                                              \
    constexpr auto operator op(Half<N, New, A> half, B&& b) {                                 \
        using Value = std::decay_t<decltype(half.left op b)>;                                 \
        return acts<N>() ? static_cast<Value>(apply<New>(half.left, b)) : static_cast<Value>(half.left op b); \
    }
MUTANTS_BINARY(<)
MUTANTS_BINARY(<=)
MUTANTS_BINARY(>)
MUTANTS_BINARY(>=)
MUTANTS_BINARY(==)
MUTANTS_BINARY(!=)
MUTANTS_BINARY(+)
MUTANTS_BINARY(-)
MUTANTS_BINARY(*)
MUTANTS_BINARY(/)
MUTANTS_BINARY(%)
#undef MUTANTS_BINARY

// Assignments bind from the right: `a += Switch<7, '-'>{} += b`.
#define MUTANTS_ASSIGNMENT(op)                                             \
    template <int N, char New, class B>                                    \
    constexpr Half<N, New, B> operator op(Switch<N, New>, B&& b) {         \
        return {std::forward<B>(b)};                                       \
    }                                                                      \
    template <int N, char New, class A, class B>                           \
    constexpr A& operator op(A& a, Half<N, New, B> half) {                 \
        if (acts<N>()) return a = static_cast<A>(apply<New>(a, half.left)); \
        return a op half.left;                                             \
    }
MUTANTS_ASSIGNMENT(+=)
MUTANTS_ASSIGNMENT(-=)
MUTANTS_ASSIGNMENT(*=)
#undef MUTANTS_ASSIGNMENT

}  // namespace mutants
