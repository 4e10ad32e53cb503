#include "tutti/comm/testing/conformance.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/philox.h"
#include "tutti/base/to_size.h"
#include "tutti/mesh/mesh.h"

namespace tutti::comm::conformance {

namespace {

// Values whose sums are inexact, so that another order of additions than the tree's changes the last bits.
float value(int rank, int64_t i) {
    return normal(random_key(17, "conformance", static_cast<uint64_t>(rank)), static_cast<uint64_t>(i));
}

// The documented tree, in its simplest form.
float tree(int first, int count, const std::function<float(int)>& leaf) {
    if (count == 1) return leaf(first);
    int left = 1;
    while (2 * left < count) left *= 2;
    return tree(first, left, leaf) + tree(first + left, count - left, leaf);
}

// A rank with one group of all ranks.
struct Rank {
    Rank(World& world, Device& on, const std::string& name = "world")
        : device(on), group(world.everyone(name)), rank(world.rank()), n(world.size()) {}
    template <class T>
    Tensor of(const std::vector<T>& values) const {
        return Tensor::from_host<T>(device, {static_cast<int64_t>(values.size())}, values, Purpose::communication);
    }
    Tensor empty(int64_t count, DType dtype = DType::f32) const {
        Tensor x = Tensor::empty(device, {count}, dtype, Purpose::communication);
        const std::vector<std::byte> pattern(to_size(x.bytes()), std::byte{0xee});
        device.copy_in(x.view().data, pattern.data(), x.bytes());
        return x;
    }
    std::vector<float> my_values(int64_t count) const {
        std::vector<float> values;
        for (int64_t i = 0; i < count; ++i) values.push_back(value(rank, i));
        return values;
    }
    Tensor mine(int64_t count) const { return of(my_values(count)); }
    Device& device;
    std::unique_ptr<Communicator> group;
    int rank, n;
};

template <class T = float>
std::function<T(int64_t)> read(const Tensor& x) {
    return [values = x.to_host<T>()](int64_t i) { return values[to_size(i)]; };
}

void expect(bool ok, const char* what, int64_t i) { check(ok, "conformance: ", what, " at element ", i); }

// None, one, fewer elements than ranks, sizes that the ranks do not divide, several blocks of the reduction.
const std::vector<int64_t> kSizes = {0, 1, 3, 7, 64, 1000, 4099, 9001};

void all_reduce_sums_along_the_tree(World& world, Device& device) {
    const Rank r(world, device);
    for (const int64_t size : kSizes) {
        const Tensor x = r.mine(size);
        r.group->all_reduce(x).wait();
        const auto sum = read(x);
        for (int64_t i = 0; i < size; ++i)
            expect(sum(i) == tree(0, r.n, [&](int rank) { return value(rank, i); }), "all_reduce", i);
    }
}

void sixteen_bits_add_in_f32_and_round_once(World& world, Device& device) {
    const Rank r(world, device);
    for (const int64_t size : kSizes) {
        const auto rounded = [&](int64_t count) {
            std::vector<bf16> values;
            for (const float v : r.my_values(count)) values.emplace_back(v);
            return r.of(values);
        };
        const Tensor x = rounded(size), y = rounded(size * r.n), part = r.empty(size);
        r.group->all_reduce(x).wait();
        r.group->reduce_scatter(y, part).wait();
        const auto sum = [&](int64_t i) {
            return tree(0, r.n, [&](int rank) { return static_cast<float>(bf16(value(rank, i))); });
        };
        const auto reduced = read<bf16>(x);
        const auto own = read(part);
        for (int64_t i = 0; i < size; ++i) {
            expect(reduced(i).bits == bf16(sum(i)).bits, "bf16 all_reduce", i);
            expect(own(i) == sum(r.rank * size + i), "bf16 reduce_scatter into f32", i);
        }
    }
}

void maxima_and_integers(World& world, Device& device) {
    const Rank r(world, device);
    std::vector<int64_t> whole;
    for (int64_t i = 0; i < 5; ++i) whole.push_back((int64_t{1} << 40) + i * r.rank);
    const Tensor x = r.mine(1000), counts = r.of(whole);
    r.group->all_reduce(x, Reduce::max).wait();
    r.group->all_reduce(counts).wait();
    const auto maxima = read(x);
    const auto sums = read<int64_t>(counts);
    for (int64_t i = 0; i < 1000; ++i) {
        float largest = value(0, i);
        for (int rank = 1; rank < r.n; ++rank) largest = std::max(largest, value(rank, i));
        expect(maxima(i) == largest, "max", i);
    }
    for (int64_t i = 0; i < 5; ++i) expect(sums(i) == r.n * (int64_t{1} << 40) + i * r.n * (r.n - 1) / 2, "i64 sum", i);
    expect(r.group->sum(r.rank + 0.5) == 0.5 * r.n * r.n, "sum of a number", 0);
    expect(r.group->max(-r.rank) == 0, "max of a number", 0);
}

void scatter_and_gather_are_two_halves(World& world, Device& device) {
    const Rank r(world, device);
    for (const int64_t size : kSizes) {
        const Tensor x = r.mine(size * r.n), part = r.empty(size), in_place = r.mine(size * r.n);
        r.group->reduce_scatter(x, part).wait();
        const Tensor own = in_place.narrow(0, r.rank * size, size);
        r.group->reduce_scatter(in_place, own).wait();
        const Tensor all = r.empty(size * r.n);
        r.group->all_gather(part, all).wait();
        r.group->all_gather(own, in_place).wait();
        const auto gathered = read(all), whole = read(in_place), input = read(x);
        for (int64_t i = 0; i < size * r.n; ++i) {
            const float sum = tree(0, r.n, [&](int rank) { return value(rank, i); });
            expect(gathered(i) == sum, "reduce_scatter, all_gather", i);
            expect(whole(i) == sum, "reduce_scatter, all_gather in place", i);
            expect(input(i) == value(r.rank, i), "the input of reduce_scatter stays", i);
        }
    }
}

// A sum inside groups of a power of two and a sum across them give the bits of the flat sum.
void hierarchical_sums_are_flat_sums(World& world, Device& device) {
    const Rank r(world, device);
    for (int inner = 2; inner < r.n; inner *= 2) {
        if (r.n % inner != 0) continue;
        const mesh::Mesh mesh({{mesh::Axis::dp_shard, inner}, {mesh::Axis::dp_replicate, r.n / inner}});
        const auto along = [&](mesh::Axis axis) {
            return world.group(std::string(mesh::name_of(axis)), mesh.group(r.rank, axis));
        };
        const auto shard = along(mesh::Axis::dp_shard), replicate = along(mesh::Axis::dp_replicate);
        const int64_t size = 1001;
        const Tensor x = r.mine(size * inner), part = r.empty(size), flat = r.mine(size * inner);
        shard->reduce_scatter(x, part).wait();
        replicate->all_reduce(part).wait();
        r.group->all_reduce(flat).wait();
        const auto nested = read(part), at_once = read(flat);
        for (int64_t i = 0; i < size; ++i) expect(nested(i) == at_once(shard->rank() * size + i), "hierarchy", i);
    }
}

void broadcast_from_every_rank(World& world, Device& device) {
    const Rank r(world, device);
    for (int root = 0; root < r.n; ++root) {
        const Tensor x = r.mine(513);
        r.group->broadcast(x, root).wait();
        const auto got = read(x);
        for (int64_t i = 0; i < 513; ++i) expect(got(i) == value(root, i), "broadcast", i);
    }
}

// Rank s sends (s + 2 d) % 5 elements to rank d: none to some.
void all_to_all_with_unequal_counts(World& world, Device& device) {
    const Rank r(world, device);
    const auto count = [](int from, int to) { return static_cast<int64_t>((from + 2 * to) % 5); };
    std::vector<int64_t> out, in;
    for (int p = 0; p < r.n; ++p) {
        out.push_back(count(r.rank, p));
        in.push_back(count(p, r.rank));
    }
    const Tensor x = r.mine(std::accumulate(out.begin(), out.end(), int64_t{0}));
    const Tensor y = r.empty(std::accumulate(in.begin(), in.end(), int64_t{0}));
    r.group->all_to_all(x, out, y, in).wait();
    const auto got = read(y);
    int64_t at = 0;
    for (int from = 0; from < r.n; ++from) {
        int64_t before = 0;
        for (int to = 0; to < r.rank; ++to) before += count(from, to);
        for (int64_t i = 0; i < count(from, r.rank); ++i, ++at)
            expect(got(at) == value(from, before + i), "all_to_all", at);
    }
}

// All ranks send before they receive, in a ring: a send must not block until its receiver begins.
void messages_keep_their_order(World& world, Device& device) {
    const Rank r(world, device);
    if (r.n == 1) return;
    const int next = (r.rank + 1) % r.n, previous = (r.rank + r.n - 1) % r.n;
    std::vector<Tensor> out, in;
    std::vector<Work> work;
    for (int64_t k = 0; k < 10; ++k) {
        std::vector<float> values = r.my_values(k * 37);
        if (k > 0) values[0] = static_cast<float>(100 * r.rank + k);
        out.push_back(r.of(values));
        work.push_back(r.group->send(out.back(), next));
    }
    for (int64_t k = 0; k < 10; ++k) {
        in.push_back(r.empty(k * 37));
        work.push_back(r.group->receive(in.back(), previous));
    }
    for (Work& w : work) w.wait();
    for (int64_t k = 1; k < 10; ++k) {
        const auto got = read(in[to_size(k)]);
        expect(got(0) == static_cast<float>(100 * previous + k), "order", k);
        expect(got(36) == value(previous, 36), "content", k);
    }
}

// More operations than slots, in two groups, waited for in reverse order.
void many_operations_are_in_flight_at_once(World& world, Device& device) {
    const Rank r(world, device, "first");
    const auto second = world.everyone("second");
    std::vector<Tensor> xs;
    std::vector<Work> works;
    for (int k = 0; k < 200; ++k) {
        xs.push_back(r.of(std::vector<float>(17, static_cast<float>(k + r.rank))));
        works.push_back((k % 2 ? *second : *r.group).all_reduce(xs.back()));
    }
    for (size_t k = works.size(); k-- > 0;) {
        works[k].wait();
        const int n = r.n, expected = static_cast<int>(k) * n + n * (n - 1) / 2;
        expect(read(xs[k])(16) == static_cast<float>(expected), "one of many", static_cast<int64_t>(k));
    }
}

void subgroups_do_not_mix(World& world, Device& device) {
    const Rank r(world, device);
    std::vector<int> mine;  // ranks of the same parity, in falling order
    for (int rank = r.n - 1; rank >= 0; --rank)
        if (rank % 2 == r.rank % 2) mine.push_back(rank);
    const auto group = world.group("parity", mine);
    check(group->ranks()[to_size(group->rank())] == r.rank, "conformance: own place in a group");
    const double expected = std::accumulate(mine.begin(), mine.end(), 0.0);
    for (int k = 0; k < 20; ++k) expect(group->sum(r.rank) == expected, "subgroup", k);
}

void traffic_follows_the_formulas(World& world, Device& device) {
    const Rank r(world, device);
    if (r.n == 1) return;  // in a group of one rank, operations in place do not begin
    const int64_t n = r.n, size = 128;
    const Tensor x = r.mine(size * n), part = r.empty(size);
    r.group->all_reduce(x).wait();
    r.group->reduce_scatter(x, part).wait();
    r.group->all_gather(part, x).wait();
    const auto sent = [&](Kind kind) { return r.group->traffic(kind).sent; };
    const int64_t bytes = 4 * size * n;
    check(sent(Kind::all_reduce) == 2 * bytes / n * (n - 1) && sent(Kind::reduce_scatter) == bytes / n * (n - 1) &&
              sent(Kind::all_gather) == bytes / n * (n - 1) && r.group->traffic(Kind::all_gather).bytes == bytes &&
              r.group->traffic(Kind::all_reduce).calls == 1,
          "conformance: traffic");
}

}  // namespace

std::vector<Check> checks() {
    return {{"all_reduce_sums_along_the_tree", all_reduce_sums_along_the_tree},
            {"sixteen_bits_add_in_f32_and_round_once", sixteen_bits_add_in_f32_and_round_once},
            {"maxima_and_integers", maxima_and_integers},
            {"scatter_and_gather_are_two_halves", scatter_and_gather_are_two_halves},
            {"hierarchical_sums_are_flat_sums", hierarchical_sums_are_flat_sums},
            {"broadcast_from_every_rank", broadcast_from_every_rank},
            {"all_to_all_with_unequal_counts", all_to_all_with_unequal_counts},
            {"messages_keep_their_order", messages_keep_their_order},
            {"many_operations_are_in_flight_at_once", many_operations_are_in_flight_at_once},
            {"subgroups_do_not_mix", subgroups_do_not_mix},
            {"traffic_follows_the_formulas", traffic_follows_the_formulas}};
}

}  // namespace tutti::comm::conformance
