// cli/bench/predicted_products.cpp: `tutti bench gemm --cluster`: the products of the sweep on a machine that is not
// here.
#include <algorithm>

#include "tutti/base/digits.h"
#include "tutti/base/error.h"
#include "tutti/base/strings.h"
#include "tutti/base/units.h"
#include "tutti/cli/bench/bench.h"
#include "tutti/cli/io.h"
#include "tutti/hardware/cluster.h"
#include "tutti/simulate/machine_prices.h"

namespace tutti::cli {

std::vector<diagnose::GemmShape> products_of(const std::string& sizes) {
    constexpr int64_t kMost = 1 << 20;
    std::vector<diagnose::GemmShape> products;
    for (const std::string_view item : different_elements("--sizes", sizes)) {
        std::vector<int64_t> sides;
        for (const std::string_view side : split(item, 'x')) sides.push_back(parse_number<int64_t>(side).value_or(0));
        const bool legal = std::ranges::all_of(sides, [](int64_t side) { return side >= 1 && side <= kMost; });
        check<UsageError>(sides.size() == 3 && legal, "--sizes ", item,
                          ": required MxKxN, the sides of (M, K) x (K, N), each from 1 to ", kMost,
                          ", such as 256x4096x4096");
        products.push_back({std::string(item), sides[0], sides[2], sides[1]});
    }
    return products;
}

int predict_products(const BenchArguments& a, const Io& io) {
    const hardware::Cluster cluster = hardware::cluster_named(a.cluster, a.set_cluster);
    const std::string type(hardware::peak_name(*compute_type_from(a.dtype)));
    check<UsageError>(cluster.has(type), cluster.name, " has no ", type, " products, it has ", cluster.types(),
                      "; give its --dtype");
    const simulate::MachinePrices prices(cluster, {}, type);
    const double peak = cluster.peak(type);
    std::vector<diagnose::GemmShape> products;
    if (a.sizes)
        products = products_of(*a.sizes);
    else
        for (int64_t n = kSmallestSide; n <= kLargestSideOfGpu; n *= 2)
            products.push_back({concat("N = ", n), n, n, n});
    io.text() << "products on " << cluster.name << ", predicted; peak " << format_flop_rate(peak) << " in " << type
              << "\n\n"
              << left("", 24) << right("M", 7) << right("N", 7) << right("K", 7) << right("FLOPs", 13)
              << right("time", 10) << right("TFLOP/s", 9) << right("of peak", 9) << '\n';
    Json rows = Json::array();
    for (const diagnose::GemmShape& p : products) {
        const double seconds = prices.product(double(p.rows), double(p.out), double(p.in));
        const double rate = p.flops() / seconds;
        io.text() << left(p.name, 24) << right(std::to_string(p.rows), 7) << right(std::to_string(p.out), 7)
                  << right(std::to_string(p.in), 7) << right(format_flops(p.flops()), 13)
                  << right(format_time(seconds), 10) << right(format_fixed(rate / 1e12, 1), 9)
                  << right(format_percent(rate / peak), 9) << '\n';
        rows.push_back({{"name", p.name},
                        {"rows", p.rows},
                        {"out", p.out},
                        {"in", p.in},
                        {"flops", p.flops()},
                        {"seconds", seconds},
                        {"flops_per_s", rate},
                        {"share_of_peak", rate / peak}});
    }
    io.text() << "\nwithout the start of a kernel, " << format_time(prices.launch_gap()) << " between two of a stream\n"
              << std::flush;
    io.print(Json{
        {"bench", "gemm"}, {"cluster", cluster.name}, {"dtype", type}, {"peak_flops_per_s", peak}, {"rows", rows}});
    return 0;
}

}  // namespace tutti::cli
