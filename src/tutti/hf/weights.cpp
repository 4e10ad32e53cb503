#include "tutti/hf/weights.h"

#include <algorithm>
#include <optional>
#include <set>

#include "tutti/base/to_size.h"
#include "tutti/checkpoint/training_state.h"
#include "tutti/hf/expert_tensors.h"
#include "tutti/ops/ops.h"
#include "tutti/spec/later_names.h"
#include "tutti/spec/layers.h"
#include "tutti/spec/variants.h"

namespace tutti::hf {

using autograd::Parameter;
using checkpoint::ShardedSafetensors;
using checkpoint::TensorInfo;

namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr size_t kListed = 20;                      // problems in a message
constexpr int64_t kPieceBytes = int64_t{64} << 20;  // that a tensor is read in

Shape shape_of(const TensorInfo& info) {
    Shape shape;
    for (const int64_t size : info.shape) {
        if (shape.rank() == Shape::kMaxDims) break;  // more dims than any parameter has: it differs
        shape.push_back(size);
    }
    return shape;
}

// The problems of a model's files or values, collected.
class Problems {
  public:
    template <class... Parts>
    void add(const Parts&... parts) {
        if (all_.size() < kListed) all_.push_back(concat(parts...));
        ++count_;
    }
    std::string text() const {
        std::string text;
        for (const std::string& problem : all_) text += "\n  " + problem;
        if (count_ > all_.size()) text += concat("\n  and ", count_ - all_.size(), " more");
        return text;
    }
    void throw_if_any(const std::string& path) const {
        check<DataError>(count_ == 0, path, " does not fit the model:", text());
    }

  private:
    std::vector<std::string> all_;
    size_t count_ = 0;
};

// What reads bytes that lie in blocks of `block`, `step` apart, the first of them at `begin` of what `read` reads.
using Read = std::function<void(int64_t place, std::span<std::byte> out)>;
Read in_blocks(Read read, int64_t block, int64_t begin, int64_t step) {
    return [=](int64_t offset, std::span<std::byte> out) {
        while (!out.empty()) {
            const int64_t inside = offset % block;
            const auto bytes = to_size(std::min(block - inside, static_cast<int64_t>(out.size())));
            read(begin + offset / block * step + inside, out.first(bytes));
            offset += static_cast<int64_t>(bytes);
            out = out.subspan(bytes);
        }
    };
}

void check_tensor(const Shape& wanted, const std::string& name, const TensorInfo* info, Problems& problems,
                  bool bytes = false) {
    if (info == nullptr) return problems.add(name, " is missing; the model needs ", wanted);
    if (shape_of(*info) != wanted || info->shape.size() != to_size(wanted.rank()))
        problems.add(name, " is ", shape_of(*info), ", the model needs ", wanted);
    if (bytes && info->dtype != DType::u8)
        problems.add(name, " is of type ", info->dtype, ", blocks and scales of mxfp4 are u8");
    if (!bytes && !is_weight_type(info->dtype))
        problems.add(name, " is of type ", info->dtype, ", weights are f32, bf16 or f16");
}

// Whether two tensors of the files hold the same bytes.
bool equal(const ShardedSafetensors& files, const std::string& a, const std::string& b) {
    const TensorInfo &x = *files.find(a), &y = *files.find(b);
    if (x.dtype != y.dtype || x.shape != y.shape) return false;
    for (int64_t at = 0; at < x.bytes(); at += kPieceBytes) {
        std::vector<std::byte> p(to_size(std::min(kPieceBytes, x.bytes() - at))), q(p.size());
        files.read(a, at, p);
        files.read(b, at, q);
        if (p != q) return false;
    }
    return true;
}

// "3 values become 0"
std::string becoming(int64_t values, std::string_view what) {
    return concat(values, values == 1 ? " value becomes " : " values become ", what);
}

// The first part of the names of a model's tensors, and what the files have in its place.
struct Prefix {
    std::string ours, theirs;
    bool of_text = false;  // the files hold more than a text model: images
    std::string in_files(const std::string& name) const {
        return name.starts_with(ours) ? theirs + name.substr(ours.size()) : name;
    }
};
// Files of a model without its head lack "model." or "transformer."; those for images and text say that a tensor is of
// the text's model, in one of two ways.
Prefix prefix_of(const ShardedSafetensors& files, const models::Model& model) {
    const std::string name = tensor_names(*model.parameters().front()).front();
    if (files.find(name) != nullptr) return {};
    for (Prefix prefix : {Prefix{name.substr(0, name.find('.') + 1), ""},
                          {"model.", "model.language_model.", true},
                          {"", "language_model.", true}})
        if (files.find(prefix.in_files(name)) != nullptr) return prefix;
    return {};
}

// Experts that files may also hold in one tensor of a layer (Qwen3.5): gate over up (E, 2 F, C), down (E, C, F).
struct Together {
    std::string name;
    Shape shape;
    int64_t first_row = 0;
};
std::optional<Together> together(const Parameter& p, const std::string& of_expert) {
    const size_t place = of_expert.rfind(".experts.");
    if (place == std::string::npos || p.shape.rank() != 3) return std::nullopt;
    const std::string block = of_expert.substr(0, place + 9);
    if (p.role == autograd::Role::expert_row) return Together{block + "down_proj", p.shape};
    const bool up = of_expert.ends_with(".up_proj.weight");
    return Together{block + "gate_up_proj", {p.shape[0], 2 * p.shape[1], p.shape[2]}, up ? p.shape[1] : 0};
}

bool is_legacy_buffer(std::string_view tensor) {
    return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias") ||
           tensor.ends_with(".rotary_emb.inv_freq");
}

// model.layers.61.* of a model of 61 layers, or mtp.*: they predict more tokens than the model does.
bool is_of_a_layer_behind(std::string_view tensor, const spec::ModelSpec& spec) {
    const std::optional<int64_t> place = spec::place_behind(spec, tensor);
    return place && *place >= spec::layers_behind(spec);
}

}  // namespace

std::vector<std::string> tensor_names(const Parameter& p) {
    const autograd::StoredAs& stored = p.stored_as;
    const std::string& name = stored.name.empty() ? p.name : stored.name;
    const size_t star = name.find('*');
    if (in_one_tensor(p)) return {name};
    check(stored.rows == 0 || (star == name.npos && !stored.transposed), p.name,
          ": some rows of a tensor are neither transposed nor of several experts");
    if (star == name.npos) return {name};
    std::vector<std::string> names;
    for (int64_t e = 0; e < p.shape[0]; ++e) names.push_back(concat(name.substr(0, star), e, name.substr(star + 1)));
    return names;
}

Shape shape_in_file(const Parameter& p) {
    Shape shape = p.shape;
    if (in_one_tensor(p)) return expert_layout(p).file_shape();
    if (p.stored_as.name.find('*') != std::string::npos) shape = {p.shape[1], p.shape[2]};
    if (p.stored_as.rows > 0) shape[0] = p.stored_as.rows;
    return p.stored_as.transposed ? Shape{shape[1], shape[0]} : shape;
}

std::vector<TensorCopy> copies_in_files(const models::Model& model) {
    std::vector<TensorCopy> copies;
    const std::vector<Parameter*>& all = model.parameters();
    const spec::ModelSpec& spec = model.spec();
    const Parameter* head = spec.tie_embeddings ? all.front() : &model.parameter(kHead);
    if (spec::variant_of(spec).later != spec::LaterFiles::layers) return copies;
    for (int64_t k = 0; k < spec.mtp_depth; ++k) {
        const std::string layer = spec::later_names(spec, k).layers.front();
        copies.push_back({layer + ".embed_tokens.weight", all.front()});
        copies.push_back({layer + ".shared_head.head.weight", head});
    }
    return copies;
}

std::string describe(const Losses& losses) {
    Problems problems;
    for (const auto& [name, loss] : losses) {
        std::vector<std::string> parts;
        if (loss.infinite > 0) parts.push_back(becoming(loss.infinite, "infinite"));
        if (loss.zero > 0) parts.push_back(becoming(loss.zero, "0"));
        if (loss.not_finite > 0)
            parts.push_back(concat(loss.not_finite, loss.not_finite == 1 ? " value is" : " values are", " not finite"));
        problems.add(name, ": ", joined(parts));
    }
    return problems.text();
}

bool any_infinite(const Losses& losses) {
    return std::any_of(losses.begin(), losses.end(), [](const auto& entry) { return entry.second.infinite > 0; });
}

StoredWeights StoredWeights::in_directory(checkpoint::FileSystem& file_system, const std::string& directory,
                                          const models::Model& model) {
    const auto files = std::make_shared<const ShardedSafetensors>(ShardedSafetensors::open(file_system, directory));
    const Prefix prefix = prefix_of(*files, model);
    const std::string head = prefix.in_files(kHead);
    const auto names_of = [&](const Parameter& p) {
        std::vector<std::string> names = tensor_names(p);
        for (std::string& name : names) name = prefix.in_files(name);
        // A tied weight has two names, and writers keep either: save_model of safetensors the head's.
        const bool tied = model.spec().tie_embeddings && &p == model.parameters().front();
        if (tied && files->find(names.front()) == nullptr && files->find(head) != nullptr) names = {head};
        return names;
    };
    StoredWeights stored;
    stored.path_ = files->path();
    Problems problems;
    std::set<std::string> used;
    for (const Parameter* p : model.parameters()) {
        const std::vector<std::string> names = names_of(*p);
        if (in_one_tensor(*p)) {
            const std::vector<NeededTensor> needed = needed_tensors(*files, *p, names.front());
            bool complete = true;
            for (const NeededTensor& tensor : needed) {
                const TensorInfo* info = files->find(tensor.name);
                complete = complete && info != nullptr;
                if (used.insert(tensor.name).second)
                    check_tensor(tensor.shape, tensor.name, info, problems, tensor.bytes);
            }
            if (complete) stored.weights_[p->name] = {type_of(*files, needed), read_experts(files, *p, needed), false};
            continue;
        }
        if (const auto all = together(*p, names.front());
            all && files->find(names.front()) == nullptr && files->find(all->name) != nullptr) {
            const TensorInfo* info = files->find(all->name);
            if (used.insert(all->name).second) check_tensor(all->shape, all->name, info, problems);
            const int64_t row = p->shape[2] * size_of(info->dtype);
            stored.weights_[p->name] = {
                info->dtype,
                in_blocks([files, name = all->name](int64_t place,
                                                    std::span<std::byte> out) { files->read(name, place, out); },
                          p->shape[1] * row, all->first_row * row, all->shape[1] * row),
                false};
            continue;
        }
        const Shape wanted = shape_in_file(*p);
        const TensorInfo* first = files->find(names.front());
        for (const std::string& name : names) {
            if (!used.insert(name).second) continue;  // other rows of it
            const TensorInfo* info = files->find(name);
            check_tensor(wanted, name, info, problems);
            if (first && info && info->dtype != first->dtype)
                problems.add(name, " is of type ", info->dtype, ", and ", first->name, ", which it is stacked with, ",
                             first->dtype);
        }
        if (first == nullptr) continue;
        const int64_t bytes_of_row = wanted.numel() / wanted[0] * size_of(first->dtype);
        const int64_t each = p->shape.numel() / static_cast<int64_t>(names.size()) * size_of(first->dtype);
        // One tensor, of whose rows the parameter may be some; or as long a piece of several.
        const autograd::StoredAs& rows = p->stored_as;
        const auto read = [files, names, each](int64_t place, std::span<std::byte> out) {
            files->read(names.at(to_size(place / each)), place % each, out);
        };
        const auto of_rows = [files, name = names.front()](int64_t place, std::span<std::byte> out) {
            files->read(name, place, out);
        };
        stored.weights_[p->name] = {first->dtype,
                                    rows.rows > 0
                                        ? in_blocks(of_rows, rows.row_block * bytes_of_row,
                                                    rows.first_row * bytes_of_row, rows.row_step * bytes_of_row)
                                        : in_blocks(read, each, 0, each),
                                    p->stored_as.transposed};
    }
    for (const TensorCopy& copy : copies_in_files(model)) {
        const std::string of = names_of(*copy.of).front();
        if (files->find(copy.name) == nullptr) continue;
        used.insert(copy.name);
        if (files->find(of) != nullptr && !equal(*files, copy.name, of))
            problems.add(copy.name, " differs from ", of, ", which the model has in its place");
    }
    for (const std::string& name : files->names()) {
        if (used.contains(name) || is_legacy_buffer(name)) continue;
        if (is_of_a_layer_behind(name, model.spec())) continue;
        if (prefix.of_text && !name.starts_with(prefix.theirs)) continue;  // of images
        const bool tied_head = model.spec().tie_embeddings && name == head;
        const std::string embedding = names_of(*model.parameters().front()).front();
        if (tied_head && files->find(embedding) != nullptr && equal(*files, name, embedding)) continue;
        problems.add(name, tied_head ? " differs from the embedding, but config.json ties them: tie_word_embeddings"
                                     : " is unexpected: the model has no such parameter");
    }
    problems.throw_if_any(stored.path_);
    return stored;
}

StoredWeights StoredWeights::in_checkpoint(const checkpoint::CheckpointReader& reader, const models::Model& model) {
    StoredWeights stored;
    stored.path_ = reader.path();
    std::map<std::string, checkpoint::TensorRecord> records;
    for (checkpoint::TensorRecord& record : checkpoint::stored_tensors(reader))
        records[record.name] = std::move(record);
    const std::shared_ptr<Device> host = make_cpu_device(1);
    Problems problems;
    for (const Parameter* p : model.parameters()) {
        const auto found = records.find(p->name);
        if (found == records.end()) {
            check_tensor(p->shape, p->name, nullptr, problems);
            continue;
        }
        const checkpoint::TensorRecord& record = found->second;
        const TensorInfo info{
            .name = p->name, .dtype = record.dtype, .shape = {record.shape.begin(), record.shape.end()}};
        check_tensor(p->shape, p->name, &info, problems);
        const auto read = [&reader, host, p, dtype = record.dtype](int64_t offset, std::span<std::byte> out) {
            const auto count = static_cast<int64_t>(out.size()) / size_of(dtype);
            const Tensor values = Tensor::empty(*host, {count}, dtype, Purpose::data);
            const int64_t begin = offset / size_of(dtype);
            const auto blocks = mesh::blocks_of_range(mesh::whole_part(p->shape), begin, begin + count);
            checkpoint::load_slices(reader, {{p->name, p->shape, blocks, values}});
            host->copy_out(out.data(), values.view().data, values.bytes());
        };
        stored.weights_[p->name] = {record.dtype, read, false};
    }
    problems.throw_if_any(stored.path_);
    return stored;
}

DType StoredWeights::main_dtype(const models::Model& model) const {
    std::map<DType, int64_t> values;
    for (const Parameter* p : model.parameters()) values[dtype(p->name)] += p->shape.numel();
    return std::max_element(values.begin(), values.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
}

std::vector<std::byte> StoredWeights::stored_bytes(const Parameter& p, bool transposed, const PartOf& part) const {
    const StoredWeight& weight = weights_.at(p.name);
    const int64_t size = p.shape.numel() / part.parts * size_of(weight.dtype);
    std::vector<std::byte> bytes(to_size(size));
    weight.read(part.part * size, bytes);
    if (weight.transposed == transposed) return bytes;
    check(part.parts == 1, p.name, ": a part of it cannot be transposed");
    std::vector<std::byte> other(bytes.size());
    const int64_t rows = weight.transposed ? p.shape[1] : p.shape[0];
    transpose(bytes, rows, p.shape.numel() / rows, size_of(weight.dtype), other);
    return other;
}

std::vector<std::byte> StoredWeights::read(const Parameter& p, DType dtype, Losses& losses, bool transposed,
                                           const PartOf& part) const {
    std::vector<std::byte> bytes = stored_bytes(p, transposed, part);
    const DType stored = weights_.at(p.name).dtype;
    Loss loss{.not_finite = count_not_finite(stored, bytes)};
    if (stored != dtype) {
        std::vector<std::byte> converted(to_size(p.shape.numel() / part.parts * size_of(dtype)));
        loss += convert(stored, bytes, dtype, converted);
        bytes = std::move(converted);
    }
    if (loss.any()) losses[p.name] += loss;
    return bytes;
}

void StoredWeights::load(const Parameter& p, const std::vector<mesh::HeldBlock>& blocks, const Tensor& values) const {
    const StoredWeight& weight = weights_.at(p.name);
    const int64_t element = size_of(values.dtype()), stored = size_of(weight.dtype);
    constexpr int64_t kPiece = kPieceBytes / 4;
    std::vector<std::byte> whole, piece, to;
    if (weight.transposed) whole = stored_bytes(p, false);
    const auto read = [&](int64_t first, int64_t count) -> std::span<const std::byte> {
        const auto bytes = to_size(count * stored);
        if (weight.transposed) return std::span(whole).subspan(to_size(first * stored), bytes);
        piece.resize(bytes);
        weight.read(first * stored, piece);
        return piece;
    };
    for (const mesh::HeldBlock& held : blocks)
        mesh::for_each_run(
            held.block, mesh::whole_block(p.shape), held.block, [&](int64_t first, int64_t begin, int64_t n) {
                for (int64_t at = 0; at < n; at += kPiece) {
                    const int64_t count = std::min(kPiece, n - at);
                    const std::span<const std::byte> from = read(first + at, count);
                    to.resize(to_size(count * element));
                    convert(weight.dtype, from, values.dtype(), to);
                    if (const auto bad = first_not_finite(values.dtype(), to))
                        throw DataError(concat(path_, ": value ", first + at + *bad, " of ", p.name, " is ",
                                               value_at(weight.dtype, from, *bad), ", which is not finite in ",
                                               values.dtype(), "; required: weights that are finite"));
                    values.device().copy_in(values.view().as<std::byte>() + (held.begin + begin + at) * element,
                                            to.data(), static_cast<int64_t>(to.size()));
                }
            });
}

void StoredWeights::load(ops::Context& ctx, models::Model& model) const {
    for (Parameter* p : model.parameters()) {
        const Tensor& target = p->master.defined() ? p->master : p->value;
        const mesh::Part part = p->part();
        check(target.defined() && target.shape() == part.shape, p->name, " has no memory for its weights");
        int64_t padding = target.numel();
        for (const mesh::HeldBlock& held : part.blocks) padding -= held.block.numel();
        if (padding > 0) ops::fill(ctx, target, 0);
        load(*p, part.blocks, target.reshape({target.numel()}));
        if (p->master.defined() && p->value.dtype() != p->master.dtype()) ops::cast_into(ctx, p->master, p->value);
    }
}

}  // namespace tutti::hf
