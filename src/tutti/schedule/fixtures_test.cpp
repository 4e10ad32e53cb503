// Every generator and the lowering against schedules that another implementation made, action by action.
#include "tutti/schedule/testing/fixtures.h"

#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/schedule/csv.h"
#include "tutti/schedule/lowering.h"

namespace tutti::schedule {
namespace {

TEST(Fixtures, GeneratorsMakeTheSameActions) {
    for (const Fixture& f : fixtures()) EXPECT_EQ(to_csv(generate(f.kind, f.dimensions)), f.compute_only) << f.kind;
}

TEST(Fixtures, MessagesComeInTheSameOrder) {
    for (const Fixture& f : fixtures())
        EXPECT_EQ(to_csv(insert_messages(generate(f.kind, f.dimensions))), f.lowered) << f.kind;
}

TEST(Fixtures, AllKindsHaveOne) {
    for (const Kind& kind : kinds())
        EXPECT_TRUE(std::any_of(fixtures().begin(), fixtures().end(), [&](const Fixture& f) {
            return f.kind == kind.name;
        })) << kind.name;
}

TEST(Fixtures, ReadAsTheyWereGenerated) {
    for (const Fixture& f : fixtures()) {
        const Schedule made = generate(f.kind, f.dimensions), read = parse_csv(f.compute_only, f.kind);
        EXPECT_EQ(read.placement, made.placement) << f.kind;
        EXPECT_EQ(read.programs, made.programs) << f.kind;
        EXPECT_EQ(read.microbatches, made.microbatches) << f.kind;
        EXPECT_EQ(read.ascending, made.ascending) << f.kind;
        const Schedule lowered = parse_csv(f.lowered, f.kind);
        EXPECT_EQ(lowered.programs, insert_messages(made).programs) << f.kind;
        EXPECT_EQ(compute_only(lowered).programs, made.programs) << f.kind;
        EXPECT_EQ(to_csv(lowered), f.lowered) << f.kind;
    }
}

}  // namespace
}  // namespace tutti::schedule
