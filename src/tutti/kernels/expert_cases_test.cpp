// Errors that the cases of a mixture of experts detect; see kernel_cases_test.cpp.
#include <algorithm>
#include <vector>

#include "tutti/kernels/testing/equivalence.h"

namespace tutti::kernels {
namespace {

bool noticed_of(const KernelTable& wrong, const std::string& op) {
    return noticed(wrong, op, "softmax") || noticed(wrong, op, "sigmoid");
}

// Groups that are left aside, and a bias that enters the weights; a segment's gradients that are taken for another's.
TEST(KernelCasesNotice, AChoiceOfExpertsThatForgets) {
    KernelTable wrong = reference_table();
    wrong.route = [](const Stream& s, const Routing& r) {
        Routing all = r;
        all.groups = all.chosen_groups = 1;
        reference_table().route(s, all);
    };
    EXPECT_TRUE(noticed_of(wrong, "route"));
    wrong.route = [](const Stream& s, const Routing& r) {
        Routing unbiased = r;
        unbiased.bias = {};
        reference_table().route(s, unbiased);
    };
    EXPECT_TRUE(noticed_of(wrong, "route"));
    wrong.route = [](const Stream& s, const Routing& r) {
        Routing without = r;
        without.epsilon = 0;
        reference_table().route(s, without);
    };
    EXPECT_TRUE(noticed_of(wrong, "route"));
    wrong.route_backward = [](const Stream& s, const RoutingBackward& b) {
        RoutingBackward one = b;
        one.segments = {};
        reference_table().route_backward(s, one);
    };
    EXPECT_TRUE(noticed_of(wrong, "route_backward"));
    wrong.route_backward = [](const Stream& s, const RoutingBackward& b) {
        RoutingBackward without = b;
        without.z_scale = 0;
        reference_table().route_backward(s, without);
    };
    EXPECT_TRUE(noticed_of(wrong, "route_backward"));
}

// Rows of one group more or less, and a gradient of an empty group that is left unwritten.
TEST(KernelCasesNotice, ABorderBetweenGroups) {
    KernelTable wrong = reference_table();
    wrong.grouped_gemm = [](const Stream& s, const GroupedGemm& g) {
        std::vector<int64_t> rows(g.rows.begin(), g.rows.end());
        for (size_t e = 0; e + 1 < rows.size(); ++e)
            if (rows[e] > 1) {
                --rows[e];
                ++rows[e + 1];
                break;
            }
        reference_table().grouped_gemm(s, {g.all, rows});
    };
    expect_noticed(wrong, "grouped_gemm");
    wrong.grouped_gemm = [](const Stream& s, const GroupedGemm& g) {
        GroupedGemm last = g;
        if (g.all.transpose_a && !g.all.accumulate && g.rows.back() == 0) {
            last.rows = g.rows.first(g.rows.size() - 1);
            --last.all.c.shape[0];
        }
        reference_table().grouped_gemm(s, last);
    };
    expect_noticed(wrong, "grouped_gemm");
}

TEST(KernelCasesNotice, RowsThatAreNotNamed) {
    KernelTable wrong = reference_table();
    static const auto none_missing = [](const View& rows) {
        std::vector<int32_t> all;
        for (int64_t i = 0; i < rows.numel(); ++i) all.push_back(std::max(0, rows.as<int32_t>()[i]));
        return all;
    };
    wrong.gather_rows = [](const Stream& s, View x, View rows, View y) {
        std::vector<int32_t> all = none_missing(rows);
        reference_table().gather_rows(s, x, View(all.data(), DType::i32, rows.shape), y);
    };
    wrong.combine_rows = [](const Stream& s, View x, View rows, View weights, View y) {
        std::vector<int32_t> all = none_missing(rows);
        if (x.shape[0] > 0) reference_table().combine_rows(s, x, View(all.data(), DType::i32, rows.shape), weights, y);
    };
    wrong.combine_rows_backward = [](const Stream& s, View dy, View x, View rows, View, View dx, View dweights) {
        reference_table().combine_rows_backward(s, dy, x, rows, {}, dx, dweights);
    };
    for (const char* op : {"gather_rows", "combine_rows", "combine_rows_backward"}) expect_noticed(wrong, op);
}

// An order that is not stable, copies that take turns by row, a tie that goes to the later row, and ranks in the place
// of experts.
TEST(KernelCasesNotice, AnOrderOfChoicesThatIsAnother) {
    KernelTable wrong = reference_table();
    wrong.sort_choices = [](const Stream& s, const SortChoices& sort) {
        reference_table().sort_choices(s, sort);
        if (!sort.sent.defined() || sort.sent.numel() < 2) return;
        auto* const sent = sort.sent.as<int32_t>();
        if (sent[1] > sent[0]) std::swap(sent[0], sent[1]);
    };
    EXPECT_TRUE(noticed(wrong, "sort_choices", ""));
    wrong.sort_choices = [](const Stream& s, const SortChoices& sort) {
        SortChoices one = sort;
        one.owners = 1;
        reference_table().sort_choices(s, one);
    };
    EXPECT_TRUE(noticed(wrong, "sort_choices", ""));
    wrong.accept_choices = [](const Stream& s, const AcceptChoices& accept) {
        std::vector<int64_t> rows;
        for (int64_t i = 0; i < accept.rows.numel(); ++i) rows.push_back(-accept.rows.as<int64_t>()[i]);
        AcceptChoices turned = accept;
        turned.rows = View(rows.data(), DType::i64, accept.rows.shape);
        reference_table().accept_choices(s, turned);
    };
    EXPECT_TRUE(noticed(wrong, "accept_choices", ""));
    wrong.order_arrivals = [](const Stream& s, View counts, int64_t, View order, View places) {
        reference_table().order_arrivals(s, counts, 1, order, places);
    };
    EXPECT_TRUE(noticed(wrong, "order_arrivals", ""));
    wrong.order_arrivals = [](const Stream& s, View counts, int64_t, View order, View places) {
        reference_table().order_arrivals(s, counts, 1, places, order);
    };
    EXPECT_TRUE(noticed(wrong, "order_arrivals", ""));
}

}  // namespace
}  // namespace tutti::kernels
